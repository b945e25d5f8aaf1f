"""How accurate predictions are: writes docs/accuracy.md and the snapshot that tests hold.

    python benchmarks/accuracy.py [--check]

The tables are in benchmarks/accuracy. Whoever changes predictions runs this and commits what
comes out: the page, and tests/data/accuracy.json with the prediction of every row and the limits
that later changes must keep. --check only tells whether the snapshot still holds.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from page import number, percent, strategy_text, table
from te_compare import te_part

from astrarium.catalog.intervals import DATA as INTERVALS
from astrarium.report.validation import KEYS, Grouping
from astrarium.validate.metrics import (
    LEAST_MFU,
    Metrics,
    Scoring,
    metrics_by,
    sweeps,
    time_scores,
)
from astrarium.validate.predictions import Prediction, predict_rows
from astrarium.validate.readings import CORRECTIONS, TableCorrection, corrections_of
from astrarium.validate.table import read_table

ROOT = Path(__file__).parents[1]
TABLES = tuple(sorted((ROOT / "benchmarks" / "accuracy").glob("*.csv")))
PAGE = ROOT / "docs" / "accuracy.md"
SNAPSHOT = ROOT / "tests" / "data" / "accuracy.json"
LARGEST = 12
STEP = 0.005  # limits are present values rounded up to the next half percent
DIGITS = 9  # of predictions in the snapshot; the test compares six

INTRODUCTION = """# Accuracy

Predictions against {rows} published measurements that the project carries
([tables and sources](../benchmarks/accuracy/README.md)). `make accuracy` writes this page; the
tests hold every prediction and the error of every source, so that no change moves them unnoticed.
For measurements of your own use [`astrarium validate`](commands.md#validate).

## How it is measured

Each row becomes a workload, a pool of GPUs, a runtime and a strategy, by rules for all tables; a
few known sources are read with [corrections](#corrections). Some constants of the runtimes were
taken from sources on this page, as `runtimes.json` says beside each of them: there the errors are
not those of unseen data. Times are scored where they say something about the strategy: the row
states degrees, micro-batch and batch, the run used at least {mfu:.0f} % of the GPUs' peak, and
nothing about it is doubtful. What a row leaves open (interleaving, recomputation of experts in
tuned recipes) is what prediction finds fastest among the usual choices that fit. Memory is compared
as the program reports it: allocated or reserved bytes, on the rank that logs.

- MAPE, median: of the absolute error, relative to the measured value; mean: with its sign.
- Spearman: rank correlation of predicted and measured times within the source.
- inside: share of measured times within the predicted 80 % interval.
- recall, precision: of runs that failed for want of memory, how many were foretold; of those
  foretold, how many failed.
- regret: in a sweep (same source, model, GPUs, batch and sequence length, five or more timed
  strategies) the measured time of the strategy predicted to be fastest over the best measured time,
  minus one.
"""


CORRECTIONS_TEXT = """Published tables about which more is known than they state, recognised by
their address; rows from elsewhere are never read this way.
"""


INTERVALS_TEXT = """The column *inside* above is of intervals that were calibrated on these sources
among others. Here each of {sources} sources ({rows} rows, also of tables too large to carry) was
held back from everything, constants of its runtime that came from it included, and its intervals
were made from the others ([method](cost-model.md#how-it-is-calibrated)). Of the measured times
{by_source} lie inside if sources count alike, {by_row} if rows do; {level:.0f} % is what the
intervals promise.
"""

# Written down by hand: the tables are too large to carry.
TARGETS, FINETUNING = (
    (ROOT / "benchmarks" / "accuracy" / name).read_text(encoding="utf-8")
    for name in ("targets.md", "finetuning.md")
)


def all_predictions() -> tuple[Prediction, ...]:
    """Predictions for every row the project carries."""
    return predict_rows([row for table in TABLES for row in read_table(table).rows])


def page_of_tables(predictions: Sequence[Prediction]) -> str:
    """Everything of the page that a test can afford to make again."""
    return "\n".join(
        [
            INTRODUCTION.format(rows=len(predictions), mfu=100 * LEAST_MFU),
            *_corrections_part(predictions),
            TARGETS,
            *_metrics_part("By source", predictions, Grouping.SOURCE),
            *_metrics_part("By runtime", predictions, Grouping.RUNTIME),
            *_metrics_part("By GPU", predictions, Grouping.GPU),
            *_open_part(predictions),
            *_stalled_part(predictions),
            *te_part(predictions),
            *_intervals_part(),
            *_memory_part(predictions),
            *_sweep_part(predictions),
            *_largest_part(predictions),
            *_reasons_part(predictions),
            FINETUNING,
        ]
    )


def _corrections_part(predictions: Sequence[Prediction]) -> list[str]:
    """The corrections under which rows of these tables are read."""
    counts = Counter(
        known.title for prediction in predictions for known in corrections_of(prediction.row)
    )
    rows = [
        [known.title, str(counts[known.title]), _changes_text(known), known.reason]
        for known in CORRECTIONS
        if counts[known.title]
    ]
    heads = ["table", "rows", "read with", "because"]
    return ["### Corrections\n", CORRECTIONS_TEXT, *table(heads, rows)]


def _changes_text(known: TableCorrection) -> str:
    parts = [
        *([f"runtime {known.program}"] if known.program else []),
        *(f"{name} {value} if not stated" for name, value in known.fills.items()),
        *(f"{name} {value} whatever is stated" for name, value in known.replaces.items()),
        *(f"{name} {_value_text(value)}" for name, value in known.runtime.items()),
    ]
    return "; ".join(parts)


def _value_text(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, frozenset) else str(value).lower()


def _metrics_part(title: str, predictions: Sequence[Prediction], by: Grouping) -> list[str]:
    heads = ["", "rows", "modelled", "scored", "MAPE", "median", "mean", "Spearman", "inside"]
    rows = [
        [
            group.name,
            str(group.rows),
            percent(group.coverage, 0),
            str(group.timed),
            percent(group.mape),
            percent(group.median_ape),
            percent(group.mean_signed_error),
            number(group.spearman),
            percent(group.interval_coverage, 0),
        ]
        for group in metrics_by(predictions, KEYS[by])
    ]
    return [f"## {title}\n", *table(heads, rows)]


def _open_part(predictions: Sequence[Prediction]) -> list[str]:
    """Rows that leave the micro-batch open are not scored above."""
    unstated = [p for p in predictions if p.scenario is not None and not p.scenario.stated]
    rows = [
        [group.name, str(group.timed), percent(group.mape), percent(group.mean_signed_error)]
        for group in metrics_by(unstated, KEYS[Grouping.SOURCE], Scoring.ALL)[:-1]
        if group.timed
    ]
    if not rows:
        return []
    text = (
        "Not scored above, as the micro-batch is not stated; the best one that fits is assumed:\n"
    )
    return [text, *table(["", "rows", "MAPE", "mean"], rows)]


def _stalled_part(predictions: Sequence[Prediction]) -> list[str]:
    """Runs whose time does not depend on their size, scored by themselves."""
    late = [replace(p, stalled=False) for p in predictions if p.stalled]
    rows = [
        [group.name, str(group.timed), percent(group.mape), percent(group.mean_signed_error)]
        for group in (metrics_by(late, KEYS[Grouping.SOURCE])[:-1] if late else [])
        if group.timed
    ]
    if not rows:
        return []
    text = (
        "Not scored above, as a turn of their pipeline took no less than one with twice the"
        " micro-batch:\n"
    )
    return [text, *table(["", "rows", "MAPE", "mean"], rows)]


def _intervals_part() -> list[str]:
    """How often intervals hold where they were not calibrated, as the calibration found."""
    found = json.loads(INTERVALS.read_text(encoding="utf-8"))
    held = found["held_back"]
    text = INTERVALS_TEXT.format(
        sources=found["pooled"]["sources"],
        rows=found["pooled"]["rows"],
        level=100 * found["level"],
        by_source=percent(held["by_source"]),
        by_row=percent(held["by_row"]),
    )
    rows = [
        [
            name,
            str(one["rows"]),
            percent(one["inside"], 0),
            f"{one['low']:.2f} to {one['high']:.2f}",
        ]
        for name, one in held["sources"].items()
    ]
    heads = ["source held back", "rows", "inside", "interval, of the prediction"]
    return ["## Prediction intervals\n", text, *table(heads, rows)]


def _memory_part(predictions: Sequence[Prediction]) -> list[str]:
    heads = ["", "peaks", "MAPE", "mean", "failed", "recall", "precision"]
    rows = [
        [
            group.name,
            str(group.memory_rows),
            percent(group.memory_mape),
            percent(group.memory_signed_error),
            str(group.out_of_memory),
            percent(group.oom_recall),
            percent(group.oom_precision),
        ]
        for group in metrics_by(predictions, KEYS[Grouping.SOURCE])
        if group.memory_rows or group.out_of_memory
    ]
    return ["## Memory\n", *table(heads, rows)]


def _sweep_part(predictions: Sequence[Prediction]) -> list[str]:
    heads = ["sweep", "GPUs", "batch", "strategies", "regret", "Spearman"]
    rows = [
        [
            f"{sweep.source}, {sweep.model}",
            str(sweep.gpus),
            str(sweep.global_batch),
            str(sweep.strategies),
            percent(sweep.regret),
            number(sweep.spearman),
        ]
        for sweep in sweeps(time_scores(predictions))
    ]
    return ["## What trusting the first plan costs\n", *table(heads, rows)]


def _largest_part(predictions: Sequence[Prediction]) -> list[str]:
    heads = ["error", "source", "model", "GPUs", "strategy", "measured s", "predicted s"]
    worst = sorted(time_scores(predictions), key=lambda score: -abs(score.error))[:LARGEST]
    rows = [
        [
            f"{100 * score.error:+.0f} %",
            score.prediction.row.source,
            score.prediction.row.model,
            f"{score.prediction.row.num_gpus} {score.prediction.row.gpu}",
            _strategy_text(score.prediction),
            f"{score.measured:.4g}",
            f"{score.predicted:.4g}",
        ]
        for score in worst
    ]
    return ["## Largest errors\n", *table(heads, rows)]


def _strategy_text(prediction: Prediction) -> str:
    assert prediction.plan is not None
    assert prediction.scenario is not None
    return strategy_text(prediction.plan, prediction.scenario)


def _reasons_part(predictions: Sequence[Prediction]) -> list[str]:
    found: dict[tuple[str, str], int] = {}
    for prediction in predictions:
        if prediction.plan is None:
            key = (prediction.row.source, prediction.reason)
            found[key] = found.get(key, 0) + 1
    rows = [[str(count), source, reason] for (source, reason), count in found.items()]
    return ["## Not modelled\n", *table(["rows", "source", "reason"], rows)] if rows else []


def snapshot(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Every prediction, and the errors that must not be exceeded."""
    limits = {
        group.name: {
            "mape": _limit(group.mape),
            "memory_mape": _limit(group.memory_mape),
            "coverage": math.floor(group.coverage / STEP) * STEP,
        }
        for group in metrics_by(predictions, KEYS[Grouping.SOURCE])
    }
    return {"limits": limits, "predictions": [_recorded(p) for p in predictions]}


def _limit(value: float | None) -> float | None:
    return None if value is None else round(math.ceil(value / STEP) * STEP, 4)


def _recorded(prediction: Prediction) -> list[Any]:
    values = (prediction.iter_time_s, prediction.peak_mem_gb)
    seconds, memory = (None if v is None else float(f"{v:.{DIGITS}g}") for v in values)
    place = Path(prediction.row.place).name
    return [place, seconds, memory, prediction.fits]


def snapshot_text(content: dict[str, Any]) -> str:
    """One prediction a line, so that a change shows as the rows it moves."""
    limits = json.dumps(content["limits"], indent=1)
    rows = ",\n".join(json.dumps(row) for row in content["predictions"])
    return f'{{"limits": {limits},\n"predictions": [\n{rows}\n]}}\n'


def broken_limits(groups: Iterable[Metrics], limits: dict[str, Any]) -> list[str]:
    """What became worse than it was when the snapshot was taken."""
    out = []
    for group in groups:
        known = limits.get(group.name, {})
        for name, value in (("mape", group.mape), ("memory_mape", group.memory_mape)):
            if value is not None and (known.get(name) is None or value > known[name]):
                out.append(f"{group.name}: {name} {value:.4f} > {known.get(name)}")
        if group.coverage < known.get("coverage", 1.0):
            out.append(f"{group.name}: coverage {group.coverage:.4f} < {known.get('coverage')}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the snapshot only")
    predictions = all_predictions()
    if parser.parse_args().check:
        limits = json.loads(SNAPSHOT.read_text(encoding="utf-8"))["limits"]
        found = broken_limits(metrics_by(predictions, KEYS[Grouping.SOURCE]), limits)
        raise SystemExit("\n".join(found) or 0)
    from experts import experts_part

    text = page_of_tables(predictions) + "\n" + experts_part(predictions)
    PAGE.write_text(text, encoding="utf-8")
    SNAPSHOT.write_text(snapshot_text(snapshot(predictions)), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} and {SNAPSHOT.relative_to(ROOT)} are new")


if __name__ == "__main__":
    main()
