"""Plans that no other beats in both time and money, and what would still be one of them.

A plan is known here by the seconds of its iteration and the GPUs it takes. What a run then takes
and costs is arithmetic (`Ways`): the same GPUs can be paid for in several ways, on demand or with
some of them as spot, and each way has its own stretch of time and its own dollars per hour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.search.outcome import Found
from astrarium.units import HOUR
from astrarium.value import Value

ON_THE_FRONT = 1.0 - 1e-12  # of the seconds below which a plan would be: no more than rounding


class PaymentWays(Value, frozen=True):
    """Ways to pay for GPUs: (rows, ways).

    A run takes `stretch` times its iterations and costs `hourly` USD per hour; `spot` (rows, ways)
    are nodes that may be taken away. Rows with fewer ways than others repeat their last.
    """

    stretch: Floats
    hourly: Floats
    spot: Ints

    @classmethod
    def on_demand(cls, hourly: Floats) -> PaymentWays:
        """The one way at so many USD an hour, with nothing lost."""
        column = hourly[:, None]
        return cls(np.ones_like(column), column, np.zeros(column.shape, np.int64))

    def take(self, rows: Ints | Bools) -> PaymentWays:
        return PaymentWays(self.stretch[rows], self.hourly[rows], self.spot[rows])


class Point(Value, frozen=True):
    """A plan on the front, paid for in one way. Time and money are per iteration."""

    seconds: float  # stretched
    usd: float
    pool: int  # of the cluster
    spot: int  # nodes
    found: Found


class Archive:
    """The front of all plans entered so far, the fastest first."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._seconds, self._usd = np.zeros(0), np.zeros(0)

    def limits(self, ways: PaymentWays) -> Floats:
        """Seconds of an iteration below which a plan would be on the front: one per row.

        A point outdoes every plan that takes no less time and no less money. Along the front time
        rises and money falls, so of all points the one where they cross decides.
        """
        if not self.points:
            return np.full(len(ways.hourly), np.inf)
        per_second = self._usd / self._seconds  # falls along the front
        rate = ways.hourly / HOUR
        crossing = np.searchsorted(-per_second, -rate, side="left")
        time = np.append(self._seconds, np.inf)[crossing]
        money = np.append(np.inf, self._usd)[crossing]
        with np.errstate(divide="ignore", invalid="ignore"):
            by_money = np.where(np.isinf(money), np.inf, money / rate)
        # What makes no headway is on no front.
        within = np.minimum(time, by_money)
        runs = ways.stretch < np.inf
        limits = np.divide(within, ways.stretch, out=np.zeros_like(within), where=runs)
        return np.asarray(limits.max(axis=1))

    def enter(self, founds: Sequence[Found], pool: int, ways: PaymentWays) -> None:
        """Add plans of a pool; those outdone fall out. Of equal ones the first entered stays."""
        if not founds:
            return
        taken = np.array([found.seconds for found in founds])
        seconds = taken[:, None] * ways.stretch
        usd = seconds * ways.hourly / HOUR
        new = [
            Point(float(seconds[i, w]), float(usd[i, w]), pool, int(ways.spot[i, w]), found)
            for i, found in enumerate(founds)
            for w in _undominated(seconds[i], usd[i])
        ]
        every = [*self.points, *new]
        kept = _undominated(
            np.array([point.seconds for point in every]), np.array([point.usd for point in every])
        )
        self.points = [every[i] for i in kept]
        self._seconds = np.array([point.seconds for point in self.points])
        self._usd = np.array([point.usd for point in self.points])


def _undominated(seconds: Floats, usd: Floats) -> list[int]:
    """Places of points that no other outdoes, the fastest first."""
    order = np.lexsort((np.arange(len(seconds)), usd, seconds))
    cheapest = np.minimum.accumulate(usd[order])
    before = np.append(np.inf, cheapest[:-1])
    return [int(i) for i in order[usd[order] < before]]
