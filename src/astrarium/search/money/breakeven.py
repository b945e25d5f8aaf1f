"""At which price of one pool another plan becomes the best: closed form, nothing is searched.

Plans take their time whatever is paid for them, and their money is a line: with the price of a pool
`factor` times what it is, a plan costs `other + own * factor`. The best plan can change only where
two lines cross, or where one crosses the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Floats
from astrarium.search.outcome import Limits, Objective
from astrarium.value import Value

Key = tuple[int, ...]  # GPUs of each pool: what an answer is known by

_BESIDE = 1e-9  # how far beside a crossing one looks which side is which


class MoneyLines(Value, frozen=True):
    """Plans by their GPUs, seconds, and money in two parts."""

    keys: Sequence[Key]
    seconds: Floats
    other: Floats
    own: Floats

    def best(self, factor: float, objective: Objective, limits: Limits) -> int | None:
        """The best plan that keeps the limits."""
        usd = self.other + self.own * factor
        late, dear = limits.deadline_seconds, limits.budget_usd
        kept = self.seconds <= (np.inf if late is None else late)
        kept &= usd <= (np.inf if dear is None else dear)
        if not kept.any():
            return None
        first, second = (usd, self.seconds) if objective is Objective.COST else (self.seconds, usd)
        rows = np.flatnonzero(kept)
        return int(rows[np.lexsort((second[rows], first[rows]))[0]])

    def crossings(self, plan: int, limits: Limits) -> Floats:
        """Factors at which a plan may become or cease to be the best."""
        with np.errstate(divide="ignore", invalid="ignore"):
            lines = (self.other - self.other[plan]) / (self.own[plan] - self.own)
            if limits.budget_usd is None:
                return lines
            return np.concatenate([lines, (limits.budget_usd - self.other) / self.own])


def first_change(
    lines: MoneyLines, objective: Objective, limits: Limits, farthest: float
) -> tuple[float, Key] | None:
    """The factor between 1 and `farthest` that is nearest to 1 and changes the GPUs; to which.

    No GPUs if no plan keeps the limits then; None if no factor changes anything.
    """
    now = lines.best(1.0, objective, limits)
    if now is None:
        return None
    up = farthest > 1.0
    at, plan, beside = 1.0, now, 1 + _BESIDE if up else 1 - _BESIDE
    while True:
        factors = lines.crossings(plan, limits)
        ahead = (factors >= at) & (factors <= farthest)
        if not up:
            ahead = (factors <= at) & (factors >= farthest)
        for factor in np.sort(factors[ahead])[:: 1 if up else -1].tolist():
            then = lines.best(factor * beside, objective, limits)
            if then is None:
                return factor, ()
            if lines.keys[then] != lines.keys[now]:
                return factor, lines.keys[then]
            if then != plan:
                break
        else:
            return None
        # The same GPUs, paid for or used in another way: go on from there.
        at, plan = factor * beside, then
