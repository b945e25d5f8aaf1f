"""Predictions stay what they were until someone writes them down anew (tests/snapshot.py)."""

from __future__ import annotations

import json

import pytest
from snapshot import PATH, predictions


def test_predictions_have_not_moved() -> None:
    recorded, current = json.loads(PATH.read_text()), predictions()
    assert recorded.keys() == current.keys()
    for case, figures in current.items():
        for name, value in figures.items():
            expected = recorded[case][name]
            if isinstance(value, float):
                expected = pytest.approx(expected, rel=1e-6)
            assert value == expected, f"{case}: {name}"
