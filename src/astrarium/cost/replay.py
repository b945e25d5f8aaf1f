"""The time of pipelines with virtual stages: executed pass by pass, with their chunks as they are.

1F1B needs no execution: there the closed form is the longest chain itself. With virtual stages it
is a lower bound (`schedule.pipeline_seconds`), by which a search decides what to execute.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.layouts import Layouts
from astrarium.cost.simulator import simulated_seconds
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
    shapes: dict[tuple[int, int, int, bool], list[int]] = defaultdict(list)
    degrees, each = layouts.degrees, chunk_passes(layouts, rows, options)
    for place, row in enumerate(rows.tolist()):
        pp, batches = int(degrees.pp[row]), int(degrees.num_micro_batches[row])
        executed = min(batches, (_settled_groups(pp) + 1) * pp)
        shape = pp, int(layouts.virtual[row]), executed, bool(options.overlap_p2p[place])
        shapes[shape].append(place)
    found = np.zeros(len(rows))
    for (_, _, _, overlap), places in shapes.items():
        alike = rows[places]
        passes = [each[place] for place in places]
        forward, backward = (np.stack(way) for way in zip(*passes, strict=True))
        links = np.stack([_links(layouts, row) for row in alike.tolist()])
        number = degrees.num_micro_batches[alike]
        found[places] = executed_seconds(forward, backward, links, number, overlap_p2p=overlap)
    return found


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

    The micro-batches are a multiple of the ranks; as many for all pipelines, or more for each than
    it takes to settle.
    """
    groups, most = (
        np.asarray(num_micro_batches) // forward.shape[1],
        _settled_groups(forward.shape[1]),
    )
    executed = min(int(groups.max()), most + 1)
    settled, before = _remembered(forward, backward, links, executed, overlap_p2p=overlap_p2p)
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
    forward: Floats, backward: Floats, links: Floats, groups: int, *, overlap_p2p: bool
) -> tuple[Floats, Floats]:
    """`_settled`, and what was executed before: with another batch the same are finalists again."""
    shape = (*forward.shape[1:], groups, overlap_p2p)
    every = zip(forward, backward, links, strict=True)
    keys = [(*shape, *(seconds.tobytes() for seconds in one)) for one in every]
    new = [row for row, key in enumerate(keys) if key not in _executed]
    found = {key: _executed[key] for key in keys if key in _executed}
    if new:
        passes = forward[new], backward[new], links[new]
        most = _settled_groups(forward.shape[1])
        ends = _settled(*passes, groups, most, overlap_p2p=overlap_p2p)
        pairs = zip(*(end.tolist() for end in ends), strict=True)
        found.update(zip([keys[row] for row in new], pairs, strict=True))
    for key, ends_of_one in found.items():
        _executed[key] = ends_of_one
        _executed.move_to_end(key)  # what is asked for again is forgotten last
    while len(_executed) > MOST_EXECUTED:
        _executed.popitem(last=False)
    settled, before = np.array([found[key] for key in keys]).T
    return settled, before


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
