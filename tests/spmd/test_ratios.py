"""Ratios: the linear and the integer program against all divisions there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.arrays import Floats, Ints
from astrarium.spmd.synthesis.ratios import Lines, best_parts, dealt_out


def lines_of(
    granules: list[int],
    members: list[int],
    rows: list[tuple[int, float, float, list[float]]],
    room: list[float] | None = None,
    kept: list[list[float]] | None = None,
) -> Lines:
    """One term for each entry of rows: its axis, count, base, and slope by class."""
    classes = len(members)
    slopes = np.zeros((len(rows) * classes, len(granules), classes))
    for index, (axis, _, _, slope) in enumerate(rows):
        for device_class in range(classes):
            slopes[index * classes + device_class, axis, device_class] = slope[device_class]
    return Lines(
        granules=np.asarray(granules, np.int64),
        members=np.asarray(members, np.int64),
        base=np.repeat([base for _, _, base, _ in rows], classes).astype(np.float64),
        slopes=slopes,
        term=np.repeat(np.arange(len(rows)), classes),
        counts=np.asarray([count for _, count, _, _ in rows], np.float64),
        bytes_base=np.zeros(classes),
        bytes_slopes=np.asarray(kept or np.zeros((len(granules), classes)), np.float64),
        room=np.asarray(room or [np.inf] * classes, np.float64),
    )


def all_parts(lines: Lines) -> list[Ints]:
    """The fullest parts, by axis and class, of every division of whole granules."""
    by_axis = []
    for granules in lines.granules:
        levels = itertools.product(range(int(granules) + 1), repeat=len(lines.members))
        by_axis.append([level for level in levels if np.dot(level, lines.members) >= granules])
    return [np.asarray(choice, np.int64) for choice in itertools.product(*by_axis)]


def brute(lines: Lines) -> float:
    """Seconds of the best division that fits; inf if none does."""
    fitting = [parts for parts in map(as_floats, all_parts(lines)) if lines.fits(parts)]
    return min(map(lines.seconds, fitting), default=np.inf)


def as_floats(parts: Ints) -> Floats:
    return parts.astype(np.float64)


cases = st.builds(
    lambda granules, members, slopes, bases, counts, kept, room: lines_of(
        granules,
        members,
        [
            (index % len(granules), count, base, slope[: len(members)])
            for index, (slope, base, count) in enumerate(zip(slopes, bases, counts, strict=True))
        ],
        room[: len(members)],
        [row[: len(members)] for row in kept[: len(granules)]],
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=2),
    st.lists(st.integers(1, 3), min_size=2, max_size=3),
    st.lists(st.lists(st.floats(0.1, 5), min_size=3, max_size=3), min_size=3, max_size=3),
    st.lists(st.floats(0, 2), min_size=3, max_size=3),
    st.lists(st.sampled_from([1.0, 2.0, 12.0]), min_size=3, max_size=3),
    st.lists(st.lists(st.floats(0, 3), min_size=3, max_size=3), min_size=2, max_size=2),
    st.lists(st.floats(1, 8), min_size=3, max_size=3),
)


@settings(max_examples=30, deadline=None)
@given(cases)
def test_whole_granules_are_as_good_as_the_best_division(lines: Lines) -> None:
    best = brute(lines)
    parts = best_parts(lines)
    if np.isinf(best):
        assert parts is None
        return
    assert parts is not None
    assert lines.fits(as_floats(parts))
    assert lines.seconds(as_floats(parts)) == pytest.approx(best, rel=2e-4)


@settings(max_examples=30, deadline=None)
@given(cases)
def test_all_granules_are_dealt_out_and_nobody_has_more_than_was_priced(lines: Lines) -> None:
    parts = best_parts(lines)
    if parts is None:
        return
    dealt = dealt_out(lines, parts)
    assert dealt.sum(axis=1).tolist() == lines.granules.tolist()
    assert (dealt >= 0).all()
    assert (dealt <= np.repeat(parts, lines.members, axis=1)).all()
    ends = np.cumsum(lines.members)
    for end, size in zip(ends, lines.members, strict=True):
        of_class = dealt[:, end - size : end]
        assert (of_class.max(axis=1) - of_class.min(axis=1) <= 1).all()


def test_a_threefold_device_gets_three_times_as_much() -> None:
    lines = lines_of([12], [1, 3], [(0, 1, 0.0, [1.0, 3.0])])
    parts = best_parts(lines)
    assert parts is not None
    assert parts.tolist() == [[6, 2]]


def test_a_device_that_hardly_moves_gets_nothing() -> None:
    lines = lines_of([8], [2, 1], [(0, 1, 0.0, [1.0, 1e6])])
    parts = best_parts(lines)
    assert parts is not None
    assert dealt_out(lines, parts).tolist() == [[4, 4, 0]]


def test_equal_devices_differ_by_one_granule_at_most() -> None:
    lines = lines_of([7], [4], [(0, 1, 0.5, [1.0])])
    parts = best_parts(lines)
    assert parts is not None
    assert dealt_out(lines, parts).tolist() == [[2, 2, 2, 1]]


def test_memory_moves_work_to_a_slower_class() -> None:
    lines = lines_of([8], [1, 1], [(0, 1, 0.0, [1.0, 3.0])], room=[4.0, 100.0], kept=[[1.0, 1.0]])
    parts = best_parts(lines)
    assert parts is not None
    assert parts.tolist() == [[4, 4]]
