"""Plans that ask more of the software than Megatron can do.

`plan_beyond` answers with what `plan` finds or with something better: groups of replicas that share
the batch unequally (`groups`), a pipeline whose pools have degrees of their own (`unlike`), and
stages that each recompute what they need to (`own_recompute`). Every plan says what Megatron would
lack for it.

The objective and the limits steer the search: on every choice of pools it looks for what takes less
than the seconds with which a plan would be the best so far, in time and within the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from astrarium.cluster import Cluster, Pool
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.search.arrangements import canonical
from astrarium.search.formats import runnable
from astrarium.search.further import MOST_PARTS, FurtherSearch, plan_further
from astrarium.search.groups import GroupResult, GroupSearch
from astrarium.search.listing import Told, telling, untold
from astrarium.search.money import best_paid, keeps
from astrarium.search.outcome import Limits, Objective
from astrarium.search.own_recompute import recomputed
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import FINALISTS, Mode, Planned, plan
from astrarium.search.rules import UserRule
from astrarium.search.runs import Runs
from astrarium.search.score import Score
from astrarium.search.unlike import UnlikeResult, UnlikeSearch

# Plans of a single pool that are looked at for stages that need not recompute.
SEEDS: Final = 24


def plan_beyond(  # noqa: PLR0913  one parameter per thing that can be asked for
    workload: Workload,
    cluster: Cluster,
    *,
    objective: Objective = Objective.THROUGHPUT,
    mode: Mode = Mode.EXACT,
    rules: Sequence[UserRule] = (),
    top: int = 5,
    limits: Limits | None = None,
    tuning: Tuning = NEUTRAL,
    terms: RunTerms | None = None,
    most_types: int | None = None,
    told: Told = untold,
) -> Planned:
    """The best strategies whatever software runs them; never worse than those of `plan`."""
    limits, terms = limits or Limits(), terms or RunTerms()
    runs = Runs(workload, cluster, terms, tuning)
    score = Score(cluster, workload.iterations, objective, runs.limits_of_search(limits))
    first = partial(
        plan,
        workload,
        cluster,
        objective=objective,
        mode=mode,
        rules=rules,
        # On several pools a longer list would take longer to be proven.
        top=max(top, SEEDS) if len(cluster.pools) == 1 else top,
        limits=limits,
        tuning=tuning,
        terms=terms,
        most_types=most_types,
        told=told,
    )
    search = _Beyond(
        runs,
        mode,
        (*rules, *runs.rules),
        score,
        most_types,
        top=top + FINALISTS,
        told=telling(told, runs, objective, limits, top),
    )
    return plan_further(search, first, top)


@dataclass
class _Beyond(FurtherSearch):
    """What Megatron cannot run, on all choices of pools."""

    top: int = FINALISTS
    told: Told = untold

    def look_at(self, known: Planned) -> None:
        """Better plans than those known: with stages of their own recomputation, then all else."""
        self.begin_with(known)
        self._recompute(known.plans)
        parts = self.most_promising([canonical(part) for part in self.choices()])
        for number, (least, part) in enumerate(parts):
            self.told("beyond Megatron", number, len(parts), lambda: [*known.plans, *self.plans])
            gpus = self.gpus_of(part)
            upper = self.score.most_seconds(self.best, gpus)
            if self.ideal_seconds(part) >= upper:
                continue
            if number >= MOST_PARTS:
                self.open_score = min(self.open_score, least)
                continue
            self._search(part, gpus, upper)

    def _model(self, part: Cluster) -> ClusterModel:
        return ClusterModel(runnable(self.workload, *part.pools), part, tuning=self.tuning)

    def _put(self, plans: Sequence[Plan]) -> None:
        """Keeps what is within the limits."""
        objective, limits = self.score.objective, self.score.limits
        paid = [best_paid(self.runs, plan, objective, limits) for plan in plans if plan.fits]
        found = [plan for plan in paid if keeps(plan, limits)]
        self.plans += found
        self.counts.space += len(found)
        self.best = min([self.best, *map(self.score_of, found)])

    def _recompute(self, plans: Sequence[Plan]) -> None:
        """Plans whose stages recompute what they need to, on the pools that each uses."""
        of_pools: dict[tuple[Pool, ...], list[Plan]] = {}
        for one in plans:
            used = one.strategy.gpus_of_pools()
            pools = tuple(pool for pool in self.cluster.pools if used[pool.name])
            of_pools.setdefault(pools, []).append(one)
        for pools, members in of_pools.items():
            model = self._model(self.cluster.part(pools))
            better = recomputed(model, members, self.rules)
            self.counts.evaluated += len(better)
            self._put(estimate(model, better))

    def _search(self, part: Cluster, gpus: Sequence[int], upper: float) -> None:
        """Groups with one on each of some pools, and pipelines over all of them."""
        model = self._model(part)
        pools = tuple(range(len(part.pools)))
        # Groups would have to share every batch of a ramp anew.
        if len(pools) > 1 and self.runs.terms.ramp is None:
            groups = GroupSearch(model, self.rules, self.counts, self.top)
            able = groups.able()
            if len(able) == len(pools):
                shared = groups.run(able, upper)
                self._enter(model, gpus, shared)
                upper = min(upper, shared.seconds)
        self._enter(model, gpus, UnlikeSearch(model, self.rules, self.counts).run(pools, upper))

    def _enter(
        self, model: ClusterModel, gpus: Sequence[int], result: GroupResult | UnlikeResult
    ) -> None:
        plans = estimate(model, result.strategies[: self.top])
        self._put(plans)
        self._recompute([plan for plan in plans if plan.strategy.groups])
        if not result.proven:
            least = float(self.score.score_of(result.lower_bound, gpus))
            self.open_score = min(self.open_score, least)
