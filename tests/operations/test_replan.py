"""What a running job should do about a changed cluster."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astrarium
from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.operations.change import ClusterChange, situation
from astrarium.operations.neighbours import deal, degraded
from astrarium.operations.replan import Reaction, StateSource
from astrarium.plans.document import load_document
from astrarium.plans.job import Job, job_of
from astrarium.search.plan import estimate
from astrarium.value import replace


def slowest(counts: list[int], head: list[float], seconds: list[float]) -> float:
    return max((n + h) * s for n, h, s in zip(counts, head, seconds, strict=True))


def test_layers_are_dealt_as_well_as_can_be() -> None:
    """Against all ways to deal them."""
    generator = np.random.default_rng(3)
    for _ in range(30):
        layers, ranks = int(generator.integers(1, 9)), int(generator.integers(1, 4))
        seconds = generator.uniform(0.5, 3, ranks).tolist()
        extra = float(generator.uniform(0, 2))
        most = generator.integers(1, layers + 1, ranks).tolist()
        head = [0.0] * (ranks - 1) + [extra]
        ways = []
        for cuts in combinations_with_replacement(range(layers + 1), ranks - 1):
            bounds = [0, *cuts, layers]
            counts = [b - a for a, b in pairwise(bounds)]
            if all(n <= limit for n, limit in zip(counts, most, strict=True)):
                ways.append(slowest(counts, head, seconds))
        dealt = deal(layers, seconds, most, extra)
        assert sum(dealt) == layers
        if ways:
            assert all(n <= limit for n, limit in zip(dealt, most, strict=True))
            assert slowest(dealt, head, seconds) == pytest.approx(min(ways))


def test_a_slow_stage_is_a_pool_of_its_own_and_costs_what_its_pace_says(single: Job) -> None:
    """Divided alone, the cluster predicts the same; slowed, the stage decides."""
    change = ClusterChange(slowed_stages={2: 1.5})
    happened = situation(single.strategy, single.cluster, change)
    assert [pool.nodes for pool in happened.now.pools] == [1, 3]
    assert [pool.slowdown for pool in happened.now.pools] == [1.5, 1.0]
    before = estimate(ClusterModel(single.workload, happened.before), [happened.strategy])[0]
    assert before.iteration_seconds == pytest.approx(single.plan.iteration_seconds, rel=0.01)
    slow = estimate(ClusterModel(single.workload, happened.now), [happened.strategy])[0]
    passes = [stage.pass_seconds for stage in slow.stage_seconds]
    assert 1.3 < passes[2] / passes[1] < 1.51
    again = Cluster.from_dict(happened.now.to_dict())
    assert again == happened.now


def test_several_slow_stages_and_pools_keep_their_own_factors(single: Job) -> None:
    name = single.cluster.pools[0].name
    change = ClusterChange(slowed_stages={2: 1.5, 0: 2.0}, slowed_pools={name: 1.2})
    now = situation(single.strategy, single.cluster, change).now
    assert {pool.name: (pool.nodes, pool.slowdown) for pool in now.pools} == {
        f"{name} slow": (1, 1.5),
        f"{name} slow 2": (1, 2.0),
        name: (2, 1.2),
    }
    worse = ClusterChange(slowed_stages={2: 1.1}, slowed_pools={name: 1.2})
    slowed = situation(single.strategy, single.cluster, worse).now.pools
    assert [pool.slowdown for pool in slowed] == [1.2, 1.2]


def test_staying_keeps_the_split_with_fewer_replicas(single: Job) -> None:
    pool = single.cluster.pools[0].name
    named = situation(single.strategy, single.cluster, ClusterChange(slowed_pools={pool: 1.1}))
    stays = list(degraded(named.strategy, {pool: 24}, 128))
    assert [one.dp for one in stays] == [1]
    assert stays[0].num_micro_batches == 128
    assert stays[0].tp == 4
    assert stays[0].pp == 4


def test_three_answers_with_their_costs(single_plans: astrarium.Plans) -> None:
    found = astrarium.replan(single_plans, lost="a100:8", horizon="24h", restart_time="5min")
    answers = found.answers
    assert list(answers) == list(Reaction)
    stay, best = answers["stay"], answers[found.decision]
    assert stay.source is StateSource.LAST_CHECKPOINT
    assert stay.redone_seconds > 0
    assert stay.pause_seconds > 300
    assert best.tokens == max(one.tokens for one in answers.values())
    for one in answers.values():
        assert one.plan is not None
        assert one.plan.fits
        assert one.plan.num_gpus + one.idle_gpus == 24
        left = one.tokens_per_second * (86400 - one.pause_seconds)
        assert one.tokens == pytest.approx(
            left - one.redone_seconds * single_plans.best.tokens_per_second
        )
        if one.plan.strategy != stay.plan.strategy and one.pays_after_seconds:  # type: ignore[union-attr]
            at = one.pays_after_seconds
            theirs, ours = (x.tokens_per_second * (at - x.pause_seconds) for x in (stay, one))
            assert ours == pytest.approx(theirs, rel=1e-6) or at == one.pause_seconds


def test_what_is_whole_moves_over_links_and_what_stays_costs_nothing(
    single_plans: astrarium.Plans,
) -> None:
    gained = astrarium.replan(single_plans, gained={"a100": 32}, restart_time="1min")
    assert gained.answers["stay"].source is StateSource.KEPT
    assert gained.answers["stay"].pause_seconds == 0
    assert gained.decision == "move"
    move = gained.answers["move"]
    assert move.source is StateSource.LINKS
    assert move.moved_bytes > 0
    assert gained.best.num_gpus == 64
    short = astrarium.replan(single_plans, gained={"a100": 32}, horizon="30s", restart_time="1min")
    assert short.decision == "stay"


def test_a_slow_stage_gives_layers_away(mixed_plans: astrarium.Plans) -> None:
    found = astrarium.replan(mixed_plans, slowed="stage=0:1.5")
    stay, reshape = found.answers["stay"].plan, found.answers["reshape"].plan
    assert stay is not None
    assert reshape is not None
    assert reshape.iteration_seconds < 0.95 * stay.iteration_seconds
    again = astrarium.replan(found.plans, lost={"h100": 8})  # its plans are plans
    assert again.best.num_gpus <= 16


def test_near_plans_are_nearly_the_best(mixed_plans: astrarium.Plans) -> None:
    """A job on a single type, and the whole search for comparison."""
    near = astrarium.replan(mixed_plans, lost={"a100": 16})
    exact = astrarium.replan(mixed_plans, lost={"a100": 16}, exact=True)
    assert exact.answers["move"].tokens >= near.answers["move"].tokens
    assert near.answers["move"].tokens > 0.95 * exact.answers["move"].tokens


def test_cheapest_tokens(single_plans: astrarium.Plans) -> None:
    found = astrarium.replan(single_plans, gained={"a100": 32}, objective="cost")
    best = found.answers[found.decision]
    assert best.usd_per_token == min(one.usd_per_token for one in found.answers.values())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "nothing has changed"),
        ({"lost": "a100:40"}, "has 32 GPUs"),
        ({"lost": "a100:32"}, "no GPUs are left"),
        ({"lost": "a100:8,A100-SXM4-80GB:32"}, "has 32 GPUs"),
        ({"lost": "h100:8"}, "no pool has this type"),
        ({"lost": "x100:8"}, "no pool is called 'x100'"),
        ({"lost": "a100"}, "expected TYPE:N"),
        ({"lost": "a100:-8"}, "lost"),
        ({"gained": "a100:3"}, "no whole nodes"),
        ({"slowed": "stage=9:1.4"}, "stages 0 to 3"),
        ({"slowed": "stage=2:0.9"}, "above 1"),
        ({"slowed": "stage=x:2"}, "expected stage=2:1.4"),
        ({"slowed": "a100"}, "expected stage=2:1.4"),
        ({"lost": "a100:8", "horizon": "soon"}, "soon"),
        ({"lost": "a100:8", "rank": 2}, "no plan of rank 2"),
    ],
)
def test_what_cannot_have_happened(
    single_plans: astrarium.Plans, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        astrarium.replan(single_plans, **change)


def test_all_strategies_are_searched_where_none_near_fits() -> None:
    plans = astrarium.predict("llama-2-7b", "tp=8", gpus="a100:8", global_batch=16)
    found = astrarium.replan(plans, lost="a100:7")
    exact = astrarium.replan(plans, lost="a100:7", exact=True)
    assert "all strategies were searched" in found.document.notes[0]
    assert (found.answers, exact.document.notes) == (exact.answers, ())
    assert found.best.num_gpus == 1


def test_cheapest_tokens_need_prices() -> None:
    plans = astrarium.predict("llama-2-7b", "tp=8", gpus="a800:16", global_batch=64)
    with pytest.raises(InputError, match="no price is known"):
        astrarium.replan(plans, lost="a800:8", objective="cost")


def test_nothing_fits_what_is_left() -> None:
    plans = astrarium.predict("llama-2-7b", "tp=8,recompute=full", gpus="v100:8", global_batch=8)
    with pytest.raises(NoFeasiblePlanError, match="no plan fits what is left"):
        astrarium.replan(plans, lost="v100:7")


def test_the_command(single_file: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from astrarium.cli.operations import replan

    runner = CliRunner()
    shown = runner.invoke(replan, [str(single_file), "--lost", "a100:4", "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "counts as 8 GPUs: nodes are lost whole" in shown.output
    assert "Best: " in shown.output
    unknown = runner.invoke(replan, ["tp=2", "--lost", "a100:4"])
    assert "neither a plan nor a configuration that states the model" in unknown.output
    assert all(len(line) <= 80 for line in shown.output.splitlines())
    job = job_of(load_document(tmp_path / "plan.json"))
    assert job.cluster.num_gpus == 24
    strategy = ["tp=4,pp=4,recompute=full", "--model", "llama-2-7b", "--gpus", "a100:32"]
    printed = runner.invoke(
        replan, [*strategy, "--global-batch", "128", "--lost", "a100:8", "--json"]
    )
    assert printed.exit_code == 0
    assert '"schema": "astrarium.replan/1"' in printed.output
    refused = runner.invoke(replan, [str(single_file), "--lost", "a100:8", "--gpus", "h100:8"])
    assert refused.exit_code == 2


def test_a_slowed_cluster_is_kept_in_the_plan(single_plans: astrarium.Plans) -> None:
    found = astrarium.replan(single_plans, slowed="a100:1.3")
    (pool,) = found.plans.document.cluster.pools
    assert pool.slowdown == 1.3
    twice = astrarium.replan(found.plans, slowed="a100:1.5")
    assert twice.plans.document.cluster.pools[0].slowdown == pytest.approx(1.3 * 1.5)
    assert replace(pool, slowdown=1.0).slowdown == 1.0
