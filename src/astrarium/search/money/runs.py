"""Whole runs: what a plan takes and costs from the first token to the last.

A plan is known by the seconds of its iteration and the GPUs it uses; the rest follows from the
terms of the run (`cost.training_run`). While plans are searched for, every GPU count has a few
`Ways` to be paid for, each with its own stretch of time: the ramp of the batch and evaluations are
left out of it, as they lengthen all plans nearly alike. The plans that are found are then priced
with everything (`Runs.priced`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import Cluster, Pool
from astrarium.cost.checkpoints import Protection, checkpoint_bytes, protection
from astrarium.cost.energy import co2_kilograms, kilowatt_hours, kilowatts
from astrarium.cost.interruptions import Rental, greedy_mixes, interval_of, protected
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms, Spot, run_seconds, schedule_of, work_seconds
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.search.money.archive import PaymentWays
from astrarium.search.outcome import Limits
from astrarium.search.plan import estimate
from astrarium.search.rules import UserRule, user_rules
from astrarium.strategy.estimate import Plan, Run
from astrarium.strategy.types import Strategy
from astrarium.units import HOUR

USEFUL = ("train", "ramp", "evaluation")  # causes of time in which the run gets on
MOST_BATCHES = 8  # of a ramp whose iterations are predicted; those in between lie on lines


@dataclass(frozen=True)
class Runs:
    """Runs of one workload on the pools of a cluster, under some terms."""

    workload: Workload
    cluster: Cluster
    terms: RunTerms
    tuning: Tuning = NEUTRAL
    runtime: Runtime = field(default_factory=find_runtime)
    _of_batches: dict[Strategy, Floats] = field(default_factory=dict, compare=False)

    @property
    def _pools(self) -> tuple[Pool, ...]:
        return self.cluster.pools

    @cached_property
    def _state_bytes(self) -> float:
        return checkpoint_bytes(self.workload, self.runtime)

    @property
    def rules(self) -> tuple[UserRule, ...]:
        """The rules of a growing batch: Megatron divides every size of it."""
        ramp = self.terms.ramp
        if ramp is None:
            return ()
        at_once = "($dp * $micro_batch)"
        return user_rules([f"{ramp.start} % {at_once} != 0", f"{ramp.increment} % {at_once} != 0"])

    def limits_of_search(self, limits: Limits) -> Limits:
        """Limits for plans of a search that knows on-demand prices alone."""
        if self.terms.spot is Spot.NEVER:
            return limits
        return replace(limits, budget_usd=None)

    def ways_of_pool(self, number: int, gpus: Ints) -> PaymentWays:
        """So many GPUs of one pool: the others, of which a market has many, are not looked at."""
        pool = self.cluster.part([self._pools[number]])
        rental = replace(self, cluster=pool)._rental(gpus[:, None])
        spot = self._spot_choices(rental)
        each = replace(
            rental,
            nodes=rental.nodes[:, None, :],
            usd=rental.usd[:, None, :],
            spot_usd=rental.spot_usd[:, None, :],
        )
        hourly, rate = each.usd_per_hour(spot), each.rate(spot)
        safe = self._protection(rental.nodes)
        stretch = protected(rate, np.inf, safe).stretch
        return PaymentWays(np.broadcast_to(stretch, hourly.shape), hourly, spot[..., 0])

    def _spot_choices(self, rental: Rental) -> Ints:
        """Spot nodes that are to be considered: (rows, choices, pools)."""
        if self.terms.spot is Spot.NEVER:
            return np.zeros_like(rental.nodes)[:, None, :]
        if self.terms.spot is Spot.ALWAYS:
            return np.where(np.isnan(rental.spot_usd), 0, rental.nodes)[:, None, :]
        return greedy_mixes(rental)

    def _protection(self, nodes: Ints | int, iteration_seconds: float = 0.0) -> Protection:
        terms = self.terms
        return protection(
            self._state_bytes,
            nodes,
            storage=terms.storage,
            restart_seconds=terms.restart_seconds,
            interval_seconds=terms.checkpoint_interval_seconds,
            iteration_seconds=iteration_seconds,
        )

    def _rental(self, gpus: Ints) -> Rental:
        """The nodes that so many GPUs of each pool, (..., pools), take."""
        pools = self._pools
        billed = np.stack([p.billed_gpus(gpus[..., i]) for i, p in enumerate(pools)], axis=-1)
        per_node = np.array([pool.gpus_per_node for pool in pools])
        nodes = -(-gpus // per_node)
        paid = np.divide(billed, nodes, out=np.zeros(nodes.shape), where=nodes > 0)
        prices = [pool.usd_per_gpu_hour or 0.0 for pool in pools]
        spot = [pool.spot_usd_per_gpu_hour for pool in pools]
        return Rental(
            nodes,
            paid * prices,
            paid * [np.nan if price is None else price for price in spot],
            np.array([self._interruptions(pool) for pool in pools]),
            np.full(len(pools), self.terms.failures_per_hour),
        )

    def least_price(self, pool: Pool) -> float:
        """USD of a GPU and hour in the cheapest way that is allowed."""
        price, spot = pool.usd_per_gpu_hour or 0.0, pool.spot_usd_per_gpu_hour
        return price if spot is None or self.terms.spot is Spot.NEVER else min(price, spot)

    def _interruptions(self, pool: Pool) -> float:
        given = pool.interruptions_per_hour
        return self.terms.interruptions_of(pool.gpu.name) if given is None else given

    def choices(self, plan: Plan) -> list[list[int]]:
        """Spot nodes of every pool that a plan can be paid for with; the fewest first."""
        used = plan.strategy.gpus_of_pools()
        gpus = np.array([[used[pool.name] for pool in self._pools]])
        choices: list[list[int]] = self._spot_choices(self._rental(gpus))[0].tolist()
        return choices

    def spot_nodes(self, plan: Plan) -> Ints:
        """Spot nodes of every pool that a plan is paid for with."""
        spot = {} if plan.run is None else plan.run.spot_gpus
        return np.array([-(-spot.get(p.name, 0) // p.gpus_per_node) for p in self._pools])

    def usd_per_hour_of_pools(self, plan: Plan) -> Floats:
        """Dollars an hour that a plan pays for the nodes of every pool."""
        used = plan.strategy.gpus_of_pools()
        rental = self._rental(np.array([used[pool.name] for pool in self._pools]))
        return rental.usd_per_hour_of_pools(self.spot_nodes(plan))

    def paid(self, plans: Sequence[Plan]) -> list[Plan]:
        """Plans in every way that they can be paid for."""
        return [self.priced(plan, spot) for plan in plans for spot in self.choices(plan)]

    def priced(self, plan: Plan, spot_nodes: Sequence[int] | Ints) -> Plan:
        """The plan with its run; `spot_nodes` of every pool."""
        found = self._run(plan, np.asarray(spot_nodes))
        if found is None:
            return plan
        run, hourly = found
        usd = None if plan.usd_per_hour is None else hourly
        total = None if usd is None else usd * run.train_seconds / HOUR
        return replace(
            plan, run=run, train_seconds=run.train_seconds, usd_per_hour=usd, usd_total=total
        )

    def _run(self, plan: Plan, spot_nodes: Ints) -> tuple[Run, float] | None:
        """The run, and dollars an hour."""
        workload, terms = self.workload, self.terms
        if workload.tokens is None:
            return None
        used = plan.strategy.gpus_of_pools()
        gpus = np.array([used[pool.name] for pool in self._pools])
        rental = self._rental(gpus)
        schedule = schedule_of(
            workload.tokens / workload.seq_length, workload.global_batch, terms.ramp
        )
        work = work_seconds(
            schedule,
            self._iterations(plan, schedule.batches),
            terms.evaluation,
            plan.iteration_seconds * _forward_share(plan),
        )
        safe = self._protection(int(rental.nodes.sum()), plan.iteration_seconds)
        rate = rental.rate(spot_nodes)
        seconds = run_seconds(work, rate, safe)
        power = kilowatts(gpus, [p.gpu.tdp_watts for p in self._pools], terms.power)
        kwh = float(kilowatt_hours(power, seconds.total))
        factor = terms.co2_kilograms_per_kwh
        interval = float(interval_of(rate, seconds.work, safe))
        by_cause = {cause: float(value) for cause, value in seconds.by_cause().items()}
        run = Run(
            breakdown_seconds=by_cause,
            goodput=sum(by_cause[cause] for cause in USEFUL) / sum(by_cause.values()),
            spot_gpus=self._spot_gpus(gpus, spot_nodes),
            interruptions_per_hour=float(rate) * HOUR,
            checkpoint_interval_seconds=interval if np.isfinite(interval) else None,
            kwh=kwh,
            co2_kilograms=None if factor is None else float(co2_kilograms(kwh, factor)),
        )
        return run, float(rental.usd_per_hour(spot_nodes))

    def _spot_gpus(self, gpus: Ints, spot_nodes: Ints) -> dict[str, int]:
        """By type; of a node of which only a part is used, that part."""
        found: Counter[str] = Counter()
        for pool, count, nodes in zip(self._pools, gpus.tolist(), spot_nodes.tolist(), strict=True):
            found[pool.gpu.name] += min(count, nodes * pool.gpus_per_node)
        return dict(+found)

    def _iterations(self, plan: Plan, batches: Ints) -> Floats:
        """Seconds of an iteration at every batch of the ramp."""
        if len(batches) == 1:
            return np.array([plan.iteration_seconds])
        if plan.strategy not in self._of_batches:
            few = np.unique(np.linspace(0, len(batches) - 1, MOST_BATCHES).round().astype(int))
            seconds = [self._at_batch(plan, int(batch)) for batch in batches[few[:-1]]]
            found = np.interp(batches, batches[few], [*seconds, plan.iteration_seconds])
            self._of_batches[plan.strategy] = found
        return self._of_batches[plan.strategy]

    def _at_batch(self, plan: Plan, batch: int) -> float:
        strategy = plan.strategy
        turns = batch // (strategy.dp * strategy.micro_batch)
        precision = plan.precision or self.workload.precision
        workload = replace(self.workload, global_batch=batch, precision=precision)
        model = ClusterModel(workload, self.cluster, self.runtime, self.tuning)
        return estimate(model, [replace(strategy, num_micro_batches=turns)])[0].iteration_seconds


def _forward_share(plan: Plan) -> float:
    """Of both passes, on the stage that takes longest: what an evaluation takes of an iteration."""
    slowest = max(plan.stage_seconds, key=lambda stage: stage.pass_seconds)
    return slowest.forward_seconds / slowest.pass_seconds
