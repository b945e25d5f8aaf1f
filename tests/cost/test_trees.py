"""Boosted trees: XGBoost's own sums, a plain walk, shapes, damaged trees, speed."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from astrarium.arrays import Floats
from astrarium.catalog.profiles import (
    EFFICIENCY,
    LAW_FILE,
    Correction,
    find_correction,
    read_values,
)
from astrarium.cost.corrections import learned
from astrarium.cost.trees import Forest, forest
from astrarium.errors import InputError

EXAMPLE = Path(__file__).parent / "data" / "boosted_trees.json"
TRAINER_FOLDER = Path(__file__).parents[2] / "benchmarks"


def forest_of(example: dict[str, Any]) -> Forest:
    parts = (example[name] for name in ("split_features", "split_thresholds", "leaves"))
    return forest(example["start"], len(example["rows"][0]), *parts)


def walked(features: Floats, thresholds: Floats, leaves: Floats, row: Floats) -> float:
    """The sum over trees by going down each of them."""
    total = 0.0
    for tree in range(len(features)):
        node = 0
        while node < features.shape[1]:
            right = np.float32(row[features[tree, node]]) >= np.float32(thresholds[tree, node])
            node = 2 * node + 1 + int(right)
        total += leaves[tree, node - features.shape[1]]
    return total


def test_sums_are_those_of_xgboost() -> None:
    example = json.loads(EXAMPLE.read_text())
    sums = forest_of(example)(list(np.array(example["rows"]).T))
    np.testing.assert_allclose(sums, example["sums"], atol=2e-5)


def test_sums_are_those_of_xgboost_trained_now(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgboost")
    monkeypatch.syspath_prepend(TRAINER_FOLDER)
    example = importlib.import_module("boosted").example(trees=40, levels=5, rows=500)
    sums = forest_of(example)(list(np.array(example["rows"]).T))
    np.testing.assert_allclose(sums, example["sums"], atol=5e-5)


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_sums_are_those_of_a_walk(levels: int, trees: int, data: st.DataObject) -> None:
    splits = 2**levels - 1
    values = st.integers(-4, 4).map(float)  # few, so that rows meet thresholds
    features = data.draw(arrays(np.int64, (trees, splits), elements=st.integers(0, 2)))
    thresholds = data.draw(arrays(np.float64, (trees, splits), elements=values))
    leaves = np.random.default_rng(0).normal(size=(trees, splits + 1))
    rows = data.draw(arrays(np.float64, (7, 3), elements=values))
    sums = forest(0.0, 3, features, thresholds, leaves)(list(rows.T))
    expected = [walked(features, thresholds, leaves, row) for row in rows]
    np.testing.assert_allclose(sums, expected, atol=1e-12)


def test_features_broadcast_and_a_batch_equals_its_rows() -> None:
    example = json.loads(EXAMPLE.read_text())
    trees = forest_of(example)
    column = np.array(example["rows"])[:, 1]
    grid = trees([3.0, column[:, None], column[None, :7], 0.5])
    assert grid.shape == (60, 7)
    assert grid[11, 4] == trees([3.0, column[11], column[4], 0.5])
    assert trees([1.0, 2.0, 3.0, 4.0]).shape == ()
    assert trees([1.0, np.zeros(0), 3.0, 4.0]).shape == (0,)


@pytest.mark.parametrize(
    ("features", "leaves"),
    [
        ([[0, 0, 0]], [[1.0, 2.0, 3.0]]),  # a leaf is missing
        ([[0, 0]], [[1.0, 2.0, 3.0]]),  # not complete
        ([[0, 0, 7]], [[1.0, 2.0, 3.0, 4.0]]),  # no such feature
        ([[0] * 63], [[0.0] * 64]),  # too deep
    ],
)
def test_trees_of_another_shape_are_refused(
    features: list[list[int]], leaves: list[list[float]]
) -> None:
    with pytest.raises(ValueError, match=r"leaves|levels|features"):
        forest(0.0, 2, features, np.zeros(np.shape(features)), leaves)


def test_saved_corrections_are_bounded_small_and_fast() -> None:
    names = [path.stem for path in EFFICIENCY.glob("*.json") if path.name != LAW_FILE]
    assert "attention_law" in names
    assert sum(path.stat().st_size for path in EFFICIENCY.glob("*.json")) < 400_000
    rng = np.random.default_rng(0)
    for name in names:
        found = learned(name)
        assert found is not None
        limit = np.exp(found.correction.limit)
        features = {f: rng.uniform(1e-9, 1e9, 1000) for f in found.correction.features}
        begin = time.perf_counter()
        factor = found.factor(features)
        assert time.perf_counter() - begin < 0.1  # a few ms; far more on a loaded machine
        assert np.all((factor >= 1 / limit) & (factor <= limit))


def test_no_correction_is_no_error_and_a_damaged_one_is(tmp_path: Path) -> None:
    assert find_correction("no_such_operator") is None
    with pytest.raises(InputError, match="cannot be read"):
        read_values(tmp_path / "trees.json", Correction)
    path = tmp_path / "trees.json"
    for text in ("{", "[]", '{"features": []}', '{"features": "x"}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"trees\.json:"):
            read_values(path, Correction)
