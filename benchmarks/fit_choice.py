"""Measures how well plans can be told apart, and how sure predicted peaks of memory are.

    python benchmarks/fit_choice.py [TABLE.csv or FOLDER ...] [--date D] [--out FILE]

Writes catalog/data/choice.json; run it again whenever predictions moved. Errors of memory come from
the tables of benchmarks/accuracy (`make fits`); families that were fitted to more rows than those,
and runtimes of no family, keep theirs. Pairs need sweeps that the project does not carry: they are
fitted only if tables are given, and what held-back sources say of them is printed.

Pairs are two strategies of one sweep (same source, model, GPUs, batch, sequence length), or one of
NVIDIA's recipes in two releases (`recipes`). The error of log(seconds of one / seconds of the
other) is taken to come from the causes of time: each has an error of its own, alike in both plans,
so only the difference of its shares counts. Between two releases the software adds an error, which
recipes show that kept their strategy. Scales are the most likely ones under Student's t
distribution with 3 degrees of freedom; every source counts with the square root of its pairs. Of
sweeps only pairs near the fastest prediction count: those are the ones a choice is about.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from fit_intervals import (
    CARRIED,
    FAMILIES,
    is_for_fits,
    read_options,
    tables_in,
    text_of,
    whole_source,
)
from recipes import changes
from scipy.optimize import minimize

from astrarium.arrays import Floats
from astrarium.catalog.intervals import CHOICE, DEGREES_OF_FREEDOM
from astrarium.cost.chances import chance_below
from astrarium.search.plan import Plan
from astrarium.search.recommended import RECOMMENDED_CHANCE, RECOMMENDED_SLOWER, mechanisms, price
from astrarium.validate.metrics import LEAST_SWEEP, ScoredValue, memory_scores, time_scores
from astrarium.validate.predictions import GB, Prediction, predict_rows
from astrarium.validate.table import read_table

# Causes of time that share an error.
GROUPS: Final = {
    "computation": ("forward", "backward"),
    "recomputation": ("recompute",),
    "tensor parallel": ("tp_communication",),
    "context parallel": ("cp_communication",),
    "experts": ("ep_communication",),
    "data parallel": ("gradient_reduction", "parameter_gather", "zero_communication"),
    "pipeline": ("pipeline_bubble", "pipeline_communication"),
    "optimizer": ("optimizer",),
    "host": ("host",),
}
NEAR: Final = 1.3  # of the fastest prediction of a sweep
USUAL: Final = 0.2  # what the error of a cause is taken for as far as no sweep says otherwise
DOUBT: Final = 0.02  # how much that counts, in hundredths of the mean unlikelihood
# The authors of the first warn of noise of 40 %. Recipes differ in their release, too.
NOT_SWEEPS: Final = r"BigScience-V100-gpt2|Megatron-Bridge"
# The least errors of memory, assumed: most peaks were measured on few GPUs and with equal loads of
# experts; fragments, buffers of messages and uneven loads of a long run are not in them.
LEAST_RELATIVE: Final = {"dense": 0.015, "experts": 0.03}
LEAST_BYTES: Final = 5e8
# Constants of memory were chosen by these measurements: they say nothing about unseen runs.
SEEN: Final = r"(Megatron-core(-TE)?|FSDP-memory)-H200-development"
FIRST_FLOOR: Final = 0.04
FIRST_MEMORY: Final = (math.log(0.02), math.log(0.5), 0.0)
DIGITS: Final = 4
CALIBRATION_BINS: Final = (0.5, 2 / 3, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Pairs:
    """Pairs of strategies: errors of the log ratio, and squares of what differs.

    Columns: whether the strategies differ, the shares of `GROUPS`, whether the releases differ.
    """

    source: tuple[str, ...]
    error: Floats
    squares: Floats

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            self.source + other.source,
            np.concatenate([self.error, other.error]),
            np.concatenate([self.squares, other.squares]),
        )

    def where(self, chosen: Callable[[str], bool]) -> Pairs:
        kept = np.array([chosen(source) for source in self.source], bool)
        sources = tuple(itertools.compress(self.source, kept))
        return Pairs(sources, self.error[kept], self.squares[kept])


def unlikelihood(error: Floats, scale: Floats, weights: Floats) -> float:
    """Of errors under Student's t distribution, times a hundred."""
    tails = (DEGREES_OF_FREEDOM + 1) / 2 * np.log1p((error / scale) ** 2 / DEGREES_OF_FREEDOM)
    return 100 * float(weights @ (np.log(scale) + tails)) / float(weights.sum())


def by_root(sources: Sequence[str], power: float = 0.5) -> Floats:
    """Weights with which a source counts as this power of its rows."""
    _, inverse, counts = np.unique(np.array(sources), return_inverse=True, return_counts=True)
    return counts[inverse] ** (power - 1.0)


def shares(plan: Plan) -> Floats:
    seconds = plan.breakdown_seconds
    return np.array(
        [sum(seconds[c] for c in causes) / plan.iteration_seconds for causes in GROUPS.values()]
    )


def plan_of(score: ScoredValue) -> Plan:
    plan = score.prediction.plan
    assert plan is not None
    return plan


def sweeps_of(predictions: Sequence[Prediction]) -> list[list[ScoredValue]]:
    """Scored times that differ in strategy only."""
    groups: dict[tuple[object, ...], dict[object, ScoredValue]] = {}
    for score in time_scores(predictions):
        row, scenario = score.prediction.row, score.prediction.scenario
        assert scenario is not None
        if re.match(NOT_SWEEPS, row.source):
            continue
        work = scenario.workload
        key = (row.source, row.model, work.model, scenario.pool.gpu.name, row.num_gpus)
        key += (row.global_batch, work.seq_length, work.precision)
        groups.setdefault(key, {}).setdefault(plan_of(score).strategy, score)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def pairs_of(sweeps: Sequence[Sequence[ScoredValue]]) -> Pairs:
    found = [pair for sweep in sweeps for pair in _pairs(sweep)]
    sources, errors, squares = zip(*found, strict=True)
    return Pairs(tuple(sources), np.array(errors), np.array(squares))


def _pairs(sweep: Sequence[ScoredValue]) -> Iterator[tuple[str, float, Floats]]:
    fastest = min(score.predicted for score in sweep)
    near = [score for score in sweep if score.predicted < NEAR * fastest]
    for one, other in itertools.combinations(near, 2):
        error = math.log(one.predicted / other.predicted) - math.log(one.measured / other.measured)
        yield whole_source(one.prediction.row.source), error, squares(plan_of(one), plan_of(other))


def squares(one: Plan, other: Plan, *, kept: bool = False, released: bool = False) -> Floats:
    """A row of `Pairs`."""
    difference = shares(one) - shares(other)
    return np.array([not kept, *difference**2 * (not kept), released], float)


def recipes_of(predictions: Sequence[Prediction]) -> Pairs:
    """Recipes in two releases, those that changed their strategy and those that kept it."""
    found = list(changes(predictions))
    plans = [[side.plan for side in (one.before, one.after)] for one in found]
    return Pairs(
        tuple(f"recipes that {'kept' if one.kept else 'changed'}" for one in found),
        np.array([math.log(one.predicted / one.measured) for one in found]),
        np.array(
            [
                squares(before, after, kept=one.kept, released=True)
                for one, (before, after) in zip(found, plans, strict=True)
                if before is not None and after is not None
            ]
        ),
    )


def fit_pairs(pairs: Pairs) -> Floats:
    """The most likely floor, the scale of each group of causes, and that of a release."""
    weights = by_root(pairs.source)

    def cost(logs: Floats) -> float:
        scale = np.sqrt(pairs.squares @ np.exp(2 * logs))
        doubt = DOUBT * float(np.sum((logs[1:-1] - math.log(USUAL)) ** 2))
        return unlikelihood(pairs.error, scale, weights) + doubt

    start = np.array([math.log(FIRST_FLOOR), *[math.log(USUAL)] * len(GROUPS)])
    start = np.append(start, math.log(FIRST_FLOOR))
    return np.asarray(np.exp(minimize(cost, start, method="L-BFGS-B").x))


@dataclass(frozen=True)
class Choice:
    """What trusting the fastest and the recommended prediction of a sweep costs."""

    source: str
    regret: float
    regret_recommended: float
    mechanisms: float
    mechanisms_recommended: float


def choices(sweeps: Sequence[Sequence[ScoredValue]], pairs: Pairs) -> list[Choice]:
    """Of every sweep, with scales from other sources."""
    found, fits = [], dict[str, Floats]()
    for sweep in (sweep for sweep in sweeps if len(sweep) >= LEAST_SWEEP):
        source = whole_source(sweep[0].prediction.row.source)
        if source not in fits:
            fits[source] = fit_pairs(pairs.where(lambda name, own=source: name != own))
        fastest = min(sweep, key=lambda score: score.predicted)
        few = [score for score in sweep if loses_little(fits[source], fastest, score)]
        chosen = min(few, key=lambda s: price(plan_of(s), plan_of(fastest), seq_length(s)))
        best = min(score.measured for score in sweep)
        found.append(
            Choice(
                source,
                fastest.measured / best - 1,
                chosen.measured / best - 1,
                mechanisms(plan_of(fastest), seq_length(fastest)),
                mechanisms(plan_of(chosen), seq_length(chosen)),
            )
        )
    return found


def seq_length(score: ScoredValue) -> int:
    scenario = score.prediction.scenario
    assert scenario is not None
    return scenario.workload.seq_length


def loses_little(terms: Floats, fastest: ScoredValue, other: ScoredValue) -> bool:
    """Whether a plan can be recommended in place of the fastest one."""
    slower = other.predicted / fastest.predicted
    chance = chance_of(terms, fastest, other)
    return slower <= 1 + RECOMMENDED_SLOWER and chance < RECOMMENDED_CHANCE


def chance_of(terms: Floats, fastest: ScoredValue, other: ScoredValue) -> float:
    """The chance that a plan is really faster than another one."""
    scale = math.sqrt(float(squares(plan_of(fastest), plan_of(other)) @ terms**2))
    return chance_below(math.log(other.predicted / fastest.predicted) / scale)


def calibration(sweeps: Sequence[Sequence[ScoredValue]], pairs: Pairs) -> list[dict[str, float]]:
    """How often the fastest prediction of a sweep beat another one, by the chance foretold.

    Scales come from other sources.
    """
    found, fits = [], dict[str, Floats]()
    for sweep in sweeps:
        source = whole_source(sweep[0].prediction.row.source)
        if source not in fits:
            fits[source] = fit_pairs(pairs.where(lambda name, own=source: name != own))
        fastest = min(sweep, key=lambda score: score.predicted)
        found += [
            (chance_of(fits[source], fastest, one), one.measured > fastest.measured)
            for one in sweep
            if fastest.predicted < one.predicted < NEAR * fastest.predicted
        ]
    chances, beaten = np.array(found, float).T
    bins = [
        (chances >= low) & (chances < high) for low, high in itertools.pairwise(CALIBRATION_BINS)
    ]
    return [
        {
            "pairs": int(chosen.sum()),
            "chance": round(float(chances[chosen].mean()), 2),
            "faster": round(float(beaten[chosen].mean()), 2),
        }
        for chosen in bins
    ]


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of memory as columns, in 1e9 bytes."""

    source: tuple[str, ...]
    runtime: tuple[str, ...]
    experts: tuple[bool, ...]
    predicted: Floats
    measured: Floats

    def where(self, chosen: Callable[[str, bool], bool]) -> Peaks:
        kept = np.array([chosen(*one) for one in zip(self.runtime, self.experts, strict=True)])
        columns = (self.source, self.runtime, self.experts)
        names = [tuple(itertools.compress(column, kept)) for column in columns]
        return Peaks(*names, self.predicted[kept], self.measured[kept])  # type: ignore[arg-type]


def peaks_of(predictions: Sequence[Prediction]) -> Peaks:
    rows = []
    for score in memory_scores(predictions):
        scenario = score.prediction.scenario
        assert scenario is not None
        experts = scenario.workload.model.max_experts > 0
        source = whole_source(score.prediction.row.source)
        if re.fullmatch(SEEN, source):
            continue
        rows.append((source, scenario.runtime.name, experts, score.predicted, score.measured))
    source, runtime, experts, predicted, measured = zip(*rows, strict=True)
    return Peaks(source, runtime, experts, np.array(predicted), np.array(measured))


def fit_memory(peaks: Peaks, least: float) -> dict[str, Any]:
    """The most likely errors of peaks, every source counting alike."""
    weights = by_root(peaks.source, 0.0)
    error = peaks.measured - peaks.predicted

    def cost(given: Floats) -> float:
        relative, absolute, lower = np.exp(given)
        scale = np.hypot(relative * peaks.predicted, absolute)
        width = (1 + lower) / 2  # both sides together are one distribution
        sided = scale * np.where(error > 0, 1.0, lower)
        spread = 100 * float(weights @ np.log(scale * width / sided)) / float(weights.sum())
        return unlikelihood(error, sided, weights) + spread

    relative, absolute, lower = np.exp(minimize(cost, FIRST_MEMORY, method="Nelder-Mead").x)
    return {
        "relative": round(max(float(relative), least), DIGITS),
        "absolute_bytes": round(max(float(absolute) * GB, LEAST_BYTES)),
        "lower": round(float(lower), DIGITS),
        "sources": len(set(peaks.source)),
        "rows": len(peaks.source),
    }


def of_memory(peaks: Peaks, before: dict[str, Any], date: str) -> dict[str, Any]:
    """Errors of memory; where more rows were fitted than are carried, those known before."""
    memory: dict[str, dict[str, Any]] = {}
    for name, experts in (("dense", False), ("experts", True)):
        memory[name] = dict(before[name])
        for family, runtimes in FAMILIES.items():
            own = peaks.where(lambda r, e, of=runtimes, want=experts: r in of and e is want)
            known = before[name].get(family, {"rows": 0})
            if len(set(own.source)) > 1 and len(own.source) >= known["rows"]:
                fitted = fit_memory(own, LEAST_RELATIVE[name])
                memory[name][family] = {"runtimes": list(runtimes), **fitted}
    return {"date": date, "pooled": before["pooled"], **memory}


def document(sweeps: Sequence[Sequence[ScoredValue]], pairs: Pairs, date: str) -> dict[str, Any]:
    """What is written to the catalog of pairs."""
    found = choices(sweeps, pairs)
    terms = fit_pairs(pairs)
    return {
        "date": date,
        "origin": "benchmarks/fit_choice.py on published iterations and own ones on H200",
        "pairs": {
            "floor": round(float(terms[0]), DIGITS),
            "rows": len(pairs.source),
            "sources": len(set(pairs.source)),
            "groups": {
                name: {
                    "causes": list(causes),
                    "scale": round(float(scale), DIGITS),
                    "mean_share_difference": round(float(np.sqrt(column.mean())), 4),
                }
                for (name, causes), scale, column in zip(
                    GROUPS.items(), terms[1:-1], pairs.squares.T[1:-1], strict=True
                )
            },
            "release": round(float(terms[-1]), DIGITS),
        },
        "held_back": {
            source: {
                "sweeps": len(own),
                "regret": round(float(np.mean([one.regret for one in own])), DIGITS),
                "regret_recommended": round(
                    float(np.mean([one.regret_recommended for one in own])), DIGITS
                ),
                "mechanisms": round(float(np.mean([one.mechanisms for one in own])), 2),
                "mechanisms_recommended": round(
                    float(np.mean([one.mechanisms_recommended for one in own])), 2
                ),
            }
            for source in dict.fromkeys(one.source for one in found)
            for own in [[one for one in found if one.source == source]]
        },
        "calibration": calibration(sweeps, pairs),
    }


def predictions_of(tables: Sequence[Path]) -> tuple[Prediction, ...]:
    rows = [row for table in tables_in(tables) for row in read_table(table).rows]
    return predict_rows([row for row in rows if is_for_fits(row.source)])


def main() -> None:
    given = read_options(__doc__, CHOICE)
    found = json.loads(CHOICE.read_bytes())
    peaks = peaks_of(predictions_of([CARRIED]))
    date = given.date or found["memory"]["date"]
    memory = of_memory(peaks, found["memory"], date)
    if given.tables != [CARRIED]:
        predictions = predictions_of(given.tables)
        sweeps = sweeps_of(predictions)
        found = document(sweeps, pairs_of(sweeps) + recipes_of(predictions), date)
    found["memory"] = memory
    given.out.write_text(text_of(found) + "\n", encoding="utf-8")
    print(text_of(found))
    print(f"{given.out} is new")


if __name__ == "__main__":
    main()
