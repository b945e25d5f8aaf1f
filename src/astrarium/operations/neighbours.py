"""Plans near a running one: other degrees on the GPUs that are there, layers dealt by speed.

No search over all strategies: tp, ep and micro-batch are halved, kept or doubled, every number of
replicas that divides the batch is looked at, and stages are as many as find room. A rough time
decides which of them the cost model prices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise, product

import numpy as np

from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.types import Granularity, LayerSplit, Method, Recompute, Stage, Strategy
from astrarium.value import Value, replace

PRICED = 3  # layouts of each tp and ep that the cost model prices, the most promising
DEALT_AGAIN = 4  # of them, whose layers are dealt again by the times that it finds
ROOM = 0.97  # of a memory that layers which are dealt again may fill
EVERY_LAYER = Recompute(Granularity.FULL, Method.UNIFORM, 1)


class _Layout(Value, frozen=True):
    """Degrees with their ranks: pools in order, and the speed of each of their stages."""

    base: Strategy
    stages: tuple[tuple[str, int], ...]  # (pool, number of stages)
    speeds: Mapping[str, float]  # micro-batches of the whole model that a stage does in a second

    @property
    def pools(self) -> list[str]:
        """That of each stage."""
        return [name for name, count in self.stages for _ in range(count)]

    @property
    def seconds(self) -> float:
        """About an iteration: all stages at work, and the ramps of the pipeline."""
        work = sum(count * self.speeds[pool] for pool, count in self.stages)
        turns = self.base.num_micro_batches + (self.base.pp - 1) / self.base.virtual_stages
        return turns / work


def degraded(running: Strategy, sizes: Mapping[str, int], batch: int) -> Iterator[Strategy]:
    """The same split with fewer replicas, or as it is, as far as each pool has the GPUs."""
    group = running.tp * running.cp
    for dp in range(running.dp, 0, -1):
        if batch % (dp * running.micro_batch) or dp % running.shard_groups:
            continue
        gpus = [n * dp for stage in running.stages for n in stage.pools.values()]
        if dp * group % (running.ep * running.etp) or any(n % (running.dp * group) for n in gpus):
            continue
        stages = tuple(
            replace(
                stage,
                pools={pool: n * dp // running.dp for pool, n in stage.pools.items()},
                devices=group * dp,
            )
            for stage in running.stages
        )
        turns = batch // (dp * running.micro_batch)
        made = replace(running, dp=dp, num_micro_batches=turns, stages=stages)
        if all(sizes.get(pool, 0) >= gpus for pool, gpus in made.gpus_of_pools().items()):
            yield made


def neighbours(
    model: ClusterModel,
    running: Strategy,
    choices: Sequence[Mapping[str, int]],
    others: Sequence[Strategy] = (),
) -> list[Plan]:
    """Plans on GPUs of the pools, for each choice of how many of them may be used; and `others`."""
    layouts = _layouts(model, running, choices)
    kinds = dict.fromkeys((running.recompute, Recompute(), EVERY_LAYER))
    head = _head_in_layers(model.workload)
    dealt = [_dealt(model, layout, head) for layout in layouts]
    first = [replace(one, recompute=kind) for one in dealt for kind in kinds]
    plans = estimate(model, [*first, *others])
    by_layout = [plans[i : i + len(kinds)] for i in range(0, len(first), len(kinds))]
    # What does not fit may still be the best once its layers are dealt for memory, too.
    order = sorted(range(len(layouts)), key=lambda i: _fastest(by_layout[i]))
    again = [
        replace(_dealt_again(model, layouts[i], plan), recompute=plan.strategy.recompute)
        for i in order[:DEALT_AGAIN]
        for plan in by_layout[i]
    ]
    known = set(first)
    return [*plans, *estimate(model, [one for one in dict.fromkeys(again) if one not in known])]


def _fastest(plans: Sequence[Plan]) -> float:
    fitting = [plan.iteration_seconds for plan in plans if plan.fits]
    return min(fitting or [2 * plan.iteration_seconds for plan in plans])


def _layouts(
    model: ClusterModel, running: Strategy, choices: Sequence[Mapping[str, int]]
) -> list[_Layout]:
    order = [pool.name for pool in model.cluster.pools]
    used = list(dict.fromkeys(p for stage in running.ordered_stages for p in stage.pools))
    order.sort(key=lambda name: used.index(name) if name in used else len(used))
    bases = list(_bases(running, model.workload.global_batch))
    speeds = _speeds(model, bases)
    found: dict[tuple[object, ...], _Layout] = {}
    for sizes in choices:
        made = [
            layout
            for base, rates in zip(bases, speeds, strict=True)
            for layout in _placed(model, running, base, rates, {n: sizes.get(n, 0) for n in order})
        ]
        alike: Counter[tuple[int, int]] = Counter()
        for layout in sorted(made, key=lambda one: one.seconds):
            alike[layout.base.tp, layout.base.ep] += 1
            if alike[layout.base.tp, layout.base.ep] <= PRICED:
                found.setdefault((layout.base, layout.stages), layout)
    return list(found.values())


def _bases(running: Strategy, batch: int) -> Iterator[Strategy]:
    """Degrees that stages have in common, for one replica."""
    for tp, micro, ep in product(
        _near(running.tp), _near(running.micro_batch), _near(running.ep) if running.ep > 1 else [1]
    ):
        if not batch % micro:
            sequence = tp > 1 and (running.sequence_parallel or running.tp == 1)
            overlap = replace(running.overlap, tp=running.overlap.tp and sequence)
            degrees = replace(running, tp=tp, micro_batch=micro, ep=ep, dp=1, shard_groups=1)
            yield replace(degrees, sequence_parallel=sequence, overlap=overlap, stages=())


def _near(degree: int) -> list[int]:
    return [degree // 2, degree, 2 * degree] if degree > 1 else [1, 2]


def _speeds(model: ClusterModel, bases: Sequence[Strategy]) -> list[Mapping[str, float]]:
    """Work of a stage on each pool in a second, for one replica, by the cost model."""
    made, owners, head = [], [], _head_in_layers(model.workload)
    for number, base in enumerate(bases):
        group = base.tp * base.cp
        replicas = max(-(-base.ep * base.etp // group), 1)
        able = {
            pool.name: 1.0
            for pool in model.cluster.pools
            if pool.num_gpus >= group * replicas and pool.gpus_per_node >= base.tp
        }
        if able and len(able) <= model.workload.model.num_layers:
            one = replace(base, dp=replicas, virtual_stages=1, num_micro_batches=1)
            layout = _Layout(one, tuple((name, 1) for name in able), able)
            made.append(_dealt(model, layout, head))
            owners.append(number)
    found: list[Mapping[str, float]] = [{} for _ in bases]
    for number, plan in zip(owners, estimate(model, made), strict=True):
        found[number] = {next(iter(s.pools)): 1 / s.model_seconds for s in plan.stage_seconds}
    return found


def _placed(
    model: ClusterModel,
    running: Strategy,
    base: Strategy,
    speeds: Mapping[str, float],
    sizes: Mapping[str, int],
) -> Iterator[_Layout]:
    """The base with every number of replicas that divides the batch, on as many stages as fit."""
    layers, turns = model.workload.model.num_layers, model.workload.global_batch // base.micro_batch
    group = base.tp * base.cp
    for dp in range(1, min(sum(sizes.values()) // group, turns) + 1):
        if turns % dp or group * dp % (base.ep * base.etp):
            continue
        stages = [(p, sizes[p] // (group * dp)) for p in sizes if speeds.get(p)]
        stages = [(pool, count) for pool, count in stages if count]
        pp = sum(count for _, count in stages)
        if not 0 < pp <= layers:
            continue
        first = pp > 1 and running.pp == 1
        groups = running.shard_groups if dp % running.shard_groups == 0 else 1
        for virtual in dict.fromkeys((1, running.virtual_stages if pp > 1 else 1)):
            if pp * virtual <= layers and (virtual == 1 or turns // dp % pp == 0):
                overlap = replace(base.overlap, p2p=base.overlap.p2p and virtual > 1)
                made = replace(
                    base,
                    dp=dp,
                    pp=pp,
                    virtual_stages=virtual,
                    num_micro_batches=turns // dp,
                    shard_groups=groups,
                    # A pipeline divides no more than the optimizer, unless it did before.
                    zero_stage=min(base.zero_stage, 1) if first else base.zero_stage,
                    pipeline_inside=base.pipeline_inside and len(stages) == 1,
                    overlap=overlap,
                )
                yield _Layout(made, tuple(stages), speeds)


def _head_in_layers(asked: Workload) -> float:
    """The work of the head, in that of a layer."""
    head = asked.model.head_flops_per_token(asked.seq_length)
    blocks = asked.model.flops_per_token(asked.seq_length) / 3 - head
    return head / blocks * asked.model.num_layers


def _dealt(model: ClusterModel, layout: _Layout, head: float) -> Strategy:
    """The layout with its layers dealt by speed; `head` is the work of the head in layers."""
    seconds = [1 / layout.speeds[pool] for pool in layout.pools]
    layers = model.workload.model.num_layers
    split = deal(layers, seconds, [layers] * len(seconds), head)
    return _strategy(model, layout.base, layout.pools, split)


def _dealt_again(model: ClusterModel, layout: _Layout, known: Plan) -> Strategy:
    """The same by the times and the memory of a plan."""
    had: Counter[int] = Counter()
    for stage in known.strategy.stages:
        had[stage.pipeline_rank] += stage.num_layers
    seconds = [one.pass_seconds / max(had[i], 1) for i, one in enumerate(known.stage_seconds)]
    most = []
    for rank, memory in enumerate(known.memory):
        each = (memory.peak_bytes - memory.reserved) / max(had[rank], 1)
        most.append(max(int((ROOM * memory.capacity_bytes - memory.reserved) / each), 1))
    split = deal(model.workload.model.num_layers, seconds, most)
    return _strategy(model, layout.base, layout.pools, split)


def _strategy(
    model: ClusterModel, base: Strategy, pools: Sequence[str], layers: Sequence[int]
) -> Strategy:
    """A stage on each of the pools, with so many layers."""
    crew, virtual = base.tp * base.cp * base.dp, base.virtual_stages
    places = [(chunk, rank) for chunk in range(virtual) for rank in range(len(pools))]
    chunks = [layers[rank] // virtual + (chunk < layers[rank] % virtual) for chunk, rank in places]
    bounds = np.concatenate([[0], np.cumsum(chunks)]).tolist()
    made = tuple(
        Stage(
            gpu=model.cluster.pool(pools[rank]).gpu.name,
            layers=span,
            devices=crew,
            pipeline_rank=rank,
            chunk=chunk,
            pools={pools[rank]: crew},
        )
        for (chunk, rank), span in zip(places, pairwise(bounds), strict=True)
    )
    split = LayerSplit.EVEN if len(set(chunks)) == 1 else LayerSplit.FREE
    return replace(base, pp=len(pools), split=split, stages=made)


def deal(
    layers: int, seconds: Sequence[float], most: Sequence[int], extra: float = 0.0
) -> list[int]:
    """Layers by rank for the fastest slowest rank, of at most `most` if possible, head `extra`."""
    counts, is_crowded = [0] * len(seconds), sum(most) < layers
    begin = [1.0] * (len(seconds) - 1) + [1.0 + extra]
    heap = [
        (first * each, rank) for rank, (first, each) in enumerate(zip(begin, seconds, strict=True))
    ]
    heapify(heap)
    for _ in range(layers):
        _, rank = heap[0]
        counts[rank] += 1
        is_full = counts[rank] >= most[rank] and not is_crowded
        after = np.inf if is_full else (begin[rank] + counts[rank]) * seconds[rank]
        heapreplace(heap, (after, rank))
    return counts
