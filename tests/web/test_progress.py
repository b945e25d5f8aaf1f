"""What a search tells while it runs: early, the right way, and for next to nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import pytest

from astrarium.search.plan import Plan
from astrarium.web import answers
from astrarium.web.answers import Reporter

# All offers of all clouds, each as on demand or spot as is best: thousands of ways to pay.
MARKET = {
    "model": "llama-2-70b",
    "market": "all",
    "global_batch": 1024,
    "tokens": "2T",
    "objective": "time",
    "spot": "mix",
    "budget": "3M",
}
MOST_SHARE = 0.05
FIRST_SECONDS = 2.0


def test_plans_so_far_come_early_and_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0.0
    told: list[tuple[float, dict[str, Any]]] = []
    call = Reporter.__call__

    def measured(
        self: Reporter, phase: str, done: int, total: int, plans: Callable[[], Sequence[Plan]]
    ) -> None:
        nonlocal spent
        begin = process_time()
        call(self, phase, done, total, plans)
        spent += process_time() - begin

    monkeypatch.setattr(Reporter, "__call__", measured)
    begin = process_time()

    def tell(name: str, data: Any) -> None:
        if name == "plans":
            told.append((process_time() - begin, data))

    answer = answers.answer("plan", MARKET, tell)
    seconds = process_time() - begin
    assert answer.status == 200
    assert spent < MOST_SHARE * seconds
    first, early = told[0]
    assert first < FIRST_SECONDS
    best = json.loads(answer.content)["plans"][0]
    # Every plan told keeps the budget, and the first already has the speed of the best.
    assert all(plan["usd_total"] <= 3e6 for _, one in told for plan in one["plans"])
    assert early["plans"][0]["train_seconds"] < 1.25 * best["train_seconds"]
    assert told[-1][1]["plans"][0]["train_seconds"] <= early["plans"][0]["train_seconds"]
