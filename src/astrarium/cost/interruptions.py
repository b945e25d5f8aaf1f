"""Costs of interruptions: checkpoints, work done again, restarts.

The model is Daly's complete one (Future Generation Computer Systems 22, 2006): interruptions come
at a constant rate, whatever happened before, and one of any node stops all of them. Work is done
in stretches of `interval` seconds, each followed by a checkpoint. An interruption throws the
run back to the end of the last checkpoint, by way of a restart: the time to get a replacement, to
load the checkpoint and to be at full speed again. Interruptions strike during checkpoints and
restarts, too; a checkpoint that was not finished is of no use, and a restart begins anew.

With M seconds between interruptions, checkpoints of d and restarts of R seconds, a run needs

    M exp(R / M) (exp((interval + d) / M) - 1) / interval

seconds for each second of work, on average, and the best interval does not depend on R. All
functions take numbers or arrays that broadcast. A run that makes no headway takes forever: inf.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats, Ints
from astrarium.cost.checkpoints import Protection
from astrarium.units import HOUR
from astrarium.value import Value

# Of one spot node: one of ten nodes a day, the middle of what Google's documentation of preemptible
# machines once stated, as others quote it: 5 to 15 % a day on a seven-day average, of all types.
# Some copies have "per seven days" instead, which is seven times less. Known to a factor of ten at
# best: the highest band of AWS's Spot Instance Advisor begins at 20 % a month (0.0003 an hour),
# while two traces of single zones (one and four V100 on AWS, 2023; skypilot-org/spot-traces),
# looked at and not counted, have several interruptions a day.
DEFAULT_INTERRUPTIONS_PER_HOUR = 0.10 / 24

# Of any node of eight GPUs, spot or not: Llama 3 405B had 419 unexpected interruptions in 54 days
# on 2,048 nodes ("The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.4): 1.6e-4 an hour.
# Others have about as many: MegaScale over 100 in several weeks on more than 1,250 nodes (arXiv
# 2402.15627), 1.2e-4 in four weeks; OPT-175B at least 35 restarts by hand, and 70 more by itself as
# it estimates, in two months on 124 nodes (arXiv 2205.01068): 2e-4 to 6e-4.
DEFAULT_FAILURES_PER_HOUR = 1.6e-4

_NEWTON_STEPS = 6  # each doubles the digits that are right, from one on
_SERIES_BELOW = 1e-3  # where differences such as z + exp(-z) - 1 lose too many digits
_HOPELESS = 1e4  # interruptions in one attempt; exp() of it is inf


def best_interval(
    rate: ArrayLike,
    checkpoint_seconds: ArrayLike,
    *,
    shortest: ArrayLike = 0.0,
    longest: ArrayLike = np.inf,
) -> Floats:
    """Work between checkpoints that makes a run fastest, within bounds; `rate` is per second.

    With x = rate * interval and a = rate * checkpoint the optimum has x + log(1 - x) + a = 0 (a
    branch of Lambert's function). It is solved for z = -log(1 - x), for which neither small nor
    large a loses digits: z + exp(-z) - 1 = a is convex, so that Newton's method falls from a start
    above the solution straight onto it. Young's sqrt(2 d M), or sqrt(2 a) for x, is such a start.
    """
    often, saving = np.broadcast_arrays(np.asarray(rate, float), checkpoint_seconds)
    if often.ndim:
        best = _unbounded_interval(often, saving)
    else:
        best = _interval_of_one(float(often), float(saving))
    return np.minimum(np.maximum(best, shortest), longest)


@lru_cache(maxsize=1024)
def _interval_of_one(often: float, saving: float) -> Floats:
    """All plans with as many nodes are interrupted as often, and save their state as fast."""
    return _unbounded_interval(np.asarray(often), np.asarray(saving))


def _unbounded_interval(often: Floats, saving: Floats) -> Floats:
    a = often * saving
    z = a + np.minimum(np.sqrt(2 * a), 1.0)
    for _ in range(_NEWTON_STEPS):
        slope = np.where(z > 0, -np.expm1(-z), 1.0)
        z = np.maximum(z - (_excess(z) - a) / slope, 0.0)
    return np.divide(-np.expm1(-z), often, out=np.full(often.shape, np.inf), where=often > 0)


def _excess(z: Floats) -> Floats:
    """z + exp(-z) - 1, to all digits."""
    small = np.minimum(z, _SERIES_BELOW)
    series = small * small * (1 / 2 - small * (1 / 6 - small * (1 / 24 - small / 120)))
    return np.where(z < _SERIES_BELOW, series, z + np.expm1(-z))


class Overheads(Value, frozen=True):
    """Expected seconds for each second of work, by cause."""

    checkpoints: Floats  # those that were finished and kept
    lost: Floats  # work and checkpoints that an interruption undid
    restarts: Floats  # those interrupted themselves included

    @property
    def stretch(self) -> Floats:
        """Seconds that a second of work takes."""
        return 1 + self.checkpoints + self.lost + self.restarts

    @property
    def goodput(self) -> Floats:
        """The share of the time in which the run gets on."""
        return 1 / self.stretch


def overheads(
    rate: ArrayLike, interval: ArrayLike, checkpoint_seconds: ArrayLike, restart_seconds: ArrayLike
) -> Overheads:
    """Costs of interruptions at a rate (per second), by the interval between checkpoints.

    An infinite interval means no checkpoints: right for a rate of zero, hopeless for any other.
    """
    given = (rate, interval, checkpoint_seconds, restart_seconds)
    often, work, saving, restart = np.broadcast_arrays(*(np.asarray(x, float) for x in given))
    none = np.zeros(often.shape)
    checkpoints = np.divide(saving, work, out=none.copy(), where=saving > 0)
    # An attempt is a stretch of work and its checkpoint; so many interruptions come in one.
    in_attempt = np.multiply(often, work + saving, out=none.copy(), where=often > 0)
    again = _repeated(in_attempt)
    tried = (1 + again) * (1 + checkpoints)
    with np.errstate(over="ignore"):
        in_restart = np.expm1(often * restart)
        restarts = np.multiply(tried, in_restart, out=none, where=in_restart > 0)
    return Overheads(checkpoints, again * (1 + checkpoints), restarts)


def _repeated(interruptions: Floats) -> Floats:
    """Time that failed attempts take for each second of the one that succeeds.

    (exp(y) - 1) / y - 1 for y interruptions in the time of an attempt.
    """
    small = np.minimum(interruptions, _SERIES_BELOW)
    series = small * (1 / 2 + small * (1 / 6 + small / 24))
    large = np.clip(interruptions, _SERIES_BELOW, _HOPELESS)
    with np.errstate(over="ignore"):
        return np.where(interruptions < _SERIES_BELOW, series, np.expm1(large) / large - 1)


def protected(rate: ArrayLike, work_seconds: ArrayLike, protection: Protection) -> Overheads:
    """The overheads of a run of so much work, with the interval of its protection or the best.

    Where no interval is given, a run saves checkpoints only if that makes it faster: one that
    nothing interrupts saves none, and neither does one that is too short for them.
    """
    interval = interval_of(rate, work_seconds, protection)
    saving = np.where(np.isfinite(interval), protection.checkpoint_seconds, 0.0)
    interval = np.minimum(interval, work_seconds)
    return overheads(rate, interval, saving, protection.restart_seconds)


def interval_of(rate: ArrayLike, work_seconds: ArrayLike, protection: Protection) -> Floats:
    """Work between checkpoints; infinite where none are saved."""
    if protection.interval_seconds is not None:
        given = np.maximum(protection.interval_seconds, protection.shortest_interval)
        return np.minimum(given, work_seconds)
    best = best_interval(
        rate,
        protection.checkpoint_seconds,
        shortest=protection.shortest_interval,
        longest=work_seconds,
    )
    restart = protection.restart_seconds
    saved = overheads(rate, best, protection.checkpoint_seconds, restart).stretch
    unsaved = overheads(rate, work_seconds, 0.0, restart).stretch
    return np.where((np.asarray(rate) > 0) & (saved < unsaved), best, np.inf)


class Rental(Value, frozen=True):
    """Prices and failure rates of the nodes of each pool; arrays have pools as last axis.

    Prices are those of one node and hour; `spot_usd` is nan where none is on offer.
    `interruptions_per_hour` are those of one spot node, `failures_per_hour` the breakdowns of any.
    """

    nodes: Ints
    usd: Floats
    spot_usd: Floats
    interruptions_per_hour: Floats
    failures_per_hour: Floats

    def rate(self, spot_nodes: Ints) -> Floats:
        """Interruptions a second of a run, of whose nodes so many (..., pools) are spot."""
        per_hour = spot_nodes * self.interruptions_per_hour + self.nodes * self.failures_per_hour
        return per_hour.sum(axis=-1) / HOUR

    def usd_per_hour(self, spot_nodes: Ints) -> Floats:
        saved = np.where(np.isnan(self.spot_usd), 0.0, self.usd - self.spot_usd)
        return (self.nodes * self.usd).sum(axis=-1) - (spot_nodes * saved).sum(axis=-1)

    def usd_per_hour_of_pools(self, spot_nodes: Ints) -> Floats:
        """The same for each pool by itself."""
        spot_usd = np.where(np.isnan(self.spot_usd), self.usd, self.spot_usd)
        return np.asarray((self.nodes - spot_nodes) * self.usd + spot_nodes * spot_usd)

    @property
    def worth_of_spot(self) -> Floats:
        """USD saved for each interruption that a spot node brings; least where none is on offer."""
        saved = np.where(np.isnan(self.spot_usd), -np.inf, self.usd - self.spot_usd)
        free = np.where(saved > 0, np.inf, -np.inf)
        risk = np.broadcast_to(self.interruptions_per_hour, saved.shape)
        return np.divide(saved, risk, out=free, where=risk > 0)


def greedy_mixes(rental: Rental) -> Ints:
    """Spot nodes by pool: one more with each choice, of the pool that saves most an interruption.

    (..., choices, pools); a rental with fewer nodes than others repeats its last choice.
    """
    order = np.argsort(-rental.worth_of_spot, kind="stable")
    offered = np.where(np.isnan(rental.spot_usd), 0, rental.nodes)
    offered = np.take_along_axis(offered, order, axis=-1)
    before = np.cumsum(offered, axis=-1) - offered
    choices = np.arange(int(offered.sum(axis=-1).max()) + 1)[:, None]
    taken = np.clip(choices - before[..., None, :], 0, offered[..., None, :])
    mixes = np.empty_like(taken)
    np.put_along_axis(mixes, np.broadcast_to(order[..., None, :], taken.shape), taken, axis=-1)
    return mixes
