"""Learning from measured runs: known factors come back, impossible data does not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuned_runs import STRATEGIES, runs_under

from astrarium.calibrate.learn.factors import (
    TIME_FACTORS,
    TuningProblem,
    average,
    learn,
    left_out,
    solve,
    tuning_of,
)
from astrarium.calibrate.learn.measurement import Measurement, predict
from astrarium.calibrate.learn.profile import load_profile, profile_of, to_dict
from astrarium.cost.tuning import NEUTRAL, Operators, Tuning
from astrarium.errors import InputError

GIB = 2.0**30


def error_on(runs: list[Measurement], tuning: Tuning) -> float:
    measured = np.array([run.seconds for run in runs])
    return float(np.abs(predict(runs, tuning).seconds / measured - 1).mean())


@pytest.mark.parametrize(
    "truth",
    [
        Tuning(compute=1.35),
        Tuning(compute=0.8),
        Tuning(step_seconds=0.2),
        Tuning(compute=1.2, operators={Operators.ATTENTION.value: 1.6}),
    ],
    ids=["slow", "fast", "step", "attention"],
)
def test_five_runs_foretell_the_others(truth: Tuning) -> None:
    runs = runs_under(truth)
    drawn, rest = runs[:5], runs[5:]
    learned = learn(drawn)
    before, after = error_on(rest, NEUTRAL), error_on(rest, learned.tuning)
    assert before > 0.03
    assert after < before / 2
    assert learned.time is not None
    assert learned.time.after < learned.time.before


def test_slow_links_are_told_from_slow_computation() -> None:
    learned = learn(runs_under(Tuning(intra_link=1.8)))
    assert learned.tuning.intra_link > 1.3
    assert learned.tuning.compute == pytest.approx(1.0, abs=0.05)


def test_the_compute_factor_comes_back() -> None:
    learned = learn(runs_under(Tuning(compute=1.4)))
    assert learned.tuning.compute == pytest.approx(1.4, rel=0.1)
    compute = next(factor for factor in learned.factors if factor.name == "compute")
    assert compute.after != compute.before
    assert compute.before == 1.0
    assert 0 < compute.deviation < 0.2


def test_a_model_that_is_right_is_left_alone() -> None:
    learned = learn(runs_under())
    assert not any(factor.after != factor.before for factor in learned.factors)
    assert error_on(runs_under(), learned.tuning) == pytest.approx(0, abs=1e-9)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_noise_teaches_little(seed: int) -> None:
    random = np.random.default_rng(seed)
    runs = [
        replace(run, seconds=(run.seconds or 0.0) * float(np.exp(random.normal(0, 0.02))))
        for run in runs_under()
    ]
    tuning = learn(runs[:5]).tuning
    assert error_on(runs_under(), tuning) < 0.04


def test_one_run_is_enough() -> None:
    runs = runs_under(Tuning(compute=1.3))
    learned = learn(runs[:1])
    assert error_on(runs, learned.tuning) < error_on(runs, NEUTRAL)
    assert learned.time is not None
    assert learned.time.left_out is None


def test_many_runs() -> None:
    strategies = [{**s, "micro_batch": m} for s in STRATEGIES for m in (1, 2, 4) if "dp" not in s]
    runs = runs_under(Tuning(compute=1.25, intra_link=1.5), strategies=strategies)
    learned = learn(runs)
    assert error_on(runs, learned.tuning) < 0.02
    assert learned.tuning.compute == pytest.approx(1.25, rel=0.05)


def test_one_disturbed_run_is_set_aside() -> None:
    runs = runs_under(Tuning(compute=1.1))
    runs[2] = replace(runs[2], seconds=5 * (runs[2].seconds or 0.0))
    learned = learn(runs)
    assert [aside.label for aside in learned.set_aside] == ["run 2"]
    assert learned.tuning.compute == pytest.approx(1.1, rel=0.05)


def test_the_reserve_is_learned_from_peaks() -> None:
    learned = learn(runs_under(Tuning(memory_bytes=2 * GIB)))
    assert learned.tuning.memory_bytes == pytest.approx(2 * GIB, rel=0.1)
    assert learned.memory is not None
    assert learned.memory.after < learned.memory.before


def test_the_reserve_is_never_less_than_nothing() -> None:
    runs = [replace(run, peak_bytes=0.5 * (run.peak_bytes or 0.0)) for run in runs_under()]
    assert learn(runs).tuning.memory_bytes >= -runs[0].runtime.reserved_bytes


def test_times_or_peaks_alone_will_do() -> None:
    timed = [replace(run, peak_bytes=None) for run in runs_under(Tuning(compute=1.3))]
    assert learn(timed).memory is None
    weighed = [replace(run, seconds=None) for run in runs_under(Tuning(memory_bytes=2 * GIB))]
    learned = learn(weighed)
    assert learned.time is None
    assert learned.tuning.compute == 1.0
    assert learned.tuning.memory_bytes > GIB


Spoil = Callable[[list[Measurement]], list[Measurement]]


def _first(**changes: Any) -> Spoil:
    return lambda runs: [replace(runs[0], **changes), *runs[1:]]


REFUSED: dict[str, tuple[Spoil, str]] = {
    "no runs": (lambda runs: [], "no usable run"),
    "not a number": (_first(seconds=nan), "run 0: the time is nan"),
    "negative": (_first(seconds=-1.0), "run 0: the time is -1.0"),
    "zero bytes": (_first(peak_bytes=0.0), "run 0: the peak of memory is 0.0"),
    "above the peak": (_first(seconds=1e-3), "of the peak of 16 x H100"),
    "above the memory": (_first(peak_bytes=1e12), "more than a H100-SXM5-80GB has"),
    "equal runs apart": (
        lambda runs: [*runs, replace(runs[0], label="again", seconds=2 * (runs[0].seconds or 0))],
        "run 0 and again are of the same model",
    ),
    "wrong unit": (
        lambda runs: [replace(run, seconds=1000 * (run.seconds or 0)) for run in runs],
        "1e+03 times the predicted ones",
    ),
    "two GPU types": (
        lambda runs: [*runs, *runs_under(gpus="a100:16")],
        "2 GPU types",
    ),
    "two runtimes": (
        lambda runs: [*runs, *runs_under(runtime="nanotron")],
        "2 runtimes",
    ),
    "nothing measured": (
        lambda runs: [replace(run, seconds=None, peak_bytes=None) for run in runs],
        "nothing to learn from",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_implausible_data_is_refused(name: str) -> None:
    spoil, message = REFUSED[name]
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        learn(spoil(runs_under()))


def _problem(residuals: list[float]) -> TuningProblem:
    """Rows that see one factor fully."""
    count = len(residuals)
    return TuningProblem(
        np.array(residuals), np.ones((count, 1)), np.zeros(1), np.array([0.2]), np.array([-np.inf])
    )


def test_a_prior_holds_back_what_few_rows_say() -> None:
    one = solve(_problem([0.1]), [0]).values[0]
    many = solve(_problem([0.1] * 20), [0]).values[0]
    assert 0 < one < many < 0.1


def test_one_row_far_off_hardly_moves_the_rest() -> None:
    alike = solve(_problem([0.1] * 6), [0]).values[0]
    with_one = solve(_problem([0.1] * 6 + [1.0]), [0]).values[0]
    assert abs(with_one - alike) < 0.03


def test_a_factor_that_foretells_nothing_is_not_used() -> None:
    scattered = _problem([0.2, -0.2, 0.21, -0.19, 0.0])
    agreed = _problem([0.2, 0.21, 0.19, 0.2, 0.22])
    assert abs(average(scattered, [[], [0]]).values[0]) < 0.02
    assert average(agreed, [[], [0]]).values[0] == pytest.approx(0.2, rel=0.1)
    assert np.abs(left_out(agreed, [0])).mean() < 0.03


def test_factors_that_no_row_shows_stay_neutral() -> None:
    one_node = [{"tp": 2}, {"tp": 4}, {"tp": 8}]
    runs = runs_under(Tuning(compute=1.3), gpus="h100:8", strategies=one_node)
    assert learn(runs).tuning.inter_link == 1.0


def test_neutral_values_are_neutral() -> None:
    tuning = tuning_of(np.zeros(len(TIME_FACTORS)))
    runs = runs_under()
    assert predict(runs, tuning).seconds.tolist() == predict(runs).seconds.tolist()


def test_a_profile_reads_back(tmp_path: Path) -> None:
    learned = learn(runs_under(Tuning(compute=1.3, memory_bytes=GIB)), "table.csv")
    profile = profile_of(learned, ["table.csv"])
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(to_dict(profile)), encoding="utf-8")
    read = load_profile(path)
    assert read == profile
    assert read.tuning == learned.tuning
    assert read.gpu == "H100-SXM5-80GB"


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "foreign": (lambda p: {**p, "schema": "astrarium.plan/1"}, "schema is 'astrarium.plan/1'"),
    "no schema": (lambda p: {"compute": 1.2}, "it states no schema"),
    "a list": (lambda p: [p], "it states no schema"),
    "unknown key": (lambda p: {**p, "gpus": 8}, "unknown key"),
    "no factors": (
        lambda p: {k: v for k, v in p.items() if k != "factors"},
        "'factors' is missing",
    ),
    "text": (lambda p: {**p, "factors": {"compute": "fast"}}, "expected float, got 'fast'"),
    "too far": (lambda p: {**p, "factors": {"compute": 9.0}}, "factors.compute: 9 is outside"),
    "below zero": (lambda p: {**p, "factors": {"step_seconds": -1}}, "step_seconds: -1 is outside"),
    "less than no memory": (
        lambda p: {**p, "factors": {"memory_bytes": -(2**31)}},
        r"profile.json:\d+: factors.memory_bytes: -2.14748e\+09 is outside",
    ),
    "most of the memory": (
        lambda p: {**p, "factors": {"memory_bytes": 2**35}},
        r"profile.json:\d+: factors.memory_bytes: 3.43597e\+10 is outside",
    ),
    "unknown GPU": (
        lambda p: {**p, "gpu": "h1000"},
        r"profile.json:\d+: gpu: unknown GPU type 'h1000'",
    ),
    "unknown runtime": (lambda p: {**p, "runtime": "megatro"}, "runtime: unknown 'megatro'"),
}


@pytest.fixture(scope="module")
def profile() -> dict[str, Any]:
    return to_dict(profile_of(learn(runs_under(Tuning(compute=1.3))), ["table.csv"]))


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_profiles_are_refused(name: str, profile: dict[str, Any], tmp_path: Path) -> None:
    spoil, message = DAMAGED[name]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(spoil(profile), indent=1), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_profile(path)


def test_a_cut_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"schema": "astrarium.tuning/1", "factors": {"comp', encoding="utf-8")
    with pytest.raises(InputError, match="malformed JSON"):
        load_profile(path)
