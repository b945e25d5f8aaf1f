"""Policies over a trace: tokens, money and goodput of a job on GPUs that come and go.

All policies know the present alone. A loss of capacity hits a job if it holds more GPUs than are
left. What a plan takes, what a change costs and where state comes from are those of `replan`.
Besides, nodes break at random, by seed; each time the job restarts from its last checkpoint on a
replacement. A job that waits gives its GPUs back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import numpy as np

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import Runtime
from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.cost.checkpoints import checkpoint_bytes
from astrarium.cost.interruptions import interval_of
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.operations.change import Situation, nodes_of, resized
from astrarium.operations.replan import ReplanAnswer, ReplanTerms, decide
from astrarium.operations.traces import CapacityTrace
from astrarium.search.plan import Plan
from astrarium.units import HOUR
from astrarium.value import Value, replace

LEAST_HORIZON = HOUR  # that a replan looks ahead
CAUSES = ("training", "checkpoint", "redone", "paused", "waiting")


class Policy(StrEnum):
    """The reaction of a job to a change of capacity."""

    STATIC = "static"  # the plan as it is; it waits where there are too few GPUs
    REPLAN = "replan"  # stay, reshape or move after each change
    OVERPROVISION = "overprovision"  # a smaller plan, and spare nodes that are paid for


class PolicyOutcome(Value, frozen=True):
    """A policy on a trace; `goodput` is the share of lasting training, `usd` null if unknown."""

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
    plan: Plan  # whose stages name their pools
    cluster: Cluster
    terms: ReplanTerms
    seed: int = 0
    spare_share: float = 0.1


def simulate(setting: Setting, trace: CapacityTrace, policy: Policy) -> PolicyOutcome:
    """Run a policy over a trace; the same for the same seed."""
    return _Simulation(setting, policy).run(_spans(setting.cluster, trace))


class _Span(Value, frozen=True):
    """A span of a trace on the pools of the cluster."""

    seconds: float
    cluster: Cluster
    priced: bool


class _Simulation:
    def __init__(self, setting: Setting, policy: Policy) -> None:
        self._setting, self._policy, self._terms = setting, policy, setting.terms
        self._generator = np.random.default_rng(setting.seed)
        self._state = checkpoint_bytes(setting.workload, setting.runtime)
        self._known: dict[object, ReplanAnswer | None] = {}
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._tokens, self._usd, self._changes, self._failures = 0.0, 0.0, 0, 0
        self._plan = setting.plan
        self._held = self._plan.strategy.gpus_of_pools()  # and paid for
        self._was, self._runs = setting.cluster, False
        self._pause, self._redone = 0.0, 0.0  # seconds that are still to come
        self._elapsed, self._altered = 0.0, 0  # seconds, and changes of capacity seen in them
        if policy is Policy.OVERPROVISION:
            self._make_smaller()

    def run(self, spans: Iterable[_Span]) -> PolicyOutcome:
        priced = True
        for span in spans:
            self._change(span.cluster, first=not self._elapsed)
            self._spend(span)
            self._elapsed += span.seconds
            priced &= span.priced
        return PolicyOutcome(
            policy=self._policy,
            tokens=self._tokens,
            usd=self._usd if priced else None,
            goodput=self._seconds["training"] / self._elapsed,
            changes=self._changes,
            failures=self._failures,
            **{f"{cause}_hours": self._seconds[cause] / HOUR for cause in CAUSES},
        )

    def _make_smaller(self) -> None:
        """The best plan on the GPUs less the spare ones; as many are held as before."""
        cluster, share = self._setting.cluster, self._setting.spare_share
        node = {pool.name: pool.gpus_per_node for pool in cluster.pools}
        nodes = {name: count // node[name] for name, count in self._held.items()}
        spare = {name: int(share * count) for name, count in nodes.items()}
        if not any(spare.values()):  # one at least
            spare[max(nodes, key=lambda name: nodes[name])] = 1
        smaller = resized(cluster, {n: (nodes[n] - spare[n]) * node[n] for n in nodes})
        answer = self._decide(smaller, self._held)
        if answer is None or answer.plan is None:
            raise InputError(
                f"no plan is left with {100 * share:g} % of the nodes in reserve; keep fewer"
            )
        self._plan = answer.plan

    def _change(self, now: Cluster, *, first: bool) -> None:
        """React to the capacity of a span."""
        there, was = ({p.name: p.num_gpus for p in one.pools} for one in (now, self._was))
        held = {name: min(count, was.get(name, 0)) for name, count in self._held.items()}
        lost = {name: n - there.get(name, 0) for name, n in held.items() if there.get(name, 0) < n}
        self._altered += not first and there != was
        if self._policy is not Policy.REPLAN:
            needs = self._plan.strategy.gpus_of_pools()
            able = all(there.get(name, 0) >= count for name, count in needs.items())
            if able and not first and (not self._runs or self._is_hit(lost, needs)):
                self._restart()
            self._runs = able
        elif first and not lost:
            self._runs = True
        elif first or there != was or not self._runs:
            self._replan(now, lost)
        # What waits has nothing to lose, and its last place is where its plan fits.
        if self._runs or self._policy is not Policy.REPLAN:
            self._was = now

    def _is_hit(self, lost: Mapping[str, int], needs: Mapping[str, int]) -> bool:
        """Whether some node that is lost is one that works: those held in reserve may be lost."""
        safe = 1.0
        for name, count in lost.items():
            nodes = -(-count // self._setting.cluster.pool(name).gpus_per_node)
            safe *= max(1 - needs.get(name, 0) / self._held[name], 0.0) ** nodes
        return bool(lost) and bool(self._generator.random() >= safe)

    def _replan(self, now: Cluster, lost: Mapping[str, int]) -> None:
        answer = self._decide(now, lost if self._runs else self._held)
        if answer is None or answer.plan is None:
            if self._runs:
                self._redone += self._undone()
            self._runs = False
            return
        if answer.pause_seconds or not self._runs:
            self._pause = answer.pause_seconds
            self._redone += answer.redone_seconds if self._runs else 0.0
        self._changes += answer.plan.strategy != self._plan.strategy
        self._plan, self._runs = answer.plan, True
        self._held = self._plan.strategy.gpus_of_pools()

    def _decide(self, now: Cluster, lost: Mapping[str, int]) -> ReplanAnswer | None:
        """The decision of `replan`, for as long as capacity has lasted so far."""
        ahead = self._terms.horizon_seconds
        if self._altered:
            ahead = max(self._elapsed / self._altered, LEAST_HORIZON)
        ahead = HOUR * 2.0 ** round(np.log2(ahead / HOUR))  # few horizons, so that answers recur
        key = self._plan.strategy, now, tuple(sorted(lost.items())), ahead
        if key not in self._known:
            job, undone = self._setting, self._interval() / 2
            situation = Situation(self._plan.strategy, self._was, now, lost)
            terms = replace(self._terms, horizon_seconds=ahead, since_checkpoint_seconds=undone)
            try:
                found = decide(situation, job.workload, job.runtime, self._plan, terms)
            except NoFeasiblePlanError:
                self._known[key] = None
            else:
                self._known[key] = found.of(found.best)
        return self._known[key]

    def _restart(self) -> None:
        """Begin again from the last checkpoint."""
        self._pause = self._restart_seconds()
        self._redone += self._undone()

    def _restart_seconds(self) -> float:
        return self._terms.restart_seconds + self._saving()

    def _undone(self) -> float:
        """Work since the last checkpoint."""
        return float(self._generator.uniform(0, self._interval()))

    def _saving(self) -> float:
        """Seconds to write a checkpoint, or to load it."""
        return self._state / float(self._terms.storage.bandwidth(self._nodes))

    @property
    def _nodes(self) -> int:
        # Pools that are gone are those of the cluster, new ones those of the last span.
        pools = {pool.name: pool for pool in (*self._was.pools, *self._setting.cluster.pools)}
        return nodes_of(self._plan.strategy, Cluster(tuple(pools.values())))

    def _interval(self) -> float:
        safe = self._terms.safe(self._state, self._nodes, self._plan.iteration_seconds)
        rate = self._nodes * self._terms.failures_per_hour / HOUR
        return float(interval_of(rate + self._altered / max(self._elapsed, HOUR), np.inf, safe))

    def _spend(self, span: _Span) -> None:
        """The seconds of a span by cause, its tokens and its dollars."""
        left = span.seconds
        if not self._runs:
            self._seconds["waiting"] += left
            return
        for pool in span.cluster.pools:
            gpus = min(self._held[pool.name], pool.num_gpus)
            self._usd += gpus * (pool.usd_per_gpu_hour or 0.0) * left / HOUR
        breaks = int(
            self._generator.poisson(self._nodes * self._terms.failures_per_hour * left / HOUR)
        )
        self._failures += breaks
        self._pause += breaks * self._restart_seconds()
        self._redone += sum(self._undone() for _ in range(breaks))
        paused = min(self._pause, left)
        redone = min(self._redone, left - paused)
        self._pause, self._redone = self._pause - paused, self._redone - redone
        left -= paused + redone
        interval = self._interval()
        trained = left * interval / (interval + self._saving()) if np.isfinite(interval) else left
        for cause, spent in zip(CAUSES, (trained, left - trained, redone, paused), strict=False):
            self._seconds[cause] += spent
        self._tokens += trained * self._plan.tokens_per_second


def _spans(cluster: Cluster, trace: CapacityTrace) -> Iterator[_Span]:
    """The clusters of a trace, in whole nodes; pools that it does not name stay as they are."""
    named = pools_of(cluster, trace)
    others = [pool for pool in cluster.pools if pool not in named.values()]
    known = named | {pool.name: pool for pool in others}
    usual = {pool.name: pool.num_gpus for pool in others}
    for span in trace.spans:
        pools = [
            replace(pool, nodes=nodes, usd_per_gpu_hour=span.usd.get(name, pool.usd_per_gpu_hour))
            for name, pool in known.items()
            if (nodes := {**usual, **span.gpus}.get(name, 0) // pool.gpus_per_node)
        ]
        priced = all(span.usd.get(n, p.usd_per_gpu_hour) is not None for n, p in known.items())
        yield _Span(span.hours * HOUR, cluster.part(pools), priced)


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
