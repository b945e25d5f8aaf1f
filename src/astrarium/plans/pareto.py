"""The front of time against money as parts of the plan document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from astrarium.plans.document import ParetoPart, Plan
from astrarium.value import replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def pareto_of(plans: Sequence[Plan]) -> tuple[ParetoPart, ...]:
    """The plans that no other beats in time and money; without prices time alone decides."""
    points = [_time_and_money(plan) for plan in plans]
    return with_ties(
        [
            pareto_part(plan, index)
            for index, plan in enumerate(plans)
            if not any(
                time <= points[index][0]
                and usd <= points[index][1]
                and (time, usd) != points[index]
                for time, usd in points
            )
        ]
    )


def _time_and_money(plan: Plan) -> tuple[float, float]:
    seconds = plan.iteration_seconds if plan.train_seconds is None else plan.train_seconds
    return seconds, seconds * (plan.usd_per_hour or 0.0)


def pareto_part(
    plan: Plan, index: int, clouds: Mapping[str, tuple[str, str]] | None = None
) -> ParetoPart:
    """A plan as a point: run and money are as uncertain as the iteration they are made of.

    `clouds` has GPU type and cloud of the pools that are offers.
    """
    clouds = clouds or {}
    spread = [bound / plan.iteration_seconds for bound in plan.interval_seconds]

    def interval(middle: float | None) -> tuple[float, float] | None:
        return None if middle is None else (middle * spread[0], middle * spread[1])

    run = plan.run
    return ParetoPart(
        gpus=plan.gpus,
        tokens_per_second=plan.tokens_per_second,
        usd_total=plan.usd_total,
        train_seconds=plan.train_seconds,
        plan=index,
        usd_per_hour=plan.usd_per_hour,
        spot_gpus={} if run is None else run.spot_gpus,
        cloud={clouds[pool][0]: clouds[pool][1] for pool in plan.pools if pool in clouds},
        goodput=1.0 if run is None else run.goodput,
        kwh=None if run is None else run.kwh,
        train_seconds_interval=interval(plan.train_seconds),
        usd_interval=interval(plan.usd_total),
    )


def with_ties(front: Sequence[ParetoPart]) -> tuple[ParetoPart, ...]:
    """The points with `tied_with`: two are tied if each lies within the interval of the other.

    That is asked of the time and, where all have prices, of the money.
    """
    if any(part.train_seconds_interval is None for part in front):
        return tuple(front)
    tied = _within_each_other([(p.train_seconds, p.train_seconds_interval) for p in front])
    if all(part.usd_interval is not None for part in front):
        tied &= _within_each_other([(part.usd_total, part.usd_interval) for part in front])
    return tuple(
        replace(part, tied_with=tuple(other for other in row.nonzero()[0].tolist() if other != own))
        for own, (part, row) in enumerate(zip(front, tied, strict=True))
    )


def _within_each_other(
    spans: Sequence[tuple[float | None, tuple[float, float] | None]],
) -> NDArray[np.bool_]:
    import numpy as np  # plans are explained without it

    middles = np.array([middle for middle, _ in spans], dtype=float)
    bounds = np.array([interval for _, interval in spans], dtype=float).reshape(-1, 2)
    inside = (bounds[:, :1] <= middles) & (middles <= bounds[:, 1:])
    return inside & inside.T
