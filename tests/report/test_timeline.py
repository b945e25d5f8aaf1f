"""The timeline of a plan agrees with its estimate, and its trace with the trace format."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from exported_plans import document
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.plans.document import Plan, PlanDocument
from astrarium.report.timeline import EventKind, timeline_of, trace_of

# Above the largest double's rounding over some ten thousand passes.
EXACT = 1e-9

STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "one stage": ("h100:8", {"tp": 2}),
    "1F1B": ("h100:16", {"tp": 2, "pp": 4}),
    "waits for transfers": ("h100:16", {"pp": 4, "overlap": {"p2p": False}}),
    "virtual stages": ("h100:16", {"tp": 2, "pp": 4, "virtual_stages": 4}),
    "virtual stages, waiting": (
        "h100:16",
        {"tp": 2, "pp": 4, "virtual_stages": 2, "overlap": {"p2p": False}},
    ),
    "two pools": ("h100:8,a100:8", {"tp": 2, "pp": 2}),
}


@cache
def planned(name: str) -> PlanDocument:
    gpus, strategy = STRATEGIES[name]
    return document("llama-2-7b", gpus, strategy)


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_ends_with_the_iteration(name: str) -> None:
    plan = planned(name).plans[0]
    timeline = timeline_of(plan)
    ends = [event.end for event in timeline.events()]
    assert max(ends) == pytest.approx(plan.iteration_seconds, rel=EXACT)
    assert min(event.start for event in timeline.events()) == 0.0


@pytest.mark.parametrize("name", STRATEGIES)
def test_passes_take_what_the_stages_say(name: str) -> None:
    plan = planned(name).plans[0]
    sums: dict[tuple[int, EventKind], float] = defaultdict(float)
    for event in timeline_of(plan).events():
        sums[event.stage, event.kind] += event.end - event.start
    count = plan.strategy.num_micro_batches
    for stage in plan.stage_seconds:
        for kind, seconds in (
            (EventKind.FORWARD, stage.forward_seconds),
            (EventKind.BACKWARD, stage.backward_seconds),
        ):
            assert sums[stage.stage, kind] == pytest.approx(count * seconds, rel=1e-2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_memory_peaks_where_the_plan_says(name: str) -> None:
    plan = planned(name).plans[0]
    for part, (moments, held) in zip(plan.memory, timeline_of(plan).held_bytes, strict=True):
        assert held.max() == pytest.approx(part.peak_bytes, rel=EXACT)
        assert held[0] == held[-1] == pytest.approx(part.peak_bytes - part.activations)
        assert (np.diff(moments) >= 0.0).all()


def test_a_transfer_arrives_before_it_is_needed() -> None:
    plan = planned("1F1B").plans[0]
    events = list(timeline_of(plan).events())
    passes = [event for event in events if event.kind in (EventKind.FORWARD, EventKind.BACKWARD)]
    starts = {(str(e.kind), e.stage, e.micro_batch): e.start for e in passes}
    transfers = [event for event in events if event.kind is EventKind.TRANSFER]
    assert len(transfers) == 2 * 3 * plan.strategy.num_micro_batches
    for event in transfers:
        kind = EventKind.FORWARD if event.to_stage > event.stage else EventKind.BACKWARD
        assert event.end <= starts[str(kind), event.to_stage, event.micro_batch] + EXACT


def test_old_and_changed_documents_are_refused() -> None:
    plan = planned("1F1B").plans[0]
    with pytest.raises(InputError, match="older version; plan again"):
        timeline_of(replace(plan, stage_seconds=()))
    with pytest.raises(InputError, match="the file was changed"):
        timeline_of(replace(plan, iteration_seconds=plan.iteration_seconds / 2))


def check_format(trace: dict[str, Any]) -> None:
    """Rules of the Trace Event Format that viewers rely on."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    open_events: dict[tuple[str, str], float] = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["name"]
        assert event["ph"] in "MXCbe"
        if event["ph"] == "X":
            assert event["dur"] > 0.0
            assert event["ts"] >= 0.0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "b":
            open_events[event["cat"], event["id"]] = event["ts"]
        elif event["ph"] == "e":
            assert event["ts"] >= open_events.pop((event["cat"], event["id"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
        else:
            assert event["args"]
    assert not open_events
    for spans in threads.values():
        # Events of a thread follow each other; a nanosecond is below what viewers show.
        assert all(one[1] <= next_one[0] + 1e-3 for one, next_one in pairwise(sorted(spans)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_trace_is_one(name: str) -> None:
    whole = planned(name)
    trace = trace_of(whole, whole.plans[0])
    check_format(trace)
    processes = {event["pid"] for event in trace["traceEvents"]}
    plan = whole.plans[0]
    assert len(processes) == len(plan.stage_seconds)
    ends = [e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert max(ends) == pytest.approx(1e6 * plan.iteration_seconds, rel=EXACT)


def with_slow_links(plan: Plan, seconds: float) -> Plan:
    stages = tuple(replace(stage, send_seconds=seconds) for stage in plan.stage_seconds)
    return replace(plan, stage_seconds=stages, iteration_seconds=1e6)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 10.0), st.sampled_from(["1F1B", "waits for transfers", "virtual stages"]))
def test_traces_of_slow_links_are_well_formed(seconds: float, name: str) -> None:
    whole = planned(name)
    check_format(trace_of(whole, with_slow_links(whole.plans[0], seconds)))
