"""One predicted iteration, event by event, from the document of a plan alone.

The passes run in the order of the schedule (`astrarium.cost.simulator`), with the stored seconds of
every stage. After the last pass all stages reduce gradients and update; the longest of them ends
the iteration. The page gets columns, which are far smaller than a list of events; if there are too
many events, each stage has one in place of those in the middle. A trace is in the Trace Event
Format, for Perfetto: a process for every stage, with threads for passes and for the work after
them, and a counter of memory. Transfers are asynchronous events. Moments are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.simulator import Timeline, simulate
from astrarium.errors import InputError
from astrarium.plans.document import Plan, PlanDocument
from astrarium.report.tables import GIB
from astrarium.strategy.types import Stage
from astrarium.value import Value

ROUNDING: Final = 1e-9
MOST_OFF: Final = 0.02  # the largest relative difference between an estimate and its execution

# What follows the last pass, in this order.
AFTER: Final = ("gradient_reduction", "optimizer", "parameter_gather", "host")


class EventKind(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    TRANSFER = "transfer"
    AFTER = "after"


class Event(Value, frozen=True):
    """Something a stage does; `name` is the cause of work after the passes."""

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
    """The events of every stage in one iteration of a plan."""
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
    """Transfers start as a pass ends or, without overlap, when the receiver is done, too."""
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
    """The moment from which a stage that may be in a pass is done with it."""
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
    """The memory of each stage over time: activations of passes under way beside the rest."""
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
    """Passes and memory of every stage of a plan over time."""
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


MICROSECONDS: Final = 1e6
PASSES, AFTER_THREAD = 0, 1
THREADS: Final = {PASSES: "passes", AFTER_THREAD: "gradients, update, weights"}
# Names of Chrome's palette, so that both viewers draw passes alike in every trace.
COLOURS: Final = {
    EventKind.FORWARD: "thread_state_running",
    EventKind.BACKWARD: "rail_response",
    EventKind.TRANSFER: "thread_state_iowait",
    EventKind.AFTER: "rail_load",
}
CAUSES: Final = {
    "gradient_reduction": "reduce gradients",
    "optimizer": "update",
    "parameter_gather": "gather weights",
    "host": "host",
}

Entry = dict[str, Any]


def trace_of(document: PlanDocument, plan: Plan) -> Entry:
    timeline = timeline_of(plan)
    entries: list[Entry] = []
    for number, stage in enumerate(stage for stage in plan.strategy.stages if stage.chunk == 0):
        entries += _names(number, f"stage {number}: {_what(plan, stage)}")
    for number, event in enumerate(timeline.events()):
        entries += _entries(event, f"{number}.{event.stage}")
    entries += _counters(timeline)
    return {
        "traceEvents": entries,
        "displayTimeUnit": "ms",
        "otherData": {
            "program": "astrarium",
            "model": document.workload.model,
            "plan": plan.rank,
            "iteration_seconds": plan.iteration_seconds,
        },
    }


def _what(plan: Plan, stage: Stage) -> str:
    own = [s for s in plan.strategy.stages if s.pipeline_rank == stage.pipeline_rank]
    layers = ", ".join(f"{s.layers[0]}-{s.layers[1] - 1}" for s in own if s.layers[1] > s.layers[0])
    return f"{stage.devices} x {stage.gpu}, layers {layers or 'none'}"


def _names(process: int, name: str) -> Iterator[Entry]:
    yield _described(process, "process_name", name=name)
    yield _described(process, "process_sort_index", sort_index=process)
    for thread, title in THREADS.items():
        yield {**_described(process, "thread_name", name=title), "tid": thread}


def _described(process: int, what: str, **args: object) -> Entry:
    return {"ph": "M", "name": what, "pid": process, "tid": 0, "args": args}


def _entries(event: Event, name: str) -> Iterator[Entry]:
    entry: Entry = {
        "name": _title(event),
        "cat": event.kind.value,
        "pid": event.stage,
        "tid": AFTER_THREAD if event.kind is EventKind.AFTER else PASSES,
        "ts": event.start * MICROSECONDS,
        "cname": COLOURS[event.kind],
    }
    if event.micro_batch >= 0:
        entry["args"] = {"micro_batch": event.micro_batch, "chunk": event.chunk}
    if event.kind is EventKind.TRANSFER:
        yield {**entry, "ph": "b", "id": name}
        yield {**entry, "ph": "e", "id": name, "ts": event.end * MICROSECONDS}
    else:
        yield {**entry, "ph": "X", "dur": (event.end - event.start) * MICROSECONDS}


def _title(event: Event) -> str:
    if event.kind is EventKind.AFTER:
        return CAUSES[event.name]
    if event.kind is EventKind.TRANSFER:
        return f"to stage {event.to_stage}"
    return f"{event.kind} {event.micro_batch}"


def _counters(timeline: PlanTimeline) -> Iterator[Entry]:
    for stage, (moments, held) in enumerate(timeline.held_bytes):
        for moment, level in zip(moments.tolist(), held.tolist(), strict=True):
            counted = {"ph": "C", "name": "memory, GiB", "tid": 0, "ts": moment * MICROSECONDS}
            yield {**counted, "pid": stage, "args": {"GiB": level / GIB}}
