"""A whole run: iterations at every batch size, and its seconds by cause.

Samples are sequences. Iterations are counted as Megatron-LM counts them: `--rampup-batch-size`
raises the batch by equal increments over a number of samples, and the batch of an iteration follows
from the samples consumed before it. Megatron drops what is left at the end and makes no full
batch; here it counts by its share of an iteration, so that all tokens asked for are paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum

import numpy as np
from msgspec import field
from numpy.typing import ArrayLike

from astrarium.arrays import Floats, Ints
from astrarium.cost.checkpoints import Protection, Storage
from astrarium.cost.energy import PowerTerms
from astrarium.cost.interruptions import (
    DEFAULT_FAILURES_PER_HOUR,
    DEFAULT_INTERRUPTIONS_PER_HOUR,
    protected,
)
from astrarium.errors import InputError
from astrarium.model.workload import Evaluation as Evaluation
from astrarium.model.workload import Ramp as Ramp
from astrarium.value import Value


class BatchSchedule(Value, frozen=True):
    """Iterations at each batch size, ascending; the last is the global batch."""

    batches: Ints
    iterations: Ints
    left_over: float  # samples that make no full batch

    @property
    def samples(self) -> float:
        return float(self.batches @ self.iterations) + self.left_over

    @property
    def num_iterations(self) -> int:
        return int(self.iterations.sum())


def schedule_of(samples: float, global_batch: int, ramp: Ramp | None = None) -> BatchSchedule:
    """Iterations of a run of so many samples."""
    if ramp is None:
        batches, iterations = np.array([global_batch]), np.array([0])
    else:
        batches, iterations = _ramped(global_batch, ramp)
    consumed = int(batches @ iterations)
    if consumed > samples:
        raise InputError(
            f"the batch is ramped up over {consumed:,} sequences, but the run has only"
            f" {samples:,.0f}; shorten the ramp"
        )
    full = int((samples - consumed) // global_batch)
    iterations[-1] += full
    return BatchSchedule(batches, iterations, float(samples - consumed - full * global_batch))


def _ramped(global_batch: int, ramp: Ramp) -> tuple[Ints, Ints]:
    """Batches, and iterations with each until more samples are consumed than the ramp has."""
    ramp.check(global_batch)
    batches = np.arange(ramp.start, global_batch + 1, ramp.increment)
    steps = len(batches) - 1
    per_step = ramp.samples / steps
    iterations = np.zeros(len(batches), np.int64)
    consumed = 0
    while consumed <= ramp.samples:
        step = int(consumed / per_step)
        batch = int(batches[step])
        # Iterations until the batch grows, or until the ramp is over.
        goal = ramp.samples + 1 if step == steps else -(-(step + 1) * ramp.samples // steps)
        count = max(-(-(goal - consumed) // batch), 1)
        # Megatron divides floats: a hair beside the exact limit, it stays for one more or one less.
        while int((consumed + count * batch) / per_step) <= step < steps:
            count += 1
        while count > 1 and int((consumed + (count - 1) * batch) / per_step) > step:
            count -= 1
        iterations[step] += count
        consumed += count * batch
    return batches, iterations


class Spot(StrEnum):
    """The nodes that may be spot."""

    NEVER = "never"
    ALWAYS = "always"  # all that are on offer
    MIX = "mix"  # as many as is best


class RunTerms(Value, frozen=True):
    """Facts of a run beside its workload and its cluster; all have defaults.

    `interruptions_per_hour` are those of one spot node, by GPU type, with "" for all others.
    `failures_per_hour` are the breakdowns of any node.
    """

    spot: Spot = Spot.NEVER
    interruptions_per_hour: Mapping[str, float] = field(default_factory=dict)
    failures_per_hour: float = DEFAULT_FAILURES_PER_HOUR
    checkpoint_interval_seconds: float | None = None  # none: the best
    storage: Storage = field(default_factory=Storage)
    restart_seconds: float | None = None  # none: the default, and loading the checkpoint
    ramp: Ramp | None = None
    evaluation: Evaluation | None = None
    co2_kilograms_per_kwh: float | None = None
    power: PowerTerms = field(default_factory=PowerTerms)

    def interruptions_of(self, gpu: str) -> float:
        """Interruptions an hour of a spot node with this GPU type."""
        given = self.interruptions_per_hour
        return given.get(gpu, given.get("", DEFAULT_INTERRUPTIONS_PER_HOUR))


class RunSeconds(Value, frozen=True):
    """Expected seconds by cause; the causes add up to the time on the wall."""

    train: Floats  # iterations at the global batch
    ramp: Floats  # iterations at smaller batches
    evaluation: Floats
    checkpoints: Floats
    lost: Floats  # undone by interruptions
    restarts: Floats

    @property
    def work(self) -> Floats:
        return self.train + self.ramp + self.evaluation

    @property
    def total(self) -> Floats:
        return self.work + self.checkpoints + self.lost + self.restarts

    @property
    def goodput(self) -> Floats:
        """Share of the time in which the run gets on."""
        return self.work / self.total

    def by_cause(self) -> dict[str, Floats]:
        return {cause.name: getattr(self, cause.name) for cause in fields(self)}


def work_seconds(
    schedule: BatchSchedule,
    iteration_seconds: ArrayLike,
    evaluation: Evaluation | None = None,
    evaluation_seconds: ArrayLike = 0.0,
) -> RunSeconds:
    """A run without interruptions and checkpoints.

    `iteration_seconds` has the batches of the schedule along its last axis, in front of it runs;
    `evaluation_seconds` are those of one forward pass over a global batch.
    """
    seconds = np.asarray(iteration_seconds, float)
    by_batch = seconds * schedule.iterations
    left_over = seconds[..., -1] * (schedule.left_over / schedule.batches[-1])
    ramp = by_batch[..., :-1].sum(axis=-1)
    passes = 0 if evaluation is None else evaluation.passes(schedule.num_iterations)
    none = np.zeros_like(ramp)
    evaluated = none + passes * np.asarray(evaluation_seconds, float)
    return RunSeconds(by_batch[..., -1] + left_over, ramp, evaluated, none, none, none)


def run_seconds(work: RunSeconds, rate: ArrayLike, protection: Protection) -> RunSeconds:
    """The same run with interruptions at a rate (per second) and checkpoints against them."""
    costs = protected(rate, work.work, protection)
    parts = np.broadcast_arrays(
        work.train,
        work.ramp,
        work.evaluation,
        work.work * costs.checkpoints,
        work.work * costs.lost,
        work.work * costs.restarts,
    )
    return RunSeconds(*parts)


def run_tokens(
    tokens: int | None = None, epochs: float | None = None, dataset_tokens: int | None = None
) -> int | None:
    """Tokens of a run: as given, or epochs of a dataset; none if neither is."""
    if epochs is None and dataset_tokens is None:
        return tokens
    if tokens is not None:
        raise InputError("tokens and epochs of a dataset are both given; keep one")
    if epochs is None or dataset_tokens is None:
        raise InputError("epochs and the tokens of the dataset are needed together")
    return round(epochs * dataset_tokens)
