"""The timeline of a plan as columns: what a page draws, and far smaller than a list of events.

The middle of a long iteration repeats itself. Where there are more events than a page can use, the
passes and transfers there are left out: each stage has one event in their place, which says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.plans.document import Plan
from astrarium.report.timeline.events import AFTER, Event, EventKind, PlanTimeline, timeline_of
from astrarium.value import Value

LEFT_OUT: Final = "left_out"
KINDS: Final = (
    EventKind.FORWARD.value,
    EventKind.BACKWARD.value,
    EventKind.TRANSFER.value,
    *AFTER,
    LEFT_OUT,
)
MOST_EVENTS: Final = 100_000  # about 5 MB of JSON


class TimelineStage(Value, frozen=True):
    """A pipeline stage; `layers` are those of each of its chunks: first, last exclusive."""

    stage: int
    gpu: str
    devices: int
    layers: tuple[tuple[int, int], ...]
    busy_seconds: float  # at work, also where that is left out of the events


class TimelineEvents(Value, frozen=True):
    """Everything that happens, a column for each property; -1: does not apply.

    `kind` is an index of the document's `kinds`.
    """

    kind: list[int]
    stage: list[int]
    start: list[float]
    end: list[float]
    micro_batch: list[int]
    chunk: list[int]
    to_stage: list[int]


class TimelineMemory(Value, frozen=True):
    """Bytes that a stage holds from each of the moments on; while events are left out, the most."""

    moments: list[float]
    bytes: list[float]


class TimelineDocument(Value, frozen=True):
    """One predicted iteration; seconds from its begin.

    `left_out` counts the passes and transfers that are not among the events.
    """

    seconds: float
    kinds: tuple[str, ...]
    stages: tuple[TimelineStage, ...]
    events: TimelineEvents
    memory: tuple[TimelineMemory, ...]  # by stage
    left_out: int = 0


def timeline_document(plan: Plan, most_events: int = MOST_EVENTS) -> TimelineDocument:
    """What every stage of a plan does when, and holds meanwhile."""
    timeline = timeline_of(plan)
    gaps = _gaps(timeline, most_events)
    events, left_out = _events(timeline, gaps)
    return TimelineDocument(
        seconds=timeline.seconds,
        kinds=KINDS,
        stages=tuple(_stages(plan, timeline)),
        events=events,
        memory=tuple(
            _memory(moments, held, gap)
            for (moments, held), gap in zip(timeline.held_bytes, gaps, strict=True)
        ),
        left_out=left_out,
    )


def _stages(plan: Plan, timeline: PlanTimeline) -> Iterator[TimelineStage]:
    after: dict[int, float] = defaultdict(float)
    for event in timeline.after:
        after[event.stage] += event.end - event.start
    for rank in range(plan.strategy.pp):
        own = [stage for stage in plan.strategy.stages if stage.pipeline_rank == rank]
        layers = tuple(stage.layers for stage in own)
        busy = float(timeline.passes.busy[rank]) + after[rank]
        yield TimelineStage(rank, own[0].gpu, own[0].devices, layers, busy)


_Gap = tuple[float, float]
_NO_GAP: Final[_Gap] = (np.inf, -np.inf)


def _gaps(timeline: PlanTimeline, most_events: int) -> list[_Gap]:
    """By stage: from when to when nothing is kept, so that few enough events are left."""
    passes = timeline.passes
    count = len(passes.start) + len(timeline.transfers)
    kept = 1.0 if count <= most_events else most_events / count
    found = []
    for stage in range(len(passes.busy)):
        own = np.flatnonzero(passes.stage == stage)
        own = own[np.argsort(passes.start[own], kind="stable")]
        half = max(1, int(len(own) * kept / 2))
        middle = own[half : len(own) - half] if kept < 1.0 else own[:0]
        gap = _NO_GAP
        if len(middle):
            gap = float(passes.start[middle[0]]), float(passes.end[middle[-1]])
        found.append(gap)
    return found


def _events(timeline: PlanTimeline, gaps: Sequence[_Gap]) -> tuple[TimelineEvents, int]:
    begin, end = (np.array(side) for side in zip(*gaps, strict=True))
    passes, stage = timeline.passes, timeline.passes.stage
    kept = np.flatnonzero((passes.start < begin[stage]) | (passes.end > end[stage]))
    left_out = len(stage) - len(kept)
    columns = TimelineEvents(
        kind=passes.backward[kept].astype(int).tolist(),
        stage=stage[kept].tolist(),
        start=passes.start[kept].tolist(),
        end=passes.end[kept].tolist(),
        micro_batch=passes.micro_batch[kept].tolist(),
        chunk=passes.chunk[kept].tolist(),
        to_stage=[-1] * len(kept),
    )
    others: list[Event] = []
    for event in (*timeline.transfers, *timeline.after):
        since, until = gaps[event.stage]
        if event.kind is EventKind.TRANSFER and since <= event.start and event.end <= until:
            left_out += 1
        else:
            others.append(event)
    for number, (since, until) in enumerate(gaps):
        if since < until:
            others.append(Event(EventKind.AFTER, number, since, until, name=LEFT_OUT))
    for event in others:
        columns.kind.append(KINDS.index(event.name or event.kind.value))
        for name in TimelineEvents.__struct_fields__[1:]:
            getattr(columns, name).append(getattr(event, name))
    return columns, left_out


def _memory(moments: Floats, held: Floats, gap: _Gap) -> TimelineMemory:
    """The curve; within the gap it stays at the most that is held there."""
    within = (moments >= gap[0]) & (moments < gap[1])
    if within.any():
        first = int(np.argmax(within))
        held = held.copy()
        held[first] = held[within].max()
        within[first] = False
        moments, held = moments[~within], held[~within]
    return TimelineMemory(moments.tolist(), held.tolist())
