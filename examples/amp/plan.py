"""Plan AMP's three set-ups: every strategy of AMP's space, each with its best split of the layers.

Usage: python examples/amp/plan.py [SETUP ...] [--top N] [--json FILE]

AMP's space: tp divides the 4 GPUs of a node, dp the rest, pp is what remains of 16 GPUs, and the
micro-batch divides what a replica gets of the global batch. Ranks go over the nodes in order, the
V100 first. Beside the best split stands the uniform one, as many layers on each stage.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster.clusterfile import load_cluster
from astrarium.cost.mixed import ClusterModel, StageTables
from astrarium.cost.schedule import pipeline_seconds, ragged_stages
from astrarium.model import load_model
from astrarium.model.workload import Precision, Workload
from astrarium.search.split.partition import SplitProblem, best_splits
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.placement import laid_over

HERE = Path(__file__).parent
GPUS, PER_NODE = 16, 4
RUNTIME = "deepspeed-megatron"


@dataclass(frozen=True)
class Setup:
    """One of AMP's experiments; `amp_gain` is its own best over the best uniform strategy."""

    name: str
    model: str
    cluster: str
    seq_length: int
    global_batch: int
    amp_gain: float | None


SETUPS = (
    Setup("homogeneous", "gpt2.yaml", "t4.yaml", 1024, 32, None),
    Setup("mixed cluster", "gpt2.yaml", "mixed.yaml", 1024, 32, 1.54),
    Setup("unequal layers", "transgan.yaml", "v100.yaml", 1, 64, 1.77),
)


@dataclass(frozen=True)
class Priced:
    """A strategy of AMP's space with its best split and with the uniform one."""

    tp: int
    dp: int
    pp: int
    micro_batch: int
    stages: list[int]
    iteration_seconds: float
    fits: bool
    peak_bytes: float
    uniform_stages: list[int]
    uniform_seconds: float
    uniform_fits: bool


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def space(global_batch: int) -> list[tuple[int, int, int, int]]:
    """Every (tp, dp, pp, micro-batch) that AMP considers."""
    return [
        (tp, dp, GPUS // (tp * dp), micro_batch)
        for tp in divisors(PER_NODE)
        for dp in divisors(GPUS // tp)
        for micro_batch in divisors(global_batch // dp)
    ]


def uniform_bounds(layers: int, stages: int) -> list[int]:
    """As even as can be, the first stages the longer ones."""
    sizes = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return [0, *np.cumsum(sizes).tolist()]


class Pricing:
    """All strategies of one set-up: what stages cost, how layers are best cut, what fits."""

    def __init__(self, setup: Setup) -> None:
        cluster = load_cluster(HERE / setup.cluster)
        model = load_model(str(HERE / setup.model))
        workload = Workload(model, setup.seq_length, setup.global_batch, precision=Precision.FP16)
        self.layers, self.batch = model.num_layers, setup.global_batch
        self.space = [x for x in space(setup.global_batch) if x[2] <= self.layers]
        sizes = [pool.num_gpus for pool in cluster.pools]
        self.strategies = [self._strategy(*each) for each in self.space]
        self.model = ClusterModel(workload, cluster, find_runtime(RUNTIME))
        placed = [laid_over(tp * dp, pp, sizes) for tp, dp, pp, _ in self.space]
        of_stage = [[tuple(pool for pool, _ in parts) for parts in ranks] for ranks in placed]
        classes = sorted({one for ranks in of_stage for one in ranks})
        self.class_of = [np.array([classes.index(one) for one in ranks]) for ranks in of_stage]
        self.tables: StageTables = self.model.stage_tables(
            degrees_of(self.strategies),
            options_of(self.strategies),
            classes,
            np.tile(np.array(sizes), (len(self.space), 1)),
        )
        of_range, size = self.tables.contents.of_range, self.layers + 1
        first, count = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
        stop = np.minimum(first + count, self.layers)
        inside = (count > 0) & (first + count <= self.layers)
        self.held = np.where(inside, of_range[first, stop], -1)

    def _strategy(self, tp: int, dp: int, pp: int, micro_batch: int):  # noqa: ANN202
        given = {"tp": tp, "dp": dp, "pp": pp, "micro_batch": micro_batch, "split": "balanced"}
        given |= {"sequence_parallel": False, "zero_stage": 0, "overlap_grad_reduce": False}
        return strategy_from_dict(
            given, where="AMP", gpus=GPUS, global_batch=self.batch, layers=self.layers
        )

    def by_range(self, row: int, values: Floats) -> Floats:
        """(classes, L + 1, L + 1): a stage of each class with layers [i, i + n)."""
        return np.where(self.held >= 0, values[row][:, self.held], np.inf)

    def micro_batches(self, row: int) -> int:
        _, dp, _, micro_batch = self.space[row]
        return self.batch // (dp * micro_batch)

    def in_flight(self, row: int) -> Ints:
        pp = self.space[row][2]
        return np.minimum(self.micro_batches(row), pp - np.arange(pp))

    def problem(self, row: int) -> SplitProblem:
        tables, stage_class = self.tables, self.class_of[row]
        fixed, flight = (self.by_range(row, x) for x in (tables.fixed_bytes, tables.flight_bytes))
        held = fixed[stage_class] + self.in_flight(row)[:, None, None] * flight[stage_class]
        fits = held <= tables.capacity[stage_class][:, None, None]
        behind = np.append(stage_class[1:], stage_class[:1])
        return SplitProblem(
            self.by_range(row, tables.forward),
            self.by_range(row, tables.backward),
            self.by_range(row, tables.after),
            stage_class,
            fits.sum(axis=2),
            tables.hop[row, stage_class, behind],
            self.micro_batches(row),
            overlap_p2p=False,
        )

    def bytes_of(self, row: int, bounds: list[int]) -> Floats:
        contents = self.tables.contents.of_range[bounds[:-1], bounds[1:]]
        stage_class = self.class_of[row]
        fixed = self.tables.fixed_bytes[row, stage_class, contents]
        return fixed + self.in_flight(row) * self.tables.flight_bytes[row, stage_class, contents]

    def fits(self, row: int, bounds: list[int]) -> bool:
        return bool((self.bytes_of(row, bounds) <= self.tables.capacity[self.class_of[row]]).all())

    def seconds(self, every: Sequence[Sequence[int]]) -> list[float]:
        """Iterations, with the stages of each row: the pipeline, what follows it, a tied table."""
        tables = self.tables
        stage_class = np.concatenate(self.class_of)
        behind = np.concatenate([np.append(each[1:], each[:1]) for each in self.class_of])
        first = np.concatenate([bounds[:-1] for bounds in every])
        stop = np.concatenate([bounds[1:] for bounds in every])
        pp = np.array([len(each) for each in self.class_of])
        row = np.repeat(np.arange(len(pp)), pp)
        offsets = np.append(0, np.cumsum(pp))
        cut = stop if tables.hop.shape[3] > 1 else 0  # one for all where layers hand over the same
        at = (row, stage_class, tables.contents.of_range[first, stop])
        pipeline = pipeline_seconds(
            ragged_stages(
                tables.forward[at],
                tables.backward[at],
                tables.hop[row, stage_class, behind, cut],
                offsets,
            ),
            np.array([self.micro_batches(each) for each in range(len(pp))]),
            np.ones_like(pp),
            np.zeros(len(pp), dtype=bool),
        )
        after = np.maximum.reduceat(tables.after[at], offsets[:-1])
        ends = stage_class[offsets[:-1]], stage_class[offsets[1:] - 1]
        return (pipeline + after + tables.tied[np.arange(len(pp)), *ends]).tolist()

    def price(self) -> list[Priced]:
        problems = [self.problem(row) for row in range(len(self.space))]
        found = best_splits(problems, [np.inf] * len(problems))
        uniform = [uniform_bounds(self.layers, pp) for _, _, pp, _ in self.space]
        # Where nothing fits, any split will do.
        best = [list(split.bounds) if split else uniform[row] for row, split in enumerate(found)]
        seconds, uniform_seconds = self.seconds(best), self.seconds(uniform)
        priced = [
            Priced(
                *self.space[row],
                stages=best[row],
                iteration_seconds=seconds[row],
                fits=self.fits(row, best[row]),
                peak_bytes=float(self.bytes_of(row, best[row]).max()),
                uniform_stages=uniform[row],
                uniform_seconds=uniform_seconds[row],
                uniform_fits=self.fits(row, uniform[row]),
            )
            for row in range(len(self.space))
        ]
        return sorted(priced, key=lambda each: (not each.fits, each.iteration_seconds))


def show(setup: Setup, priced: list[Priced], top: int) -> None:
    failing = sum(not each.fits for each in priced)
    print(f"\n{setup.name}: {setup.model} on {setup.cluster}, global batch {setup.global_batch}")
    print(f"{len(priced)} strategies, {failing} find no memory")
    print(" rank  tp  dp  pp  mbs   seconds  uniform  GiB   layers per stage")
    for rank, each in enumerate(priced[:top], start=1):
        layers = " ".join(str(n) for n in np.diff(each.stages))
        seconds = f"{each.iteration_seconds:8.2f}" if each.fits else "  no room"
        uniform = f"{each.uniform_seconds:8.2f}" if each.uniform_fits else "       -"
        print(
            f"{rank:5} {each.tp:3} {each.dp:3} {each.pp:3} {each.micro_batch:4} {seconds}"
            f" {uniform} {each.peak_bytes / 2**30:5.1f}   {layers}"
        )
    first = priced[0]
    print(
        f"first choice: tp {first.tp}, dp {first.dp}, pp {first.pp},"
        f" micro-batch {first.micro_batch}: {first.iteration_seconds:.2f} s"
    )
    uniform = min((each.uniform_seconds for each in priced if each.uniform_fits), default=None)
    if uniform is not None:
        beside = f"; AMP reports {setup.amp_gain:.2f}x" if setup.amp_gain else ""
        gain = uniform / first.iteration_seconds
        print(f"best uniform strategy: {uniform:.2f} s; gain {gain:.2f}x{beside}")


def entry(setup: Setup, priced: list[Priced]) -> dict[str, object]:
    keys = ("tp", "dp", "pp", "micro_batch", "stages", "iteration_seconds", "fits", "peak_bytes")
    keys += ("uniform_stages", "uniform_seconds", "uniform_fits")
    strategies = [{key: getattr(each, key) for key in keys} for each in priced]
    return {
        "name": setup.name,
        "gpus": GPUS,
        "global_batch": setup.global_batch,
        "first": strategies[0],
        "strategies": strategies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Plan AMP's three set-ups.")
    names = [setup.name for setup in SETUPS]
    parser.add_argument("setup", nargs="*", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--top", type=int, default=100, help="strategies to show of each")
    parser.add_argument("--json", type=Path, help="write all strategies there")
    given = parser.parse_args()
    began = time.perf_counter()
    chosen = [setup for setup in SETUPS if not given.setup or setup.name in given.setup]
    entries = []
    for setup in chosen:
        priced = Pricing(setup).price()
        show(setup, priced, given.top)
        entries.append(entry(setup, priced))
    print(f"\nplanned in {time.perf_counter() - began:.2f} s")
    if given.json:
        given.json.write_text(json.dumps({"setups": entries}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
