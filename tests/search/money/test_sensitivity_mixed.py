"""What would change an answer that is a pipeline over two pools, against planning again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from small import pool_of, small_model

from astrarium.cluster import Cluster, Pool
from astrarium.cost.training_run import RunTerms
from astrarium.model.workload import Workload
from astrarium.search.money.runs import Runs
from astrarium.search.money.sensitivity import CLOSE, Change, Sensitivity, What
from astrarium.search.outcome import Limits, Mode, Objective
from astrarium.search.planner import Planned, plan, predict

WORKLOAD = Workload(small_model(layers=6), 2048, 16, tokens=16 * 2048 * 1000)


def rented(text: str, usd: float) -> Pool:
    """Nodes of two GPUs, so that networks matter."""
    pool = pool_of(text)
    return replace(
        pool,
        nodes=pool.num_gpus // 2,
        gpus_per_node=2,
        nvlink_domain=2,
        usd_per_gpu_hour=usd,
        inter_node_bandwidth=100e9,
    )


POOLS = Cluster((rented("h100:2", 3.0), rented("a100:4", 1.3)))
LINK = POOLS.link_between(*(pool.name for pool in POOLS.pools))


def best(cluster: Cluster, limits: Limits) -> Planned:
    return plan(WORKLOAD, cluster, objective=Objective.TIME, mode=Mode.UP_TO, limits=limits)


def gpus_of(found: Planned) -> Mapping[str, int]:
    return dict(found.plans[0].strategy.gpus_of_pools())


def changes_of(found: Planned, limits: Limits) -> tuple[Change, ...]:
    known = (found.plans[0], *found.front)
    return Sensitivity(
        Runs(WORKLOAD, POOLS, RunTerms()), Objective.TIME, limits, (), known
    ).changes()


def at_price(change: Change, factor: float) -> Cluster:
    pools = (
        replace(p, usd_per_gpu_hour=factor * change.value) if p.name == change.pool else p
        for p in POOLS.pools
    )
    return replace(POOLS, pools=tuple(pools))


def test_the_price_of_either_pool_can_end_a_mix() -> None:
    fastest = best(POOLS, Limits()).plans[0]
    limits = Limits(1.1 * (fastest.usd_total or 0.0))
    found = best(POOLS, limits)
    now = gpus_of(found)
    assert len(now) == 2
    dearer = [
        change
        for change in changes_of(found, limits)
        if change.what is What.PRICE and (change.factor or 0.0) > 1
    ]
    assert {change.pool for change in dearer} == set(now)
    for change in dearer:
        assert change.factor is not None
        assert gpus_of(best(at_price(change, change.factor / 1.002), limits)) == now
        assert gpus_of(best(at_price(change, 1.002 * change.factor), limits)) != now


def test_the_link_of_a_mix_may_be_as_slow_as_is_said_for_its_plan() -> None:
    found = best(POOLS, Limits())
    assert len(gpus_of(found)) == 2
    slower, faster = (c for c in changes_of(found, Limits()) if c.what is What.LINK)
    assert slower.value == faster.value == LINK.bandwidth
    assert faster.factor is None
    assert slower.factor is not None
    mix = found.plans[0].strategy

    def seconds(factor: float) -> float:
        link = replace(LINK, bandwidth=factor * LINK.bandwidth)
        return predict(WORKLOAD, replace(POOLS, links=(link,)), mix).iteration_seconds

    (alone,) = (pool for pool in POOLS.pools if pool.name in slower.gpus_then)
    other = best(Cluster((alone,)), Limits()).plans[0]
    assert dict(other.strategy.gpus_of_pools()) == slower.gpus_then
    assert seconds(CLOSE * slower.factor) <= other.iteration_seconds <= seconds(slower.factor)
