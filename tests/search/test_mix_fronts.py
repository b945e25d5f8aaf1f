"""The front of time and money over pipelines on two pools, against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from brute_mixed import FEW_DEGREES, ONE_CHUNK, BruteForce, Job, models, pool_of
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small_model

from astrarium.arrays import Ints
from astrarium.cluster import Cluster, Link, Pool
from astrarium.model.workload import Workload
from astrarium.search.archive import Archive, Ways, WaysOfPools
from astrarium.search.arrangements import canonical
from astrarium.search.mix_fronts import Asked, mix_fronts
from astrarium.search.outcome import Found, SearchResult
from astrarium.search.pair_table import PairTable
from astrarium.search.rules import user_rules
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules
from astrarium.units import HOUR

Pairs = list[tuple[float, float]]


def priced(pool: Pool, usd: float) -> Pool:
    return replace(pool, usd_per_gpu_hour=usd)


def ways_of(pools: tuple[Pool, ...]) -> WaysOfPools:
    prices = np.array([pool.usd_per_gpu_hour for pool in pools])

    def ways(gpus: Ints) -> Ways:
        return Ways.on_demand((gpus @ prices).astype(float))

    return ways


def mixed(
    workload: Workload,
    cluster: Cluster,
    rules: tuple[str, ...] = (),
    archive: Archive | None = None,
) -> tuple[Archive, SearchResult]:
    archive = Archive() if archive is None else archive
    asked = Asked(workload, cluster, ways_of(cluster.pools), megatron_rules(), user_rules(rules))
    result = mix_fronts(asked, archive)
    assert result.space == sum(result.rejected.values())
    return archive, result


def points(archive: Archive) -> Pairs:
    return [(point.seconds, point.usd) for point in archive.points]


class BruteMixes(BruteForce):
    """Every pipeline over both pools, one chunk per rank: the fastest on each number of GPUs."""

    def every(self) -> dict[tuple[int, ...], float]:
        space, best = self.space(exact=False), dict[tuple[int, ...], float]()
        degrees = space.degrees
        tp_cp = degrees.tp * degrees.cp
        asked = zip(tp_cp.tolist(), (tp_cp * degrees.dp).tolist(), degrees.pp.tolist(), strict=True)
        jobs = [
            Job(row, gpus, order)
            for row, of in enumerate(asked)
            for gpus in self.choices(*of)
            for order in itertools.permutations(range(2))
            if all(gpus)
        ]
        for job, seconds in zip(jobs, self.seconds_of_jobs(space, jobs).tolist(), strict=True):
            best[job.gpus] = min(best.get(job.gpus, np.inf), seconds)
        return best


def brute_points(workload: Workload, cluster: Cluster, rules: tuple[str, ...]) -> Pairs:
    found = []
    for pair in itertools.combinations(cluster.pools, 2):
        names = {pool.name for pool in pair}
        links = tuple(link for link in cluster.links if names.issuperset(link.between))
        part = canonical(Cluster(pair, links))
        prices = np.array([pool.usd_per_gpu_hour for pool in part.pools])
        for gpus, seconds in BruteMixes(workload, part, rules).every().items():
            if np.isfinite(seconds):
                found.append((seconds, seconds * float(np.array(gpus) @ prices) / HOUR))
    return found


def outdoes(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first != second and first[0] <= second[0] and first[1] <= second[1]


def front_of(every: Pairs) -> Pairs:
    return sorted({p for p in every if not any(outdoes(other, p) for other in every)})


POOLS = (
    ("h100", 1, 2),
    ("a100", 1, 2),
    ("v100", 2, 2),
    ("a100", 1, 4),
    ("h100", 2, 1),
    ("l40s", 3, 2),
)


@st.composite
def clusters(draw: st.DrawFn, size: int) -> Cluster:
    chosen = draw(st.lists(st.sampled_from(POOLS), min_size=size, max_size=size))
    memory = draw(st.sampled_from((None, 8.0, 5.0)))
    pools = tuple(
        priced(pool_of(f"pool-{i}", *of, memory), draw(st.sampled_from((0.5, 1.0, 3.0))))
        for i, of in enumerate(chosen)
    )
    links = (Link(("pool-0", "pool-1"), 1e9, 1e-4),) if draw(st.booleans()) else ()
    return Cluster(pools, links)


@settings(max_examples=8, deadline=None)
@given(cluster=clusters(2), number=st.integers(0, 2), batch=st.sampled_from((4, 6)))
def test_the_front_of_two_pools_equals_brute_force(
    cluster: Cluster, number: int, batch: int
) -> None:
    workload = Workload(models()[number], seq_length=1024, global_batch=batch)
    rules = (*ONE_CHUNK, *FEW_DEGREES)
    archive, result = mixed(workload, cluster, rules)
    assert result.optimal
    expected = front_of(brute_points(workload, cluster, rules))
    np.testing.assert_allclose(points(archive), np.reshape(expected, (-1, 2)), rtol=1e-9)


def test_the_front_of_three_pools_equals_brute_force() -> None:
    pools = (
        priced(pool_of("a", "h100", 1, 2), 2.5),
        priced(pool_of("b", "a100", 2, 2), 1.0),
        priced(pool_of("c", "l40s", 1, 2), 0.7),
    )
    workload = Workload(small_model(4), seq_length=1024, global_batch=4)
    cluster, rules = Cluster(pools), (*ONE_CHUNK, *FEW_DEGREES, "$tp > 1")
    archive, result = mixed(workload, cluster, rules)
    assert result.optimal
    np.testing.assert_allclose(
        points(archive), front_of(brute_points(workload, cluster, rules)), rtol=1e-9
    )


def test_rules_that_count_nodes_hold_for_the_nodes_of_both_pools() -> None:
    pools = (priced(pool_of("a", "h100", 2, 2), 2.5), priced(pool_of("b", "a100", 2, 2), 1.0))
    workload = Workload(small_model(4), seq_length=1024, global_batch=4)
    cluster, rules = Cluster(pools), (*ONE_CHUNK, *FEW_DEGREES, "$tp > 1", "$nodes > 3")
    archive, _ = mixed(workload, cluster, rules)
    assert {sum(point.gpus) for point in archive.points} <= {2, 3, 4, 6}
    np.testing.assert_allclose(
        points(archive), front_of(brute_points(workload, cluster, rules)), rtol=1e-9
    )


@settings(max_examples=4, deadline=None)
@given(cluster=clusters(2))
def test_sites_are_all_ways_to_lay_a_shape_over_both_pools(cluster: Cluster) -> None:
    part = canonical(cluster)
    workload = Workload(small_model(5), seq_length=1024, global_batch=8)
    brute = BruteMixes(workload, part, ())
    table = PairTable(brute.model.pools, runtime_rules=(), user_rules=())
    sites, shapes = table.sites(0, 1), table.shapes
    for shape in range(len(shapes)):
        tp_cp = int(shapes.tp[shape] * shapes.cp[shape])
        block, stages = tp_cp * int(shapes.dp[shape]), int(shapes.pp[shape])
        expected = {gpus for gpus in brute.choices(tp_cp, block, stages) if all(gpus)}
        first = int(sites.first[shape])
        found = [
            (int(a), int(b))
            for site in range(first, first + int(sites.count[shape]))
            for a, b in sites.vectors[sites.members_of(site)]
        ]
        assert sorted(found) == sorted(expected)
        assert sites.vectors_of_shape[shape] == len(expected)


def outdone(archive: Archive, seconds: float, usd: float) -> bool:
    return any(
        p.seconds <= seconds * (1 + 1e-9) and p.usd <= usd * (1 + 1e-9) for p in archive.points
    )


@settings(max_examples=5, deadline=None)
@given(cluster=clusters(3), batch=st.sampled_from((8, 12)), number=st.integers(0, 2))
def test_cheaper_or_more_gpus_never_worsen_a_point(
    cluster: Cluster, batch: int, number: int
) -> None:
    workload = Workload(small_model(6), seq_length=1024, global_batch=batch)
    front, _ = mixed(workload, cluster, ONE_CHUNK)
    pools = list(cluster.pools)
    chosen = pools[number]
    cheaper = replace(chosen, usd_per_gpu_hour=(chosen.usd_per_gpu_hour or 0.0) / 2)
    for changed in (cheaper, replace(chosen, nodes=chosen.nodes + 1)):
        pools[number] = changed
        better, _ = mixed(workload, replace(cluster, pools=tuple(pools)), ONE_CHUNK)
        for point in front.points:
            hourly = float(np.array(point.gpus) @ [pool.usd_per_gpu_hour or 0.0 for pool in pools])
            assert outdone(better, point.seconds, point.seconds * hourly / HOUR)


def test_points_known_before_stay_unless_outdone() -> None:
    pools = (priced(pool_of("a", "h100", 2, 4), 2.5), priced(pool_of("b", "a100", 2, 4), 1.0))
    workload = Workload(small_model(6), seq_length=2048, global_batch=16)
    known = Archive()
    for seconds, gpus in ((1e-9, (4, 4)), (1e9, (1, 0))):
        ways = ways_of(pools)(np.array([gpus]))
        known.enter([Found(Strategy(), seconds, 0.0, 0.0)], [gpus], ways)
    archive, _ = mixed(workload, Cluster(pools), archive=known)
    assert archive.points[0].seconds == 1e-9
    assert all(point.usd < archive.points[0].usd for point in archive.points[1:])
    alone, _ = mixed(workload, Cluster(pools))
    assert len(alone.points) > 3


def test_what_work_limits_leave_open_is_within_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = (priced(pool_of("a", "h100", 2, 4), 2.5), priced(pool_of("b", "a100", 4, 4), 1.0))
    workload = Workload(small_model(8), seq_length=2048, global_batch=16)
    full, result = mixed(workload, Cluster(pools), ONE_CHUNK)
    assert result.optimal
    assert result.bound_gap == 0.0
    monkeypatch.setattr("astrarium.search.pair_front.MOST_CASES", 300)
    part, result = mixed(workload, Cluster(pools), ONE_CHUNK)
    assert not result.optimal
    assert not result.complete
    assert 0.0 < result.bound_gap <= 1.0
    assert part.points
    for point in full.points:
        limit = float(part.limits(ways_of(pools)(np.array([point.gpus])))[0])
        assert point.seconds >= (1 - result.bound_gap) * limit * (1 - 1e-9)


def test_every_way_to_pay_is_on_the_front() -> None:
    """Spot GPUs of one pool are cheaper and stretch the run: both ways are priced for all mixes."""
    pools = (priced(pool_of("a", "h100", 2, 2), 3.0), priced(pool_of("b", "a100", 2, 2), 1.0))
    workload = Workload(small_model(4), seq_length=1024, global_batch=8)

    def with_spot(gpus: Ints) -> Ways:
        hourly = np.stack([gpus @ [3.0, 1.0], gpus @ [1.0, 1.0]], axis=1).astype(float)
        stretch = np.stack([np.ones(len(gpus)), 1 + 0.05 * gpus[:, 0]], axis=1)
        spot = np.stack([0 * gpus, gpus * [1, 0]], axis=1)
        return Ways(stretch, hourly, spot)

    rules = (*ONE_CHUNK, *FEW_DEGREES, "$tp > 1")
    archive = Archive()
    asked = Asked(workload, Cluster(pools), with_spot, megatron_rules(), user_rules(rules))
    assert mix_fronts(asked, archive).optimal
    part = canonical(Cluster(pools))
    order = [[pool.name for pool in part.pools].index(pool.name) for pool in pools]
    every = []
    for gpus, seconds in BruteMixes(workload, part, rules).every().items():
        ways = with_spot(np.array([[gpus[i] for i in order]]))
        for stretch, hourly in zip(ways.stretch[0], ways.hourly[0], strict=True):
            every.append((seconds * stretch, seconds * stretch * hourly / HOUR))
    np.testing.assert_allclose(points(archive), front_of(every), rtol=1e-9)
    assert {sum(point.spot) > 0 for point in archive.points} == {True, False}
