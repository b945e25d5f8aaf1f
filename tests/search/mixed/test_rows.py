"""What is left out early, because a plan is known, could not have been better than it."""

from __future__ import annotations

import numpy as np
from brute_mixed import models, pool_of
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.rows import RowTable
from astrarium.search.mixed.search import PartitionSearch
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.outcome import Found, Limits, Objective, Rejection
from astrarium.search.split.arrangements import canonical
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules

SMALL_POOLS = (("h100", 1, 2), ("a100", 2, 2), ("v100", 1, 4), ("t4", 3, 1), ("h100", 2, 4))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    chosen = draw(st.lists(st.sampled_from(SMALL_POOLS), min_size=2, max_size=3))
    return Cluster(tuple(pool_of(f"pool-{i}", *sizes) for i, sizes in enumerate(chosen)))


class Case:
    """A workload on a cluster; every look at it begins anew."""

    def __init__(self, workload: Workload, cluster: Cluster, *, exact: bool) -> None:
        self.cluster, self.exact = canonical(cluster), exact
        self.workload = runnable(workload, *self.cluster.pools)

    def search(self) -> PartitionSearch:
        model = ClusterModel(self.workload, self.cluster)
        space = MixedSpace(self.workload, self.cluster, model.pools[0].planner, exact=self.exact)
        plans = KeptPlans(self.cluster, None, Objective.THROUGHPUT, Limits(), 1)
        rules = megatron_rules()
        return PartitionSearch(model, space, plans, runtime_rules=rules, user_rules=())


def by_degrees(rows: RowTable, limit: float) -> dict[tuple[int, ...], tuple[float, ...]]:
    """Bound, speeds and layers of the rows whose bound is within a limit."""
    d = rows.degrees
    sizes = (d.tp, d.pp, d.dp, d.cp, d.ep, d.etp, d.micro_batch)
    columns = (*sizes, d.sequence_parallel, d.pipeline_inside)
    return {
        tuple(int(column[i]) for column in columns): (
            float(rows.bound[i]),
            *rows.speed[i].tolist(),
            *rows.layer[i].tolist(),
            float(rows.counts[i]),
        )
        for i in np.flatnonzero(rows.bound <= limit)
    }


def left_out(case: Case, part: float) -> int:
    """Strategies left out early if a plan is as fast as that part of the rows may be at best."""
    every, _ = case.search().rows.table()
    if not len(every.bound):
        return 0
    seconds = float(every.bound[int(part * (len(every.bound) - 1))])
    told = case.search()
    told.plans.keep_found(Found(Strategy(), seconds, seconds, 0.0))
    near, _ = told.rows.table()
    assert told.plans.limit == seconds
    assert by_degrees(near, seconds) == by_degrees(every, seconds)
    dropped = int(every.counts.sum() - near.counts.sum())
    assert dropped == told.state.rejected[Rejection.BOUND]
    return dropped


@settings(max_examples=40, deadline=None)
@given(
    cluster=clusters(),
    number=st.integers(0, 2),
    batch=st.sampled_from((4, 6, 12)),
    exact=st.booleans(),
    part=st.floats(0.0, 1.0),
)
def test_rows_that_could_be_better_are_kept(
    cluster: Cluster, number: int, batch: int, exact: bool, part: float
) -> None:
    workload = Workload(models()[number], seq_length=1024, global_batch=batch)
    left_out(Case(workload, cluster, exact=exact), part)


def test_rows_on_few_gpus_are_left_out() -> None:
    """The test above says something: much is left out."""
    cluster = Cluster((pool_of("a", "h100", 2, 4), pool_of("b", "a100", 2, 4)))
    workload = Workload(models()[0], seq_length=1024, global_batch=16)
    assert left_out(Case(workload, cluster, exact=False), 0.1) > 0


def test_stages_that_fill_a_node_hand_on_between_nodes() -> None:
    workload = Workload(models()[0], seq_length=512, global_batch=8)
    cluster = Cluster((pool_of("fast", "h100", 4, 2), pool_of("slow", "a100", 4, 2)))
    search = Case(workload, cluster, exact=False).search()
    degrees = search.rows.table()[0].degrees
    (figures, _) = search.rows.figures(degrees, np.ones((len(degrees), 1)))
    block = degrees.tp * degrees.cp * degrees.dp
    crossing = 0
    for number, model in enumerate(search.model.pools):
        for stages in (2, 3, 4):
            gpus = stages * block
            rows = np.flatnonzero((gpus <= model.pool.num_gpus) & (degrees.pp >= stages))
            some = degrees.take(rows)
            hop = model.hop_seconds(some, gpus[rows], model.shard_costs(some, gpus[rows]))
            assert (figures.hop[number, rows, number] <= hop.min(axis=1)).all()
            crossing += int((figures.hop[number, rows, number] == hop.min(axis=1)).sum())
    assert crossing
