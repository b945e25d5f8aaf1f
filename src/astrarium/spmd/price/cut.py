"""What every device has of a tensor, as shares: the view of a division that prices need.

Devices of one class with equal shares of all axes are alike; prices are computed for one of
each kind (a column) and read by all. Shares need not be whole granules: prices of divisions in
between are what ratios are chosen by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.graph import Graph
from astrarium.spmd.price.devices import Devices
from astrarium.spmd.price.work import Shape
from astrarium.spmd.program import Instruction, Priced
from astrarium.spmd.rules import Axes, Division, Placement
from astrarium.value import Value


class Cut(Value, frozen=True, dict=True):
    """Shares of axes: by level and place on it for messages, by column for work."""

    axes: Axes
    placed: tuple[Floats, ...]  # by level: [axis, place]
    shares: tuple[Floats, ...]  # by level: [axis, column]
    columns: Ints  # the device that each column stands for
    column_of: Ints  # the column of each device
    classes: tuple[int, ...]  # of each column

    @property
    def count(self) -> int:
        return len(self.columns)

    @property
    def levels(self) -> int:
        return len(self.placed)

    @cached_property
    def axis_keys(self) -> tuple[int, ...]:
        """Equal numbers for axes that are divided alike on every level."""
        rows = np.concatenate(self.placed, axis=1)
        known: dict[bytes, int] = {}
        return tuple(known.setdefault(row.tobytes(), len(known)) for row in rows)

    @cached_property
    def rows(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """`placed` as numbers that can be looked up by: [level][axis]."""
        return tuple(tuple(map(tuple, level.tolist())) for level in self.placed)

    def local_shape(self, shape: tuple[int, ...], node: int, placement: Placement) -> Shape:
        """The shape of a node's value by column."""
        sizes: list[Floats | float] = [float(size) for size in shape]
        for level, layout in enumerate(placement):
            if layout.is_shard:
                axis = self.axes.of[node][layout.dim]
                sizes[layout.dim] = sizes[layout.dim] * self.shares[level][axis]
        return tuple(sizes)

    def scaled(self, level: int, factor: float) -> Cut:
        """Every column with so many times its share of the axes of a level, at most all.

        A column without any share counts as one with an equal share.
        """
        shares = self.shares[level]
        base = np.where(shares > 0, shares, 1.0 / self.placed[level].shape[1])
        changed = list(self.shares)
        changed[level] = np.minimum(base * factor, 1.0)
        return replace(self, shares=tuple(changed))


def cut_of(axes: Axes, divisions: Sequence[Division], devices: Devices) -> Cut:
    """The shares of a division for these devices."""
    placed = tuple(_shares(division) for division in divisions)
    by_device = [
        share[:, devices.coordinates[level]] for level, share in enumerate(placed)
    ]  # each [axis, device]
    keys = np.concatenate([devices.class_of[None, :].astype(float), *by_device]).T
    _, columns, column_of = np.unique(
        np.ascontiguousarray(keys), axis=0, return_index=True, return_inverse=True
    )
    return Cut(
        axes=axes,
        placed=placed,
        shares=tuple(share[:, columns] for share in by_device),
        columns=columns,
        column_of=column_of.reshape(-1),
        classes=tuple(devices.class_of[columns].tolist()),
    )


def _shares(division: Division) -> Floats:
    granules = division.granules.astype(np.float64)
    return granules / np.maximum(granules.sum(axis=1, keepdims=True), 1.0)


def axis_of_layout(axes: Axes, node: int, placement: Placement, level: int) -> int:
    """The axis that a level divides a value along; -1: none."""
    layout = placement[level]
    return axes.of[node][layout.dim] if layout.is_shard else -1


def axis_of_choice(
    graph: Graph, axes: Axes, node: int, one: Priced | Instruction, level: int
) -> int:
    """The axis that a level divides an operator's work along; -1: every device does all of it."""
    read = zip((node, *graph.inputs[node]), (one.gives, *one.needs), strict=True)
    found = (axis_of_layout(axes, value, placement, level) for value, placement in read)
    return next((axis for axis in found if axis >= 0), -1)
