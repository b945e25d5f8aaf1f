"""Timelines for pages are bounded, and say what they leave out."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest
from exported_plans import document

from astrarium.plans.document import Plan
from astrarium.report.timeline import KINDS, LEFT_OUT, MOST_EVENTS, timeline_document, timeline_of

MOST_BYTES = 7_000_000  # of the JSON of the largest


@cache
def plan(global_batch: int) -> Plan:
    """A pipeline of 32 stages."""
    strategy = {"pp": 32, "micro_batch": 1}
    return document("llama-2-7b", "h100:32", strategy, global_batch=global_batch).plans[0]


def test_a_short_one_is_whole() -> None:
    found = timeline_document(plan(64))
    assert found.left_out == 0
    assert len(found.events.kind) == len(list(timeline_of(plan(64)).events()))
    assert KINDS.index(LEFT_OUT) not in found.events.kind


@pytest.mark.parametrize(("batch", "most"), [(64, 600), (64, 6000), (4096, MOST_EVENTS)])
def test_a_long_one_is_bounded(batch: int, most: int) -> None:
    found = timeline_document(plan(batch), most)
    whole = timeline_of(plan(batch))
    events, stages = found.events, len(found.stages)
    assert len(events.kind) <= most + len(whole.after) + 4 * stages
    told = {
        (kind, stage, start, end)
        for kind, stage, start, end in zip(
            events.kind, events.stage, events.start, events.end, strict=True
        )
        if KINDS[kind] != LEFT_OUT
    }
    # What is told is true, and nothing is missing without being counted.
    every = {(KINDS.index(e.name or e.kind), e.stage, e.start, e.end) for e in whole.events()}
    assert told <= every
    assert len(told) + found.left_out == len(list(whole.events()))
    gaps = [row for row, kind in enumerate(events.kind) if KINDS[kind] == LEFT_OUT]
    assert sorted(events.stage[row] for row in gaps) == list(range(stages))
    since = {events.stage[row]: events.start[row] for row in gaps}
    until = {events.stage[row]: events.end[row] for row in gaps}
    for _, stage, start, end in every - told:
        assert since[stage] <= start
        assert end <= until[stage]
    assert len(msgspec.json.encode(found)) < MOST_BYTES


def test_work_and_memory_are_those_of_the_whole() -> None:
    short, whole = timeline_document(plan(64), 600), timeline_document(plan(64))
    for stage, other in zip(short.stages, whole.stages, strict=True):
        assert stage.busy_seconds == other.busy_seconds
        own = [
            whole.events.end[row] - whole.events.start[row]
            for row, at in enumerate(whole.events.stage)
            if at == stage.stage and KINDS[whole.events.kind[row]] != "transfer"
        ]
        assert stage.busy_seconds == pytest.approx(sum(own))
    for curve, full in zip(short.memory, whole.memory, strict=True):
        assert len(curve.moments) < len(full.moments)
        assert max(curve.bytes) == max(full.bytes)
        assert np.all(np.diff(curve.moments) >= 0)
        assert curve.bytes[-1] == full.bytes[-1]
