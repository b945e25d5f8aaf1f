"""What any runtime could do, by trying everything: pipelines with unlike stages, unequal groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
from small import alive_seconds, every_layout, permitted

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cluster import Cluster, Pool
from astrarium.cost.groups import exchanged_bytes, meeting_seconds
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.schedule import pipeline_seconds, ragged_stages
from astrarium.search.fields import Rows, constant_fields
from astrarium.search.plan import Plan, estimate
from astrarium.search.refusals import why_refused
from astrarium.search.space import OVERLAP_SWITCHES, Space, divisors
from astrarium.strategy.columns import SPLITS, degrees_of, options_of, strategy_at
from astrarium.strategy.types import LayerSplit, Overlap, Recompute, Stage, Strategy
from astrarium.strategy.validity import megatron_rules

GB = 2**30
LAYERS = 4


def with_memory(cluster: Cluster, *sizes_gb: float) -> Cluster:
    pools = zip(cluster.pools, sizes_gb, strict=True)
    return replace(
        cluster,
        pools=tuple(
            replace(pool, gpu=replace(pool.gpu, memory_bytes=int(size * GB)))
            for pool, size in pools
        ),
    )


def every_pipeline(model: ClusterModel) -> Iterator[Strategy]:
    """All orders, cp, tp, dp, ticks and splits, with nothing recomputed yet."""
    pools, batch = model.cluster.pools, model.workload.global_batch
    for order, cp in product(permutations(pools), (1, 2)):
        ways = [
            [(tp, dp) for tp in (1, 2, 4, 8) for dp in divisors(p.num_gpus).tolist()] for p in order
        ]
        for degrees, tick in product(product(*ways), divisors(batch).tolist()):
            counts = []
            for pool, (tp, dp) in zip(order, degrees, strict=True):
                fits = pool.num_gpus % (tp * dp * cp) == 0 and tick % dp == 0
                counts.append(pool.num_gpus // (tp * dp * cp) if fits else LAYERS + 1)
            if not 1 < sum(counts) <= LAYERS:
                continue
            places = [i for i, count in enumerate(counts) for _ in range(count)]
            for cuts in combinations(range(1, LAYERS), sum(counts) - 1):
                yield pipeline(order, degrees, cp, tick, batch, places, (0, *cuts, LAYERS))


def pipeline(
    order: Sequence[Pool],
    degrees: Sequence[tuple[int, int]],
    cp: int,
    tick: int,
    batch: int,
    places: Sequence[int],
    bounds: Sequence[int],
) -> Strategy:
    first_tp, first_dp = degrees[0]
    stages = []
    for rank, place in enumerate(places):
        tp, dp = degrees[place]
        pools = ((order[place].name, tp * dp * cp),)
        ends = (bounds[rank], bounds[rank + 1])
        stages.append(Stage("", *ends, tp * dp * cp, rank, 0, pools, tp, dp, tick // dp))
    return Strategy(
        tp=first_tp,
        dp=first_dp,
        cp=cp,
        pp=len(places),
        micro_batch=tick // first_dp,
        num_micro_batches=batch // tick,
        sequence_parallel=any(tp > 1 for tp, _ in degrees),
        split=LayerSplit.FREE,
        stages=tuple(stages),
    )


def with_every_option(model: ClusterModel, given: Strategy) -> dict[Strategy, list[Strategy]]:
    """By what all stages have in common, every way to recompute that rules permit."""
    alive = np.all([permitted_options(model, given, stage) for stage in given.stages], axis=0)
    found: dict[Strategy, list[Strategy]] = {}
    for chosen in with_options(model, given, np.flatnonzero(alive)):
        one = replace(chosen, stages=given.stages)
        found.setdefault(replace(one, recompute=Recompute()), []).append(one)
    return found


def with_options(model: ClusterModel, given: Strategy, rows: Ints | None = None) -> list[Strategy]:
    """A strategy with each option that any runtime has, or with some of them; without stages."""
    pool, planner = model.cluster.pools[0], model.pools[0].planner
    options = Space(model.workload, pool, planner, exact=True).options(LAYERS)
    kept = options.take(np.flatnonzero(options.zero_stage <= 1))
    plain = degrees_of([given])
    found = []
    for row in range(len(kept)) if rows is None else rows.tolist():
        chosen = strategy_at(plain, kept.take(np.array([row])), 0, 1, LayerSplit.FREE)
        overlap = Overlap(param_gather=chosen.zero_stage > 0, p2p=False, tp=given.sequence_parallel)
        found.append(replace(chosen, overlap=overlap))
    return found


def permitted_options(model: ClusterModel, given: Strategy, stage: Stage) -> Bools:
    """Options that the rules permit if all stages were as this one.

    Rules do not ask for cuts or the order of pools: each question once.
    """
    ((name, _),) = stage.pools
    known, view = PERMITTED.setdefault(id(model), {}), given.as_stage(stage)
    if (name, view) not in known:
        pool = next(pool for pool in model.cluster.pools if pool.name == name)
        every = with_options(model, view)
        rows = Rows(
            degrees_of(every),
            np.ones(len(every), np.int64),
            np.full(len(every), SPLITS.index(LayerSplit.FREE)),
            options_of(every),
        )
        constants = constant_fields(model.workload, pool)
        known[name, view] = permitted(constants, rows, megatron_rules())
        is_refused = bool(why_refused(model.workload, [pool], every[0]))
        assert is_refused != known[name, view][0]
    return known[name, view]


PERMITTED: dict[int, dict[tuple[str, Strategy], Bools]] = {}


def best_pipeline(model: ClusterModel) -> float:
    """The least seconds if every stage recomputes any of what fits it."""
    PERMITTED.clear()
    every = [
        ways for given in every_pipeline(model) for ways in with_every_option(model, given).values()
    ]
    best = np.inf
    for start in range(0, len(every), 64):
        some = every[start : start + 64]
        plans = iter(estimate(model, [one for ways in some for one in ways]))
        best = min([best, *(best_of_stages([next(plans) for _ in ways]) for ways in some)])
    return best


def best_of_stages(plans: Sequence[Plan]) -> float:
    """Plans that differ in recomputation alone, mixed stage by stage in every way.

    A stage takes as long as in the plan that recomputes so everywhere (`test_own_recompute`).
    """
    stages = range(len(plans[0].stages))
    able = [
        {
            (plan.stages[i].forward_seconds, plan.stages[i].backward_seconds)
            for plan in plans
            if plan.memory[i].fits
        }
        for i in stages
    ]
    # Passes that are both longer than others of the same stage make no pipeline faster.
    able = [
        {p for p in of if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in of)}
        for of in able
    ]
    every = np.array(list(product(*able)))
    if not len(every):
        return np.inf
    one, hops = plans[0], [stage.send_seconds for stage in plans[0].stages]
    number = len(every) * len(stages)
    passes = pipeline_seconds(
        ragged_stages(
            every[..., 0].reshape(-1),
            every[..., 1].reshape(-1),
            np.tile(hops, len(every)),
            np.arange(0, number + 1, len(stages)),
        ),
        np.full(len(every), one.strategy.num_micro_batches),
        np.ones(len(every), np.int64),
        np.zeros(len(every), bool),
    )
    after = one.iteration_seconds - pipeline_alone(one)
    return float(passes.min()) + after


def pipeline_alone(plan: Plan) -> float:
    """Seconds of all passes; what follows does not depend on recomputation."""
    names = ("forward_seconds", "backward_seconds", "send_seconds")
    forward, backward, send = (np.array([getattr(s, n) for s in plan.stages]) for n in names)
    passes = pipeline_seconds(
        ragged_stages(forward, backward, send, np.array([0, len(forward)])),
        np.array([plan.strategy.num_micro_batches]),
        np.array([1]),
        np.array([False]),
    )
    return float(passes[0])


def every_way(model: CostModel, share: int, batch: int) -> Floats:
    """Seconds and exchanged bytes of the best options of every layout: (layouts, 2)."""
    model = model.with_batch(share)
    everything = frozenset(OVERLAP_SWITCHES)
    space = Space(
        model.workload, model.pool, model.planner, exact=True, expanded_overlaps=everything
    )
    found = [np.empty((0, 2))]
    for layouts, options in every_layout(model, space):
        usable = batch % layouts.degrees.micro_batch == 0
        seconds = alive_seconds(model, layouts, options, ()).min(axis=1)
        found.append(np.stack([seconds, exchanged_bytes(layouts)], axis=1)[usable])
    return np.concatenate(found)


def best_groups(model: ClusterModel, batch: int) -> float:
    """The least seconds of any strategies and shares on two pools."""
    one, two = model.pools
    fabric, best = model.fabric_of((0, 1)), np.inf
    for share in range(1, batch):
        mine, others = every_way(one, share, batch), every_way(two, batch - share, batch)
        if len(mine) and len(others):
            longest = np.maximum(mine[:, None, 0], others[None, :, 0])
            parts = np.maximum(mine[:, None, 1], others[None, :, 1])
            best = min(best, float((longest + meeting_seconds(fabric, 2, parts)).min()))
    return best
