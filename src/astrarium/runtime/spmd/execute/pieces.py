"""The place of a rank in the mesh, and its own part of every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, distributed

from astrarium.runtime.spmd.execute.collectives import Parts, Peers
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import REPLICATE, Placement, coordinates, local_pieces, pieces_along


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank of a mesh, and whom it exchanges with on each level, the outermost first."""

    rank: int
    coordinates: tuple[int, ...]
    peers: tuple[Peers, ...]
    everyone: Peers


def take_place(
    mesh: tuple[int, ...], rank: int, group: distributed.ProcessGroup | None = None
) -> RankPlace:
    """Make the groups of all levels; called together by all ranks of the mesh (or group)."""
    here = coordinates(rank, mesh)
    everyone = Peers(rank, prod(mesh), group)
    if prod(mesh) == 1:
        return RankPlace(rank, here, (Peers(),) * len(mesh), everyone)
    if len(mesh) == 1:
        return RankPlace(rank, here, (everyone,), everyone)
    peers = []
    for level, size in enumerate(mesh):
        for members in _lines(mesh, level):
            is_here = rank in members
            if group is not None:
                members = [distributed.get_global_rank(group, member) for member in members]
            line = distributed.new_group(members)
            if is_here:
                peers.append(Peers(here[level], size, line))
    return RankPlace(rank, here, tuple(peers), everyone)


def _lines(mesh: tuple[int, ...], level: int) -> list[list[int]]:
    """Ranks that differ on one level alone."""
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(mesh)):
        here = coordinates(rank, mesh)
        lines.setdefault((*here[:level], *here[level + 1 :]), []).append(rank)
    return list(lines.values())


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor: where it begins and how long it is along every dimension."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        return whole[self.slices].clone(memory_format=torch.contiguous_format)

    def of_rows(self, rows: Tensor) -> Tensor:
        """The box of a tensor of which the box's rows alone are there."""
        return Piece((0, *self.starts[1:]), self.sizes).of(rows)

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    def common(self, other: Piece) -> Piece | None:
        """The common part of two boxes of one tensor; None if there is none."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = map(min, self.ends, other.ends)
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Piece(starts, sizes) if min(sizes, default=1) > 0 else None

    def inside(self, other: Piece) -> Piece:
        """The same box, counted from the start of another that holds it."""
        starts = tuple(a - b for a, b in zip(self.starts, other.starts, strict=True))
        return Piece(starts, self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.starts, self.sizes, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(
            slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Cutter:
    """Divides tensors of a program's graph as it says."""

    program: DeviceProgram

    def piece(self, node: int, placement: Placement, rank: int) -> Piece:
        program = self.program
        shape = program.graph.nodes[node].shape
        found = local_pieces(shape, node, placement, program.axes, program.divisions, rank)
        return Piece(
            tuple(start for start, _ in found), tuple(stop - start for start, stop in found)
        )

    def parts(self, node: int, placement: Placement, level: int, rank: int) -> Parts | None:
        """The division by a level of what outer levels left to a rank; None if there is none."""
        layout, program = placement[level], self.program
        if not layout.is_shard:
            return None
        dim = layout.dim
        assert layout not in placement[level + 1 :], "inner pieces are put together first"
        outside = (*placement[:level], *(REPLICATE,) * (len(placement) - level))
        left = self.piece(node, outside, rank)
        within = (left.starts[dim], left.ends[dim])
        length, axis = program.graph.nodes[node].shape[dim], program.axes.of[node][dim]
        pieces = pieces_along(length, axis, program.axes, program.divisions[level], within)
        return Parts(dim, tuple(stop - start for start, stop in pieces))
