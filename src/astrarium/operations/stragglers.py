"""Iterations whose GPUs differ in speed, and nodes to keep in reserve for those that break.

Every GPU has a speed of its own (a normal deviation), and a share of the nodes is slow by a factor,
for the whole iteration. A stage of a replica runs at the pace of its slowest GPU, a pipeline at
that of its slowest stage; replicas wait for the slowest pipeline when they sum gradients. Only
computation is slower. The expected time is exact for that model, but replicas that share a node
wait for each other in every layer.

Published shapes: five computing centres found 8 % between the ends of the box plot of GPUs of one
type, and outliers up to 1.5 times slower than the median (arXiv 2208.11035, 2022-08). Of the
machines of a cluster for more than 10,000 GPUs about 0.5 % took about 10 % longer for the same work
(MegaScale, arXiv 2402.15627, 2024-02). That is one cluster, so slow nodes have no default.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.cluster import Cluster
from astrarium.cost.checkpoints import protection
from astrarium.cost.groups import GPU_DEVIATION, slowest_of
from astrarium.cost.interruptions import interval_of, protected
from astrarium.cost.training_run import RunTerms
from astrarium.errors import InputError
from astrarium.operations.change import nodes_of
from astrarium.strategy.estimate import Plan
from astrarium.units import DAY, HOUR
from astrarium.value import Value

COMPUTATION: Final = ("forward", "backward", "recompute")
OF_PASSES: Final = (*COMPUTATION, "tp_communication", "cp_communication", "ep_communication")
DEFAULT_REPAIR_SECONDS: Final = DAY  # of a node; a guess: no published figure was found
_POINTS = 2001  # at which the distribution of a pipeline is looked at
_TAIL = 8.0  # deviations beyond which no GPU is, nor the number of broken nodes
_FEW = 16  # more spare nodes than that, where a deviation says little


class Stragglers(Value, frozen=True):
    """The distribution of speeds: a share of nodes, `slow_nodes`, takes `slow_factor`."""

    gpu_deviation: float = GPU_DEVIATION
    slow_nodes: float = 0.0
    slow_factor: float = 1.0

    def share_below(self, pace: Floats, gpus: int, nodes: int) -> Floats:
        """The chance that the slowest of so many GPUs, on so many nodes, is no slower than this."""
        on_node = gpus / nodes
        usual = self._normal(pace) ** on_node
        if not self.slow_nodes:
            return usual**nodes
        slow = self._normal(pace / self.slow_factor) ** on_node
        return ((1 - self.slow_nodes) * usual + self.slow_nodes * slow) ** nodes

    def _normal(self, pace: Floats) -> Floats:
        if not self.gpu_deviation:
            return (pace >= 1 - 1e-12).astype(float)
        normal = NormalDist(1.0, self.gpu_deviation)
        return np.array([normal.cdf(one) for one in pace.tolist()])

    @property
    def range(self) -> tuple[float, float]:
        """Between these paces all GPUs are."""
        most = 1 + _TAIL * self.gpu_deviation
        return max(2 - most, 0.0), most * (self.slow_factor if self.slow_nodes else 1.0)


class StageSpeeds(Value, frozen=True):
    """A stage of one unit: seconds of computation at the usual pace, and of messages.

    A unit is one replica, or the replicas that share nodes. `gpus` and `nodes` are those of a unit.
    """

    compute: float
    messages: float
    gpus: int
    nodes: int


def expected_seconds(plan: Plan, cluster: Cluster, stragglers: Stragglers) -> float:
    """The expected time of an iteration; the plan's own knows the usual spread alone."""
    stages, units, nominal = unit_stages(plan, cluster)
    turns, virtual = plan.strategy.num_micro_batches, plan.strategy.virtual_stages
    slowest = slowest_pipeline(stages, units, turns, virtual, stragglers)
    before = turns * max(nominal) + (sum(nominal) - max(nominal)) / virtual
    return plan.iteration_seconds + slowest - before


def unit_stages(plan: Plan, cluster: Cluster) -> tuple[list[StageSpeeds], int, list[float]]:
    """The stages of a unit, the number of units, and the seconds of stages as they were priced."""
    s = plan.strategy
    if len(plan.stage_seconds) != s.pp:
        raise InputError(f"plan {plan.rank} does not hold the times of its stages; make it again")
    passes = sum(plan.breakdown_seconds.get(cause, 0.0) for cause in OF_PASSES)
    computed = sum(plan.breakdown_seconds.get(cause, 0.0) for cause in COMPUTATION)
    share = computed / passes if passes else 1.0
    usual = float(slowest_of(np.array([s.gpus]))[0])
    group = s.tp * s.cp
    per_node = [cluster.pool(next(iter(one.pools))).gpus_per_node for one in plan.stage_seconds]
    together = max(min(per_node) // group, 1)
    while s.dp % together:
        together -= 1
    stages = [
        StageSpeeds(
            one.pass_seconds * share / usual,
            one.pass_seconds * (1 - share),
            group * together,
            -(-group * together // node),
        )
        for one, node in zip(plan.stage_seconds, per_node, strict=True)
    ]
    return stages, s.dp // together, [one.pass_seconds for one in plan.stage_seconds]


def slowest_pipeline(
    stages: Sequence[StageSpeeds], units: int, turns: int, virtual: int, stragglers: Stragglers
) -> float:
    """The expected time of the slowest pipeline: its slowest stage, the others once (ramp)."""
    low, high = stragglers.range
    kinds, counts = zip(*Counter(stages).items(), strict=True)
    least, most = (max(one.compute * end + one.messages for one in kinds) for end in (low, high))
    times = np.linspace(least, most, _POINTS)
    curves = [_below(one, times, np.linspace(low, high, _POINTS), stragglers) for one in kinds]
    below, mean = np.array(curves).swapaxes(0, 1)
    # Which stage is the slowest: by its density at that time over its chance to be below.
    slope = np.gradient(below, times, axis=1)
    weight = np.divide(slope, below, out=np.zeros_like(below), where=below > 1e-300)
    number = np.array(counts)[:, None]
    total = (number * weight).sum(axis=0)
    weight = np.where(total > 0, weight / np.where(total > 0, total, 1.0), 1.0 / len(stages))
    others = (number * (1 - weight) * mean).sum(axis=0)
    seconds = turns * times + others / virtual
    of_all = np.prod(below**number, axis=0) ** units
    middle = (seconds[1:] + seconds[:-1]) / 2
    return float(seconds[0] * of_all[0] + (middle * np.diff(of_all)).sum())


def _below(
    stage: StageSpeeds, times: Floats, paces: Floats, stragglers: Stragglers
) -> tuple[Floats, Floats]:
    """The chance that a stage takes no longer than each of the times, and its mean if so."""
    chance = stragglers.share_below(paces, stage.gpus, stage.nodes)
    seconds = paces * stage.compute + stage.messages
    # The mean is the time less the integral of the chance up to it.
    steps = np.diff(seconds) * (chance[1:] + chance[:-1]) / 2
    area = np.interp(times, seconds, np.concatenate([[0.0], np.cumsum(steps)]))
    area += np.maximum(times - seconds[-1], 0.0)
    below = np.interp(times, seconds, chance, right=1.0)
    mean = times - np.divide(area, below, out=np.zeros_like(below), where=below > 0)
    return below, np.maximum(mean, stage.messages)


class Spares(Value, frozen=True):
    """Nodes to keep in reserve, and the share of the time in which enough nodes work."""

    nodes: int
    availability: float
    without: float  # the same without any


def spares_worth_keeping(nodes: int, failures_per_hour: float, repair_seconds: float) -> Spares:
    """The spare nodes that make work cheapest; a Poisson number is broken at a time."""
    mean = nodes * failures_per_hour * repair_seconds / HOUR
    if not mean:
        return Spares(0, 1.0, 1.0)
    near = _TAIL * math.sqrt(mean)
    first = max(int(mean - near), 0)
    spares = np.arange(first, int(mean + near) + _FEW)
    chance = first * math.log(mean) - mean - math.lgamma(first + 1)  # its logarithm, of `first`
    logs = np.cumsum(np.concatenate([[chance], np.log(mean / spares[1:])]))
    available = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    best = int(np.argmax(available / (nodes + spares)))
    return Spares(int(spares[best]), float(available[best]), math.exp(-mean))


class Steadiness(Value, frozen=True):
    """A plan under stragglers and failures; `rank` is that of the plan."""

    rank: int
    iteration_seconds: float
    expected_iteration_seconds: float
    expected_tokens_per_second: float  # checkpoints, failures and waits for repairs included
    goodput: float  # of failures and checkpoints
    checkpoint_interval_seconds: float | None
    spare_nodes: int
    availability: float  # with the spare nodes
    availability_without: float


def steadiness(
    plan: Plan,
    cluster: Cluster,
    stragglers: Stragglers,
    state_bytes: float,
    terms: RunTerms,
    repair_seconds: float,
) -> Steadiness:
    """The expected figures of a plan whose GPUs are slow and break as stated."""
    expected = expected_seconds(plan, cluster, stragglers)
    nodes = nodes_of(plan.strategy, cluster)
    safe = protection(
        state_bytes,
        nodes,
        storage=terms.storage,
        restart_seconds=terms.restart_seconds,
        interval_seconds=terms.checkpoint_interval_seconds,
        iteration_seconds=expected,
    )
    rate = nodes * terms.failures_per_hour / HOUR
    length = np.inf if plan.train_seconds is None else plan.train_seconds
    interval = float(interval_of(rate, length, safe))
    goodput = float(protected(rate, length, safe).goodput)
    spares = spares_worth_keeping(nodes, terms.failures_per_hour, repair_seconds)
    slower = plan.iteration_seconds / expected
    return Steadiness(
        rank=plan.rank,
        iteration_seconds=plan.iteration_seconds,
        expected_iteration_seconds=expected,
        expected_tokens_per_second=plan.tokens_per_second * slower * goodput * spares.availability,
        goodput=goodput,
        checkpoint_interval_seconds=interval if np.isfinite(interval) else None,
        spare_nodes=spares.nodes,
        availability=spares.availability,
        availability_without=spares.without,
    )
