"""The timeline of a plan as a trace that Perfetto and Chrome show.

Trace Event Format: a process for every stage, in it a thread for passes and one for the work behind
them, and a counter of memory. Transfers are asynchronous events: over a slow link one may start
before the last has arrived, which events of a thread may not. Moments are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from astrarium.plans.document import Plan, PlanDocument
from astrarium.report.tables import GIB
from astrarium.report.timeline.events import Event, EventKind, PlanTimeline, timeline_of
from astrarium.strategy.types import Stage

MICROSECONDS: Final = 1e6
PASSES, AFTER = 0, 1
THREADS: Final = {PASSES: "passes", AFTER: "gradients, update, weights"}
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
    """The trace of a plan, with a process for every stage."""
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
        "tid": AFTER if event.kind is EventKind.AFTER else PASSES,
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
