"""No bound on the way to a plan is above the plan: of its row, its GPUs, its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small import small_model

from astrarium.arrays import Bools, Ints
from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.model import load_model
from astrarium.model.blocks import Model
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.nodes import GpuChoice, PendingBundle, PlacedRow
from astrarium.search.mixed.search import PartitionSearch
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.outcome import Found, Limits, Objective
from astrarium.search.split.arrangements import canonical
from astrarium.search.split.cases import PricedCase, dealt_cases
from astrarium.search.split.dealing_bounds import DealingBounds
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules

SAMPLED = 6


class Recording(PartitionSearch):
    """Remembers all that was solved."""

    met: list[tuple[PendingBundle, PricedCase]]

    def solve(self, node: PendingBundle, *, again: bool = True) -> list[PricedCase]:
        found = super().solve(node, again=again)
        self.met += [(node, priced) for priced in found]
        return found


def new_search(workload: Workload, cluster: Cluster, *, exact: bool, top: int) -> Recording:
    model = ClusterModel(workload, cluster)
    space = MixedSpace(workload, cluster, model.pools[0].planner, exact=exact)
    plans = KeptPlans(cluster, None, Objective.THROUGHPUT, Limits(), top)
    search = Recording(model, space, plans, runtime_rules=megatron_rules(), user_rules=())
    search.met = []
    return search


def like(columns: Any, row: int, others: Any) -> Bools:
    """Which of the others are the same as a row."""
    pairs = zip(columns.columns(), others.columns(), strict=True)
    return np.logical_and.reduce([other == column[row] for column, other in pairs])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("gpus", "batch"), [("h100:16,l40s:16", 32), ("a100:8,t4:24", 24)])
def test_no_plan_is_faster_than_bounds_allow(gpus: str, batch: int, *, exact: bool) -> None:
    cluster = canonical(parse_gpus(gpus))
    workload = Workload(load_model("llama-2-7b"), seq_length=2048, global_batch=batch)
    workload = runnable(workload, *cluster.pools)
    search = new_search(workload, cluster, exact=exact, top=40)
    search.run()
    assert len(search.met) > SAMPLED
    for at in np.linspace(0, len(search.met) - 1, SAMPLED).astype(int):
        node, priced = search.met[at]
        bundle, row = node.bundle, priced.row
        told = new_search(workload, cluster, exact=exact, top=1)
        told.plans.keep_found(Found(Strategy(), priced.seconds * (1 + 1e-9), 0.0, 0.0))
        rows, _ = told.rows.table()
        chosen = np.flatnonzero(like(bundle.degrees, row, rows.degrees))
        refined = told._refine(rows, chosen)
        mine = [one for one in refined if one.virtual == bundle.virtual[row]]
        assert mine
        if bundle.num_stages == 1:
            continue
        opened = PlacedRow(mine[0], node.gpus)
        if all(len(of) == 1 for of in bundle.classes):
            counts = np.array([node.gpus]) / mine[0].crew
            choice = GpuChoice(mine[:1], np.array([mine[0].bound]), ())
            low = np.zeros(1)
            least = choice.least_seconds(low, counts, told.rows.worst_seconds)
            assert (least <= told.rows.worst_seconds).all()
        index, options, _ = told._permitted([opened])
        bounds = told._case_bounds([opened], index, options)
        assert bounds[like(bundle.options, row, options)].min() <= told.plans.limit


def random_dealing(rng: np.random.Generator, pp: int, virtual: int, num_layers: int) -> Ints:
    """Bounds of chunks of any size; ranks within the pipeline hold a layer."""
    chunk_of = np.concatenate([np.arange(1, pp - 1), rng.integers(pp * virtual, size=num_layers)])
    sizes = np.bincount(chunk_of[:num_layers], minlength=pp * virtual)
    return np.concatenate([[0], np.cumsum(sizes)])


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [
        (load_model("llama-2-7b"), "h100:16,l40s:16", 32),
        (load_model("mixtral-8x7b"), "h100:8,a100:8", 32),
        (small_model(8), "h100:8,a100:8", 32),
    ],
)
def test_no_way_to_deal_layers_is_faster_than_its_bound(
    model: Model, gpus: str, batch: int
) -> None:
    cluster = canonical(parse_gpus(gpus))
    workload = runnable(Workload(model, seq_length=2048, global_batch=batch), *cluster.pools)
    search = new_search(workload, cluster, exact=True, top=40)
    search.run()
    several = [(node, p) for node, p in search.met if node.bundle.virtual[p.row] > 1]
    assert several
    rng, num_layers = np.random.default_rng(0), workload.model.num_layers
    for at in np.linspace(0, len(several) - 1, SAMPLED).astype(int):
        node, priced = several[at]
        bundle, case = node.bundle, (priced.order, priced.row)
        shape = bundle.num_stages, int(bundle.virtual[priced.row]), num_layers
        drawn = [(*case, random_dealing(rng, *shape)) for _ in range(8)]
        # Cases far from the best plan were dealt with little patience.
        (well,) = dealt_cases([(bundle, case)], [np.inf])
        found = [priced.seconds, *(one.seconds for one in (*bundle.priced(drawn), *well))]
        tied = bundle.tied(*case)
        least = DealingBounds().least_seconds(bundle.least_ring(*case), num_layers, np.inf, 8)
        assert least + tied <= min(found) * (1 + 1e-6)
        assert least > 0.5 * min(found)
