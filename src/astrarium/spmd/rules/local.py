"""The piece of a tensor on a device, and its shape.

A tensor is spread once for each level of the mesh, the outermost first. Where two levels divide
the same dimension, the inner one deals out the granules of the piece that the outer one gave, in
the proportions of its own division.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from astrarium.spmd.rules.axes import Axes, Division, whole_granules
from astrarium.spmd.rules.layout import Placement

Piece = tuple[int, int]  # first element, and one past the last


def coordinates(device: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """The place of a device on each level of the mesh, the innermost fastest."""
    return tuple(device // prod(mesh[level + 1 :]) % size for level, size in enumerate(mesh))


def local_pieces(
    shape: Sequence[int],
    node: int,
    placement: Placement,
    axes: Axes,
    divisions: Sequence[Division],
    device: int,
) -> tuple[Piece, ...]:
    """The piece of each dimension of a node's tensor that a device has."""
    where = coordinates(device, [division.granules.shape[1] for division in divisions])
    pieces: list[Piece] = []
    for dim, length in enumerate(shape):
        axis = axes.of[node][dim]
        granules = axes.granules[axis]
        start, stop = 0, granules
        for layout, division, at in zip(placement, divisions, where, strict=True):
            if layout.is_shard and layout.dim == dim:
                parts = tuple(division.granules[axis].tolist())
                before, part = _share(parts, stop - start, at)
                start, stop = start + before, start + before + part
        unit = length // granules
        pieces.append((start * unit, stop * unit) if stop - start < granules else (0, length))
    return tuple(pieces)


@lru_cache(maxsize=65536)
def _share(parts: tuple[int, ...], granules: int, at: int) -> tuple[int, int]:
    """Granules of the devices before this one, and its own."""
    if sum(parts) != granules:
        parts = tuple(whole_granules(np.array(parts, np.float64), granules).tolist())
    return sum(parts[:at]), parts[at]


def pieces_along(
    length: int, axis: int, axes: Axes, division: Division, within: Piece | None = None
) -> tuple[Piece, ...]:
    """The pieces of all devices of one level, of a dimension or of a piece of it (`within`)."""
    unit = length // axes.granules[axis]
    start, stop = within or (0, length)
    parts = tuple(division.granules[axis].tolist())
    found = []
    for at in range(len(parts)):
        before, part = _share(parts, (stop - start) // unit, at)
        found.append((start + before * unit, start + (before + part) * unit))
    return tuple(found)
