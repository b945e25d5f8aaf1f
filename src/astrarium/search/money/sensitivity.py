"""The distance to another answer: which price or network changes it, and by how much.

The answer is the GPUs, by pool, of the best plan under the objective and the limits.

- Prices: what a pool's plans take does not depend on its price, and all they cost scales with it.
  So each pool is searched once, and the factor is closed form (`breakeven`).
- Networks: a pool is searched again with other bandwidths between its nodes, and the factor is
  found by halving, on a scale of logarithms. A faster network helps only its own pool, so the
  others stay as they are, and a slower one matters only to a pool of the answer.
- Pipelines over several pools are those that are known, which are priced anew: mixes that nobody
  found for today's prices and networks are not looked for.

No pool is searched for all its plans: a `Window` leaves out what cannot become the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import combinations
from math import sqrt

import numpy as np

from astrarium.arrays import Floats
from astrarium.cluster import Link, Pool
from astrarium.cost.mixed import ClusterModel
from astrarium.search.money.archive import Archive, PaymentWays
from astrarium.search.money.breakeven import Key, MoneyLines, first_change
from astrarium.search.money.frontier import (
    enter_pool,
    keeps,
    models_of,
    money_of,
    plans_of,
    rank_key,
    time_of,
)
from astrarium.search.money.runs import Runs
from astrarium.search.outcome import Limits, Objective
from astrarium.search.plan import Plan, estimate
from astrarium.search.rules import UserRule, offloads
from astrarium.units import HOUR
from astrarium.value import Value

MOST = 16.0  # how many times as much or as little is tried
CLOSE = 1.05  # how well the factor of a network is known
# Overheads that are known only when a plan is priced (ramps, evaluations) differ less than this
# between plans that are nearly the best without them.
NEAR = 1.05

NO_MONEY = 1e-100  # what nothing costs, where it is divided by


class What(StrEnum):
    PRICE = "price"
    NETWORK = "network"
    LINK = "link"


class Change(Value, frozen=True):
    """A change of the answer, or (without a factor) how far a value was changed in vain.

    `value` is USD per GPU and hour, or bytes per second and node. `gpus_then` is by pool; empty if
    no plan keeps the limits.
    """

    what: What
    pool: str
    value: float
    factor: float | None
    gpus_then: Mapping[str, int]
    unchanged_to: float | None


class Window(Archive):
    """An archive of what takes so many seconds and USD an iteration at most.

    And, of all that is in it, nearly the best under the objective.
    """

    def __init__(self, objective: Objective, seconds: float, usd: float) -> None:
        super().__init__()
        self._objective, self._within, self._for = objective, seconds, usd

    def limits(self, ways: PaymentWays) -> Floats:
        seconds, usd = self._within, self._for
        if self.points and self._objective is Objective.COST:
            usd = min(usd, NEAR * self.points[-1].usd)
        elif self.points:
            seconds = min(seconds, NEAR * self.points[0].seconds)
        rate, usd = ways.hourly / HOUR, max(usd, NO_MONEY)
        by_money = np.divide(usd, rate, out=np.full(rate.shape, np.inf), where=rate > 0)
        within = (np.minimum(seconds, by_money) / ways.stretch).max(axis=1)
        return np.asarray(np.minimum(super().limits(ways), within))


class Sensitivity(Value, frozen=True):
    """The question that was answered, and the plans found; the first is the answer."""

    runs: Runs
    objective: Objective
    limits: Limits
    rules: Sequence[UserRule]
    known: Sequence[Plan]

    def changes(self) -> tuple[Change, ...]:
        """Changes of the answer by prices, networks, then the links of a mix."""
        pools, used = self.runs.cluster.pools, self._pools_of(self.known[0])
        instead = self._instead([pool for pool in pools if pool not in used])
        if len(used) > 1:  # each of them by itself may come next
            instead += [plan for pool in used for plan in self._alone(pool)]
        return (
            *(change for pool in pools for change in self._prices(pool, instead)),
            *(change for pool in pools for change in self._networks(pool, instead)),
            *self._links(instead),
        )

    # Plans

    def _uses(self, plan: Plan, *pools: Pool) -> bool:
        used = plan.strategy.gpus_of_pools()
        return all(used[pool.name] for pool in pools)

    def _pools_of(self, plan: Plan) -> list[Pool]:
        return [pool for pool in self.runs.cluster.pools if self._uses(plan, pool)]

    def _key(self, plan: Plan) -> Key:
        used = plan.strategy.gpus_of_pools()
        return tuple(used[pool.name] for pool in self.runs.cluster.pools)

    def _best(self, plans: Sequence[Plan]) -> Key:
        """The GPUs of the best plan that keeps the limits; none if none does."""
        kept = [plan for plan in plans if keeps(plan, self.limits)]
        if not kept:
            return ()
        return self._key(
            min(kept, key=lambda plan: (*rank_key(plan, self.objective), money_of(plan)))
        )

    def _found(self, runs: Runs, pools: Sequence[Pool], archive: Archive) -> list[Plan]:
        """Points that pools add to an archive."""
        models = models_of(runs)
        offload = self.known[0].strategy.offload_optimizer or offloads(runs.runtime, self.rules)
        for pool in pools:
            number = runs.cluster.pools.index(pool)
            enter_pool(runs, number, models[number], archive, self.rules, offload=offload)
        return plans_of(runs, models, archive.points)

    def _alone(self, pool: Pool) -> list[Plan]:
        """The front of one pool."""
        return self._found(self.runs, [pool], Archive())

    def _window(self, goal: Objective, seconds: float | None, usd: float | None) -> Window:
        """A window for what a run may take and cost.

        Overheads make a run longer than its iterations, so it may hold too much, never too little.
        """
        iterations = self.runs.workload.iterations or 1.0
        late = np.inf if seconds is None else seconds / iterations
        dear = np.inf if usd is None else usd / iterations
        return Window(goal, late, dear)

    def _near(self, pool: Pool) -> list[Plan]:
        """The plan of a pool that would be the answer if the pool had a better price."""
        cheapest, limits = Objective.COST, self.limits
        if self.objective is cheapest:
            most = MOST * money_of(self.known[0]) / HOUR
            window = self._window(cheapest, limits.deadline_seconds, most)
        elif limits.budget_usd is not None:
            window = self._window(cheapest, time_of(self.known[0]), MOST * limits.budget_usd)
        else:
            return []
        return self._found(self.runs, [pool], window)

    def _instead(self, pools: Sequence[Pool]) -> list[Plan]:
        """Points with the pools that the answer does without, in its place."""
        if self.objective is Objective.COST:
            return [plan for pool in pools for plan in self._near(pool)]
        window = self._window(self.objective, None, self.limits.budget_usd)
        return self._found(self.runs, pools, window)

    # Prices

    def _prices(self, pool: Pool, instead: Sequence[Plan]) -> Iterator[Change]:
        """A pool of the answer may become too dear, or buy more; any other cheap enough."""
        by_money = self.objective is Objective.COST or self.limits.budget_usd is not None
        if not by_money or not pool.usd_per_gpu_hour:
            return
        by_cost = self.objective is Objective.COST
        if not self._uses(self.known[0], pool):
            near = instead if by_cost else self._near(pool)
            yield self._price(pool, [*self.known, *near], 1 / MOST)
            return
        if by_cost and len(self._pools_of(self.known[0])) == 1:
            # All that the pool costs scales: no other number of its GPUs becomes the cheapest.
            yield self._price(pool, [*self.known, *instead], MOST)
            return
        own = self._alone(pool)
        for farthest in (1 / MOST, MOST):
            yield self._price(pool, [*self.known, *own, *instead], farthest)

    def _price(self, pool: Pool, plans: Sequence[Plan], farthest: float) -> Change:
        number = self.runs.cluster.pools.index(pool)
        seconds = np.array([time_of(plan) for plan in plans])
        hourly = np.array([self.runs.usd_per_hour_of_pools(plan) for plan in plans])
        own = hourly[:, number] * seconds / HOUR
        total = np.array([money_of(plan) for plan in plans]) / HOUR
        keys = [self._key(plan) for plan in plans]
        found = first_change(
            MoneyLines(keys, seconds, total - own, own), self.objective, self.limits, farthest
        )
        price = pool.usd_per_gpu_hour or 0.0
        return self._change(What.PRICE, pool.name, price, found, farthest)

    def _change(
        self, what: What, pool: str, value: float, found: tuple[float, Key] | None, farthest: float
    ) -> Change:
        if found is None:
            return Change(what, pool, value, None, {}, farthest)
        factor, key = found
        every = zip(self.runs.cluster.pools, key or (), strict=False)
        return Change(what, pool, value, factor, {p.name: n for p, n in every if n}, None)

    # Networks and links

    def _networks(self, pool: Pool, instead: Sequence[Plan]) -> Iterator[Change]:
        if pool.num_gpus <= pool.gpus_per_domain:
            return  # there is nothing between its nodes

        def best(factor: float) -> Key:
            return self._with_network(pool, factor, instead)

        in_answer = self._uses(self.known[0], pool)
        for farthest in (1 / MOST, MOST) if in_answer else (MOST,):
            found = self._halved(best, farthest)
            value = pool.inter_node_bandwidth
            yield self._change(What.NETWORK, pool.name, value, found, farthest)

    def _with_network(self, pool: Pool, factor: float, instead: Sequence[Plan]) -> Key:
        """The answer if the nodes of a pool were joined by a network so many times as fast."""
        changed = replace(pool, inter_node_bandwidth=factor * pool.inter_node_bandwidth)
        cluster = self.runs.cluster
        pools = tuple(changed if one is pool else one for one in cluster.pools)
        runs = replace(self.runs, cluster=replace(cluster, pools=pools))
        late, dear = self.limits.deadline_seconds, self.limits.budget_usd
        if not self._uses(self.known[0], pool):  # then it has the answer to beat
            cost = self.objective is Objective.COST
            late = late if cost else time_of(self.known[0])
            dear = money_of(self.known[0]) / HOUR if cost else dear
        own = self._found(runs, [changed], self._window(self.objective, late, dear))
        return self._best([*own, *self._anew(runs, [*self.known, *instead], pool)])

    def _links(self, instead: Sequence[Plan]) -> Iterator[Change]:
        """The links between the pools of an answer that has several."""
        cluster = self.runs.cluster
        for first, second in combinations(self._pools_of(self.known[0]), 2):
            link = cluster.link_between(first.name, second.name)
            for farthest in (1 / MOST, MOST):
                found = self._halved(partial(self._with_link, link, instead), farthest)
                both = f"{first.name} - {second.name}"
                yield self._change(What.LINK, both, link.bandwidth, found, farthest)

    def _with_link(self, link: Link, instead: Sequence[Plan], factor: float) -> Key:
        cluster = self.runs.cluster
        others = [one for one in cluster.links if set(one.between) != set(link.between)]
        changed = replace(link, bandwidth=factor * link.bandwidth)
        runs = replace(self.runs, cluster=replace(cluster, links=(*others, changed)))
        ends = [cluster.pool(name) for name in link.between]
        return self._best(self._anew(runs, [*self.known, *instead], *ends))

    def _anew(self, runs: Runs, plans: Sequence[Plan], *pools: Pool) -> list[Plan]:
        """Plans on changed machines: those on all these pools and others are estimated again.

        Plans on one pool that is changed are left out, as it has been searched.
        """
        found = []
        for plan in plans:
            used = tuple(p for p in runs.cluster.pools if self._uses(plan, p))
            if not self._uses(plan, *pools):
                found.append(plan)
            elif len(used) > 1:
                precision = plan.precision or runs.workload.precision
                workload = replace(runs.workload, precision=precision)
                model = ClusterModel(workload, runs.cluster.part(used), runs.runtime, runs.tuning)
                again = estimate(model, [plan.strategy])[0]
                found.append(runs.priced(again, runs.spot_nodes(plan)))
        return found

    def _halved(self, best: Callable[[float], Key], farthest: float) -> tuple[float, Key] | None:
        """The factor at which the answer changes, at most `CLOSE` too far from 1; to which."""
        now = self._key(self.known[0])
        changed, then = farthest, best(farthest)
        if then == now:
            return None
        same = 1.0
        while max(changed / same, same / changed) > CLOSE:
            middle = sqrt(same * changed)
            key = best(middle)
            if key == now:
                same = middle
            else:
                changed, then = middle, key
        return changed, then
