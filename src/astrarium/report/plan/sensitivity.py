"""Changes of the answer, in words: prices, networks, and the next plans on the front."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Final

from rich.console import RenderableType

from astrarium.plans.document import PlanDocument, SensitivityPart
from astrarium.report.front.points import PlottedFront, PlottedPoint, front_of, gpus_of
from astrarium.report.tables import Field, indented, listing, percent, title
from astrarium.report.wording import short_types, unit_price
from astrarium.units import format_rate, format_seconds

ROWS: Final = 12  # that are nearest to changing the answer
MOST_NAMED: Final = 12  # pools that change nothing, one by one

NONE: Final = "none: no plan keeps the limits"
TITLES: Final = {"price": "price of", "network": "network of", "link": "link"}


def sensitivity_section(
    document: PlanDocument, parts: Sequence[SensitivityPart], width: int
) -> Iterator[RenderableType]:
    """The nearest changes, what changes nothing, and the neighbours on the front."""
    names = _names(document)
    answer = gpus_of(document.plans[0].pools, names)
    yield title(f"What would change the answer, {answer}")
    found = sorted(
        (part for part in parts if part.factor), key=lambda part: abs(log(part.factor or 1.0))
    )
    if found:
        yield from listing(_fields(found[:ROWS], names), width)
    if len(found) > ROWS:
        yield indented(f"{len(found) - ROWS:,} more changes are farther away; --json has all")
    search = document.search
    if search and search.objective != "cost" and search.budget_usd is None:
        yield indented("no price matters: time decides, and there is no budget")
    yield from map(indented, (*_in_vain(parts, names), *neighbour_lines(document)))


def _names(document: PlanDocument) -> dict[str, str]:
    """Pools in short: GPU types, and the cloud where there are offers of several."""
    types = short_types(dict.fromkeys(pool.gpu for pool in document.cluster.pools))
    names = {
        pool.name: f"{types[pool.gpu]}@{pool.cloud}" if pool.cloud else types[pool.gpu]
        for pool in document.cluster.pools
    }
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


def _fields(parts: Sequence[SensitivityPart], names: Mapping[str, str]) -> list[Field]:
    return [
        Field("what", [f"{TITLES[p.what]} {_pool(p, names)}" for p in parts], prose=True),
        Field("today", [_value(part.what, part.value_now) for part in parts], right=True),
        Field("then", [_value(part.what, part.value_then or 0.0) for part in parts], right=True),
        Field("change", [_change(part.factor or 1.0) for part in parts], right=True),
        Field("answer then", [gpus_of(p.gpus_then, names) or NONE for p in parts], prose=True),
    ]


def _pool(part: SensitivityPart, names: Mapping[str, str]) -> str:
    return " - ".join(names.get(name, name) for name in part.pool.split(" - "))


def _value(what: str, value: float) -> str:
    return f"{unit_price(value)}/h" if what == "price" else f"{format_rate(value)}"


def _change(factor: float) -> str:
    if factor >= 2:
        return f"x {factor:.1f}"
    if factor <= 1 / 2:
        return f"/ {1 / factor:.1f}"
    return f"{100 * (factor - 1):+.1f} %"


def _in_vain(parts: Sequence[SensitivityPart], names: Mapping[str, str]) -> Iterator[str]:
    """The changes that never change the answer, within the range that is tried."""
    groups: dict[tuple[str, float], list[str]] = {}
    for part in parts:
        if part.unchanged_to is not None:
            groups.setdefault((part.what, part.unchanged_to), []).append(_pool(part, names))
    for (what, farthest), pools in groups.items():
        how = f"up to {farthest:g} times" if farthest > 1 else f"down to 1/{1 / farthest:g} of"
        which = ", ".join(pools) if len(pools) <= MOST_NAMED else f"{len(pools)} pools"
        yield f"unchanged with a {what} {how} today's: {which}"


def neighbour_lines(document: PlanDocument) -> Iterator[str]:
    """The gain of more money, and of more time: the points next to the chosen one."""
    front = front_of(document)
    chosen = front.chosen
    if chosen is None or not front.priced:
        return
    at = front.points.index(chosen)
    if at > 0:
        faster = front.points[at - 1]
        money, time = _apart(front, chosen, faster)
        yield f"{money} more buys {time} less: {_gpus(front, faster)}"
    if at + 1 < len(front.points):
        cheaper = front.points[at + 1]
        money, time = _apart(front, chosen, cheaper)
        yield f"{time} more saves {money}: {_gpus(front, cheaper)}"


def _apart(front: PlottedFront, chosen: PlottedPoint, other: PlottedPoint) -> tuple[str, str]:
    """Money and time between two points, with their shares of what the chosen one takes."""
    usd, seconds = abs(other.cost - chosen.cost), abs(other.seconds - chosen.seconds)
    share = f" ({percent(usd / chosen.cost)})" if chosen.cost else ""
    return (
        f"{front.cost_words(usd)}{share}",
        f"{format_seconds(seconds)} ({percent(seconds / chosen.seconds)})",
    )


def _gpus(front: PlottedFront, point: PlottedPoint) -> str:
    return f"plan {point.plan.rank}, {gpus_of(point.part.gpus, front.types)}"
