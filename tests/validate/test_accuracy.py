"""The carried measurements: predictions stay, errors do not grow, the page is that of the code."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import accuracy
import pytest

from astrarium.report.validation import KEYS, Grouping
from astrarium.validate.metrics import metrics_by
from astrarium.validate.predictions import Prediction
from astrarium.validate.readings import corrections_of

REFRESH = "run `make accuracy` if the change is meant, and say so"
RECORDED: dict[str, Any] = json.loads(accuracy.SNAPSHOT.read_text(encoding="utf-8"))


@cache
def predictions() -> tuple[Prediction, ...]:
    return accuracy.all_predictions()


def test_predictions_have_not_moved() -> None:
    current = accuracy.snapshot(predictions())["predictions"]
    assert [row[0] for row in current] == [row[0] for row in RECORDED["predictions"]]
    for now, before in zip(current, RECORDED["predictions"], strict=True):
        expected = [pytest.approx(x, rel=1e-6) if isinstance(x, float) else x for x in before]
        assert now == expected, REFRESH


def test_errors_have_not_grown() -> None:
    groups = metrics_by(predictions(), KEYS[Grouping.SOURCE])
    assert accuracy.broken_limits(groups, RECORDED["limits"]) == []


def test_limits_are_kept_from_above_and_below() -> None:
    (*_, whole) = metrics_by(predictions(), KEYS[Grouping.SOURCE])
    assert whole.mape is not None
    low = {"all": {"mape": whole.mape - 0.001, "memory_mape": 1.0, "coverage": 1.0}}
    found = accuracy.broken_limits([whole], low)
    assert any(text.startswith("all: mape") for text in found)
    assert any(text.startswith("all: coverage") for text in found)
    assert accuracy.broken_limits([whole], {}) != []


def test_the_page_is_up_to_date() -> None:
    page = accuracy.PAGE.read_text(encoding="utf-8")
    current = page.startswith(accuracy.page_of_tables(predictions()))
    assert current, REFRESH
    assert "\n## Against experts\n" in page


def test_corrections_are_listed_with_their_reasons() -> None:
    text = accuracy.page_of_tables(predictions())
    assert "nothing is fitted" not in text
    used = {known.title: known for p in predictions() for known in corrections_of(p.row)}
    assert set(used) == {
        *("vTrain, single node", "torchtitan, NVFP4", "NeMo", "NeMo, GPT-3"),
        *("Megatron-Bridge, GPT-OSS", "torchtitan before 2026", "torchtitan before spring 2025"),
    }
    for title, known in used.items():
        assert title in text
        assert known.reason in text
    assert "recompute none whatever is stated" in text


def test_every_table_is_described() -> None:
    text = (accuracy.TABLES[0].parent / "README.md").read_text(encoding="utf-8")
    for path in accuracy.TABLES:
        rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
        assert f"| `{path.name}` | {rows} |" in text
