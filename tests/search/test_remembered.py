"""What searches take over from others is what they would find by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from astrarium.cluster import Cluster, parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.search import remembered
from astrarium.search.outcome import Limits, Mode, Objective, SearchResult
from astrarium.search.planner import Planned, plan


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = list(remembered._memory)
    remembered._memory.clear()
    remembered._begun.clear()
    yield
    remembered._memory[:] = before


def asked(
    batch: int = 64,
    price: float | None = 2.0,
    tokens: int | None = 10**9,
    gpus: str = "a100:8",
    **more: object,
) -> Planned:
    workload = Workload(load_model("llama-2-7b"), 4096, batch, tokens=tokens)
    (pool,) = parse_gpus(gpus).pools
    return plan(workload, Cluster((replace(pool, usd_per_gpu_hour=price),)), **more)  # type: ignore[arg-type]


def same(one: Planned, other: Planned) -> bool:
    return replace(one, seconds=0.0) == replace(other, seconds=0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"price": 3.0},
        {"price": None},
        {"tokens": 5 * 10**9},
        {"tokens": None},
        {"batch": 128},
        {"gpus": "h100:8"},
        {"objective": Objective.TIME},
        {"objective": Objective.COST},
        {"objective": Objective.MEMORY},
        {"mode": Mode.UP_TO},
        {"limits": Limits(deadline_seconds=40 * 86400.0)},
        {"top": 7},
    ],
)
def test_an_answer_after_another_is_the_answer_alone(change: dict[str, object]) -> None:
    alone = asked(**change)  # type: ignore[arg-type]
    remembered._memory.clear()
    remembered._begun.clear()
    asked()
    assert same(asked(**change), alone)  # type: ignore[arg-type]
    assert same(asked(**change), alone)  # type: ignore[arg-type]


def test_prices_and_tokens_ask_for_no_new_search(monkeypatch: pytest.MonkeyPatch) -> None:
    first = asked()
    monkeypatch.setattr("astrarium.search.pools.Search.run", None)  # nobody may call it
    again = asked(price=4.0, tokens=2 * 10**9)
    assert [p.strategy for p in again.plans] == [p.strategy for p in first.plans]
    hourly = [one.plans[0].usd_per_hour for one in (first, again)]
    assert hourly == [16.0, 32.0]
    assert again.rejected == first.rejected


def test_few_answers_are_kept() -> None:
    for number in range(remembered.MOST_KEPT + 5):
        result = SearchResult.of_few(number)
        (pool,) = parse_gpus("a100:8").pools
        workload = Workload(load_model("llama-2-7b"), 4096, 8)
        remembered.remembered(workload, pool, (number,), lambda: ((), result))  # noqa: B023
    assert len(remembered._memory) == remembered.MOST_KEPT


def test_only_the_layouts_of_the_last_search_are_kept() -> None:
    for batch in (64, 128):
        asked(batch)
    assert len(remembered._begun) == 1
