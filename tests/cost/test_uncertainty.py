"""Prediction intervals: around the prediction, wider where less is known, from one sound file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import pool_of, small_model

from astrarium.catalog import find_gpu, gpus
from astrarium.catalog.intervals import DATA, Terms, intervals, read_intervals
from astrarium.catalog.profiles import ProfileSource, law
from astrarium.catalog.runtimes import find_runtime, runtime_names
from astrarium.cost.efficiency import OperatorModel, operator_model
from astrarium.cost.layouts import CostModel
from astrarium.cost.step import SECONDS_CAUSES
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.cost.uncertainty import Doubts, chance_within, deviations, doubts_of, interval_ratios
from astrarium.errors import InputError
from astrarium.model.workload import Workload
from astrarium.search.plan import estimate
from astrarium.strategy.types import Strategy

H100 = operator_model(find_gpu("h100"))
ALL = [operator_model(gpu) for gpu in gpus()]


def ratios(
    ops: OperatorModel, runtime: str = "megatron", *, experts: bool = False, **shares: float
) -> tuple[float, float]:
    """The ends of the interval of an iteration that spends such shares on some causes."""
    breakdown = dict.fromkeys(SECONDS_CAUSES, 0.0) | shares
    breakdown["forward"] = 1 - sum(shares.values())
    return interval_ratios(doubts_of(ops, breakdown, experts=experts), runtime)


def width(ops: OperatorModel, runtime: str = "megatron", **doubts: Any) -> float:
    low, high = ratios(ops, runtime, **doubts)
    return high / low


@pytest.mark.parametrize("runtime", runtime_names())
@pytest.mark.parametrize("experts", [False, True])
def test_the_prediction_lies_inside(runtime: str, experts: bool) -> None:
    for ops in ALL:
        low, high = ratios(ops, runtime, experts=experts)
        assert 0 < low < 1 < high < 10
        assert (low, high) == ratios(ops, runtime, experts=experts)


def test_types_without_a_profile_are_less_sure_than_any_with_one() -> None:
    known = [width(ops) for ops in ALL if ops.source is not ProfileSource.SPECIFICATION]
    unknown = [width(ops) for ops in ALL if ops.source is ProfileSource.SPECIFICATION]
    assert known
    assert unknown
    assert min(unknown) > max(known)


@pytest.mark.parametrize("name", ["a100", "b200", "h100", "h200", "l40s"])
def test_the_same_plan_is_less_sure_once_the_profile_is_gone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_width(tuning: Tuning = NEUTRAL) -> float:
        workload = Workload(small_model(8), seq_length=2048, global_batch=64)
        strategy = Strategy(tp=2, dp=4, micro_batch=1, num_micro_batches=16)
        model = CostModel(workload, pool_of(f"{name}:8"), tuning=tuning)
        (plan,) = estimate(model, [strategy])
        low, high = plan.interval_seconds
        assert low < plan.iteration_seconds < high
        return high / low

    with_profile = plan_width()
    specified = replace(
        operator_model(find_gpu(name)),
        source=ProfileSource.SPECIFICATION,
        relative_error=law().left_out.same_design,  # at best, that is of a relative
    )
    monkeypatch.setattr("astrarium.cost.laws.operator_model", lambda _: specified)
    without = plan_width()
    assert without > with_profile
    # Measurements of the user's own device make up for most of it.
    assert plan_width(Tuning(operators={"gemm": 1.02})) < without


def test_experts_are_less_sure() -> None:
    assert width(H100, experts=True) > 1.05 * width(H100)


def test_waits_for_the_host_and_messages_are_less_sure() -> None:
    assert width(H100, host=0.5) > 1.05 * width(H100)
    assert width(H100, host=0.9) > width(H100, host=0.5)
    assert width(H100, ep_communication=0.3) > 1.05 * width(H100)
    assert width(H100, tp_communication=0.3) == width(H100, gradient_reduction=0.3)


def test_runs_stray_farther_to_the_slow_side() -> None:
    low, high = ratios(H100)
    assert high > 1 / low


def test_a_runtime_of_no_family_gets_the_pool() -> None:
    assert intervals().spread_of("nobody's") == intervals().pooled
    assert width(H100, "nobody's") > 1


def test_every_runtime_has_a_family() -> None:
    assert set(intervals().by_runtime) == {find_runtime(name).name for name in runtime_names()}


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.tuples(*[st.floats(0.01, 0.5)] * 5),
)
def test_every_doubt_widens(less: float, more: float, terms: tuple[float, ...]) -> None:
    found = Terms(*terms)
    first, second = sorted([less, more])
    doubts = Doubts(
        operators=[first, *[second] * 5],
        specified=[0, 0, 1, 1, 1, 1],
        experts=[0, 0, 0, 1, 1, 1],
        communication=[0, 0, 0, 0, 0.5, 0.5],
        host=[0, 0, 0, 0, 0, 0.5],
    )
    rising = deviations(found, doubts)
    assert (np.diff(rising) >= 0).all()
    assert rising[0] >= found.iteration * (1 - 1e-12)


def test_held_back_sources_are_covered_as_promised() -> None:
    held = json.loads(DATA.read_text(encoding="utf-8"))["held_back"]
    assert 0.75 <= held["by_source"] <= 0.85
    assert 0.75 <= held["by_row"] <= 0.85
    assert len(held["sources"]) == intervals().pooled.sources


def _set(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update({key: value})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data.pop("terms"), "terms"),
        (lambda data: data["terms"].pop("host"), "host"),
        (lambda data: data["terms"].update(odd=1), "odd"),
        (lambda data: data["terms"].update(host=float("nan")), "host"),
        (lambda data: data["terms"].update(iteration=0), "iteration.*> 0"),
        (lambda data: data["pooled"].update(faster=-1), "faster"),
        (lambda data: data["pooled"].update(slower="wide"), "slower"),
        (_set("families", []), "families"),
        (_set("level", None), "level"),
    ],
)
def test_a_damaged_file_is_named(
    damage: Callable[[dict[str, Any]], object], told: str, tmp_path: Path
) -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    damage(data)
    path = tmp_path / "intervals.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match=told) as caught:
        read_intervals(path)
    assert str(path) in str(caught.value)
    assert "fit_intervals.py" in str(caught.value)


@given(st.floats(1.0, 1e6), st.floats(0.5, 0.99), st.floats(1.01, 3.0))
def test_the_interval_holds_four_times_in_five(
    predicted: float, below: float, above: float
) -> None:
    ends = (below * predicted, above * predicted)
    inside = chance_within(ends[1], predicted, ends) - chance_within(ends[0], predicted, ends)
    assert inside == pytest.approx(0.8)
    just_below, just_above = (chance_within(predicted * f, predicted, ends) for f in (1 - 1e-9, 1))
    assert just_below == pytest.approx(just_above, abs=1e-6)
    tried = [chance_within(predicted * f, predicted, ends) for f in np.geomspace(0.2, 5, 30)]
    assert tried == sorted(tried)
    assert 0 <= tried[0] <= tried[-1] <= 1


def test_certain_predictions_have_no_chances_between() -> None:
    assert [chance_within(limit, 2.0, (2.0, 2.0)) for limit in (0.0, 1.0, 2.0)] == [0.0, 0.0, 1.0]
