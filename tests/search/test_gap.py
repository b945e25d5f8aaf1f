"""The gap that is left is a plain number, whatever the searches calculate with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astrarium.search.outcome import Found, SearchResult
from astrarium.search.planner import _gap
from astrarium.strategy.types import Strategy


def result(gap: Any, score: Any = None) -> SearchResult:
    strategy = Strategy(tp=1, pp=1, dp=1, micro_batch=1, num_micro_batches=1)
    found = [] if score is None else [Found(strategy, 1.0, score, 1.0)]
    return replace(SearchResult.of_few(1), found=found, bound_gap=gap, optimal=gap == 0)


@pytest.mark.parametrize("number", [float, np.float64])
def test_json_knows_it(number: type[float]) -> None:
    front, best = result(number(0.25)), result(number(0.0), number(2.0))
    for results, gap in (
        ([front], 0.25),
        ([best], 0.0),
        ([best, front], 0.25),
        ([best, result(number(0.5), number(3.0))], 0.25),
    ):
        found = _gap(results)
        assert type(found) is float
        assert json.loads(json.dumps(found)) == gap
