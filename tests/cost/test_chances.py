"""Chances: closed forms against SciPy, more memory never less likely to fit, ratios of plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from astrarium.catalog.intervals import DEGREES_OF_FREEDOM
from astrarium.catalog.runtimes import runtime_names
from astrarium.cost.chances import chance_below, chance_faster, fit_chance, usable_bytes

GIB = 2**30
CAPACITY = 80 * GIB
runtimes = st.sampled_from([*runtime_names(), "unheard of"])


@pytest.mark.parametrize("deviations", [-40.0, -2.0, -0.3, 0.0, 0.7, 3.0, 100.0])
def test_chances_are_those_of_students_distribution(deviations: float) -> None:
    assert chance_below(deviations) == pytest.approx(t.cdf(deviations, DEGREES_OF_FREEDOM))


@given(runtimes, st.booleans(), st.floats(0, 160 * GIB), st.floats(0, 160 * GIB))
def test_a_smaller_peak_is_never_less_likely_to_fit(
    runtime: str, experts: bool, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    chances = [fit_chance(peak, CAPACITY, runtime, experts=experts) for peak in (low, high)]
    assert 1 >= chances[0] >= chances[1] - 1e-12 >= -1e-12


@given(runtimes, st.booleans(), st.floats(0.0, 0.999))
def test_what_is_usable_fits_with_that_chance_and_no_more(
    runtime: str, experts: bool, chance: float
) -> None:
    usable = usable_bytes(CAPACITY, chance, runtime, experts=experts)
    assert 0 < usable <= CAPACITY
    assert fit_chance(usable, CAPACITY, runtime, experts=experts) >= chance
    more = usable + 2**20
    if more <= CAPACITY:
        assert fit_chance(more, CAPACITY, runtime, experts=experts) < chance


def test_experts_need_more_room() -> None:
    dense, experts = (usable_bytes(CAPACITY, 0.95, "megatron", experts=e) for e in (False, True))
    assert experts < dense < CAPACITY


def test_equal_plans_are_even_and_odds_grow_with_the_difference() -> None:
    breakdown = {"forward": 3.0, "backward": 6.0, "tp_communication": 1.0}
    assert chance_faster(10.0, breakdown, 10.0, breakdown) == pytest.approx(0.5)
    chances = [chance_faster(10.0, breakdown, 10.0 * (1 + x), breakdown) for x in (0.01, 0.1, 1.0)]
    assert 0.5 < chances[0] < chances[1] < chances[2] < 1
    assert chance_faster(11.0, breakdown, 10.0, breakdown) < 0.5


def test_plans_with_other_parts_are_harder_to_tell_apart() -> None:
    alike = {"forward": 3.0, "backward": 6.0, "tp_communication": 1.0}
    unlike = {"forward": 3.0, "backward": 6.0, "pipeline_bubble": 1.0}
    slower = {cause: 1.05 * seconds for cause, seconds in alike.items()}
    other = {cause: 1.05 * seconds for cause, seconds in unlike.items()}
    assert chance_faster(10.0, alike, 10.5, other) < chance_faster(10.0, alike, 10.5, slower)
