"""Calibrates prediction intervals on measured iterations, each source held back in turn.

    python benchmarks/fit_intervals.py [TABLE.csv or FOLDER ...] [--date D] [--out FILE]

Without tables those of benchmarks/accuracy are taken. Sources named ...-unseen are left for later
checks: nothing is fitted to them. Writes catalog/data/intervals.json, prints
how often intervals hold on sources that were left out, and needs to be run again whenever
predictions moved; then run benchmarks/accuracy.py.

The method is conformal prediction for grouped data (Dunn, Wasserman and Ramdas, "Distribution-free
prediction sets for two-layer hierarchical models", 2023: pooled distributions). A score is how many
expected deviations a measured time lies from its prediction. Rows of one source are alike, so a
source counts once however many rows it has, and one more source that might be anything is added to
those seen. Sources of the same family of runtimes count more than others, so that a family with
many sources has its own width and one with few borrows from all.

Two things make the errors those of sources that nobody had in view. A source is predicted without
the constants of runtimes that came from it: the runtime that its own is like stands in. And a
source as a whole may be off to either side: constants were chosen so that those seen are off to
none, so each is counted twice, once with its median error turned round.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.catalog import runtimes
from astrarium.catalog.intervals import DATA, Terms
from astrarium.cost.efficiency import operator_model
from astrarium.cost.uncertainty import Doubts, deviations, doubts_of
from astrarium.validate import names, readings
from astrarium.validate.metrics import time_scores
from astrarium.validate.predictions import predict_rows
from astrarium.validate.table import MeasuredRow, read_table

CARRIED: Final = Path(__file__).parent / "accuracy"
LEVEL: Final = 0.8
# Programs that share most of their code, their age, or what they divide among ranks (DeepSpeed's
# ZeRO as FSDP); a runtime of no family gets the pool.
FAMILIES: Final = {
    "megatron-core": (
        *("megatron", "megatron-graphs", "megatron-local", "megatron-cpu"),
        *("megatron-offload-25", "megatron-offload-50", "megatron-offload-75"),
        *("megatron-bridge", "nemo", "internevo"),
    ),
    "megatron-2021": ("megatron-2021", "deepspeed-megatron"),
    "fsdp": (
        "fsdp",
        "llm-foundry",
        "torchtitan",
        "torchtitan-eager",
        "torchtune",
        "deepspeed",
        "deepspeed-2021",
    ),
    "nanotron": ("nanotron",),
}
# A source of the same family counts as much as this many others. From 1 to 5 intervals hold
# equally often on held-back sources (85 to 84 %, of rows 79 to 80 %) and get narrower by an eighth.
OWN_FAMILY: Final = 3.0
# One more source, of which nothing is known, counts as far off as any, to either side.
UNSEEN: Final = 1.0
LEAST: Final = 0.1  # deviations: no prediction lies at an end of its interval
KEPT_FOR_CHECKS: Final = ("-unseen", "-run")
# Tables that one team made on one cluster: if one is held back, so are the others.
PARTS: Final = r"(Megatron-SC21|BigScience-V100|Megatron-Bridge-perf)-.*"
# Terms that no data here can tell from others.
ITERATION: Final = 0.05
ITERATION_SOURCE: Final = (
    "assumed: a GPU type whose operators are known to the percent still has iterations that are"
    " not; 0 to 0.08 serve held-back sources equally well"
)
SPECIFICATION: Final = 0.1
SPECIFICATION_SOURCE: Final = (
    "assumed: so that no type without a profile is surer than one with; 0 to 0.1 serve held-back"
    " sources equally well, as the error of their operators is larger already"
)
EXPERTS: Final = tuple(0.02 * step for step in range(15))
OF_SHARES: Final = tuple(0.1 * step for step in range(15))  # messages, and waits for the host
# Words in the sources of runtimes' constants that tell which measurements they came from.
ORIGINS: Final = {
    "AMP": r"\bAMP",
    "BigScience-V100": r"BigScience",
    "HF-Ultrascale-Playbook": r"Ultra-?Scale",
    "llm-foundry": r"llm-foundry|loss_fn|attn_impl",
    "Megatron-Bridge-perf": r"Bridge|\brecipes\b",
    "NeMo-24.07-perf": r"NeMo|\brecipes\b",
    "Megatron-SC21": r"SC'21",
    "InternEvo-perf": r"InternLM|InternEvo",
    "SimuMax-B200": r"SimuMax",
    "torchtitan-like-H200": r"torchao with one scale|chunk_cat",
    "torchtitan": r"torchtitan",
    "vTrain": r"vTrain",
    "Megatron-core-TE-H200": r"TransformerEngine 2\.20",
    "Megatron-core-H200": r"megatron-core 0\.16",
}
# What stands in for a constant that came from a source: TransformerEngine's for none but itself.
WITHOUT: Final = {
    "router_launch_seconds": 0.0,
    "expert_launch_seconds": 0.0,
    "latent_launch_seconds": 0.0,
    "latent_cast_launch_seconds": 0.0,
    "optimizer_launch_seconds": 0.0,
    "expert_product_seconds": 0.0,
    "kernel_choice_seconds": 0.0,
    "layer_forward_seconds": 0.00085,  # megatron-core's own layers
    "layer_backward_seconds": 0.00145,
    "cast_rate": 1.0,
    "permute_rate": 1.0,
    "expert_cast_ratio": 1.0,
    "fills_expert_rows": False,
    "sole_products": False,
    "starts_level": False,
    "varying_rows_ratio": 1.0,
}
DIGITS: Final = 4
DEEPEST: Final = 2  # level of groups in the file that have one line for each entry


@dataclass(frozen=True)
class Runs:
    """Scored iterations as columns."""

    source: np.ndarray[Any, np.dtype[np.str_]]
    family: np.ndarray[Any, np.dtype[np.str_]]
    error: Floats  # log(measured / predicted)
    operators: Floats
    specified: Bools
    experts: Bools
    communication: Floats
    host: Floats

    def __len__(self) -> int:
        return len(self.error)

    def where(self, chosen: Bools) -> Runs:
        return Runs(**{name: column[chosen] for name, column in vars(self).items()})

    def per_source(self) -> Floats:
        """Weights that add up to one for each source."""
        _, inverse, counts = np.unique(self.source, return_inverse=True, return_counts=True)
        return 1.0 / counts[inverse]

    def deviations(self, terms: Terms) -> Floats:
        """The expected deviation of every run."""
        names = [field.name for field in fields(Doubts)]
        return deviations(terms, Doubts(**{name: getattr(self, name) for name in names}))

    def either_way(self) -> Runs:
        """Every source twice: as it is, and off to the other side as a whole."""
        whole = np.zeros(len(self))
        for source in set(self.source):
            own = self.source == source
            whole[own] = np.median(self.error[own])
        both = {name: np.concatenate([column, column]) for name, column in vars(self).items()}
        return Runs(**both | {"error": np.concatenate([self.error, self.error - 2 * whole])})


@dataclass(frozen=True)
class Held:
    """How intervals fared on a source that they were not calibrated on."""

    source: str
    rows: int
    inside: float  # share of rows
    low: float  # ends of the intervals over predictions, means
    high: float


def runs_of(tables: Iterable[Path]) -> Runs:
    """The scored rows of some tables, each predicted without what its source taught."""
    by_origin: dict[str, list[MeasuredRow]] = {}
    for row in (row for table in tables for row in read_table(table).rows):
        if is_for_fits(row.source):
            origin = next((name for name in ORIGINS if row.source.startswith(name)), "")
            by_origin.setdefault(origin, []).append(row)
    columns: list[tuple[Any, ...]] = []
    for origin, rows in by_origin.items():
        with constants_without(ORIGINS.get(origin, "")):
            columns += _columns(rows)
    return Runs(*(np.array(column) for column in zip(*columns, strict=True)))


def _columns(rows: Sequence[MeasuredRow]) -> Iterator[tuple[Any, ...]]:
    family_of = {runtime: family for family, names in FAMILIES.items() for runtime in names}
    for score in time_scores(predict_rows(rows)):
        scenario, plan = score.prediction.scenario, score.prediction.plan
        assert scenario is not None
        assert plan is not None
        doubts = doubts_of(
            operator_model(scenario.pool.gpu),
            plan.breakdown_seconds,
            experts=scenario.workload.model.max_experts > 0,
        )
        yield (
            whole_source(score.prediction.row.source),
            family_of.get(scenario.runtime.name, ""),
            np.log(score.measured / score.predicted),
            *(getattr(doubts, field.name) for field in fields(doubts)),
        )


@contextmanager
def constants_without(origin: str) -> Iterator[None]:
    """Runtimes without the constants whose sources the pattern finds."""
    if not origin:
        yield
        return
    entries = copy.deepcopy(dict(runtimes._entries()))
    for entry in entries.values():
        constants = entry["constants"]
        for name, (_, source) in list(constants.items()):
            if re.search(origin, source) and name in WITHOUT:
                constants[name] = [WITHOUT[name], "stands in"]
            elif re.search(origin, source) and "like" in entry:
                del constants[name]
    usual = runtimes._entries
    runtimes._entries = lambda: entries  # type: ignore[assignment]
    _forget()
    try:
        yield
    finally:
        runtimes._entries = usual
        _forget()


def _forget() -> None:
    """What was made from the constants of runtimes."""
    for constants in (runtimes.find_runtime, runtimes.describe_runtime):
        constants.cache_clear()
    for stated in (names._as_stated, readings._with):
        stated.cache_clear()


def is_for_fits(source: str) -> bool:
    return not source.endswith(KEPT_FOR_CHECKS)


def whole_source(name: str) -> str:
    """The name of a source without that of its part."""
    part = re.match(PARTS, name)
    return part[1] if part else name


def fit_terms(runs: Runs) -> Terms:
    """The most likely terms if scores fall off exponentially on both sides, over a grid."""
    weights = runs.per_source() / runs.per_source().sum()

    def unlikelihood(terms: Terms) -> float:
        expected = runs.deviations(terms)
        scale = float(weights @ (np.abs(runs.error) / expected))
        return float(weights @ np.log(expected)) + float(np.log(scale))

    choices = product(EXPERTS, OF_SHARES, OF_SHARES)
    return min((Terms(ITERATION, SPECIFICATION, *choice) for choice in choices), key=unlikelihood)


def reach(runs: Runs, terms: Terms, family: str) -> tuple[float, float]:
    """How many deviations hold `LEVEL` of the runs of a further source of this family.

    To the fast and to the slow side: half of what is left lies beyond either.
    """
    scores = runs.error / runs.deviations(terms)
    mass = runs.per_source() * np.where(runs.family == family, OWN_FAMILY, 1.0)

    def beyond(side: Floats) -> float:
        order = np.argsort(side, kind="stable")
        shares = (np.cumsum(mass[order]) + UNSEEN / 2) / (mass.sum() + UNSEEN)
        last = min(int(np.searchsorted(shares, (1 + LEVEL) / 2)), len(side) - 1)
        return float(side[order][last])

    return max(beyond(-scores), LEAST), max(beyond(scores), LEAST)


def held_back(runs: Runs) -> list[Held]:
    """Every source, with terms and widths from the others."""
    found = []
    for source in dict.fromkeys(runs.source):
        own, others = runs.where(runs.source == source), runs.where(runs.source != source)
        others = others.either_way()
        terms = fit_terms(others)
        widths = {family: reach(others, terms, family) for family in set(own.family)}
        spans = np.array([widths[family] for family in own.family])
        faster, slower = (spans * own.deviations(terms)[:, None]).T
        inside = (own.error >= -faster) & (own.error <= slower)
        found.append(
            Held(
                source=str(source),
                rows=len(own),
                inside=float(inside.mean()),
                low=float(np.exp(-faster).mean()),
                high=float(np.exp(slower).mean()),
            )
        )
    return found


def document(runs: Runs, held: Sequence[Held], date: str) -> dict[str, Any]:
    """What is written to the catalog."""
    either = runs.either_way()
    terms = fit_terms(either)

    def spread(chosen: Bools, family: str) -> dict[str, Any]:
        sources = len(set(runs.source[chosen]))
        faster, slower = (round(width, DIGITS) for width in reach(either, terms, family))
        rows = int(chosen.sum())
        return {"faster": faster, "slower": slower, "sources": sources, "rows": rows}

    everything = np.ones(len(runs), bool)
    fitted = "most likely value over all sources, each counting alike"
    return {
        "date": date,
        "origin": "benchmarks/fit_intervals.py on published iterations and own ones on H200",
        "level": LEVEL,
        "terms": {
            "iteration": terms.iteration,
            "specification": terms.specification,
            "experts": round(terms.experts, DIGITS),
            "communication": round(terms.communication, DIGITS),
            "host": round(terms.host, DIGITS),
        },
        "reasons": {
            "iteration": ITERATION_SOURCE,
            "specification": SPECIFICATION_SOURCE,
            **dict.fromkeys(("experts", "communication", "host"), fitted),
        },
        "pooled": spread(everything, "no family"),
        "families": {
            family: {"runtimes": list(names)} | spread(runs.family == family, family)
            for family, names in FAMILIES.items()
        },
        "held_back": {
            "by_source": round(by_source(held), DIGITS),
            "by_row": round(by_row(held), DIGITS),
            "sources": {
                one.source: {
                    "rows": one.rows,
                    "inside": round(one.inside, DIGITS),
                    "low": round(one.low, DIGITS),
                    "high": round(one.high, DIGITS),
                }
                for one in held
            },
        },
    }


def by_source(held: Sequence[Held]) -> float:
    """The share inside, every source counting alike."""
    return float(np.mean([one.inside for one in held]))


def by_row(held: Sequence[Held]) -> float:
    """The share of all rows inside."""
    return sum(one.inside * one.rows for one in held) / sum(one.rows for one in held)


def text_of(value: object, depth: int = 0) -> str:
    """JSON with one entry a line, as far as entries are groups of entries."""
    if depth > DEEPEST or not isinstance(value, dict):
        return json.dumps(value)
    pad = "\n" + " " * (depth + 1)
    lines = [f"{json.dumps(key)}: {text_of(entry, depth + 1)}" for key, entry in value.items()]
    return "{" + pad + f",{pad}".join(lines) + pad[:-1] + "}"


def tables_in(places: Sequence[Path]) -> list[Path]:
    """The tables among files and folders."""
    found = [sorted(place.glob("*.csv")) if place.is_dir() else [place] for place in places]
    return [table for tables in found for table in tables]


def read_options(about: str, out: Path) -> argparse.Namespace:
    """The tables, their date and the file to write."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("tables", type=Path, nargs="*", default=[CARRIED])
    parser.add_argument("--date", default="", help="of the measurements' collection")
    parser.add_argument("--out", type=Path, default=out)
    return parser.parse_args()


def main() -> None:
    given = read_options(__doc__, DATA)
    runs = runs_of(tables_in(given.tables))
    held = held_back(runs)
    found = document(runs, held, given.date)
    for one in held:
        print(
            f"{one.source:30} {one.rows:5} rows {one.inside:6.1%} inside"
            f" {one.low:.2f} to {one.high:.2f} of the prediction"
        )
    print(f"sources alike {by_source(held):.1%}, rows alike {by_row(held):.1%}")
    given.out.write_text(text_of(found) + "\n", encoding="utf-8")
    print(f"{given.out} is new")


if __name__ == "__main__":
    main()
