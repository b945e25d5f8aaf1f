"""What five measured runs teach about the rest of their sweep: `python benchmarks/learning.py DIR`.

DIR holds tables of measured iterations in the format of `astrarium validate`. A sweep is the rows
of one source, GPU type, runtime and number format, models with experts apart. From each sweep five
rows are drawn at random, factors are learned from them, and the error on the other rows is
compared with that of the untuned model: the median and the worst over the draws.

The goal: where the error is above 8 %, half of it; and never more than a point worse.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from astrarium.arrays import Floats
from astrarium.calibrate.learn.factors import learn
from astrarium.calibrate.learn.measurement import Measurement, predict
from astrarium.calibrate.learn.table import runs_of_rows
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError
from astrarium.validate.table import read_table

LEARNED_FROM = 5
LEAST_ROWS = 2 * LEARNED_FROM
MOST_ROWS = 120  # of a sweep, drawn once: more say nothing new
HIGH_ERROR = 0.08
POINT = 0.01


@dataclass(frozen=True)
class Outcome:
    """Mean absolute errors on the rest of a sweep, one entry per draw."""

    before: Floats
    after: Floats
    refused: int

    @property
    def halved(self) -> float:
        return float(np.mean(self.after <= self.before / 2))

    @property
    def worse(self) -> Floats:
        return self.after - self.before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="tables of measured iterations")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", default="", help="sweeps whose name contains this")
    parser.add_argument("--coarse", action="store_true", help="number formats and experts together")
    given = parser.parse_args()
    paths = sorted(given.folder.glob("*.csv"))
    if not paths:
        sys.exit(f"{given.folder}: no tables")
    found = sweeps(paths, coarse=given.coarse)
    print(f"{'sweep':66} rows  before  after: median  worst  change: worst  halved  refused   s")
    for name, runs in found.items():
        if given.only in name:
            begin = perf_counter()
            outcome = learn_and_compare(runs, given.draws)
            print(row_of(name, len(runs), outcome, perf_counter() - begin), flush=True)


def sweeps(paths: Sequence[Path], *, coarse: bool) -> dict[str, list[Measurement]]:
    """Timed runs by sweep, the largest first."""
    found: dict[str, list[Measurement]] = {}
    for path in paths:
        rows = read_table(path).rows
        sources = {row.place: row.source for row in rows}
        for run in runs_of_rows(rows)[0]:
            if run.seconds is not None:
                name = f"{sources[run.label]} {run.pool.gpu.name} {run.runtime.name}"
                if not coarse:
                    experts = " experts" if run.workload.model.max_experts else ""
                    name += f" {run.workload.precision}{experts}"
                found.setdefault(name, []).append(run)
    large = {name: runs for name, runs in found.items() if len(runs) >= LEAST_ROWS}
    return dict(sorted(large.items(), key=lambda item: -len(item[1])))


def learn_and_compare(runs: Sequence[Measurement], draws: int) -> Outcome:
    """Errors on the rows not drawn; a refusal leaves the model as it was."""
    random = np.random.default_rng(0)
    if len(runs) > MOST_ROWS:
        runs = [runs[index] for index in random.choice(len(runs), MOST_ROWS, replace=False)]
    before, after, refused = [], [], 0
    for _ in range(draws):
        drawn = set(random.choice(len(runs), LEARNED_FROM, replace=False).tolist())
        rest = [run for index, run in enumerate(runs) if index not in drawn]
        tuning = NEUTRAL
        try:
            tuning = learn([runs[index] for index in sorted(drawn)]).tuning
        except InputError:
            refused += 1
        before.append(mean_error(rest, NEUTRAL))
        after.append(mean_error(rest, tuning))
    return Outcome(np.array(before), np.array(after), refused)


def mean_error(runs: Sequence[Measurement], tuning: Tuning) -> float:
    measured = np.array([run.seconds for run in runs])
    return float(np.abs(predict(runs, tuning).seconds / measured - 1).mean())


def row_of(name: str, rows: int, outcome: Outcome, seconds: float) -> str:
    before = float(outcome.before.mean())
    halved = f"{100 * outcome.halved:5.0f} %" if before > HIGH_ERROR else "       "
    flag = " *" if outcome.worse.max() > POINT else "  "
    return (
        f"{name:66.66} {rows:4}  {100 * before:4.1f} %"
        f"         {100 * np.median(outcome.after):4.1f} %"
        f" {100 * outcome.after.max():4.1f} %       {100 * outcome.worse.max():+5.1f}{flag}"
        f" {halved}  {outcome.refused:7} {seconds:3.0f}"
    )


if __name__ == "__main__":
    main()
