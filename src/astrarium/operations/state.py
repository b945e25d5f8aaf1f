"""Parts of weights and optimizer states by rank, and those that change place.

Every layer is an interval from 0 to 1. Tensor parallelism divides it first (expert parallelism, for
experts), then ZeRO divides the part of a rank among its replicas. A rank lacks, under a new layout,
the length of its new part less the overlap with the old one, times the bytes of the layers that
both layouts place on its GPU. Simplified: norms count as divided, and every layer is divided among
replicas by itself, as FSDP and Megatron's buckets nearly do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    `stage` is that of each rank; `parts` have (which, of how many) of weights and of states, dense
    and expert: four pairs. `pool` and `slot` say where a rank is, the latter within its pool.
    """

    strategy: Strategy
    stage: Ints
    parts: tuple[tuple[Ints, int], ...]
    pool: Ints
    slot: Ints

    def chunks(self) -> tuple[Ints, Ints, Ints]:
        """Stage, begin and end of all runs of layers; the ends hold embedding and head, too."""
        ordered = self.strategy.ordered_stages
        first = np.array([stage.first_layer + 1 for stage in ordered])
        last = np.array([stage.last_layer + 1 for stage in ordered])
        first[0] = 0
        last[-1] += 1
        return np.array([stage.pipeline_rank for stage in ordered]), first, last


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
    dense = ((tensor, s.tp), (tensor * s.shard_ranks + data % s.shard_ranks, s.tp * s.shard_ranks))
    others = (expert, experts), (expert * copies + copy % copies, experts * copies)
    states = [dense[s.zero_stage >= 1], others[s.zero_stage >= 1]]
    weights = [dense[s.zero_stage >= WEIGHTS_DIVIDED], others[s.zero_stage >= WEIGHTS_DIVIDED]]
    pool, slot = _places(strategy, cluster, stage)
    return RankLayout(s, stage, (weights[0], weights[1], states[0], states[1]), pool, slot)


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
    for part, of in layout.parts:
        piece = layout.stage * of + part
        held = np.zeros(layout.strategy.pp * of, bool)
        held[piece[alive]] = True
        if not held[piece].all():
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
    """State that moves from one layout to another; `alive` ranks of `before` keep their GPUs.

    Bytes that a GPU gets cross the network of its node, of which the busiest decides; with one
    node in all they cross the links of a GPU. Senders share what they send evenly.
    """
    common, held = _common(before, after, sizes), _held(after, sizes)
    old = _kept_rank(before, after, alive, clusters, common[0] + common[1])
    total = held[after.stage] - _had(before, after, old, common)
    seconds = _seconds(total, after, clusters[1], int(alive.sum()))
    return MovedState(float(total.sum()), seconds, float(held[after.stage].sum()))


def _sorts(sizes: Sequence[StateBytes]) -> list[Floats]:
    return [part for one in sizes for part in (one.dense, one.expert)]


def _common(before: RankLayout, after: RankLayout, sizes: Sequence[StateBytes]) -> Floats:
    """Bytes of the layers that stages share: (sorts, stages before, stages after)."""
    (i, a, b), (j, c, d) = before.chunks(), after.chunks()
    begin = np.maximum.outer(a, c)
    end = np.maximum(np.minimum.outer(b, d), begin)
    table = np.zeros((2 * len(sizes), before.strategy.pp, after.strategy.pp))
    for of_sort, size in zip(table, _sorts(sizes), strict=True):
        np.add.at(of_sort, (i[:, None], j), size[end] - size[begin])
    return table


def _held(layout: RankLayout, sizes: Sequence[StateBytes]) -> Floats:
    """Bytes that a rank of each stage holds."""
    (stage, begin, end), held = layout.chunks(), np.zeros(layout.strategy.pp)
    for (_, of), size in zip(layout.parts, _sorts(sizes), strict=True):
        np.add.at(held, stage, (size[end] - size[begin]) / of)
    return held


def _had(before: RankLayout, after: RankLayout, old: Ints, common: Floats) -> Floats:
    """State that every rank holds already; `old` is its rank before, -1 for a GPU without any."""
    had = np.zeros(len(after.stage))
    ranks = np.flatnonzero(old >= 0)
    old = old[ranks]
    stages = before.stage[old], after.stage[ranks]
    for sort, ((part, of), (was, among)) in enumerate(zip(after.parts, before.parts, strict=True)):
        shared = common[sort][stages]
        if not shared.any():
            continue
        part, was = part[ranks], was[old]
        overlap = np.minimum((part + 1) / of, (was + 1) / among)
        overlap -= np.maximum(part / of, was / among)
        had[ranks] += shared * np.maximum(overlap, 0.0, out=overlap)
    return had


def _kept_rank(
    before: RankLayout,
    after: RankLayout,
    alive: Bools,
    clusters: tuple[Cluster, Cluster],
    common: Floats,
) -> Ints:
    """For every new rank, the old rank on its GPU: in the same pool, with most in common."""
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
