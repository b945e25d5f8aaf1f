"""The time of pipelines with virtual stages: executed pass by pass, with their chunks as they are.

1F1B needs no execution: there the closed form is the longest chain itself. With virtual stages it
is a lower bound (`schedule.pipeline_seconds`), by which a search decides what to execute.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.layouts import Layouts
from astrarium.cost.simulator import ChunkPasses, seconds_together
from astrarium.cost.step import layer_work, pipeline_of, rank_parts
from astrarium.strategy.columns import Options

# Groups of pp micro-batches after which a pipeline repeats itself: every further one takes as long
# as the last. Where groups are short, as many as have MICRO_BATCHES_TO_SETTLE micro-batches.
# Against whole executions of random pipelines, chunks of a rank up to half as long again as others,
# this is 0.007 % too short on average, 1.1 % at most; with chunks of any size up to 3.2 %.
SETTLED_GROUPS: Final = 6
MICRO_BATCHES_TO_SETTLE: Final = 48
MOST_EXECUTED: Final = 4096  # remembered; a few KiB each


def is_executed(layouts: Layouts, rows: Ints) -> Bools:
    """Layouts whose virtual stages can be executed: whole groups of micro-batches."""
    pp, batches = layouts.degrees.pp[rows], layouts.degrees.num_micro_batches[rows]
    return np.asarray((layouts.virtual[rows] > 1) & (pp > 1) & (batches % pp == 0))


def executed_totals(layouts: Layouts, rows: Ints, options: Options, bounds: Floats) -> Floats:
    """Seconds of iterations, from `total_seconds`: pipelines with virtual stages are executed."""
    at = np.flatnonzero(is_executed(layouts, rows))
    found = bounds.copy()
    if len(at):
        chosen, of = rows[at], options.take(at)
        least = pipeline_of(layouts, chosen, of)
        found[at] += np.maximum(_replayed(layouts, chosen, of), least) - least
    return found


def replayed_seconds(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Seconds of all passes of layouts with virtual stages; row i with row i of the options.

    Never below the bound: where executing stops before the end, a chain of all of it may be longer.
    """
    found = _replayed(layouts, rows, options)
    return np.maximum(found, pipeline_of(layouts, rows, options))


def _replayed(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    degrees = layouts.degrees
    passes = chunk_passes(layouts, rows, options)
    pipelines = [
        ChunkPasses(
            goes[None], comes[None], _links(layouts, row)[None], int(degrees.num_micro_batches[row])
        )
        for row, (goes, comes) in zip(rows.tolist(), passes, strict=True)
    ]
    return _executed_pipelines(pipelines, options.overlap_p2p.tolist())


def _ranks(layouts: Layouts, row: int) -> Ints:
    """The run that each rank of a pipeline belongs to."""
    count = layouts.stages.count[layouts.stage_row[row]]
    return np.repeat(np.arange(len(count)), count)


def _links(layouts: Layouts, row: int) -> Floats:
    every = np.broadcast_to(layouts.hop_seconds[row], layouts.stages.count.shape[1:])
    return every[_ranks(layouts, row)]


def chunk_passes(layouts: Layouts, rows: Ints, options: Options) -> list[tuple[Floats, Floats]]:
    """Seconds of one micro-batch forward and backward on every chunk: (pp, virtual) each."""
    _, every = rank_parts(layouts, rows, options)
    ends, found = layouts.ends, []
    for row, forward, backward in zip(rows.tolist(), *every, strict=True):
        ranks = _ranks(layouts, row)
        share = _shares(layouts, row, ranks)
        goes = _dealt(forward[ranks], share, ends.embedding_forward[row], ends.head_forward[row])
        comes = _dealt(
            backward[ranks], share, ends.embedding_backward[row], ends.head_backward[row]
        )
        found.append((goes, comes))
    return found


def executed_seconds(
    forward: Floats,
    backward: Floats,
    links: Floats,
    num_micro_batches: Ints | int,
    *,
    overlap_p2p: bool,
) -> Floats:
    """Seconds of all passes of pipelines, from those of the chunks: (pipelines, pp, virtual).

    The micro-batches are a multiple of the ranks.
    """
    number = np.broadcast_to(num_micro_batches, len(forward)).tolist()
    every = zip(forward[:, None], backward[:, None], links[:, None], number, strict=True)
    return _executed_pipelines([ChunkPasses(*one) for one in every], [overlap_p2p] * len(forward))


def _executed_pipelines(pipelines: Sequence[ChunkPasses], overlapped: Sequence[bool]) -> Floats:
    """Seconds of all passes of single pipelines."""
    shapes = [(one.num_micro_batches, one.forward.shape[1]) for one in pipelines]
    groups = np.array([batches // pp for batches, pp in shapes])
    most = np.array([_settled_groups(pp) for _, pp in shapes])
    settled, before = _remembered(pipelines, np.minimum(groups, most + 1).tolist(), overlapped)
    return _extrapolated(settled, before, groups, most)


def _extrapolated(settled: Floats, before: Floats, groups: Ints | int, most: Ints | int) -> Floats:
    """Beyond what it takes to settle, every group takes as long."""
    return np.asarray(settled + np.maximum(groups - most, 0) * (settled - before))


def _settled_groups(pp: int) -> int:
    return max(SETTLED_GROUPS, -(-MICRO_BATCHES_TO_SETTLE // pp))


def roughly_executed_seconds(several: Sequence[ChunkPasses], *, overlap_p2p: bool) -> list[Floats]:
    """Seconds of all passes, from fewer groups, of pipelines that nobody asks for again."""
    most = [_settled_groups(one.forward.shape[1]) // 2 for one in several]
    groups = [one.num_micro_batches // one.forward.shape[1] for one in several]
    settled = _settled(several, most, overlap_p2p=overlap_p2p)
    each = zip(settled, groups, most, strict=True)
    return [_extrapolated(*ends, number, enough) for ends, number, enough in each]


def _settled(
    several: Sequence[ChunkPasses], most: Sequence[int], *, overlap_p2p: bool
) -> list[tuple[Floats, Floats]]:
    """Seconds of some groups, at most so many, and of one group less if there are more."""
    whole, less = list[ChunkPasses](), list[ChunkPasses]()
    for one, enough in zip(several, most, strict=True):
        pp = one.forward.shape[1]
        whole.append(replace(one, num_micro_batches=min(one.num_micro_batches, enough * pp)))
        if one.num_micro_batches > enough * pp:
            less.append(replace(one, num_micro_batches=(enough - 1) * pp))
    seconds = seconds_together([*whole, *less], overlap_p2p=overlap_p2p)
    shorter = iter(seconds[len(whole) :])
    return [
        (own, next(shorter) if one.num_micro_batches > short.num_micro_batches else own)
        for own, one, short in zip(seconds, several, whole, strict=False)
    ]


_executed: OrderedDict[tuple[object, ...], tuple[float, float]] = OrderedDict()


def _remembered(
    pipelines: Sequence[ChunkPasses], groups: Sequence[int], overlapped: Sequence[bool]
) -> tuple[Floats, Floats]:
    """Seconds of some groups and of one less, as far as nobody asked for them before.

    With another batch the same pipelines are finalists again.
    """
    each = zip(pipelines, groups, overlapped, strict=True)
    keys = [
        (one.forward.shape, number, overlap, *(a.tobytes() for a in _arrays(one)))
        for one, number, overlap in each
    ]
    found = {key: _executed[key] for key in keys if key in _executed}
    new: dict[bool, dict[tuple[object, ...], ChunkPasses]] = defaultdict(dict)
    for key, one, overlap in zip(keys, pipelines, overlapped, strict=True):
        if key not in found:
            new[overlap][key] = one
    for overlap, some in new.items():
        most = [_settled_groups(one.forward.shape[1]) for one in some.values()]
        ends = _settled(list(some.values()), most, overlap_p2p=overlap)
        found.update(
            (key, (own.item(), less.item())) for key, (own, less) in zip(some, ends, strict=True)
        )
    for key, ends_of_one in found.items():
        _executed[key] = ends_of_one
        _executed.move_to_end(key)  # what is asked for again is forgotten last
    while len(_executed) > MOST_EXECUTED:
        _executed.popitem(last=False)
    settled, before = np.array([found[key] for key in keys]).reshape(-1, 2).T
    return settled, before


def _arrays(one: ChunkPasses) -> tuple[Floats, Floats, Floats]:
    return one.forward, one.backward, one.p2p


def _shares(layouts: Layouts, row: int, ranks: Ints) -> Floats:
    """The share of each chunk in its rank's layers, by the work in them: (pp, virtual)."""
    shard = np.broadcast_to(layouts.shard[row], layouts.stages.count.shape[1:])[ranks]
    chunk_layers = layouts.stages.chunk_layers[layouts.stage_row[row]]
    of_chunk = np.einsum("vpk,pk->pv", chunk_layers, layer_work(layouts.costs, shard))
    whole = of_chunk.sum(axis=1, keepdims=True)
    return np.divide(of_chunk, whole, out=np.zeros_like(of_chunk), where=whole > 0)


def _dealt(seconds: Floats, share: Floats, embedding: float, head: float) -> Floats:
    """One pass of every rank over its chunks; embedding and head belong to a single one each."""
    own = seconds.copy()
    own[0] -= embedding
    own[-1] -= head
    chunks = own[:, None] * share
    chunks[0, 0] += embedding
    chunks[-1, -1] += head
    return chunks
