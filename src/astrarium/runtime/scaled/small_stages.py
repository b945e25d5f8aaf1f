"""Fewer and shorter stages, with the order of their sizes, their pools and kinds of layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from astrarium.strategy.types import Strategy
from astrarium.value import Value

MOST_CANDIDATES = 12  # ranks among which those that stay are chosen


class PipelineCut(Value, frozen=True):
    """How a pipeline is cut: the first layer of every chunk, and the pools of every rank."""

    bounds: tuple[int, ...]  # one more than chunks; chunk c is on rank c % pp
    pools: tuple[tuple[str, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.pools)

    @property
    def virtual(self) -> int:
        return (len(self.bounds) - 1) // self.ranks

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise(self.bounds))

    def column(self, rank: int) -> tuple[int, ...]:
        """Layers of the chunks of a rank."""
        return self.sizes[rank :: self.ranks]


class SmallCut(Value, frozen=True):
    """Chosen ranks and chunks; for every small chunk the planned layers that it stands for."""

    ranks: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]


def cut_of(strategy: Strategy, bounds: Sequence[int]) -> PipelineCut:
    """The cut of a strategy whose chunks begin at `bounds`."""
    names = {stage.pipeline_rank: tuple(stage.pools) for stage in strategy.stages}
    return PipelineCut(tuple(bounds), tuple(names.get(rank, ()) for rank in range(strategy.pp)))


def distinct_pools(cut: PipelineCut) -> int:
    return len(set(cut.pools))


def small_cut(cut: PipelineCut, ranks: int, virtual: int, extra: int) -> SmallCut:
    """Choose `ranks` of the ranks and `virtual` of their chunks.

    Sizes become 1, 2, ... in their order, and `extra` more each; chunks without layers stay so.
    """
    chosen = _chosen(cut, ranks)
    chunks = [row * cut.ranks + rank for row in _rows(cut, chosen, virtual) for rank in chosen]
    order = sorted({cut.sizes[chunk] for chunk in chunks} - {0})
    layers = []
    for chunk in chunks:
        planned = range(cut.bounds[chunk], cut.bounds[chunk + 1])
        size = min(order.index(len(planned)) + 1 + extra, len(planned)) if planned else 0
        layers.append(_spread(planned, size))
    return SmallCut(chosen, tuple(layers))


def _rows(cut: PipelineCut, ranks: Sequence[int], virtual: int) -> tuple[int, ...]:
    """The first chunks and the last; the fullest in place of the first if all are empty."""
    held = [sum(cut.column(rank)[row] for rank in ranks) for row in range(cut.virtual)]
    rows = (*range(virtual - 1), cut.virtual - 1)
    if any(held[row] for row in rows):
        return rows
    return tuple(sorted((held.index(max(held)), *rows[1:])))


def _spread(planned: range, size: int) -> tuple[int, ...]:
    """Some of the layers of a chunk, the last among them: kinds that come late are seen too."""
    last = len(planned) - 1
    return tuple(planned[last - last * i // max(size - 1, 1)] for i in range(size))[::-1]


def _chosen(cut: PipelineCut, count: int) -> tuple[int, ...]:
    """The ranks that show most: some layers, all pools, unlike sizes, both ends of the pipeline."""
    if count >= cut.ranks:
        return tuple(range(cut.ranks))
    showing: dict[object, list[int]] = {}
    for rank in range(cut.ranks):
        showing.setdefault((cut.pools[rank], cut.column(rank)), []).append(rank)
    ends = {rank for alike in showing.values() for rank in (alike[0], alike[-1])}
    first = sorted({0, cut.ranks - 1, *sorted(ends)[:MOST_CANDIDATES]})
    others = [rank for rank in range(cut.ranks) if rank not in first]
    candidates = sorted([*first, *others[: max(0, count - len(first))]])

    def shown(ranks: tuple[int, ...]) -> tuple[bool, int, int, int]:
        is_filled = any(any(cut.column(rank)) for rank in ranks)
        pools = len({cut.pools[rank] for rank in ranks})
        columns = len({cut.column(rank) for rank in ranks})
        return is_filled, pools, columns, len({0, cut.ranks - 1} & set(ranks))

    return max(combinations(candidates, count), key=shown)
