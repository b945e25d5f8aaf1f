"""Axes: what they hold, where values lie, which ticks they get."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.report.front.points import ChartAxis, axis_of, count, duration, money, short_dollars

DAY = 86400.0
amounts = st.lists(st.floats(1e-4, 1e9), min_size=1, max_size=20)


def labels(axis: ChartAxis) -> list[str]:
    return [label for _, label in axis.ticks]


def check(axis: ChartAxis, values: list[float], most: int) -> None:
    """Every value is on the axis in its order; ticks are on it, apart, and not too many."""
    ordered = sorted(values)
    assert all(0 <= axis.position(value) <= 1 for value in ordered)
    assert all(axis.position(a) <= axis.position(b) for a, b in pairwise(ordered))
    assert len(axis.ticks) <= most
    assert all(axis.low <= value <= axis.high for value, _ in axis.ticks)
    assert all(a < b for (a, _), (b, _) in pairwise(axis.ticks))


@given(amounts, st.one_of(st.none(), st.floats(1e-4, 1e9)), st.integers(4, 12))
def test_an_axis_holds_its_values(values: list[float], limit: float | None, most: int) -> None:
    axis = axis_of(money("money"), values, limit, most)
    check(axis, values, most)
    assert axis.logarithmic == (max(values) / min(values) > 10)


@given(amounts, st.integers(4, 12))
def test_ticks_can_be_told_apart(values: list[float], most: int) -> None:
    spread = [*values, 1.01 * max(values)]  # narrower ranges than money is shown in
    axis = axis_of(money("money"), spread, None, most)
    assert len(set(labels(axis))) == len(axis.ticks) >= 1


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20), st.integers(4, 12))
def test_counts_have_whole_ticks(numbers: list[int], most: int) -> None:
    axis = axis_of(count("GPUs"), [float(number) for number in numbers], None, most)
    check(axis, [float(number) for number in numbers], most)
    assert all(value == int(value) for value, _ in axis.ticks)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([30e3, 60e3], ["$30k", "$40k", "$50k", "$60k"]),
        ([1e3, 1e6], ["$1k", "$10k", "$100k", "$1M"]),
        ([2e4, 4e5], ["$20k", "$50k", "$100k", "$200k"]),
        (
            [1.7630e6, 1.7640e6],
            ["$1.763M", "$1.7632M", "$1.7634M", "$1.7636M", "$1.7638M", "$1.764M"],
        ),
        ([0.0], ["$0", "$0.2", "$0.4", "$0.6", "$0.8", "$1"]),
    ],
)
def test_ticks_of_money(values: list[float], expected: list[str]) -> None:
    assert labels(axis_of(money("money"), values, None, 6)) == expected


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(30 * DAY, "days"), (1.5 * DAY, "h"), (1800.0, "min"), (60.0, "s"), (0.05, "ms")],
)
def test_times_are_in_a_fitting_unit(seconds: float, unit: str) -> None:
    assert duration("time", seconds).title == f"time, {unit}"


def test_a_limit_nearby_is_on_the_axis_and_one_far_off_is_not() -> None:
    values = [100.0, 200.0]
    assert axis_of(money("money"), values, 240.0, 6).holds(240.0)
    far = axis_of(money("money"), values, 2000.0, 6)
    assert not far.holds(2000.0)
    assert far == axis_of(money("money"), values, None, 6)
    assert far.clipped(2000.0) == 1.0


def test_values_that_differ_by_rounding_are_one() -> None:
    axis = axis_of(money("money"), [1e9, 1e9 + 1e-6], None, 6)
    assert axis.low < 0.6e9 < 1.4e9 < axis.high
    check(axis, [1e9, 1e9 + 1e-6], 6)


def test_dollars_in_short() -> None:
    shown = [short_dollars(amount) for amount in (0.05, 20.0, 2e5, 1.5e6, 2.5e9)]
    assert shown == ["$0.05", "$20", "$200k", "$1.5M", "$2,500M"]
