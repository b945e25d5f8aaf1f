"""Capacity and prices over time: read from CSV, or drawn by seed.

A row of a file says how many GPUs of a type or pool there are from an hour on, and what one costs
an hour. The last hour of a file is its end.

A drawn trace lets groups of nodes come and go, each by itself: it is there for an exponential time,
away for another, and begins there. Prices are a random walk that returns to their mean, drawn each
hour: each hour half of the distance is kept, and a normal deviation added.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from astrarium.cluster import Cluster, Pool
from astrarium.cost.interruptions import DEFAULT_INTERRUPTIONS_PER_HOUR
from astrarium.documents.parsing import csv_rows
from astrarium.errors import InputError
from astrarium.value import Value

COLUMNS: Final = ("hours", "gpu", "gpus")
PRICE: Final = "usd_per_gpu_hour"
MOST_HOURS: Final = 24 * 366 * 10
_KEPT = 0.5  # of the distance of a price from its mean, an hour later


class Span(Value, frozen=True):
    """A time without changes: GPUs and, where they are known, prices by type or pool."""

    hours: float
    gpus: Mapping[str, int]
    usd: Mapping[str, float]


class CapacityTrace(Value, frozen=True):
    spans: tuple[Span, ...]

    @property
    def hours(self) -> float:
        return sum(span.hours for span in self.spans)


def read_trace(path: Path) -> CapacityTrace:
    """The trace of a CSV file; InputError names the line."""
    (_, header), *lines = csv_rows(path) or [(1, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        wanted = f"{', '.join(COLUMNS)} and, for prices, {PRICE}"
        raise InputError(f"{path}: no column '{missing[0]}'; expected {wanted}")
    changes: dict[float, dict[str, tuple[int, float | None]]] = {}
    last = 0.0
    for number, cells in lines:
        row = dict(zip(header, cells, strict=False))
        where = f"{path}:{number}"
        hours = _number(row, "hours", where, MOST_HOURS)
        gpus = _number(row, "gpus", where, 2**24)
        if hours < last:
            raise InputError(f"{where}: hour {hours:g} comes after hour {last:g}; sort the rows")
        if gpus != int(gpus):
            raise InputError(f"{where}: gpus: expected a whole number, got {gpus:g}")
        name = row.get("gpu", "").strip()
        if not name:
            raise InputError(f"{where}: gpu is empty; name a type such as h100, or a pool")
        usd = _number(row, PRICE, where, 1e6) if row.get(PRICE, "").strip() else None
        if name in changes.setdefault(hours, {}):
            raise InputError(f"{where}: a second row for {name} at hour {hours:g}; keep one")
        changes[hours][name] = int(gpus), usd
        last = hours
    if not changes:
        raise InputError(f"{path}: the trace is empty; rows are such as 0,h100,64,2.5")
    if len(changes) == 1:
        raise InputError(f"{path}: all rows are of one hour; a last row says when the trace ends")
    return _of_changes(changes)


def _number(row: Mapping[str, str], name: str, where: str, most: float) -> float:
    try:
        value = float(row.get(name, ""))
    except ValueError:
        raise InputError(f"{where}: {name}: expected a number, got '{row.get(name, '')}'") from None
    if not 0 <= value <= most:
        raise InputError(f"{where}: {name}: expected 0 to {most:,.0f}, got {value:g}")
    return value


def _of_changes(changes: Mapping[float, Mapping[str, tuple[int, float | None]]]) -> CapacityTrace:
    gpus: dict[str, int] = {}
    usd: dict[str, float] = {}
    spans = []
    for begin, end in pairwise(sorted(changes)):
        gpus |= {name: count for name, (count, _) in changes[begin].items()}
        usd |= {name: price for name, (_, price) in changes[begin].items() if price is not None}
        spans.append(Span(end - begin, dict(gpus), dict(usd)))
    return CapacityTrace(tuple(spans))


class Drawn(Value, frozen=True):
    """The settings of a drawn trace; rates are those of one group of nodes."""

    hours: float
    seed: int = 0
    losses_per_hour: float = DEFAULT_INTERRUPTIONS_PER_HOUR
    hours_away: float = 4.0
    nodes_together: int = 4
    price_deviation: float = 0.0  # of an hour, relative to the mean


def drawn_trace(cluster: Cluster, drawn: Drawn) -> CapacityTrace:
    """A trace of the pools of a cluster; the same for the same seed."""
    generator = np.random.default_rng(drawn.seed)
    changes: dict[float, dict[str, tuple[int, float | None]]] = {drawn.hours: {}}
    for pool in cluster.pools:
        gpus = _capacities(pool, drawn, generator)
        usd = _prices(pool.usd_per_gpu_hour, drawn, generator)
        now: tuple[int, float | None] = pool.num_gpus, None
        for hours in sorted({*gpus, *usd}):
            now = gpus.get(hours, now[0]), usd.get(hours, now[1])
            changes.setdefault(hours, {})[pool.name] = now
    return _of_changes(changes)


def _capacities(pool: Pool, drawn: Drawn, generator: np.random.Generator) -> dict[float, int]:
    """The GPUs that are there, by hour: at the beginning and after each change."""
    events: list[tuple[float, int]] = []
    for first in range(0, pool.nodes, drawn.nodes_together):
        size = min(drawn.nodes_together, pool.nodes - first) * pool.gpus_per_node
        time = 0.0
        while drawn.losses_per_hour > 0:
            time += generator.exponential(1 / drawn.losses_per_hour)
            back = time + generator.exponential(drawn.hours_away)
            if time >= drawn.hours:
                break
            events += [(time, -size), (back, size)]
            time = back
    found, now = {0.0: pool.num_gpus}, pool.num_gpus
    for hours, change in sorted(event for event in events if event[0] < drawn.hours):
        now += change
        found[round(hours, 6)] = now
    return found


def _prices(mean: float | None, drawn: Drawn, generator: np.random.Generator) -> dict[float, float]:
    """Prices by hour; one if they stay, none if there is none."""
    if mean is None or not drawn.price_deviation:
        return {} if mean is None else {0.0: mean}
    found, off = dict[float, float](), 0.0
    for hour in range(math.ceil(drawn.hours)):
        found[float(hour)] = round(mean * max(1 + off, 0.05), 4)
        off = _KEPT * off + drawn.price_deviation * float(generator.standard_normal())
    return found


def trace_csv(trace: CapacityTrace) -> str:
    """The trace as a file that `read_trace` reads."""
    text, hours = StringIO(), 0.0
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*COLUMNS, PRICE])
    for span in (*trace.spans, trace.spans[-1]):  # the last once more, at the end
        rows.writerows([hours, n, g, span.usd.get(n, "")] for n, g in span.gpus.items())
        hours += span.hours
    return text.getvalue()
