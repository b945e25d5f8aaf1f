"""The front of time and money over pipelines on two pools, against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from brute_mixed import FEW_DEGREES, ONE_CHUNK, BruteForce, models, pool_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from astrarium.arrays import Ints
from astrarium.cluster import Cluster, Link, Pool
from astrarium.model.workload import Workload
from astrarium.search.archive import HOUR, Archive, Ways
from astrarium.search.arrangements import canonical
from astrarium.search.mix_fronts import Asked, mix_fronts
from astrarium.search.mixed_space import MixedSpace
from astrarium.search.outcome import SearchResult
from astrarium.search.rules import user_rules
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.validity import megatron_rules

Pairs = list[tuple[float, float]]


def priced(pool: Pool, usd: float) -> Pool:
    return replace(pool, usd_per_gpu_hour=usd)


def ways_of(pools: tuple[Pool, ...]) -> object:
    prices = np.array([pool.usd_per_gpu_hour for pool in pools])

    def ways(gpus: Ints) -> Ways:
        hourly = (gpus @ prices)[:, None].astype(float)
        return Ways(np.ones_like(hourly), hourly, np.zeros(hourly.shape, np.int64))

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
        space = MixedSpace(
            self.workload,
            self.cluster,
            self.model.pools[0].planner,
            exact=False,
            expanded_overlaps=frozenset(OVERLAP_SWITCHES),
        )
        degrees, best = space.degrees, {}
        for row in range(len(degrees)):
            one = degrees.take(np.array([row]))
            pp, tp_cp = int(one.pp[0]), int(one.tp[0] * one.cp[0])
            block = tp_cp * int(one.dp[0])
            options = space.options(space.layouts(pp)[0].chunk_layers)
            for gpus in self.choices(tp_cp, block, pp):
                alive = options.take(self.alive(one, options, gpus))
                if all(gpus) and len(alive):
                    for order in itertools.permutations(range(2)):
                        seconds = self.of_order(one, alive, order, gpus, block)
                        best[gpus] = min(best.get(gpus, np.inf), seconds)
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


@settings(max_examples=12, deadline=None, phases=(Phase.reuse, Phase.generate))
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
