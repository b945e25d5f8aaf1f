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
from astrarium.cost.simulator import Pipeline, seconds_together, simulated_seconds
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
    """Which layouts have virtual stages that can be executed: whole groups of micro-batches."""
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
        Pipeline(*both, _links(layouts, row), int(degrees.num_micro_batches[row]))
        for row, both in zip(rows.tolist(), passes, strict=True)
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
    every = zip(forward, backward, links, number, strict=True)
    return _executed_pipelines([Pipeline(*one) for one in every], [overlap_p2p] * len(forward))


def _executed_pipelines(pipelines: Sequence[Pipeline], overlapped: Sequence[bool]) -> Floats:
    """Seconds of all passes; beyond what it takes to settle, every group takes as long."""
    groups = np.array([one.num_micro_batches // len(one.forward) for one in pipelines])
    most = np.array([_settled_groups(len(one.forward)) for one in pipelines])
    executed = np.minimum(groups, most + 1).tolist()
    settled, before = _remembered(pipelines, executed, overlapped)
    return settled + np.maximum(groups - most, 0) * (settled - before)


def _settled_groups(pp: int) -> int:
    return max(SETTLED_GROUPS, -(-MICRO_BATCHES_TO_SETTLE // pp))


def roughly_executed_seconds(
    forward: Floats, backward: Floats, links: Floats, num_micro_batches: int, *, overlap_p2p: bool
) -> Floats:
    """`executed_seconds` from fewer groups, of pipelines that nobody asks for again."""
    pp = forward.shape[1]
    groups = num_micro_batches // pp
    most = _settled_groups(pp) // 2
    settled, before = _settled(forward, backward, links, groups, most, overlap_p2p=overlap_p2p)
    return settled + max(groups - most, 0) * (settled - before)


_executed: OrderedDict[tuple[object, ...], tuple[float, float]] = OrderedDict()


def _settled(
    forward: Floats, backward: Floats, links: Floats, groups: int, most: int, *, overlap_p2p: bool
) -> tuple[Floats, Floats]:
    """Seconds of some groups, at most so many, and of one group less if there are more."""
    pp, executed = forward.shape[1], min(groups, most)
    fewer = None if groups <= most else (executed - 1) * pp
    both = simulated_seconds(
        forward, backward, links, executed * pp, overlap_p2p=overlap_p2p, fewer=fewer
    )
    ends = both.reshape(-1, len(forward))
    return ends[0], ends[-1]


def _remembered(
    pipelines: Sequence[Pipeline], groups: Sequence[int], overlapped: Sequence[bool]
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
    new: dict[tuple[int, bool], dict[tuple[object, ...], tuple[Pipeline, int]]] = defaultdict(dict)
    for key, one, number, overlap in zip(keys, pipelines, groups, overlapped, strict=True):
        if key not in found:
            new[len(one.forward), overlap][key] = one, number
    for (_, overlap), some in new.items():
        ends = _settled_together(list(some.values()), overlap_p2p=overlap)
        found.update(zip(some, ends, strict=True))
    for key, ends_of_one in found.items():
        _executed[key] = ends_of_one
        _executed.move_to_end(key)  # what is asked for again is forgotten last
    while len(_executed) > MOST_EXECUTED:
        _executed.popitem(last=False)
    settled, before = np.array([found[key] for key in keys]).reshape(-1, 2).T
    return settled, before


def _arrays(one: Pipeline) -> tuple[Floats, Floats, Floats]:
    return one.forward, one.backward, one.p2p


def _settled_together(
    asked: Sequence[tuple[Pipeline, int]], *, overlap_p2p: bool
) -> list[tuple[float, float]]:
    """Of pipelines with as many ranks: seconds of groups, and of one less if there are more."""
    pp = len(asked[0][0].forward)
    most = _settled_groups(pp)
    whole = [replace(one, num_micro_batches=min(n, most) * pp) for one, n in asked]
    less = [replace(one, num_micro_batches=(most - 1) * pp) for one, n in asked if n > most]
    seconds = seconds_together([*whole, *less], overlap_p2p=overlap_p2p).tolist()
    shorter = iter(seconds[len(whole) :])
    ends = zip(seconds, asked, strict=False)
    return [(own, next(shorter) if n > most else own) for own, (_, n) in ends]


def _shares(layouts: Layouts, row: int, ranks: Ints) -> Floats:
    """What part of a rank's layers each of its chunks is, by the work in them: (pp, virtual)."""
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
