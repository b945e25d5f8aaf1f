"""Nodes that wait in the queue of a mixed search, each with a bound of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.search.mixed_cases import Bundle
from astrarium.search.mixed_relaxed import LayerFigures
from astrarium.strategy.columns import Degrees, Options

Key = tuple[int, ...]


class Visitor(Protocol):
    """The search, as far as its nodes know it."""

    def branch(self, choice: Choice) -> None: ...

    def branch_straddled(self, choice: StraddledChoice) -> None: ...

    def open_group(self, opened: Opened) -> None: ...

    def look_at(self, cases: Cases) -> None: ...

    def solve(self, node: Ready) -> None: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One row of degrees with some virtual stages, and how fast they can be on each pool."""

    degrees: Degrees
    virtual: int
    chunk_layers: int
    speed: Floats
    layer: Floats
    work: Floats
    bound: float
    figures: Sequence[LayerFigures]
    place: int  # of this row among the figures

    @property
    def tp_cp(self) -> int:
        return int(self.degrees.tp[0] * self.degrees.cp[0])

    @property
    def block(self) -> int:
        return self.tp_cp * int(self.degrees.dp[0])

    @property
    def num_stages(self) -> int:
        return int(self.degrees.pp[0])

    @property
    def batches(self) -> int:
        return int(self.degrees.num_micro_batches[0])

    @property
    def fastest_first(self) -> tuple[int, ...]:
        return tuple(np.argsort(-self.speed, kind="stable").tolist())


@dataclass(frozen=True, slots=True)
class Choice:
    """Stages of the first, fastest, pools are chosen."""

    row: Row
    stages: Key
    bound: float

    def visit(self, search: Visitor) -> None:
        search.branch(self)


@dataclass(frozen=True, slots=True)
class StraddledChoice:
    """Slots (`straddling`) of the first, fastest, pools are chosen; some block will straddle."""

    row: Row
    slots: Key
    bound: float

    def visit(self, search: Visitor) -> None:
        search.branch_straddled(self)


@dataclass(frozen=True, slots=True)
class Opened:
    """A row on chosen GPUs; nothing is asked of the cost model yet."""

    row: Row
    gpus: Key

    @property
    def group(self) -> Key:
        return (self.row.num_stages, *self.gpus)

    def visit(self, search: Visitor) -> None:
        search.open_group(self)


@dataclass(frozen=True, slots=True)
class Ready:
    """A bundle with its bounds, (orders, cases), and those yet to be solved, the best first."""

    gpus: Key
    bundle: Bundle
    bounds: Floats
    ranked: Ints

    def visit(self, search: Visitor) -> None:
        search.solve(self)


@dataclass(frozen=True, slots=True)
class Cases:
    """On the same GPUs: which of the rows chosen, with which options."""

    chosen: Sequence[Opened]
    index: Ints
    options: Options
    bounds: Floats

    def take(self, cases: Ints) -> Cases:
        return Cases(self.chosen, self.index[cases], self.options.take(cases), self.bounds[cases])

    def visit(self, search: Visitor) -> None:
        search.look_at(self)
