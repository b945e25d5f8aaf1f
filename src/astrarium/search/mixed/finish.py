"""The best cases of a mixed search, made better: no bound asks for any of this.

- Layers of several chunks per rank are dealt as well as can be (`dealing`).
- A pool may lie on both sides of another one (`arrangements.turned`).
- Where GPUs may stay idle, a crew of GPUs is added, taken away or exchanged for one of another
  pool, as long as that makes the best plan better: of very many choices of GPUs a search looks at
  few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import factorial, lcm
from typing import NamedTuple, Protocol

import numpy as np

from astrarium.cost.mixed import ClusterModel
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.nodes import Key, PendingBundle
from astrarium.search.mixed.rows import MOST_ORDERS
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.split.arrangements import Arrangement, laid, turned
from astrarium.search.split.cases import Bundle, PricedCase, dealt_cases

OF_EACH_SHAPE = 3
NEAR, MOST_GAIN = 10, 0.06  # cases whose layers are dealt anew, and how near to the best they came
TURNED = 1  # of these, with a pool on both sides of another
WORTH_TURNING = 0.01  # what that must gain, as fewer bounds hold for it
ORDERS = 2  # in which a case is solved
REGROUPED, STEPS = 2, 8  # cases whose GPUs are changed, and how often


class Near(NamedTuple):
    """A solved case: the lesser score is better, then what came first."""

    score: float
    number: int
    gpus: Key
    bundle: Bundle
    case: tuple[int, int]  # order and row

    @property
    def shape(self) -> tuple[object, ...]:
        """GPUs, ranks, chunks and micro-batches."""
        row, bundle = self.case[1], self.bundle
        batches = int(bundle.degrees.num_micro_batches[row])
        return self.gpus, bundle.num_stages, int(bundle.virtual[row]), batches


class Searching(Protocol):
    """The parts of a search that finishing needs."""

    model: ClusterModel
    space: MixedSpace
    plans: KeptPlans
    near: list[Near]

    def split(self, node: PendingBundle, cases: Sequence[tuple[int, int]]) -> list[PricedCase]: ...


class Finish:
    """Of one search; `regroups` says whether other GPUs may be chosen."""

    def __init__(self, search: Searching, *, regroups: bool) -> None:
        self._search, self._regroups = search, regroups
        self._space, self._plans = search.space, search.plans

    def run(self) -> None:
        near = sorted(self._search.near)
        limit = self._plans.best_score * (1 + MOST_GAIN)
        several = [one for one in near if one.bundle.virtual[one.case[1]] > 1 and one.score < limit]
        self._plans.deal([(one.gpus, one.bundle, one.case) for one in several])
        for one in near[:TURNED]:
            order, row = one.case
            laid_out = turned(one.bundle.arrangements[order])
            self._solve(one.gpus, _row_of(one.bundle, row), laid_out, WORTH_TURNING)
        if self._regroups:
            for one in near[:REGROUPED]:
                self._regroup(one)

    def _regroup(self, start: Near) -> None:
        """Crews more, fewer or of another pool, one after another."""
        gpus, one = start.gpus, _row_of(start.bundle, start.case[1])
        parts = one.arrangements[start.case[0]].parts
        order = list(dict.fromkeys(pool for stage in parts for pool, _ in stage))
        for _ in range(STEPS):
            before, best = self._plans.best_score, None
            for other in self._neighbours(gpus, one):
                bundle = self._with_stages(one, other, order)
                if bundle is None:
                    continue
                self._solve(other, bundle, bundle.arrangements)
                if self._plans.best_score < before:
                    before, best = self._plans.best_score, (other, bundle)
            if best is None:
                return
            gpus, one = best

    def _neighbours(self, gpus: Key, one: Bundle) -> Iterator[Key]:
        pools = self._space.cluster.pools
        d = one.degrees
        crew = int((d.tp * d.cp * d.dp)[0])
        steps = [lcm(crew, pool.gpus_per_node) for pool in pools]
        if any(taken % crew for taken in gpus):
            return  # crews straddle
        less = [(p, -step) for p, step in enumerate(steps) if gpus[p] >= step]
        more = [(p, step) for p, step in enumerate(steps) if gpus[p] + step <= pools[p].num_gpus]
        pairs = [(a, b) for a in less for b in more if a[0] != b[0]]
        for changes in (*((m,) for m in more), *((f,) for f in less), *pairs):
            other = list(gpus)
            for pool, change in changes:
                other[pool] += change
            if sum(other):
                yield tuple(other)

    def _with_stages(self, one: Bundle, gpus: Key, order: Sequence[int]) -> Bundle | None:
        """The same degrees and options with as many stages as the GPUs make; None if impossible.

        In all orders of the pools, or of very many pools in about this one.
        """
        d = one.degrees
        stages = sum(gpus) // int((d.tp * d.cp * d.dp)[0])
        fits = 2 <= stages <= self._space.planner.num_layers
        whole = int(d.num_micro_batches[0]) % stages == 0 or int(one.virtual[0]) == 1
        if not fits or not whole:
            return None
        crew = sum(gpus) // stages
        used = [pool for pool, taken in enumerate(gpus) if taken]
        old, new = [p for p in order if p in used], [p for p in used if p not in order]
        few = factorial(len(used)) <= MOST_ORDERS
        laid_out = [laid([*old, *new], gpus, crew), laid([*new, *old], gpus, crew)]
        return Bundle(
            one.model,
            replace(d, pp=np.array([stages])),
            one.virtual,
            one.options,
            self._space.arrangements.of(gpus, crew) if few else laid_out,
            one.model.contents,
            one.work_of_kind,
        )

    def _solve(
        self, gpus: Key, one: Bundle, arrangements: Sequence[Arrangement], gain: float = 0.0
    ) -> None:
        """A case in the most promising of some orders, kept if it gains as much over the best."""
        if not arrangements:
            return
        bundle = replace(one, arrangements=arrangements)
        enough = self._plans.best_score * (1 - gain)
        worst = self._plans.worst_seconds(gpus)
        least = bundle.least_seconds(worst * (1 + 1e-9))[:, 0]
        orders = np.argsort(least, kind="stable")[:ORDERS]
        cases = [(int(order), 0) for order in orders if least[order] < worst]
        if one.virtual[0] == 1:
            found = self._search.split(
                PendingBundle(gpus, bundle, least[:, None], np.arange(0)), cases
            )
        else:
            to_beat = [self._plans.most_seconds(self._plans.best_score, gpus)] * len(cases)
            every = dealt_cases([(bundle, case) for case in cases], to_beat)
            found = [priced for of_case in every for priced in of_case]
        score = self._plans.score_of
        for priced in found:
            if score(priced.seconds, gpus) < enough:
                self._plans.keep(bundle, gpus, priced)


def _row_of(bundle: Bundle, row: int) -> Bundle:
    """One case by itself."""
    one = np.array([row])
    return Bundle(
        bundle.model,
        bundle.degrees.take(one),
        bundle.virtual[one],
        bundle.options.take(one),
        bundle.arrangements,
        bundle.contents,
        bundle.work_of_kind[one],
    )
