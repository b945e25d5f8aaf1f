"""The timeline of a plan as a trace that Perfetto and Chrome show.

Trace Event Format: a process for every stage, in it a thread for passes and one for the work behind
them, and a counter of memory. Transfers are asynchronous events: over a slow link one may start
before the last has arrived, which events of a thread may not. Moments are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json import dumps
from typing import Any, Final

from astrarium.errors import InputError
from astrarium.plans.document import Plan, PlanDocument
from astrarium.report.tables import GIB
from astrarium.report.timeline.events import Event, EventKind, PlanTimeline, timeline_of
from astrarium.strategy.types import Stage
from astrarium.units import format_bytes

MICROSECONDS: Final = 1e6
MOST_BYTES: Final = 256 * 2**20  # viewers take several times as much memory
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


def trace_of(document: PlanDocument, plan: Plan, *, every_rank: bool = False) -> Entry:
    """The trace of a plan; with a process for every rank instead of every stage if asked."""
    stages = _stages(plan)
    if every_rank:
        _check_size(trace_of(document, plan)["traceEvents"], stages)
    timeline = timeline_of(plan)
    ranks = [stage.devices if every_rank else 1 for stage in stages]
    entries: list[Entry] = []
    first = 0
    for number, (stage, count) in enumerate(zip(stages, ranks, strict=True)):
        for rank in range(first, first + count):
            name = f"rank {rank} (stage {number})" if every_rank else f"stage {number}"
            entries += _names(rank, f"{name}: {_what(plan, stage)}")
        first += count
    starts = [sum(ranks[:number]) for number in range(len(ranks))]
    processes = [range(start, start + n) for start, n in zip(starts, ranks, strict=True)]
    for number, event in enumerate(timeline.events()):
        for process in processes[event.stage]:
            entries += _entries(event, process, f"{number}.{process}")
    entries += _counters(timeline, processes)
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


def _check_size(of_stages: Sequence[Entry], stages: Sequence[Stage]) -> None:
    """Refuse what no viewer opens, by what the trace of the stages takes."""
    ranks = sum(stage.devices for stage in stages)
    size = sum(len(dumps(entry)) * stages[entry["pid"]].devices for entry in of_stages)
    if size > MOST_BYTES:
        raise InputError(
            f"--every-rank: a trace of {ranks:,} ranks takes about {format_bytes(size)}, and"
            f" viewers open at most {format_bytes(MOST_BYTES)}; leave --every-rank out: a track for"
            " every stage shows the same, as the ranks of a stage are alike"
        )


def _stages(plan: Plan) -> list[Stage]:
    """One part for each pipeline stage: its first chunk."""
    return [stage for stage in plan.strategy.stages if stage.chunk == 0]


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


def _entries(event: Event, process: int, name: str) -> Iterator[Entry]:
    entry: Entry = {
        "name": _title(event),
        "cat": event.kind.value,
        "pid": process,
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


def _counters(timeline: PlanTimeline, processes: Sequence[range]) -> Iterator[Entry]:
    for (moments, held), own in zip(timeline.held_bytes, processes, strict=True):
        for moment, level in zip(moments.tolist(), held.tolist(), strict=True):
            counted = {"ph": "C", "name": "memory, GiB", "tid": 0, "ts": moment * MICROSECONDS}
            for process in own:
                yield {**counted, "pid": process, "args": {"GiB": level / GIB}}
