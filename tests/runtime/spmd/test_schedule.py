"""Orders of actions: what a rank sends when, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from astrarium.runtime.spmd.execute import Pass, Peers
from astrarium.runtime.spmd.execute.actions import Action, Convert
from astrarium.runtime.spmd.execute.collectives import Route
from astrarium.runtime.spmd.execute.schedule import Sum, buckets_of, prefetched
from astrarium.spmd.price import messages
from astrarium.spmd.rules import COPIED, REPLICATE


@dataclass(frozen=True)
class Step:
    """An action that is known by what it reads and gives."""

    gives: int
    reads: tuple[int, ...] = ()

    def forward(self, run: Pass) -> None: ...
    def backward(self, run: Pass) -> None: ...


def converted(reads: int, gives: int) -> Convert:
    route = Route(REPLICATE, COPIED, Peers(0, 2))
    return Convert(gives, (reads,), route, ((4,), (4,)), True)


def test_gathers_start_one_reader_earlier() -> None:
    loads = [Step(10), Step(20), Step(30)]
    gathers = [Step(11, (10,)), Step(21, (20,)), Step(31, (30,))]
    readers = [Step(1, (0, 11)), Step(2, (1, 21)), Step(3, (2, 31))]
    actions: list[Action] = [Step(0)]
    for load, gather, reader in zip(loads, gathers, readers, strict=True):
        actions += [load, gather, reader]
    order = prefetched(actions, lambda action: action in gathers)
    assert [action.gives for action in order] == [0, 10, 11, 20, 21, 1, 30, 31, 2, 3]


def test_buckets_leave_when_their_last_gradient_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "LEAST_IN_BUCKET", 100)
    monkeypatch.setattr(messages, "BUCKETS", 2)
    sums = [Sum(converted(k, 10 + k), 0, "float32", 60, 0) for k in range(4)]
    # Backward, the last parameter's reader comes first.
    order = [Step(20 + k, (10 + k,)) for k in reversed(range(4))]
    found = buckets_of(sums, order)
    members = [[one.action.reads[0] for one in bucket.sums] for bucket in found]
    assert members == [[3, 2], [1, 0]]
    assert [bucket.at for bucket in found] == [2, 4]


def test_a_sum_over_an_outer_level_waits_for_the_inner_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "LEAST_IN_BUCKET", 1)
    inner = [Sum(converted(10 + k, 20 + k), 1, "float32", 1000, 1) for k in range(3)]
    outer = [Sum(converted(k, 10 + k), 0, "float32", 1000, 0) for k in range(3)]
    order = [Step(30 + k, (20 + k,)) for k in reversed(range(3))]
    found = buckets_of([*outer, *inner], order)
    sent = [(bucket.level, bucket.sums[0].action.gives, bucket.at) for bucket in found]
    # The outer sum of the last parameter leaves when the next inner one does.
    assert sent[:4] == [(1, 22, 1), (1, 21, 2), (0, 12, 2), (1, 20, 3)]
    assert {(0, 11, 3), (0, 10, 3)} == {*sent[4:]}
