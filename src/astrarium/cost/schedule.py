"""Seconds and activations in flight of pipeline schedules, as columns of strategies.

Schedules: 1F1B, and the interleaved order if stages hold several chunks (virtual stages); both
as Megatron-core runs them. `simulator` executes the same schedules pass by pass.

The textbook form, sum(t) + (K - 1) max(t) for K micro-batches, is right only if the longest stage
is the last one. A stage further up has its warm-up forward passes done while the first micro-batch
is still on its way, so its waiting overlaps with the ramp; for a first stage three times as long as
the others the textbook overstates up to a third. Three further effects matter:

- transfers that do not overlap occupy both partners: a stage pays both of its links in every
  turn, t + p2p_in + p2p_out, not once per boundary;
- overlapped transfers are not free in 1F1B. There are only as many micro-batches in flight as
  stages, so a turn takes at least the mean of t + 2 p2p over any neighbouring stages;
- with v chunks per stage, the ramp shrinks to 1 / v, but the p2p of every chunk is in it. A head
  in the last chunk delays whole groups of pp micro-batches, not only the last stage.

`pipeline_seconds` therefore takes stages by position and finds the longest chain of passes. It is
never above the execution:

- 1F1B: equal to it; if p2p overlaps, equal for even stages, 1.3 % too short where times are drawn
  at random, 1.8 % at the worst found;
- interleaved: a lower bound (`interleaved`). The time of such a pipeline is its execution
  (`replay`).
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.interleaved import interleaved_bound
from astrarium.cost.walks import Stages, one_forward_one_backward

__all__ = ["Stages", "in_flight_at_peak", "pipeline_seconds", "ragged_stages"]

# Rows worked on at once: the arrays of one block stay in the cache.
_BLOCK = 4096


def pipeline_seconds(
    stages: Stages, num_micro_batches: Ints, virtual: Ints, overlap_p2p: Bools
) -> Floats:
    """Seconds of one pipeline pass per row: all micro-batches forward and backward.

    With virtual stages at least so many, and the micro-batches must be a multiple of the stages, as
    for Megatron.
    """
    pp = stages.count.sum(axis=1)
    seconds = num_micro_batches * (stages.forward[:, 0] + stages.backward[:, 0])
    for overlapped in (False, True):
        for rows in _blocks((pp > 1) & (virtual == 1) & (overlap_p2p == overlapped)):
            seconds[rows] = one_forward_one_backward(
                stages.take(rows), num_micro_batches[rows], overlap_p2p=overlapped
            )
    for rows in _blocks((pp > 1) & (virtual > 1)):
        seconds[rows] = interleaved_bound(stages.take(rows), num_micro_batches[rows], virtual[rows])
    return seconds


def _blocks(chosen: Bools) -> list[Ints]:
    rows = np.flatnonzero(chosen)
    return [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]


def ragged_stages(
    forward: Floats, backward: Floats, p2p: Floats, offsets: Ints, virtual: Ints | int = 1
) -> Stages:
    """Stages of pipelines listed one after another; pipeline i is offsets[i]:offsets[i + 1].

    The `virtual` chunks of a stage are alike.
    """
    pp = np.diff(offsets)
    n, width = len(pp), int(pp.max(initial=1))
    index = np.arange(len(forward)) - np.repeat(offsets[:-1], pp)
    # First stage in the first column, the others at the end: first and last are never empty.
    column = np.where(index == 0, 0, index + np.repeat(width - pp, pp))
    row = np.repeat(np.arange(n), pp)

    def padded(values: Floats | Ints) -> Floats:
        table = np.zeros((n, width))
        table[row, column] = values
        return table

    none = np.zeros(n)
    count = padded(np.ones(len(forward))).astype(np.int64)
    share = np.broadcast_to(1.0 / np.reshape(virtual, (-1, 1)), count.shape)
    passes = padded(forward), padded(backward), padded(p2p)
    return Stages(count, *passes, none, none, none, none, share, share)


def in_flight_at_peak(weights: Floats | Ints, num_micro_batches: int) -> Ints:
    """Micro-batches held of each chunk when a stage holds most, (chunks, stages) as `weights`.

    Chunks of a stage peak at different moments; what counts for memory is their weighted sum. It
    repeats every pp * virtual passes, and stays level if all chunks of a stage weigh the same.
    """
    virtual, pp = weights.shape
    level = bool((weights == weights[:1]).all())
    held = in_flight_at(pp, virtual, num_micro_batches, np.arange(1 if level else pp * virtual))
    fullest = (held * weights).sum(axis=1).argmax(axis=0)
    return held[fullest, :, np.arange(pp)].T


def in_flight_if_alike(pp: int, weights: Ints, num_micro_batches: int) -> Ints:
    """The same of stages that are all alike, for many weights (ways, chunks): and (stages,)."""
    virtual = weights.shape[1]
    held = in_flight_at(pp, virtual, num_micro_batches, np.arange(pp * virtual))
    fullest = np.einsum("mvp,wv->wmp", held, weights).argmax(axis=1)
    fullest[(weights == weights[:, :1]).all(axis=1)] = 0
    return np.moveaxis(held[fullest, :, np.arange(pp)], 2, 1)


def in_flight_at(pp: int, virtual: int, num_micro_batches: int, moments: Ints) -> Ints:
    """Micro-batches held of each chunk at some moments: (moments, chunks, stages)."""
    stage, chunk = np.arange(pp)[None, :], np.arange(virtual)[:, None]
    shape = np.array(pp), np.array(virtual)
    passes = num_micro_batches * virtual
    warm_up = np.minimum(_warm_up(stage, *shape), passes - 1)
    done = np.minimum(moments[:, None, None], passes - 1 - warm_up)
    begun = _of_turn(done + warm_up + 1, chunk, *shape)
    return begun - _of_turn(done, virtual - 1 - chunk, *shape)


def _warm_up(stage: Ints, pp: Ints, virtual: Ints) -> Ints:
    """Forward passes before the first forward-backward pair."""
    behind = pp - 1 - stage
    return np.where(virtual > 1, 2 * behind + (virtual - 1) * pp, behind)


def _of_turn(passes: Ints, turn: Ints, pp: Ints, virtual: Ints) -> Ints:
    """The number of the first `passes` passes in one of the `virtual` turns of pp passes."""
    whole, rest = np.divmod(passes, pp * virtual)
    return whole * pp + np.clip(rest - turn * pp, 0, pp)
