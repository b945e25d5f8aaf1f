"""Costs of shards, remembered between searches.

Neither the batch nor the number of GPUs changes what a shard costs, so that whoever edits one of
them, or asks for the same model on other GPUs of the type, meets the same shards again. Each row is
computed by itself: what is remembered is what would be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Final, TypeVar

import numpy as np

from astrarium.arrays import Bools, Ints
from astrarium.cost.ends import EndCosts
from astrarium.cost.tally import LayerCosts, Shards
from astrarium.value import Value

MOST_MODELS: Final = 8
MOST_ROWS: Final = 4096  # of a model; about 0.5 KiB each for every kind of layer

_Costs = TypeVar("_Costs", LayerCosts, EndCosts)
_Priced = tuple[LayerCosts, EndCosts]


class _Known(Value, frozen=True):
    """The shards of one model on one type of GPU; `of` is all that their costs depend on."""

    of: tuple[object, ...]
    place: dict[tuple[int, ...], int]
    costs: _Priced


_memory: list[_Known] = []  # the last used first


def remembered(
    of: tuple[object, ...], shards: Shards, price: Callable[[Shards], _Priced]
) -> _Priced:
    """The costs of these shards, of which only those that were not asked for before are priced."""
    columns = [getattr(shards, field.name).tolist() for field in fields(shards)]
    keys = list(zip(*columns, strict=True))
    known = next((one for one in _memory if one.of == of), None)
    place = {} if known is None else known.place
    new = [row for row, key in enumerate(keys) if key not in place]
    if known is None or len(place) + len(new) > MOST_ROWS:
        found = _Known(of, {key: row for row, key in enumerate(keys)}, price(shards))
    elif new:
        more = price(_rows_of_shards(shards, np.array(new)))
        layers, ends = known.costs
        places = {keys[row]: len(place) + number for number, row in enumerate(new)}
        both = stacked([layers, more[0]]), stacked([ends, more[1]])
        found = _Known(of, {**place, **places}, both)
    else:
        found = known
    _keep(known, found)
    rows = np.array([found.place[key] for key in keys], np.int64)
    return rows_of(found.costs[0], rows), rows_of(found.costs[1], rows)


def _keep(old: _Known | None, found: _Known) -> None:
    """To the front; what is not used for long falls out, and too large a table is not kept."""
    others = [one for one in _memory if one is not old]
    kept = [found] if len(found.place) <= MOST_ROWS else []
    _memory[:] = [*kept, *others][:MOST_MODELS]


def _rows_of_shards(shards: Shards, rows: Ints) -> Shards:
    columns: dict[str, Ints | Bools] = {f.name: getattr(shards, f.name) for f in fields(shards)}
    return Shards(**{name: column[rows] for name, column in columns.items()})  # type: ignore[arg-type]


def rows_of(costs: _Costs, rows: Ints) -> _Costs:
    return replace(costs, **{f.name: getattr(costs, f.name)[rows] for f in fields(costs)})


def stacked(costs: Sequence[_Costs]) -> _Costs:
    names = [field.name for field in fields(costs[0])]
    columns = {name: np.concatenate([getattr(one, name) for one in costs]) for name in names}
    return replace(costs[0], **columns)
