"""What policies make of a trace: tokens, money and goodput of a job on GPUs that come and go.

All policies know the present alone. A loss of capacity hits a job if it holds more GPUs than are
left. What a plan takes, what a change costs and where state comes from are those of `replan`.
Besides, nodes break at random, by seed; each time the job restarts from its last checkpoint on a
replacement. A job that waits gives its GPUs back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import numpy as np

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import Runtime
from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.cost.checkpoints import checkpoint_bytes, protection
from astrarium.cost.interruptions import interval_of
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.operations.change import Situation
from astrarium.operations.replan import ReplanAnswer, ReplanTerms, decide
from astrarium.operations.traces import CapacityTrace
from astrarium.search.plan import Plan
from astrarium.strategy.types import Strategy
from astrarium.units import HOUR
from astrarium.value import Value, replace

LEAST_HORIZON = HOUR  # that a replan looks ahead


class Policy(StrEnum):
    """What a job does when capacity changes."""

    STATIC = "static"  # the plan as it is; it waits where there are too few GPUs
    REPLAN = "replan"  # stay, reshape or move after each change
    OVERPROVISION = "overprovision"  # a smaller plan, and spare nodes that are paid for


class PolicyOutcome(Value, frozen=True):
    """What a policy made of a trace; hours add up to those of the trace.

    `goodput` is the share of the time in which it trained what was not undone. `usd` is null where
    a price is missing.
    """

    policy: Policy
    tokens: float
    usd: float | None
    goodput: float
    training_hours: float
    checkpoint_hours: float
    redone_hours: float
    paused_hours: float  # processes restart, state moves
    waiting_hours: float
    changes: int  # of the plan
    failures: int

    @property
    def usd_per_billion_tokens(self) -> float | None:
        return None if self.usd is None or not self.tokens else 1e9 * self.usd / self.tokens


class Setting(Value, frozen=True):
    """A job and the terms of its simulation; `spare_share` is that of overprovisioning."""

    workload: Workload
    runtime: Runtime
    plan: Plan
    strategy: Strategy
    cluster: Cluster
    terms: ReplanTerms
    seed: int = 0
    spare_share: float = 0.1


def simulate(setting: Setting, trace: CapacityTrace, policy: Policy) -> PolicyOutcome:
    """Run a policy over a trace; the same for the same seed."""
    return _Simulation(setting, trace, policy).run()


class _Span(Value, frozen=True):
    """A span of a trace on the pools of the cluster."""

    seconds: float
    cluster: Cluster
    priced: bool


class _Simulation:
    def __init__(self, setting: Setting, trace: CapacityTrace, policy: Policy) -> None:
        self._setting, self._policy = setting, policy
        self._spans = list(_spans(setting.cluster, trace))
        self._generator = np.random.default_rng(setting.seed)
        self._state = checkpoint_bytes(setting.workload, setting.runtime)
        self._known: dict[object, ReplanAnswer | None] = {}
        self._hours = dict.fromkeys(("training", "checkpoint", "redone", "paused", "waiting"), 0.0)
        self._tokens, self._usd, self._changes, self._failures = 0.0, 0.0, 0, 0
        self._plan, self._strategy = setting.plan, setting.strategy
        self._held = self._strategy.gpus_of_pools()  # and paid for
        self._was, self._runs = setting.cluster, False
        self._pause, self._redone = 0.0, 0.0
        self._elapsed, self._altered = 0.0, 0  # seconds, and changes of capacity seen in them
        if policy is Policy.OVERPROVISION:
            self._make_smaller()

    def run(self) -> PolicyOutcome:
        for number, span in enumerate(self._spans):
            self._change(span.cluster, first=number == 0)
            self._spend(span)
            self._elapsed += span.seconds
        hours = {name: value / HOUR for name, value in self._hours.items()}
        total = sum(hours.values())
        priced = all(span.priced for span in self._spans)
        return PolicyOutcome(
            policy=self._policy,
            tokens=self._tokens,
            usd=self._usd if priced else None,
            goodput=hours["training"] / total,
            training_hours=hours["training"],
            checkpoint_hours=hours["checkpoint"],
            redone_hours=hours["redone"],
            paused_hours=hours["paused"],
            waiting_hours=hours["waiting"],
            changes=self._changes,
            failures=self._failures,
        )

    def _make_smaller(self) -> None:
        """The best plan on the GPUs less the spare ones; as many are held as before."""
        cluster, share = self._setting.cluster, self._setting.spare_share
        nodes = {name: n // cluster.pool(name).gpus_per_node for name, n in self._held.items()}
        spare = {name: int(share * count) for name, count in nodes.items()}
        if not any(spare.values()):  # one at least
            spare[max(nodes, key=lambda name: nodes[name])] = 1
        sizes = {name: nodes[name] - spare[name] for name in nodes}
        smaller = _resized(cluster, sizes)
        answer = self._decide(smaller, dict(self._held))
        if answer is None or answer.plan is None:
            raise InputError(
                f"no plan is left with {100 * self._setting.spare_share:g} % of the nodes in"
                " reserve; keep fewer"
            )
        self._plan, self._strategy = answer.plan, answer.plan.strategy

    def _change(self, now: Cluster, *, first: bool) -> None:
        """React to the capacity of a span."""
        there = {pool.name: pool.num_gpus for pool in now.pools}
        was = {pool.name: pool.num_gpus for pool in self._was.pools}
        held = {name: min(count, was.get(name, 0)) for name, count in self._held.items()}
        lost = {name: n - there.get(name, 0) for name, n in held.items() if there.get(name, 0) < n}
        self._altered += not first and there != was
        if self._policy is Policy.REPLAN:
            if first and not lost:
                self._runs = True
            elif first or lost or there != was or not self._runs:
                self._replan(now, lost)
        else:
            needs = self._strategy.gpus_of_pools()
            able = all(there.get(name, 0) >= count for name, count in needs.items())
            if able and (not self._runs or (lost and self._is_hit(lost, needs))) and not first:
                self._restart()
            self._runs = able
        # What waits has nothing to lose, and its last place is where its plan fits.
        self._was = now if self._runs or self._policy is not Policy.REPLAN else self._was

    def _is_hit(self, lost: Mapping[str, int], needs: Mapping[str, int]) -> bool:
        """Whether some node that is lost is one that works: those held in reserve may be lost."""
        safe = 1.0
        for name, count in lost.items():
            nodes = -(-count // self._setting.cluster.pool(name).gpus_per_node)
            safe *= max(1 - needs.get(name, 0) / self._held[name], 0.0) ** nodes
        return bool(self._generator.random() >= safe)

    def _replan(self, now: Cluster, lost: Mapping[str, int]) -> None:
        gone = dict(lost) if self._runs else dict(self._held)
        answer = self._decide(now, gone)
        if answer is None or answer.plan is None:
            if self._runs:
                self._redone += float(self._generator.uniform(0, self._interval()))
            self._runs = False
            return
        moved = answer.plan.strategy != self._strategy
        if answer.pause_seconds or not self._runs:
            self._pause = answer.pause_seconds
            self._redone += answer.redone_seconds if self._runs else 0.0
        self._changes += moved
        self._plan, self._strategy = answer.plan, answer.plan.strategy
        self._held, self._runs = self._strategy.gpus_of_pools(), True

    def _decide(self, now: Cluster, lost: Mapping[str, int]) -> ReplanAnswer | None:
        """What `replan` says, looking as far ahead as capacity lasted so far."""
        ahead = self._setting.terms.horizon_seconds
        if self._altered:
            ahead = max(self._elapsed / self._altered, LEAST_HORIZON)
        ahead = HOUR * 2.0 ** round(np.log2(ahead / HOUR))  # few horizons, so that answers recur
        key = self._strategy, now, tuple(sorted(lost.items())), ahead
        if key not in self._known:
            setting = self._setting
            situation = Situation(self._strategy, self._was, now, lost)
            undone = self._interval() / 2
            terms = replace(setting.terms, horizon_seconds=ahead, since_checkpoint_seconds=undone)
            try:
                found = decide(situation, setting.workload, setting.runtime, self._plan, terms)
            except NoFeasiblePlanError:
                self._known[key] = None
            else:
                self._known[key] = found.of(found.best)
        return self._known[key]

    def _restart(self) -> None:
        """Begin again from the last checkpoint."""
        self._pause = self._restart_seconds()
        self._redone += float(self._generator.uniform(0, self._interval()))

    def _restart_seconds(self) -> float:
        storage = self._setting.terms.storage
        return self._setting.terms.restart_seconds + self._state / float(
            storage.bandwidth(self._nodes)
        )

    @property
    def _nodes(self) -> int:
        used = self._strategy.gpus_of_pools()
        pools = {pool.name: pool for pool in (*self._was.pools, *self._setting.cluster.pools)}
        return sum(-(-count // pools[name].gpus_per_node) for name, count in used.items())

    def _interval(self) -> float:
        terms, nodes = self._setting.terms, self._nodes
        safe = protection(
            self._state,
            nodes,
            storage=terms.storage,
            interval_seconds=terms.checkpoint_interval_seconds,
            iteration_seconds=self._plan.iteration_seconds,
        )
        rate = nodes * terms.failures_per_hour / HOUR + self._altered / max(self._elapsed, HOUR)
        return float(interval_of(rate, np.inf, safe))

    def _spend(self, span: _Span) -> None:
        """The seconds of a span by cause, its tokens and its dollars."""
        if not self._runs:
            self._hours["waiting"] += span.seconds
            return
        self._usd += self._usd_per_second(span.cluster) * span.seconds
        left = span.seconds
        breaks = self._generator.poisson(
            self._nodes * self._setting.terms.failures_per_hour * left / HOUR
        )
        self._failures += int(breaks)
        for _ in range(int(breaks)):
            self._pause += self._restart_seconds()
            self._redone += float(self._generator.uniform(0, self._interval()))
        paused = min(self._pause, left)
        self._pause -= paused
        left -= paused
        redone = min(self._redone, left)
        self._redone -= redone
        left -= redone
        interval = self._interval()
        saving = self._state / float(self._setting.terms.storage.bandwidth(self._nodes))
        trained = left * interval / (interval + saving) if np.isfinite(interval) else left
        self._hours["paused"] += paused
        self._hours["redone"] += redone
        self._hours["training"] += trained
        self._hours["checkpoint"] += left - trained
        self._tokens += trained * self._plan.tokens_per_second

    def _usd_per_second(self, cluster: Cluster) -> float:
        pools = {pool.name: pool for pool in cluster.pools}
        held = {
            name: min(n, pools[name].num_gpus) for name, n in self._held.items() if name in pools
        }
        prices = {name: pools[name].usd_per_gpu_hour or 0.0 for name in held}
        return sum(held[name] * prices[name] for name in held) / HOUR


def _resized(cluster: Cluster, nodes: Mapping[str, int]) -> Cluster:
    """The pools that are named, with so many nodes."""
    return _of_pools(
        cluster, [replace(p, nodes=nodes[p.name]) for p in cluster.pools if nodes.get(p.name)]
    )


def _of_pools(cluster: Cluster, pools: Sequence[Pool]) -> Cluster:
    """Pools with the links that a cluster has between those of their names."""
    names = {pool.name for pool in pools}
    links = tuple(link for link in cluster.links if names.issuperset(link.between))
    return Cluster(tuple(pools), links)


def _spans(cluster: Cluster, trace: CapacityTrace) -> Iterator[_Span]:
    """The clusters of a trace, in whole nodes; pools that it does not name stay as they are."""
    named = pools_of(cluster, trace)
    others = [pool for pool in cluster.pools if pool not in named.values()]
    known = named | {pool.name: pool for pool in others}
    for span in trace.spans:
        pools, priced = list[Pool](), True
        for name, pool in known.items():
            nodes = span.gpus.get(name, 0 if name in named else pool.num_gpus) // pool.gpus_per_node
            usd = span.usd.get(name, pool.usd_per_gpu_hour)
            priced &= usd is not None
            if nodes:
                pools.append(replace(pool, nodes=nodes, usd_per_gpu_hour=usd))
        yield _Span(span.hours * HOUR, _of_pools(cluster, pools), priced)


def pools_of(cluster: Cluster, trace: CapacityTrace) -> dict[str, Pool]:
    """The pool of every name of a trace: one of the cluster, or new GPUs of a type."""
    found: dict[str, Pool] = {}
    for name in dict.fromkeys(name for span in trace.spans for name in span.gpus):
        alike = [pool for pool in cluster.pools if name in (pool.name, pool.requested)]
        alike = alike or [pool for pool in cluster.pools if pool.gpu.name == find_gpu(name).name]
        if len(alike) > 1:
            there = ", ".join(pool.name for pool in alike)
            raise InputError(f"the trace names '{name}', and several pools are meant: {there}")
        made = alike or parse_gpus(f"{name}:{find_gpu(name).gpus_per_node}").pools
        if made[0] in found.values():
            raise InputError(f"the trace calls pool {made[0].name} by two names; keep one")
        found[name] = made[0]
    return found
