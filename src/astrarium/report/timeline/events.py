"""One predicted iteration, event by event, from the document of a plan alone.

The passes run as the schedule orders them (`astrarium.cost.simulator`), with the stored seconds
of every stage. After the last of them all stages add up gradients and update, as long as the
longest takes: that is how the estimate counts it, so the timeline ends with its iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.simulator import Timeline, simulate
from astrarium.errors import InputError
from astrarium.plans.document import Plan
from astrarium.value import Value

ROUNDING: Final = 1e-9
MOST_OFF: Final = 0.02  # what an estimate may differ from its execution by, as a share

# What follows the last pass, in this order.
AFTER: Final = ("gradient_reduction", "optimizer", "parameter_gather", "host")


class EventKind(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    TRANSFER = "transfer"
    AFTER = "after"


class Event(Value, frozen=True):
    """Something a stage does; `name` says what of the work behind the passes."""

    kind: EventKind
    stage: int
    start: float
    end: float
    micro_batch: int = -1
    chunk: int = -1
    name: str = ""
    to_stage: int = -1  # of a transfer


class PlanTimeline(Value, frozen=True):
    """All events of an iteration, and what stages hold over time."""

    seconds: float
    passes: Timeline
    transfers: tuple[Event, ...]
    after: tuple[Event, ...]
    held_bytes: tuple[tuple[Floats, Floats], ...]  # by stage: moments, bytes from then on

    def events(self) -> Iterator[Event]:
        """Everything, passes first, each stage's in the order of execution."""
        yield from _pass_events(self.passes)
        yield from self.transfers
        yield from self.after


def timeline_of(plan: Plan) -> PlanTimeline:
    """What every stage does when, in one iteration of a plan."""
    if not plan.stage_seconds:
        raise InputError(
            f"plan {plan.rank} holds no seconds of stages: it was written by an older version; "
            "plan again to see its timeline"
        )
    if len(plan.stage_seconds) != plan.strategy.pp:
        raise InputError(
            f"plan {plan.rank} has the seconds of {len(plan.stage_seconds)} stages, but pp"
            f" {plan.strategy.pp}: the file was changed; plan again"
        )
    passes = _executed(plan)
    if passes.seconds > plan.iteration_seconds * (1.0 + MOST_OFF):
        raise InputError(
            f"plan {plan.rank} states an iteration of {plan.iteration_seconds:.6g} s, but its "
            f"stages need {passes.seconds:.6g} s: the file was changed; plan again"
        )
    return PlanTimeline(
        seconds=plan.iteration_seconds,
        passes=passes,
        transfers=tuple(_transfers(passes, plan)),
        after=tuple(_after(plan, passes.seconds)),
        held_bytes=tuple(_held(plan, passes)),
    )


def _executed(plan: Plan) -> Timeline:
    strategy, stages = plan.strategy, plan.stage_seconds
    forward = np.array([stage.chunk_forward_seconds for stage in stages])
    backward = np.array([stage.chunk_backward_seconds for stage in stages])
    links = np.array([stage.send_seconds for stage in stages])
    count, overlap = strategy.num_micro_batches, strategy.overlap.p2p
    executed = simulate(forward, backward, links, count, overlap_p2p=overlap)
    # The estimate of many micro-batches repeats the last of a few; executing all of them may
    # differ from it by a percent. The timeline keeps to the estimate.
    passing = plan.iteration_seconds - max(stage.after_seconds for stage in stages)
    pace = passing / executed.seconds
    if abs(pace - 1.0) < ROUNDING or not abs(pace - 1.0) < MOST_OFF:
        return executed
    return simulate(pace * forward, pace * backward, pace * links, count, overlap_p2p=overlap)


def _pass_events(passes: Timeline) -> Iterator[Event]:
    columns = (passes.backward, passes.stage, passes.start, passes.end)
    numbers = (passes.micro_batch, passes.chunk)
    rows = zip(*(column.tolist() for column in (*columns, *numbers)), strict=True)
    for backward, stage, start, end, micro_batch, chunk in rows:
        kind = EventKind.BACKWARD if backward else EventKind.FORWARD
        yield Event(kind, stage, start, end, micro_batch, chunk)


def _transfers(passes: Timeline, plan: Plan) -> Iterator[Event]:
    """Of every pass that another stage waits for.

    Overlapped, a transfer starts as the pass ends; otherwise when the receiver is done, too.
    """
    strategy, stages = plan.strategy, plan.stage_seconds
    pp, virtual = strategy.pp, strategy.virtual_stages
    if pp == 1:
        return
    place = passes.chunk * pp + passes.stage
    is_last = np.where(passes.backward, place == 0, place == pp * virtual - 1)
    rows = np.flatnonzero(~is_last)
    stage, backward = passes.stage[rows], passes.backward[rows]
    goal = (stage + np.where(backward, -1, 1)) % pp
    seconds = np.array([one.send_seconds for one in stages])[np.where(backward, goal, stage)]
    start = passes.end[rows]
    if not strategy.overlap.p2p:
        start = _when_free(passes, goal, start)
    columns = (stage, goal, start, start + seconds, passes.micro_batch[rows], passes.chunk[rows])
    for sender, receiver, begin, end, micro_batch, chunk in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if end > begin:
            kind = EventKind.TRANSFER
            yield Event(kind, sender, begin, end, micro_batch, chunk, to_stage=receiver)


def _when_free(passes: Timeline, stage: Ints, moment: Floats) -> Floats:
    """When a stage that may be in a pass at some moment is done with it."""
    free = moment.copy()
    for number in np.unique(stage):
        own = np.flatnonzero(passes.stage == number)
        asked = np.flatnonzero(stage == number)
        begun = np.searchsorted(passes.start[own], moment[asked], side="right") - 1
        ends = np.where(begun >= 0, passes.end[own[np.maximum(begun, 0)]], 0.0)
        free[asked] = np.maximum(moment[asked], ends)
    return free


def _after(plan: Plan, flushed: float) -> Iterator[Event]:
    """The work behind the passes: its causes share the time of a stage as they do in the plan."""
    shares = {cause: plan.breakdown_seconds.get(cause, 0.0) for cause in AFTER}
    in_all = sum(shares.values())
    if in_all <= 0.0:
        return
    longest = plan.iteration_seconds - flushed
    most = max(stage.after_seconds for stage in plan.stage_seconds)
    for stage in plan.stage_seconds:
        # The longest stage ends with the iteration.
        own = longest * stage.after_seconds / most if most > 0.0 else longest
        moment = flushed
        for cause, seconds in shares.items():
            end = moment + own * seconds / in_all
            if end > moment:
                yield Event(EventKind.AFTER, stage.stage, moment, end, name=cause)
            moment = end


def _held(plan: Plan, passes: Timeline) -> Iterator[tuple[Floats, Floats]]:
    """What each stage holds: the same all the time, and activations of passes under way.

    Chunks of a stage weigh what their passes take; the peak is the plan's.
    """
    for stage, part in enumerate(plan.memory):
        own = passes.stage == stage
        seconds = np.array(plan.stage_seconds[stage].chunk_forward_seconds)
        weights = seconds if seconds.sum() > 0.0 else np.ones_like(seconds)
        change = np.where(passes.backward[own], -1.0, 1.0) * weights[passes.chunk[own]]
        moments = np.where(passes.backward[own], passes.end[own], passes.start[own])
        order = np.argsort(moments, kind="stable")
        level = np.cumsum(change[order])
        always = part.peak_bytes - part.activations
        # Rounding may leave a little below nothing.
        held = always + np.maximum(level, 0.0) / level.max() * part.activations
        yield np.concatenate([[0.0], moments[order]]), np.concatenate([[always], held])
