"""Pipelines over several pools against brute force, and the promises of the search."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import factorial

import numpy as np
import pytest
from brute_mixed import FEW_DEGREES, ONE_CHUNK, BruteForce, models, pool_of
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small_model, small_translator

from astrarium.arrays import Floats, Ints
from astrarium.cluster import Cluster, Link, Pool
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.mixed import kept_plans
from astrarium.search.mixed import nodes as mixed_nodes
from astrarium.search.mixed import search as mixed_search
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.nodes import PendingBundle, PlacedRow
from astrarium.search.mixed.search import PartitionSearch
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.outcome import Limits, Mode, Objective, SearchResult
from astrarium.search.planner import plan
from astrarium.search.rules import overlaps_named, user_rules
from astrarium.search.split.arrangements import canonical
from astrarium.search.split.cases import Bundle
from astrarium.strategy.columns import Options
from astrarium.strategy.validity import megatron_rules


def searched(
    workload: Workload,
    cluster: Cluster,
    *,
    exact: bool,
    rules: tuple[str, ...] = (),
    objective: Objective = Objective.THROUGHPUT,
    top: int = 1,
    limits: Limits | None = None,
) -> SearchResult:
    cluster = canonical(cluster)
    workload = runnable(workload, *cluster.pools)
    model = ClusterModel(workload, cluster)
    asked = user_rules(rules)
    space = MixedSpace(
        workload,
        cluster,
        model.pools[0].planner,
        exact=exact,
        expanded_overlaps=overlaps_named(asked),
    )
    kept = KeptPlans(cluster, model.workload.iterations, objective, limits or Limits(), top)
    return PartitionSearch(
        model, space, kept, runtime_rules=megatron_rules(), user_rules=asked
    ).run()


def assert_like_brute_force(
    workload: Workload,
    cluster: Cluster,
    *,
    exact: bool,
    rules: tuple[str, ...],
    objective: Objective = Objective.THROUGHPUT,
) -> None:
    rules = (*ONE_CHUNK, *rules)
    found = searched(workload, cluster, exact=exact, rules=rules, objective=objective)
    least = BruteForce(workload, canonical(cluster), rules, objective).best(exact=exact)
    assert found.optimal
    if np.isfinite(least):
        assert found.found[0].score == pytest.approx(least, rel=1e-9)
    else:
        assert not found.found
    assert found.space == len(found.found) + sum(found.rejected.values())


POOLS = (("h100", 1, 2), ("a100", 1, 2), ("v100", 2, 2), ("a100", 1, 4), ("h100", 2, 1))
SMALL_POOLS = (("h100", 1, 1), ("a100", 2, 1), ("v100", 1, 2), ("h100", 3, 1), ("a100", 1, 3))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    chosen = draw(st.lists(st.sampled_from(POOLS), min_size=1, max_size=2))
    memory = draw(st.sampled_from((None, 8.0, 5.0)))
    pools = tuple(
        pool_of(f"pool-{i}", gpu, nodes, per_node, memory)
        for i, (gpu, nodes, per_node) in enumerate(chosen)
    )
    slow = draw(st.booleans())
    links = (Link(("pool-0", "pool-1"), 1e9, 1e-4),) if slow and len(pools) == 2 else ()
    return Cluster(pools, links)


@settings(max_examples=12, deadline=None)
@given(
    cluster=clusters(), number=st.integers(0, 2), batch=st.sampled_from((4, 6)), exact=st.booleans()
)
def test_equals_brute_force(cluster: Cluster, number: int, batch: int, exact: bool) -> None:
    model = models()[number]
    workload = Workload(model, seq_length=1024, global_batch=batch)
    assert_like_brute_force(workload, cluster, exact=exact, rules=FEW_DEGREES)


@settings(max_examples=10, deadline=None)
@given(
    cluster=clusters(),
    sizes=st.lists(st.sampled_from([(), (1, 2, 4), (4,), (3,)]), min_size=2, max_size=2),
    prices=st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=2, max_size=2),
)
def test_the_cheapest_plan_equals_brute_force_with_whole_instances_paid(
    cluster: Cluster, sizes: list[tuple[int, ...]], prices: list[float]
) -> None:
    pools = tuple(
        replace(pool, rented_sizes=own, usd_per_gpu_hour=price)
        for pool, own, price in zip(cluster.pools, sizes, prices, strict=False)
    )
    workload = Workload(small_model(4), seq_length=1024, global_batch=4)
    assert_like_brute_force(
        workload,
        replace(cluster, pools=pools),
        exact=False,
        rules=(*FEW_DEGREES, "$tp > 2"),
        objective=Objective.COST,
    )


@st.composite
def clusters_that_straddle(draw: st.DrawFn, most: int) -> Cluster:
    """Pools of a few GPUs that one block can lie on, most of them in nodes of one size."""
    chosen = draw(st.lists(st.sampled_from(SMALL_POOLS), min_size=2, max_size=most))
    per_node = draw(st.sampled_from((1, 1, 2, None)))
    pools = tuple(
        pool_of(f"pool-{i}", gpu, nodes, per_node or own)
        for i, (gpu, nodes, own) in enumerate(chosen)
    )
    links = (Link(("pool-0", "pool-1"), 1e9, 1e-4),) if draw(st.booleans()) else ()
    return Cluster(pools, links)


STRADDLING = ("$cp > 1", "$sequence_parallel", "$micro_batch > 1", "$recompute_layers > 1")


@settings(max_examples=10, deadline=None)
@given(cluster=clusters_that_straddle(3), batch=st.sampled_from((4, 6)))
def test_equals_brute_force_where_blocks_straddle_some_nodes(cluster: Cluster, batch: int) -> None:
    workload = Workload(small_model(3), seq_length=1024, global_batch=batch)
    assert_like_brute_force(
        workload, cluster, exact=False, rules=(*STRADDLING, "$tp > 1", "$offload_optimizer")
    )


@settings(max_examples=30, deadline=None)
@given(cluster=clusters_that_straddle(4), batch=st.sampled_from((4, 6, 12)))
def test_arrangements_are_counted(cluster: Cluster, batch: int) -> None:
    cluster = canonical(cluster)
    workload = Workload(small_model(4), seq_length=1024, global_batch=batch)
    force = BruteForce(workload, cluster, ())
    space = MixedSpace(force.workload, cluster, force.model.pools[0].planner, exact=False)
    heads, batches = (1, 2, 4, 8), [dp for dp in range(1, batch + 1) if batch % dp == 0]
    for tp, dp, pp in itertools.product(heads, batches, range(1, 5)):
        every = force.choices(tp, tp * dp, pp)
        used = [sum(count > 0 for count in gpus) for gpus in every]
        assert space.arrangements.count(tp, tp * dp, pp) == sum(map(factorial, used))


def test_equals_brute_force_on_three_pools() -> None:
    pools = (pool_of("a", "h100", 1, 2), pool_of("b", "a100", 1, 2), pool_of("c", "v100", 1, 2))
    workload = Workload(small_model(5), seq_length=1024, global_batch=4)
    cluster = Cluster(pools, (Link(("a", "c"), 5e8, 1e-4),))
    for exact in (True, False):
        assert_like_brute_force(workload, cluster, exact=exact, rules=(*FEW_DEGREES, "$tp > 1"))


@pytest.mark.parametrize("tied", [True, False])
def test_equals_brute_force_with_a_shared_table(tied: bool) -> None:
    """Where the decoder begins is a stage of its own, or not, for a copy of the table."""
    pools = (pool_of("a", "h100", 1, 2, 8.0), pool_of("b", "a100", 1, 2, 8.0))
    workload = Workload(small_translator(tied=tied), seq_length=512, global_batch=4)
    rules = (*FEW_DEGREES, "$pp < 4")
    assert_like_brute_force(workload, Cluster(pools), exact=True, rules=rules)
    assert searched(workload, Cluster(pools), exact=True, rules=rules).found


def test_blocks_straddle_pools_where_all_gpus_are_used() -> None:
    pools = (pool_of("a", "v100", 3, 2), pool_of("b", "t4", 1, 2))
    workload = Workload(small_model(4), seq_length=512, global_batch=8)
    rules = (*FEW_DEGREES, "$tp * $dp != 4")
    assert_like_brute_force(workload, Cluster(pools), exact=True, rules=rules)
    found = searched(workload, Cluster(pools), exact=True, rules=rules).found[0]
    assert any(len(stage.pools) == 2 for stage in found.strategy.stages)


@pytest.mark.parametrize("memory", [None, 5.0])
@pytest.mark.parametrize("exact", [True, False])
def test_what_waits_is_never_better(
    memory: float | None, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if shortest stages and what recomputes least are always looked at first."""
    for module in (mixed_search, mixed_nodes):
        monkeypatch.setattr(module, "FEW_CASES", 0)
    pools = (pool_of("a", "h100", 1, 2, memory), pool_of("b", "a100", 1, 2, memory))
    for model in models()[::2]:
        workload = Workload(model, seq_length=1024, global_batch=4)
        assert_like_brute_force(workload, Cluster(pools), exact=exact, rules=FEW_DEGREES)


def best_seconds(
    workload: Workload, pools: tuple[Pool, ...], links: tuple[Link, ...] = ()
) -> float:
    """What users are told: each pool by itself, then several together."""
    return plan(workload, Cluster(pools, links), mode=Mode.UP_TO).plans[0].iteration_seconds


@pytest.fixture
def workload() -> Workload:
    return Workload(small_model(6), seq_length=2048, global_batch=8)


def test_more_gpus_or_bandwidth_never_hurt(workload: Workload) -> None:
    fast, slow = pool_of("fast", "h100", 1, 4), pool_of("slow", "v100", 1, 4)
    both = best_seconds(workload, (fast, slow))
    assert both <= min(best_seconds(workload, (fast,)), best_seconds(workload, (slow,)))
    assert best_seconds(workload, (fast, replace(slow, nodes=2))) <= both
    assert best_seconds(workload, (replace(fast, nodes=2), slow)) <= both
    link = Link(("fast", "slow"), 1e9, 1e-5)
    narrow = best_seconds(workload, (fast, slow), (link,))
    wide = best_seconds(workload, (fast, slow), (replace(link, bandwidth=50e9),))
    assert both <= narrow * (1 + 1e-12)
    assert wide <= narrow


@st.composite
def clusters_and_more(draw: st.DrawFn) -> tuple[Cluster, Cluster]:
    """A cluster, and one with a node, a pool or bandwidth in addition."""
    cluster = draw(clusters_that_straddle(2))
    pools, links = cluster.pools, cluster.links
    added = draw(st.sampled_from(("node", "pool", "bandwidth")))
    if added == "node":
        grown = draw(st.integers(0, len(pools) - 1))
        larger = [replace(p, nodes=p.nodes + (i == grown)) for i, p in enumerate(pools)]
        return cluster, Cluster(tuple(larger), links)
    if added == "pool":
        gpu, nodes, per_node = draw(st.sampled_from(SMALL_POOLS))
        return cluster, Cluster((*pools, pool_of("new", gpu, nodes, per_node)), links)
    faster = [replace(p, inter_node_bandwidth=2 * p.inter_node_bandwidth) for p in pools]
    wider = tuple(replace(link, bandwidth=2 * link.bandwidth) for link in links)
    return cluster, Cluster(tuple(faster), wider)


@settings(max_examples=15, deadline=None)
@given(both=clusters_and_more(), batch=st.sampled_from((4, 6, 12)))
def test_nodes_pools_and_bandwidth_never_hurt(both: tuple[Cluster, Cluster], batch: int) -> None:
    workload = Workload(small_model(4), seq_length=1024, global_batch=batch)
    less, more = (searched(workload, of, exact=False, rules=ONE_CHUNK) for of in both)
    assert less.optimal
    assert more.optimal
    seconds = [of.found[0].seconds if of.found else np.inf for of in (less, more)]
    assert seconds[1] <= seconds[0] * (1 + 1e-12)


def test_idle_nodes_do_not_keep_blocks_from_straddling() -> None:
    """Four nodes of two pools are the fastest; a fifth must not hide it."""
    pools = pool_of("a", "h100", 3, 2), pool_of("b", "h100", 1, 2)
    workload = Workload(small_model(4), seq_length=1024, global_batch=8)
    rules = ("$tp > 1", "$cp > 1", "$pp > 1")
    four, five = (
        searched(workload, Cluster((pools[0], b)), exact=False, rules=rules).found[0]
        for b in (pools[1], replace(pools[1], nodes=2))
    )
    assert {name for stage in five.strategy.stages for name in stage.pools} == {"a", "b"}
    assert five.strategy.gpus == 8
    assert five.seconds == four.seconds


def described(result: SearchResult) -> list[object]:
    return [(f.seconds, f.strategy) for f in result.found]


def test_order_of_pools_does_not_matter(workload: Workload) -> None:
    pools = [pool_of("a", "h100", 1, 4), pool_of("b", "a100", 1, 4), pool_of("c", "h100", 1, 4)]
    answers = [
        described(searched(workload, Cluster(tuple(order)), exact=exact, top=3))
        for exact in (True, False)
        for order in itertools.permutations(pools)
    ]
    assert all(answer == answers[0] for answer in answers[:6])
    assert all(answer == answers[6] for answer in answers[6:])


def test_hash_seeds_do_not_matter() -> None:
    code = (
        "import json, test_search as t; from astrarium.model.workload import Workload;"
        "w = Workload(t.small_model(6), seq_length=2048, global_batch=8);"
        "c = t.Cluster((t.pool_of('a', 'h100', 1, 4), t.pool_of('b', 'a100', 2, 4)));"
        "r = t.searched(w, c, exact=False, top=3);"
        "print(json.dumps([(f.seconds, repr(f.strategy)) for f in r.found]))"
    )
    answers = []
    for seed in ("0", "1"):
        path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        answers.append(json.loads(run.stdout))
    assert answers[0] == answers[1]


def test_cheapest_plan_uses_what_its_work_is_cheapest_on(workload: Workload) -> None:
    dear = replace(pool_of("dear", "h100", 1, 4), usd_per_gpu_hour=100.0)
    cheap = replace(pool_of("cheap", "a100", 1, 4), usd_per_gpu_hour=1.0)
    result = searched(workload, Cluster((dear, cheap)), exact=False, objective=Objective.COST)
    names = {name for stage in result.found[0].strategy.stages for name in stage.pools}
    assert names == {"cheap"}


def test_rule_about_a_gpu_drops_plans_that_use_it(workload: Workload) -> None:
    pools = (pool_of("a", "h100", 1, 4), pool_of("b", "a100", 1, 4))
    rules = (f"$gpu == '{pools[0].gpu.name}'",)
    result = searched(workload, Cluster(pools), exact=False, rules=rules)
    assert {n for s in result.found[0].strategy.stages for n in s.pools} == {"b"}
    assert not searched(workload, Cluster(pools), exact=True, rules=rules).found


def test_virtual_stages_are_dealt_by_speed(workload: Workload) -> None:
    pools = (pool_of("a", "h100", 1, 2), pool_of("b", "v100", 1, 2))
    model = small_model(24)
    rules = ("$virtual_stages != 2", "$pp != 2")
    found = searched(replace(workload, model=model), Cluster(pools), exact=True, rules=rules)
    layers = {"a": 0, "b": 0}
    for stage in found.found[0].strategy.stages:
        layers[next(iter(stage.pools))] += stage.num_layers
    assert layers["a"] > layers["b"] >= 1
    assert sum(layers.values()) == 24


Asked = tuple[PendingBundle, Floats]


def cases_of(memory: float | None, monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What a search asks about, with the bounds it had before."""
    found: list[Asked] = []
    ready = PartitionSearch._priced_bundle

    def noted(
        self: PartitionSearch, chosen: Sequence[PlacedRow], index: Ints, options: Options
    ) -> PendingBundle | None:
        node = ready(self, chosen, index, options)
        if node is not None:
            found.append((node, self._case_bounds(chosen, index, options)))
        return node

    monkeypatch.setattr(PartitionSearch, "_priced_bundle", noted)
    monkeypatch.setattr(kept_plans, "LISTED", 10**6)  # a list that is full leaves slower cases out
    pools = (pool_of("a", "h100", 1, 2, memory), pool_of("b", "a100", 1, 2, memory))
    workload = Workload(small_model(9), seq_length=1024, global_batch=8)
    rules = ("$virtual_stages == 1", "$cp > 1", "$sequence_parallel", "$recompute_layers > 1")
    searched(workload, Cluster(pools), exact=True, rules=rules, top=10**6)
    return found


def least_of_many_deals(bundle: Bundle, order: int, row: int, rng: np.random.Generator) -> float:
    """The fastest of all ways to deal whole ranks evenly, and of some to deal chunks at random.

    Memory is bounded as if the chunks of a rank were alike: those drawn count where it is no limit.
    """
    virtual, stages, layers = int(bundle.virtual[row]), bundle.num_stages, 9
    even = []
    for held in itertools.product(range(1, layers + 1), repeat=stages):
        if sum(held) == layers:
            small, more = np.divmod(np.array(held), virtual)
            even.append(small + (np.arange(virtual)[:, None] >= virtual - more))
    drawn = [
        rng.multinomial(layers - stages, np.full(stages * virtual, 1 / stages / virtual))
        for _ in range(100 if virtual > 1 and bundle.never_full[row] else 0)
    ]
    first = np.zeros((virtual, stages), np.int64)
    first[rng.integers(virtual), :] = 1  # a layer for every rank
    ways = even + [one.reshape(virtual, stages) + first for one in drawn]
    cuts = [np.concatenate([[0], np.cumsum(one.reshape(-1))]) for one in ways]
    priced = bundle.priced([(order, row, one) for one in cuts])
    return min((one.seconds for one in priced), default=np.inf)


@pytest.mark.parametrize("memory", [None, 8.0, 5.0])
def test_no_deal_takes_less_than_its_bound(
    memory: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    looked = 0
    for node, before in cases_of(memory, monkeypatch):
        # Chunks that redo some of their layers: those they keep may all lie in the last chunk.
        redone = np.flatnonzero(
            (node.bundle.options.recompute_layers > 0) & (node.bundle.virtual > 2)
        )
        for row in (*rng.permutation(node.bounds.shape[1])[:6], *redone):
            of_orders = []
            for order in range(node.bounds.shape[0]):
                least = least_of_many_deals(node.bundle, order, row, rng)
                of_orders.append(least)
                if np.isfinite(least):
                    looked += 1
                    assert node.bounds[order, row] <= least * (1 + 1e-9)
                    within = node.bundle.least_seconds(least * (1 + 1e-9))
                    assert within[order, row] <= least * (1 + 1e-9)
            assert before[row] <= min(of_orders) * (1 + 1e-9)
    assert looked
