"""Measured against predicted: real megatron-core on two cores, with and without a slow one.

    python benchmarks/measured_cpu.py --calibrate --out FOLDER      measure the processor first
    python benchmarks/measured_cpu.py --journal cpu.jsonl --out FOLDER

Trains two small models on two ranks pinned to a core each, under every way of dividing them that
two ranks have, and for every split of eight layers into two stages, with both cores whole and with
one held back to half of its time. Predictions are the planner's for `CPU-core` with the laws of
the calibration, made before anything is measured. Prints the table, the mean error, and for each
set of splits the one predicted to be the best and the one that was. Needs torch and megatron-core
0.16.1, and a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from astrarium.calibrate.fit.profile import DeviceProfile, make_header, with_measured_cores
from astrarium.calibrate.measure.journal import read_journal
from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost.tuning import Tuning
from astrarium.model.blocks import Model
from astrarium.model.load import load_model
from astrarium.model.workload import Workload
from astrarium.runtime.job import TrainingJob
from astrarium.runtime.measure import Timed, jobs_seconds
from astrarium.runtime.scaled.small import shape_of
from astrarium.search import planner
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Strategy

LAYERS = 8
SEQ_LENGTH = 256
AT_ONCE = 8  # cases that a set of processes does: old ones become slower
SECTIONS = ("processor", "host", "collectives")
MODELS: dict[str, dict[str, Any]] = {
    # The head is worth two layers, so that even stages are not the best.
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": LAYERS,
        "vocab_size": 6144,
        "tie_word_embeddings": False,
        "max_position_embeddings": SEQ_LENGTH,
        "hidden_act": "silu",
    },
    "gpt": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 256,
        "n_inner": 1024,
        "n_head": 4,
        "n_layer": LAYERS,
        "vocab_size": 1024,
        "n_positions": SEQ_LENGTH,
        "activation_function": "gelu",
    },
}
WHOLE, SECOND_SLOW, FIRST_SLOW = (1.0, 1.0), (1.0, 0.5), (0.5, 1.0)


@dataclass(frozen=True)
class Case:
    """One row of the table; `split` gives the layers of the first of two stages."""

    model: str
    tp: int = 1
    pp: int = 1
    split: int = 0
    micro_batch: int = 1
    micro_batches: int = 4
    shares: tuple[float, float] = WHOLE
    sequence_parallel: bool = False

    @property
    def dp(self) -> int:
        return 2 // (self.tp * self.pp)

    @property
    def name(self) -> str:
        ways = [f"{axis}{n}" for axis in ("tp", "pp", "dp") if (n := getattr(self, axis)) > 1]
        ways += [f"{self.split}+{LAYERS - self.split}"] if self.split else []
        ways += ["sp"] if self.sequence_parallel else []
        return f"{self.model} {' '.join(ways)}"

    @property
    def cores(self) -> str:
        return " and ".join("whole" if share == 1.0 else f"{share:g}" for share in self.shares)


def cases(quick: bool) -> list[Case]:
    """All rows; those with the same shares of cores next to each other."""
    found = []
    for model in MODELS:
        for micro_batches in (2,) if quick else (2, 8):
            found += [
                Case(model, tp=2, micro_batches=micro_batches),
                Case(model, micro_batches=micro_batches),
                Case(model, pp=2, split=4, micro_batches=micro_batches),
            ]
        found += [Case(model, pp=2, split=2, micro_batches=2)]
        found += [
            Case(model, tp=2, micro_batch=2),
            Case(model, pp=2, split=5, micro_batch=2),
            Case(model, tp=2, sequence_parallel=True),
        ]
    for shares in (WHOLE, SECOND_SLOW, FIRST_SLOW):
        splits = range(3, 6) if quick else range(1, LAYERS)
        found += [Case("llama", pp=2, split=split, shares=shares) for split in splits]
    return found


@cache
def model_of(name: str) -> Model:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(MODELS[name]))
        return load_model(str(path))


def cluster_of(case: Case, header: dict[str, Any]) -> Cluster:
    if case.shares == WHOLE:
        cluster = parse_gpus("cpu:2")
    else:
        cluster = parse_gpus(",".join(f"{name}:1" for name in types(case)))
    return with_measured_cores(cluster, header)


def types(case: Case) -> list[str]:
    """The device of each rank."""
    return ["CPU-core" if share == 1.0 else f"CPU-core@{100 * share:g}%" for share in case.shares]


def strategy_of(case: Case) -> Strategy:
    given: dict[str, Any] = {
        "tp": case.tp,
        "pp": case.pp,
        "dp": case.dp,
        "micro_batch": case.micro_batch,
        "zero_stage": 0,
        "sequence_parallel": case.sequence_parallel,
        "overlap": dict.fromkeys(("grad_reduce", "param_gather", "tp", "p2p"), False),
    }
    if case.split:
        bounds = ((0, case.split), (case.split, LAYERS))
        given["stages"] = [
            {"gpu": gpu, "layers": list(layers), "devices": 1}
            for gpu, layers in zip(types(case), bounds, strict=True)
        ]
    batch = sequences(case)
    return strategy_from_dict(given, where=case.name, gpus=2, global_batch=batch, layers=LAYERS)


def sequences(case: Case) -> int:
    return case.micro_batch * case.micro_batches * case.dp


def predicted(case: Case, header: dict[str, Any], tuning: Tuning) -> float:
    workload = Workload(model_of(case.model), SEQ_LENGTH, sequences(case))
    cluster = cluster_of(case, header)
    return planner.predict(workload, cluster, strategy_of(case), tuning=tuning).iteration_seconds


def job_of(case: Case) -> TrainingJob:
    return TrainingJob(case.name, shape_of(model_of(case.model)), SEQ_LENGTH, strategy_of(case))


def measured(every: Sequence[Case]) -> Iterator[list[Timed]]:
    """Times in the order of the cases; a few with the same shares of cores run in one go."""
    for shares, group in groupby(every, key=lambda case: case.shares):
        jobs = [job_of(case) for case in group]
        for first in range(0, len(jobs), AT_ONCE):
            began = time.monotonic()
            yield jobs_seconds(jobs[first : first + AT_ONCE], shares)
            print(f"ranks with {shares}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def calibrated(journal: Path) -> None:
    from astrarium.calibrate.measure.device import MeasureRequest, calibrate

    asked = MeasureRequest(journal, device="cpu", sections=SECTIONS, seconds=120.0, ranks=2)
    calibrate(asked, lambda case, done, total: None)


def rows_of(
    every: Sequence[Case], expected: Sequence[float], timed: Sequence[Timed]
) -> list[dict[str, Any]]:
    return [
        {
            "case": case.name,
            "model": case.model,
            "split": case.split,
            "micro_batches": case.micro_batches,
            "micro_batch": case.micro_batch,
            "cores": case.cores,
            "measured_seconds": time_.seconds,
            "low_seconds": time_.low,
            "high_seconds": time_.high,
            "predicted_seconds": seconds,
            "error": seconds / time_.seconds - 1.0,
        }
        for case, seconds, time_ in zip(every, expected, timed, strict=True)
    ]


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    names = f"{'measured ms':>12} {'predicted':>10} {'error':>8}"
    yield f"{'case':22} {'cores':15} {'m x b':>6} {names}"
    for row in rows:
        batches = f"{row['micro_batches']} x {row['micro_batch']}"
        yield (
            f"{row['case']:22} {row['cores']:15} {batches:>6} {1e3 * row['measured_seconds']:12.1f}"
            f" {1e3 * row['predicted_seconds']:10.1f} {100 * row['error']:+7.1f} %"
        )
    errors = np.array([row["error"] for row in rows])
    yield (
        f"{len(rows)} cases: mean error {100 * np.abs(errors).mean():.1f} %,"
        f" mean signed {100 * errors.mean():+.1f} %, largest {100 * np.abs(errors).max():.1f} %"
    )
    shortest = np.array([row["predicted_seconds"] / row["low_seconds"] - 1.0 for row in rows])
    yield f"against the shortest iteration of each: {100 * np.abs(shortest).mean():.1f} %"


def best_splits(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For every set of splits, which is predicted to be the best and which was."""
    alike = ("model", "cores", "micro_batches", "micro_batch")
    sets: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["split"]:
            sets.setdefault(tuple(row[name] for name in alike), []).append(row)
    for key, found in sets.items():
        if len(found) > 2:
            first = min(found, key=lambda row: row["predicted_seconds"])
            best = min(found, key=lambda row: row["measured_seconds"])
            loss = first["measured_seconds"] / best["measured_seconds"] - 1.0
            yield (
                f"{key[0]}, cores {key[1]}: predicted best {first['case']}, measured best"
                f" {best['case']}, lost {100 * loss:.1f} %"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--journal", type=Path, help="of `astrarium calibrate --device cpu`")
    parser.add_argument("--calibrate", action="store_true", help="measure the processor first")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.journal or options.out / "cpu.jsonl"
    if options.calibrate:
        calibrated(journal)
    header = make_header(read_journal(journal))
    tuning = Tuning(**DeviceProfile(journal, header).tuning)
    every = cases(options.quick)
    expected = [predicted(case, header, tuning) for case in every]
    timed: list[Timed] = []
    for some in measured(every):  # what there is is kept, should the time be up
        timed += some
        known = len(timed)
        rows = rows_of(every[:known], expected[:known], timed)
        text = "\n".join([*table(rows), *best_splits(rows)])
        (options.out / "measured.json").write_text(json.dumps(rows, indent=1))
        (options.out / "measured.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
