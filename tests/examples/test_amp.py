"""AMP's set-ups: real trials of one of them against predictions, and what the script writes."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from astrarium.search.plan import estimate
from astrarium.strategy.types import LayerSplit, Stage

ROOT = Path(__file__).parents[2]
TRIALS = ROOT / "tests" / "data" / "amp_homogeneous.csv"
LAYERS, BEFORE = 24, 2  # modules before the first layer


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("amp_plan", ROOT / "examples" / "amp" / "plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Trial:
    key: tuple[int, int, int, int]
    bounds: list[int]
    seconds: float | None


def trials() -> list[Trial]:
    lines = [x for x in TRIALS.read_text().splitlines() if not x.startswith("#")]
    found = []
    for row in csv.DictReader(lines):
        modules = [int(x) for x in row["module_bounds"].split()]
        inner = [min(max(x - BEFORE, 0), LAYERS) for x in modules[1:-1]]
        key = (int(row["tp"]), int(row["dp"]), int(row["pp"]), int(row["micro_batch"]))
        seconds = float(row["seconds"]) if row["seconds"] else None
        found.append(Trial(key, [0, *inner, LAYERS], seconds))
    return found


def ranks(values: list[float]) -> np.ndarray:
    array = np.array(values)
    return np.array([(array < x).sum() + (array == x).sum() / 2 for x in array])


@pytest.fixture(scope="module")
def priced(script: ModuleType) -> list[tuple[Trial, float, bool]]:
    """Every trial with its own stages: seconds and whether it fits."""
    pricing = script.Pricing(script.SETUPS[0])
    every = [script.uniform_bounds(LAYERS, each[2]) for each in pricing.space]
    found = trials()
    for trial in found:
        if min(np.diff(trial.bounds)) > 0:  # one that failed had stages without a layer
            every[pricing.space.index(trial.key)] = trial.bounds
    seconds = pricing.seconds(every)
    rows = [pricing.space.index(trial.key) for trial in found]
    return [
        (trial, seconds[row], pricing.fits(row, every[row]))
        for trial, row in zip(found, rows, strict=True)
    ]


def test_real_trials_are_ranked(priced: list[tuple[Trial, float, bool]]) -> None:
    real = [(t.seconds, predicted) for t, predicted, _ in priced if t.seconds is not None]
    assert len(real) == 47
    measured, predicted = ([pair[i] for pair in real] for i in range(2))
    assert np.corrcoef(ranks(measured), ranks(predicted))[0, 1] > 0.96
    errors = np.array(predicted) / np.array(measured) - 1
    assert np.abs(errors).mean() < 0.09
    assert np.abs(errors).max() < 0.22


def test_the_first_choice_is_the_fastest_trial(priced: list[tuple[Trial, float, bool]]) -> None:
    first = min((x for x in priced if x[2]), key=lambda x: x[1])[0]
    fastest = min(t.seconds for t, _, _ in priced if t.seconds is not None)
    assert first.seconds == fastest


def test_trials_that_failed_have_no_room(priced: list[tuple[Trial, float, bool]]) -> None:
    assert [t.key for t, _, fits in priced if t.seconds is None and fits] == []
    assert [t.key for t, _, fits in priced if t.seconds is not None and not fits] == [(1, 4, 4, 8)]


def test_spaces_are_those_of_amp(script: ModuleType) -> None:
    assert [len(script.space(setup.global_batch)) for setup in script.SETUPS] == [53, 53, 65]
    assert {trial.key for trial in trials()} < set(script.space(32))


def test_the_script_writes_all_strategies(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "amp.json"
    monkeypatch.setattr(sys, "argv", ["plan.py", "--top", "1", "--json", str(out)])
    script.main()
    setups = json.loads(out.read_text())["setups"]
    assert [len(setup["strategies"]) for setup in setups] == [53, 53, 65]
    for setup in setups:
        first, fitting = setup["first"], [x for x in setup["strategies"] if x["fits"]]
        assert first["iteration_seconds"] == min(x["iteration_seconds"] for x in fitting)
        for each in fitting:
            assert each["stages"][0] == 0
            assert each["stages"][-1] == LAYERS
            assert all(np.diff(each["stages"]) > 0)
            if each["uniform_fits"]:
                assert each["iteration_seconds"] <= each["uniform_seconds"] * (1 + 1e-9)


@pytest.mark.parametrize("index", range(3))
def test_predict_says_the_same(script: ModuleType, index: int) -> None:
    setup = script.SETUPS[index]
    pricing = script.Pricing(setup)
    first = pricing.price()[0]
    strategy = pricing.strategies[
        pricing.space.index((first.tp, first.dp, first.pp, first.micro_batch))
    ]
    stages = tuple(
        Stage("", (start, stop), first.tp * first.dp, rank, 0)
        for rank, (start, stop) in enumerate(pairwise(first.stages))
    )
    given = replace(strategy, stages=stages, split=LayerSplit.FREE)
    (plan,) = estimate(pricing.model, [given])
    assert plan.iteration_seconds == pytest.approx(first.iteration_seconds)
    assert plan.peak_bytes == pytest.approx(first.peak_bytes)
    assert plan.fits


def test_slow_gpus_get_fewer_layers(script: ModuleType) -> None:
    mixed = script.Pricing(script.SETUPS[1]).price()[0]
    layers = np.diff(mixed.stages)
    on_t4 = mixed.pp // 4  # the last node
    assert layers[-on_t4:].sum() < LAYERS / 8
    assert layers[:-on_t4].min() > layers[-on_t4:].max()
