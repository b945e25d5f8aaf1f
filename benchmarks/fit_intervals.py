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
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.catalog.intervals import DATA, Terms
from astrarium.cost.efficiency import operator_model
from astrarium.cost.uncertainty import deviations, is_specified
from astrarium.validate.metrics import time_scores
from astrarium.validate.predictions import predict_rows
from astrarium.validate.table import read_table

CARRIED: Final = Path(__file__).parent / "accuracy"
LEVEL: Final = 0.8
# Programs that share most of their code or their age; a runtime of no family gets the pool.
FAMILIES: Final = {
    "megatron-core": ("megatron", "megatron-local", "megatron-bridge", "nemo", "internevo"),
    "megatron-2021": ("megatron-2021", "deepspeed", "deepspeed-megatron"),
    "fsdp": ("fsdp", "llm-foundry", "torchtitan", "torchtitan-eager"),
    "nanotron": ("nanotron",),
}
# A source of the same family counts as much as this many others. From 1 to 5 intervals hold
# equally often on held-back sources (85 to 84 %, of rows 79 to 80 %) and get narrower by an eighth.
OWN_FAMILY: Final = 3.0
# One more source, of which nothing is known, counts as far off as any.
UNSEEN: Final = 1.0
KEPT_FOR_CHECKS: Final = "-unseen"
# Tables that one team made on one cluster: if one is held back, so are the others.
PARTS: Final = r"(Megatron-SC21|BigScience-V100)-.*"
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
EXPERTS: Final = tuple(0.02 * step for step in range(16))
SLOWER: Final = tuple(1 + 0.25 * step for step in range(13))
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

    def __len__(self) -> int:
        return len(self.error)

    def where(self, chosen: Bools) -> Runs:
        return Runs(**{name: column[chosen] for name, column in vars(self).items()})

    def per_source(self) -> Floats:
        """Weights that add up to one for each source."""
        _, inverse, counts = np.unique(self.source, return_inverse=True, return_counts=True)
        return 1.0 / counts[inverse]

    def deviations(self, terms: Terms) -> Floats:
        """The expected deviation, on the side on which a run lies."""
        found = deviations(terms, self.operators, self.specified, self.experts)
        return found * np.where(self.error > 0, terms.slower, 1.0)


@dataclass(frozen=True)
class Held:
    """How intervals fared on a source that they were not calibrated on."""

    source: str
    rows: int
    inside: float  # share of rows
    low: float  # ends of the intervals over predictions, means
    high: float


def runs_of(tables: Iterable[Path]) -> Runs:
    """The scored rows of some tables."""
    rows = [row for table in tables for row in read_table(table).rows if is_for_fits(row.source)]
    family_of = {runtime: family for family, names in FAMILIES.items() for runtime in names}
    columns = []
    for score in time_scores(predict_rows(rows)):
        scenario = score.prediction.scenario
        assert scenario is not None
        ops = operator_model(scenario.pool.gpu)
        columns.append(
            (
                whole_source(score.prediction.row.source),
                family_of.get(scenario.runtime.name, ""),
                np.log(score.measured / score.predicted),
                ops.relative_error,
                is_specified(ops),
                scenario.workload.model.max_experts > 0,
            )
        )
    return Runs(*(np.array(column) for column in zip(*columns, strict=True)))


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
        scale = float(weights @ (np.abs(runs.error) / runs.deviations(terms)))
        both_sides = replace(terms, slower=1.0)
        width = float(weights @ np.log(runs.deviations(both_sides)))
        return width + float(np.log(scale * (1 + terms.slower) / 2))

    grid = [Terms(ITERATION, SPECIFICATION, *choice) for choice in product(EXPERTS, SLOWER)]
    return min(grid, key=unlikelihood)


def reach(runs: Runs, terms: Terms, family: str) -> float:
    """How many deviations hold `LEVEL` of the runs of a further source of this family."""
    scores = np.abs(runs.error) / runs.deviations(terms)
    mass = runs.per_source() * np.where(runs.family == family, OWN_FAMILY, 1.0)
    order = np.argsort(scores, kind="stable")
    shares = np.cumsum(mass[order]) / (mass.sum() + UNSEEN)
    last = min(int(np.searchsorted(shares, LEVEL)), len(scores) - 1)
    return float(scores[order][last])


def held_back(runs: Runs) -> list[Held]:
    """Every source, with terms and widths from the others."""
    found = []
    for source in dict.fromkeys(runs.source):
        own, others = runs.where(runs.source == source), runs.where(runs.source != source)
        terms = fit_terms(others)
        widths = {family: reach(others, terms, family) for family in set(own.family)}
        spans = np.array([widths[family] for family in own.family])
        both_sides = own.deviations(replace(terms, slower=1.0))
        inside = np.abs(own.error) <= spans * own.deviations(terms)
        found.append(
            Held(
                source=str(source),
                rows=len(own),
                inside=float(inside.mean()),
                low=float(np.exp(-spans * both_sides).mean()),
                high=float(np.exp(terms.slower * spans * both_sides).mean()),
            )
        )
    return found


def document(runs: Runs, held: Sequence[Held], date: str) -> dict[str, Any]:
    """What is written to the catalog."""
    terms = fit_terms(runs)

    def spread(chosen: Bools, family: str) -> dict[str, Any]:
        sources = len(set(runs.source[chosen]))
        width = round(reach(runs, terms, family), DIGITS)
        return {"deviations": width, "sources": sources, "rows": int(chosen.sum())}

    everything = np.ones(len(runs), bool)
    fitted = "most likely value over all sources, each counting alike"
    return {
        "date": date,
        "origin": "benchmarks/fit_intervals.py on published iterations and own ones on H200",
        "level": LEVEL,
        "terms": {
            "iteration": [terms.iteration, ITERATION_SOURCE],
            "specification": [terms.specification, SPECIFICATION_SOURCE],
            "experts": [round(terms.experts, DIGITS), fitted],
            "slower": [terms.slower, fitted],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", type=Path, nargs="*", default=[CARRIED])
    parser.add_argument("--date", default="", help="of the measurements' collection")
    parser.add_argument("--out", type=Path, default=DATA)
    given = parser.parse_args()
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
