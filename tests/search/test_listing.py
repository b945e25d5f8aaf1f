"""A search tells how far it is, and finds the same whether anybody listens or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from small import small_model

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.search.families import are_twins, shared_of, with_twins
from astrarium.search.outcome import Found, Mode, Objective, Prefer
from astrarium.search.plan import Plan
from astrarium.search.planner import plan, predict
from astrarium.strategy.estimate import TWINS, Twin
from astrarium.strategy.types import Granularity, Recompute, Strategy

WORKLOAD = Workload(small_model(), seq_length=2048, global_batch=16, tokens=10**9)


@pytest.mark.parametrize(
    ("gpus", "mode", "phases"),
    [
        ("h100:8", Mode.EXACT, {"pools"}),
        ("h100:8,a100:8", Mode.EXACT, {"pipelines"}),
        ("h100:8,a100:8", Mode.UP_TO, {"front", "pools", "pipelines"}),
    ],
)
def test_listeners_hear_what_is_found(gpus: str, mode: Mode, phases: set[str]) -> None:
    heard: list[tuple[str, int, int, Sequence[Plan]]] = []

    def progress(phase: str, done: int, total: int, plans: Callable[[], Sequence[Plan]]) -> None:
        heard.append((phase, done, total, plans()))

    silent = plan(WORKLOAD, parse_gpus(gpus), mode=mode, top=3)
    found = plan(WORKLOAD, parse_gpus(gpus), mode=mode, top=3, progress=progress)
    assert replace(found, seconds=0.0) == replace(silent, seconds=0.0)
    assert {phase for phase, *_ in heard} == phases
    for _, done, total, plans in heard:
        assert 0 <= done <= total
        assert len(plans) <= 3
        assert all(plan.train_seconds is not None for plan in plans)
        if plans:
            assert plans[0].iteration_seconds >= found.plans[0].iteration_seconds


def test_plans_are_told_in_the_order_of_the_objective() -> None:
    heard: list[Sequence[Plan]] = []
    found = plan(
        WORKLOAD,
        parse_gpus("h100:8,a100:8"),
        objective=Objective.COST,
        mode=Mode.UP_TO,
        progress=lambda phase, done, total, plans: heard.append(plans()),
    )
    assert heard
    for plans in heard:
        costs = [plan.usd_total or 0.0 for plan in plans]
        assert costs == sorted(costs)
        assert costs[0] >= (found.plans[0].usd_total or 0.0) * (1 - 1e-9)


def test_a_list_shows_families_and_names_their_twins() -> None:
    workload = Workload(load_model("llama-2-70b"), seq_length=4096, global_batch=1024)
    found = plan(workload, parse_gpus("h100:64"), prefer=Prefer.RECOMMENDED)
    assert len(found.plans) == 5
    for number, one in enumerate(found.plans):
        assert not any(are_twins(one, other) for other in found.plans[:number])
        own = one.strategy
        for twin in one.twins:
            assert twin.iteration_seconds == pytest.approx(one.iteration_seconds, rel=TWINS * 1.01)
            assert (twin.cp, twin.virtual_stages) != (own.cp, own.virtual_stages)
            assert twin.dp * twin.cp == own.dp * own.cp
            assert twin.micro_batch * own.cp == own.micro_batch * twin.cp
    assert any(twin.cp > one.strategy.cp for one in found.plans for twin in one.twins)


def test_twins_are_as_fast_as_they_are_said_to_be() -> None:
    workload = Workload(load_model("llama-2-70b"), seq_length=4096, global_batch=1024)
    found = plan(workload, parse_gpus("h100:64"), top=2).plans
    for one in (one for one in found if one.twins):
        twin = one.twins[-1]
        strategy = replace(
            one.strategy,
            stages=(),
            virtual_stages=twin.virtual_stages,
            cp=twin.cp,
            dp=twin.dp,
            micro_batch=twin.micro_batch,
        )
        again = predict(workload, parse_gpus("h100:64"), strategy)
        assert again.iteration_seconds == pytest.approx(twin.iteration_seconds, rel=1e-6)
        assert again.fits


def test_a_twin_shares_what_its_figures_do_not_say() -> None:
    own = Strategy(pp=2, zero_stage=1)
    twin = Twin(virtual_stages=2, cp=1, dp=1, micro_batch=1, iteration_seconds=1.0)
    found = Found(own, seconds=1.0, score=1.0, peak_bytes=0.0)
    for other in (
        replace(own, zero_stage=2),
        replace(own, offload_optimizer=True),
        replace(own, recompute=Recompute(Granularity.FULL)),
    ):
        assert with_twins(found, [(shared_of(other), twin)]).twins == ()
    assert with_twins(found, [(shared_of(own), twin)]).twins == (twin,)
