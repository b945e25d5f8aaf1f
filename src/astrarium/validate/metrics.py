"""The distance of predictions from measurements, per group of rows and in all.

Times are scored where they say something about the strategy: it is fully stated, the measured run
used at least 5 % of the GPUs' peak and not more than all of it, and the notes carry none of the
marks for doubtful values. Peaks of memory above that of the device are not scored either.
Rows that are not scored are predicted and counted all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.catalog.gpus import Dtype
from astrarium.validate.predictions import GB, Prediction
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import NOT_A_TIME, UNTRUSTED, outcome_is_sure, ran_out_of_memory
from astrarium.value import Value

LEAST_MFU: Final = 0.05  # below it runs wait for something other than the GPUs
# Above it a time is mistaken: no run is faster than its GPUs.
MOST_MFU: Final = 1.0
# Peaks above the device's memory are mistaken; units may be 10^9 or 2^30 bytes, so room is left.
MOST_OF_DEVICE: Final = 1.2
COMPUTED: Final = r"\bcomputed\b|\bformulas?\b"  # in notes on needs that no device has to meet
LEAST_SWEEP: Final = 5  # strategies that make a sweep
LEAST_RANKED: Final = 3  # rows for which a rank correlation says anything


class Scoring(StrEnum):
    STATED = "stated"  # rows that state their strategy
    ALL = "all"  # also those where a micro-batch or the like had to be assumed


class NotScored(StrEnum):
    """Reasons why the time of a modelled row is not scored."""

    NO_TIME = "no time"
    DOUBTFUL = "marked doubtful"
    NOT_STATED = "strategy not fully stated"
    TOO_DEEP = "more pipeline stages than layers"
    IDLE = "below 5 % of peak"
    TOO_FAST = "faster than the GPUs' peak"
    STALLED = "stalled: as long as with twice the micro-batch"


class ScoredValue(Value, frozen=True):
    """One scored value: a prediction, the measured value and the error relative to it."""

    prediction: Prediction
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class Sweep(Value, frozen=True):
    """Measured runs that differ in strategy only, and what trusting the first plan costs."""

    source: str
    model: str
    gpus: int
    global_batch: int
    seq_length: int
    strategies: int
    regret: float
    spearman: float | None


class Metrics(Value, frozen=True):
    """The figures of a group of rows; None where it has no rows of the kind."""

    name: str
    rows: int
    stated: int  # rows that state their strategy
    modelled: int
    coverage: float
    coverage_of_stated: float | None
    timed: int  # rows whose time is scored
    mape: float | None
    median_ape: float | None
    mean_signed_error: float | None
    spearman: float | None
    interval_coverage: float | None  # share of measured times inside the predicted interval
    memory_rows: int
    memory_mape: float | None
    memory_signed_error: float | None
    out_of_memory: int
    oom_recall: float | None
    oom_precision: float | None
    false_alarms: int | None  # runs that ran and are predicted not to; None if none surely ran
    sweeps: int
    regret_mean: float | None
    regret_worst: float | None


def states_strategy(row: MeasuredRow) -> bool:
    """Whether a row states degrees, batch and size of the job."""
    counts = (row.num_gpus, row.tp, row.pp, row.micro_batch, row.seq_len)
    batch = row.global_batch or row.num_micro_batches
    return batch is not None and all(count is not None for count in counts)


def measured_seconds(prediction: Prediction) -> float | None:
    """The measured time of an iteration; from tokens per second where only those are stated."""
    row = prediction.row
    if row.iter_time_s is not None or prediction.plan is None or prediction.scenario is None:
        return row.iter_time_s
    if row.tokens_per_s_per_gpu is None or row.num_gpus is None:
        return None
    work = prediction.scenario.workload
    tokens = (row.global_batch or work.global_batch) * work.seq_length
    return tokens / (row.tokens_per_s_per_gpu * row.num_gpus)


def measured_mfu(prediction: Prediction) -> float | None:
    """The share of the peak that a run used: as stated, or from its time."""
    return prediction.row.mfu if prediction.row.mfu is not None else mfu_of_time(prediction)


def mfu_of_time(prediction: Prediction) -> float | None:
    """The share of the peak that the measured time comes to."""
    seconds, scenario = measured_seconds(prediction), prediction.scenario
    if seconds is None or scenario is None:
        return None
    assert prediction.plan is not None
    strategy, peaks = prediction.plan.strategy, scenario.pool.gpu.peak_flops
    sequences = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    work = scenario.workload
    flops = work.model.flops_per_token(work.seq_length) * work.seq_length * sequences
    peak = peaks.get(Dtype(work.precision.dtype), 0.0)
    return flops / (seconds * strategy.gpus * peak)


def time_scores(
    predictions: Iterable[Prediction], scoring: Scoring = Scoring.STATED
) -> list[ScoredValue]:
    return [
        ScoredValue(prediction, predicted, measured)
        for prediction in predictions
        if (measured := measured_seconds(prediction)) is not None
        and (predicted := prediction.iter_time_s) is not None
        and why_not_scored(prediction, scoring) is None
    ]


def why_not_scored(prediction: Prediction, scoring: Scoring = Scoring.STATED) -> NotScored | None:
    """Why the time of a row is not scored; None if it is, or if the row is not modelled."""
    row, scenario = prediction.row, prediction.scenario
    if scenario is None or prediction.plan is None:
        return None
    if measured_seconds(prediction) is None:
        return NotScored.NO_TIME
    if re.search(f"{UNTRUSTED}|{NOT_A_TIME}", row.notes):
        return NotScored.DOUBTFUL
    if not (scoring is Scoring.ALL or scenario.stated):
        return NotScored.NOT_STATED
    if (row.pp or 1) > scenario.workload.model.num_layers:
        return NotScored.TOO_DEEP
    if (mfu_of_time(prediction) or 0.0) > MOST_MFU:
        return NotScored.TOO_FAST
    if (measured_mfu(prediction) or 0.0) < LEAST_MFU:
        return NotScored.IDLE
    return NotScored.STALLED if prediction.stalled else None


def exceeds_memory(prediction: Prediction) -> bool:
    """Whether a row reports more memory than its device has."""
    peak, scenario = prediction.row.peak_mem_gb, prediction.scenario
    if peak is None or scenario is None or re.search(COMPUTED, prediction.row.notes):
        return False
    return peak * GB > MOST_OF_DEVICE * scenario.pool.gpu.memory_bytes


def memory_scores(predictions: Iterable[Prediction]) -> list[ScoredValue]:
    return [
        ScoredValue(prediction, predicted, measured)
        for prediction in predictions
        if (measured := prediction.row.peak_mem_gb) is not None
        and (predicted := prediction.peak_mem_gb) is not None
        and not re.search(UNTRUSTED, prediction.row.notes)
        and not exceeds_memory(prediction)
    ]


def group_metrics(
    name: str, predictions: Sequence[Prediction], scoring: Scoring = Scoring.STATED
) -> Metrics:
    times = time_scores(predictions, scoring)
    errors = _errors(times)
    memory = _errors(memory_scores(predictions))
    modelled = [prediction for prediction in predictions if prediction.plan is not None]
    stated = [prediction for prediction in predictions if states_strategy(prediction.row)]
    recall, precision, failed, alarms = _out_of_memory(modelled)
    found = sweeps(times)
    regrets = [sweep.regret for sweep in found]
    return Metrics(
        name=name,
        rows=len(predictions),
        stated=len(stated),
        modelled=len(modelled),
        coverage=len(modelled) / len(predictions),
        coverage_of_stated=_share(p.plan is not None for p in stated),
        timed=len(times),
        mape=_mean(np.abs(errors)),
        median_ape=float(np.median(np.abs(errors))) if len(errors) else None,
        mean_signed_error=_mean(errors),
        spearman=spearman([s.predicted for s in times], [s.measured for s in times]),
        interval_coverage=_share(_inside(score) for score in times),
        memory_rows=len(memory),
        memory_mape=_mean(np.abs(memory)),
        memory_signed_error=_mean(memory),
        out_of_memory=failed,
        oom_recall=recall,
        oom_precision=precision,
        false_alarms=alarms,
        sweeps=len(found),
        regret_mean=_mean(np.array(regrets)),
        regret_worst=max(regrets, default=None),
    )


def metrics_by(
    predictions: Sequence[Prediction],
    key: Callable[[Prediction], str],
    scoring: Scoring = Scoring.STATED,
) -> list[Metrics]:
    """Metrics of every group, in order of appearance, and last of all rows together."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction), []).append(prediction)
    found = [group_metrics(name, rows, scoring) for name, rows in groups.items()]
    return [*found, group_metrics("all", predictions, scoring)]


def sweeps(times: Iterable[ScoredValue]) -> list[Sweep]:
    """Runs of the same source, model, GPUs, batch and sequence length, five or more."""
    groups: dict[tuple[object, ...], list[ScoredValue]] = {}
    for score in times:
        scenario, row = score.prediction.scenario, score.prediction.row
        assert scenario is not None
        key = (
            row.source,
            row.model,
            id(scenario.workload.model),
            scenario.pool.gpu.name,
            row.num_gpus,
            row.global_batch,
            scenario.workload.seq_length,
        )
        groups.setdefault(key, []).append(score)
    return [_sweep(scores) for scores in groups.values() if _strategies(scores) >= LEAST_SWEEP]


def _strategies(scores: Sequence[ScoredValue]) -> int:
    return len({score.prediction.plan.strategy for score in scores if score.prediction.plan})


def _sweep(scores: Sequence[ScoredValue]) -> Sweep:
    row, scenario = scores[0].prediction.row, scores[0].prediction.scenario
    assert scenario is not None
    first = min(scores, key=lambda score: score.predicted)
    best = min(score.measured for score in scores)
    return Sweep(
        source=row.source,
        model=row.model,
        gpus=row.num_gpus or 0,
        global_batch=row.global_batch or 0,
        seq_length=scenario.workload.seq_length,
        strategies=_strategies(scores),
        regret=first.measured / best - 1,
        spearman=spearman([s.predicted for s in scores], [s.measured for s in scores]),
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The correlation of ranks; equal values share their mean rank."""
    if len(one) < LEAST_RANKED:
        return None
    first, second = ranks(np.asarray(one)), ranks(np.asarray(other))
    first, second = first - first.mean(), second - second.mean()
    length = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / length if length else None


def ranks(values: Floats) -> Floats:
    """Ranks from 0, ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse]


def _out_of_memory(
    modelled: Sequence[Prediction],
) -> tuple[float | None, float | None, int, int | None]:
    sure = [prediction for prediction in modelled if outcome_is_sure(prediction.row)]
    failed = [p for p in sure if ran_out_of_memory(p.row)]
    foretold = [p for p in sure if not p.fits]
    both = [p for p in failed if not p.fits]
    recall = len(both) / len(failed) if failed else None
    # Without failures every warning is false, but there is no precision to speak of.
    precision = len(both) / len(foretold) if failed and foretold else None
    alarms = len(foretold) - len(both) if len(sure) > len(failed) else None
    return recall, precision, len(failed), alarms


def _inside(score: ScoredValue) -> bool:
    assert score.prediction.plan is not None
    low, high = score.prediction.plan.interval_seconds
    return low <= score.measured <= high


def _errors(scores: Sequence[ScoredValue]) -> Floats:
    return np.array([score.error for score in scores])


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _share(flags: Iterable[bool]) -> float | None:
    found = list(flags)
    return sum(found) / len(found) if found else None
