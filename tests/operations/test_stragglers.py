"""Slow GPUs and spare nodes, against draws of them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console, Group

import astrarium
from astrarium.api.operations import under_stragglers
from astrarium.cost.training_run import RunTerms
from astrarium.errors import InputError
from astrarium.operations.stragglers import (
    StageSpeeds,
    Stragglers,
    expected_seconds,
    slowest_pipeline,
    spares_worth_keeping,
)
from astrarium.plans.job import Job
from astrarium.report.operations import stragglers_report

LIKE, LATE = StageSpeeds(1.0, 0.1, 8, 1), StageSpeeds(0.95, 0.0, 16, 2)


@pytest.mark.parametrize(
    ("stages", "units", "turns", "virtual", "speeds"),
    [
        ([LIKE] * 4, 8, 16, 1, Stragglers()),
        ([LIKE] * 8, 16, 8, 2, Stragglers(0.05, 0.002, 1.5)),
        ([LIKE, StageSpeeds(0.7, 0.3, 8, 1), LATE], 4, 4, 1, Stragglers(0.03, 0.02, 1.3)),
        ([LIKE], 1, 1, 1, Stragglers(0.015)),
        ([LIKE] * 16, 2, 16, 1, Stragglers(0.0, 0.01, 1.5)),
    ],
)
def test_the_slowest_pipeline_is_that_of_many_draws(
    stages: list[StageSpeeds], units: int, turns: int, virtual: int, speeds: Stragglers
) -> None:
    draws, generator = 1500, np.random.default_rng(1)
    seconds = np.empty((draws, units, len(stages)))
    for i, stage in enumerate(stages):
        shape = (draws, units, stage.nodes)
        slow = np.where(generator.random(shape) < speeds.slow_nodes, speeds.slow_factor, 1.0)
        own = generator.standard_normal((*shape, stage.gpus // stage.nodes))
        paces = (1 + speeds.gpu_deviation * own) * slow[..., None]
        seconds[:, :, i] = stage.compute * paces.max(axis=(2, 3)) + stage.messages
    slowest = seconds.max(axis=2)
    whole = turns * slowest + (seconds.sum(axis=2) - slowest) / virtual
    drawn = whole.max(axis=1)
    expected = slowest_pipeline(stages, units, turns, virtual, speeds)
    error = drawn.std() / draws**0.5
    assert abs(expected - drawn.mean()) < 4 * error + 0.002 * drawn.mean()


def test_the_usual_spread_is_what_plans_know(single: Job) -> None:
    """The cost model lets all stages take the pace of the slowest GPU of all."""
    usual = expected_seconds(single.plan, single.cluster, Stragglers())
    assert usual == pytest.approx(single.plan.iteration_seconds, rel=0.02)
    slower = expected_seconds(single.plan, single.cluster, Stragglers(0.015, 0.05, 1.5))
    assert slower > 1.05 * usual


def test_spares_make_tokens_cheapest() -> None:
    """Of all numbers of spare nodes, with the chances of a Poisson number of broken nodes."""
    for nodes, rate, hours in ((1, 1e-3, 24), (128, 1.6e-4, 24), (2048, 1.6e-4, 24), (64, 0.01, 8)):
        found = spares_worth_keeping(nodes, rate, hours * 3600)
        mean, chance = nodes * rate * hours, np.exp(-nodes * rate * hours)
        available: list[float] = []
        for spare in range(200):
            chance = chance * mean / spare if spare else chance
            available.append(chance + (available[-1] if available else 0.0))
        worth = [share / (nodes + spare) for spare, share in enumerate(available)]
        assert found.nodes == int(np.argmax(worth))
        assert found.availability == pytest.approx(available[found.nodes])
        assert found.without == pytest.approx(available[0])


def test_spares_of_very_many_nodes() -> None:
    few, many = (spares_worth_keeping(n, 1.6e-4, 86400.0) for n in (180_000, 200_000))
    assert few.without > 0 == many.without
    assert many.nodes / few.nodes == pytest.approx(200 / 180, rel=0.02)
    assert 0.999 < many.availability <= 1
    most = spares_worth_keeping(131_072, 100.0, 30 * 86400.0)
    assert most.nodes == pytest.approx(131_072 * 100 * 720, rel=1e-3)
    assert spares_worth_keeping(8, 0.0, 86400.0).nodes == 0


def test_python_has_it_too(single_plans: astrarium.Plans) -> None:
    (usual,) = single_plans.under_stragglers()
    (slow,) = single_plans.under_stragglers("gpu=2%,nodes=1%:1.5")
    assert slow.expected_iteration_seconds > usual.expected_iteration_seconds
    assert slow.goodput <= 1
    for bad in ("gpu=50%", "nodes=1%:0.5", "nodes=1%", "often"):
        with pytest.raises(InputError):
            single_plans.under_stragglers(bad)


def test_less_than_predicted_is_explained(single_plans: astrarium.Plans) -> None:
    found = under_stragglers(single_plans.document, Stragglers(), RunTerms())
    usual = found.plans[0]
    for factor in (0.99, 1.01):
        expected = factor * usual.iteration_seconds
        shown = replace(found, plans=(replace(usual, expected_iteration_seconds=expected),))
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(Group(*stragglers_report(shown, 80)))
        told = "as slow as the slowest GPU" in " ".join(console.export_text().split())
        assert told == (factor < 1)
