"""Which rank holds which part of weights and optimizer states, and what changes place.

Every layer is an interval from 0 to 1. A rank holds a part of it: tensor parallelism divides it
first, and ZeRO divides the part of a rank among its replicas. Experts are divided by expert
parallelism in place of tensor parallelism. So what a rank lacks under a new layout is the length of
its new part less the overlap with the old one, times the bytes of the layers that both layouts
place on its GPU.

Simplified: norms, which tensor parallelism copies, count as divided; every layer is divided among
replicas by itself, as FSDP and Megatron's buckets nearly do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.catalog.optimizers import with_optimizer
from astrarium.catalog.runtimes import Runtime, as_asked
from astrarium.cluster import Cluster
from astrarium.cost.memory import WEIGHTS_DIVIDED
from astrarium.model.blocks import Block, Module
from astrarium.model.workload import Workload
from astrarium.strategy.placement import placement
from astrarium.strategy.types import Strategy
from astrarium.value import Value


class StateBytes(Value, frozen=True):
    """Bytes before the embedding, every layer, the head, and behind it; of one sort of state."""

    dense: Floats
    expert: Floats


class RankLayout(Value, frozen=True):
    """The ranks of a strategy: stage, part of dense layers and of experts, and their GPU.

    `stage` is that of each rank; `parts` have (begin, end) of weights and of states, dense and
    expert: four pairs. `pool` and `slot` say where a rank is, the latter within its pool.
    """

    strategy: Strategy
    stage: Ints
    parts: tuple[tuple[Floats, Floats], ...]
    pool: Ints
    slot: Ints

    def chunks(self) -> list[list[tuple[int, int]]]:
        """Of every stage, the runs of its layers; those at the ends hold embedding or head, too."""
        held: list[list[tuple[int, int]]] = [[] for _ in range(self.strategy.pp)]
        ordered = self.strategy.ordered_stages
        for index, stage in enumerate(ordered):
            first = 0 if index == 0 else stage.first_layer + 1
            last = stage.last_layer + 1 + (index == len(ordered) - 1)
            held[stage.pipeline_rank].append((first, last))
        return held


def state_bytes(workload: Workload, runtime: Runtime, *, divided: bool) -> tuple[StateBytes, ...]:
    """Bytes of the weights, and of the optimizer states; `divided`: weights are, too."""
    runtime = as_asked(runtime, workload.numerics, workload.expert_messages, workload.precision)
    runtime = with_optimizer(runtime, workload.optimizer)
    model = workload.model
    dense, expert = [float(model.embedding.parameters)], [0.0]
    for block in model.blocks:
        linears = block.linears if isinstance(block, Block) else ()
        of_experts = sum(one.parameters for one in linears if one.module is Module.EXPERTS)
        dense.append(block.parameters - of_experts)
        expert.append(of_experts)
    dense.append(float(model.head.parameters))
    expert.append(0.0)
    sums = [np.concatenate([[0.0], np.cumsum(part)]) for part in (dense, expert)]
    weight = runtime.sharded_weight_bytes if divided else runtime.weight_bytes
    states = runtime.optimizer_bytes * workload.trained_parameters / model.parameters
    return tuple(StateBytes(each * sums[0], each * sums[1]) for each in (weight, states))


def layout_of(strategy: Strategy, cluster: Cluster) -> RankLayout:
    """Ranks in the order of the strategy; GPUs of a pool are taken one after the other."""
    s = strategy
    rank = np.arange(s.gpus)
    inner, crew = s.tp * s.cp, s.gpus // s.pp
    tensor, context = rank % s.tp, rank // s.tp % s.cp
    if s.pipeline_inside:
        stage, replica = rank // inner % s.pp, rank // (inner * s.pp)
    else:
        stage, replica = rank // crew, rank // inner % s.dp
    data = replica * s.cp + context
    experts = s.ep * s.etp
    in_stage = data * s.tp + tensor
    expert, copy = in_stage % experts, in_stage // experts
    copies = max(s.shard_ranks * s.tp // experts, 1)
    dense = (
        _part(tensor, s.tp),
        _part(tensor * s.shard_ranks + data % s.shard_ranks, s.tp * s.shard_ranks),
    )
    others = _part(expert, experts), _part(expert * copies + copy % copies, experts * copies)
    states = [dense[s.zero_stage >= 1], others[s.zero_stage >= 1]]
    weights = [dense[s.zero_stage >= WEIGHTS_DIVIDED], others[s.zero_stage >= WEIGHTS_DIVIDED]]
    pool, slot = _places(strategy, cluster, stage)
    return RankLayout(s, stage, (weights[0], weights[1], states[0], states[1]), pool, slot)


def _part(index: Ints, of: int) -> tuple[Floats, Floats]:
    return index / of, (index + 1) / of


def _places(strategy: Strategy, cluster: Cluster, stage: Ints) -> tuple[Ints, Ints]:
    """The pool of every rank, and its GPU there: ranks take the GPUs of a pool in order."""
    parts = placement(strategy, cluster)
    pool = np.full(len(stage), parts[0][0][0])  # that of all with `pipeline_inside`
    if not strategy.pipeline_inside:
        pool = np.repeat(*np.concatenate(parts).T)
    slot = np.empty_like(pool)
    for index in np.unique(pool).tolist():
        slot[pool == index] = np.arange(np.count_nonzero(pool == index))
    return pool, slot


def alive_ranks(layout: RankLayout, cluster: Cluster, lost: Mapping[str, int]) -> Bools:
    """Ranks whose GPUs are left; what is lost are the last GPUs in use of each pool."""
    used = np.bincount(layout.pool, minlength=len(cluster.pools))
    left = used - np.array([lost.get(pool.name, 0) for pool in cluster.pools])
    alive: Bools = layout.slot < left[layout.pool]
    return alive


def is_complete(layout: RankLayout, alive: Bools) -> bool:
    """Whether the ranks that are `alive` hold all of the state together."""
    for begin, _ in layout.parts:
        of_all = np.unique(np.stack([layout.stage, begin]), axis=1)
        left = np.unique(np.stack([layout.stage[alive], begin[alive]]), axis=1)
        if left.shape != of_all.shape:
            return False
    return True


class MovedState(Value, frozen=True):
    """Bytes that ranks have to get, in all and into the node that gets most for its link."""

    total: float
    seconds: float  # at link speed
    held: float  # bytes of weights and states that all ranks hold in the end


def moved(
    before: RankLayout,
    after: RankLayout,
    alive: Bools,
    clusters: tuple[Cluster, Cluster],
    sizes: Sequence[StateBytes],
) -> MovedState:
    """What has to move from one layout to another; `alive` ranks of `before` keep their GPUs.

    Bytes that a GPU gets cross the network of its node, of which the busiest decides; with one
    node in all they cross the links of a GPU. Senders share what they send evenly.
    """
    common = _common(before, after, sizes)
    own = _common(after, after, sizes)
    old = _kept_rank(before, after, alive, clusters, common[0] + common[1])
    total = _bytes_got(before, after, old, common, own)
    held = _bytes_got(after, after, np.full(len(after.stage), -1), own, own)
    seconds = _seconds(total, after, clusters[1], int(alive.sum()))
    return MovedState(float(total.sum()), seconds, float(held.sum()))


def _common(before: RankLayout, after: RankLayout, sizes: Sequence[StateBytes]) -> list[Floats]:
    """Bytes of the layers that stages share: (stages before, stages after) of each sort."""
    found = []
    for size in (part for one in sizes for part in (one.dense, one.expert)):
        table = np.zeros((before.strategy.pp, after.strategy.pp))
        for (i, mine), (j, theirs) in product(
            enumerate(before.chunks()), enumerate(after.chunks())
        ):
            for (a, b), (c, d) in product(mine, theirs):
                table[i, j] += size[max(min(b, d), a, c)] - size[max(a, c)]
        found.append(table)
    return found


def _bytes_got(
    before: RankLayout,
    after: RankLayout,
    old: Ints,
    common: Sequence[Floats],
    own: Sequence[Floats],
) -> Floats:
    """What every rank lacks; `old` is its rank before, -1 for a GPU that held nothing."""
    got, known = np.zeros(len(after.stage)), old >= 0
    for sort, (begin, end) in enumerate(after.parts):
        had_begin, had_end = before.parts[sort]
        shared = common[sort][before.stage[old], after.stage] * known
        overlap = np.minimum(end, had_end[old]) - np.maximum(begin, had_begin[old])
        whole = own[sort][after.stage, after.stage]
        got += whole * (end - begin) - shared * np.maximum(overlap, 0.0)
    return got


def _kept_rank(
    before: RankLayout,
    after: RankLayout,
    alive: Bools,
    clusters: tuple[Cluster, Cluster],
    common: Floats,
) -> Ints:
    """The rank before, of every new rank: GPUs go where they have most in common, else to others.

    GPUs of a pool stay in it; those that the plan did not use, or that are new, held nothing.
    """
    old = np.full(len(after.stage), -1)
    names = [pool.name for pool in clusters[0].pools]
    for index, pool in enumerate(clusters[1].pools):
        if pool.name not in names:
            continue
        here = np.flatnonzero(after.pool == index)
        there = np.flatnonzero((before.pool == names.index(pool.name)) & alive)
        needs = {s: here[after.stage[here] == s] for s in np.unique(after.stage[here]).tolist()}
        has = {s: there[before.stage[there] == s] for s in np.unique(before.stage[there]).tolist()}
        pairs = sorted((-common[i, j], i, j) for i in has for j in needs)
        for whole in (pool.gpus_per_node, 1):
            for _, i, j in pairs:
                count = min(len(has[i]), len(needs[j])) // whole * whole
                old[needs[j][:count]] = has[i][:count]
                has[i], needs[j] = has[i][count:], needs[j][count:]
    return old


def _seconds(got: Floats, after: RankLayout, cluster: Cluster, senders: int) -> float:
    """At link speed: until the busiest node has what it gets, and all senders have sent."""
    slowest, rates = 0.0, []
    one_node = sum(pool.nodes for pool in cluster.pools) == 1
    for index, pool in enumerate(cluster.pools):
        here = after.pool == index
        size = 1 if one_node else pool.gpus_per_node
        rate = pool.intra_node_bandwidth if one_node else pool.inter_node_bandwidth
        of_node = np.bincount(after.slot[here] // size, weights=got[here])
        slowest = max(slowest, float(of_node.max(initial=0.0)) / rate)
        rates.append(rate / size)
    return max(slowest, float(got.sum()) / (senders * min(rates))) if senders else slowest
