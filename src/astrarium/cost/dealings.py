"""The least time of a pipeline, however its layers are dealt to stages and chunks.

Let t be the seconds of one micro-batch on each of P ranks, all chunks and both passes, S their
sum, K the micro-batches and v the chunks of a rank. Every schedule has these chains of passes:

- one rank at work all the time: K t. Ranks hold whole layers, so the longest of them takes at
  least the least turn in which all layers find a place (`least_turn`);
- one chunk per rank: the first micro-batch there and back, the turns of the longest rank in
  between: 2 S + (K - 1 - P) T, if there are enough micro-batches; and always one micro-batch there
  and back, and half a turn of the longest rank for every other one;
- several chunks per rank: for chunk k of rank r, the first micro-batch goes through all chunks to
  this one, then r does what is left, then the last gradient goes the same way back. Skewed chunks
  shorten some of these chains and lengthen others. Their mean over all k and r does not depend on
  the sizes of chunks: (K S + sum of (P - 1 - r) t_r / v) / P. Little work on the first ranks
  shortens it, but then others have more. With both it is at least K S / P (1 + x) / (1 + x / 2),
  where x = (P - 1) / (K v) is the ramp of even chunks. Transfers that overlap add
  (v P - 1) hop / (1 + x / 2): those on the way there and back, in the mean;
- several chunks per rank: all chains together say more than their mean (`cost.ramps`);
- every micro-batch waits for the head: one of them there and back, and K - 1 heads.

Transfers that do not overlap keep both partners busy: they are part of every turn. Others delay
what goes round: of every P micro-batches the first goes through all chunks but the last, and some
rank does the last chunk of all P. On average over the ranks this is one pass of the whole model.
They also delay what goes down and up all ranks, again and again (`cost.chains.zigzags`).
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.chains import zigzag_seconds
from astrarium.value import Value

_HALVINGS = 20  # of the interval that holds the least turn
_ROUNDING = 1e-9  # layers are rounded up from this close, so that rounding never raises a bound


def least_turn(
    layer: Floats, beside: Floats, count: Ints, most: Floats | None, num_layers: int
) -> Floats:
    """Seconds of the longest rank at least, per row; infinite where layers do not fit.

    layer: (rows,), seconds of one layer; beside: (rows, runs), what ranks do besides; count: ranks
    of a run; most: layers that a rank of a run can hold.
    """
    held = np.where(count > 0, beside, 0.0)
    low = held.max(axis=1)
    high = low + layer * num_layers
    per_second = 1 / np.maximum(layer, np.finfo(np.float64).tiny)
    limit = np.full(held.shape, float(num_layers)) if most is None else most

    def is_enough(turn: Floats) -> Floats:
        spare = np.maximum(turn[:, None] - held, 0.0) * per_second[:, None]
        room = np.floor(np.minimum(spare, num_layers) + _ROUNDING)
        return np.asarray((count * np.minimum(room, limit)).sum(axis=1) >= num_layers)

    able = is_enough(high * (1 + _ROUNDING) + _ROUNDING)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = is_enough(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(able, low, np.inf)


class Turns(Value, frozen=True):
    """Pipelines by what any way to deal their layers leaves as it is: arrays of (rows,).

    longest: seconds of the longest rank for one micro-batch at least; forward, backward: of all
    ranks together; hop: one transfer to the next rank, in one direction; head: of the head alone;
    ramp: what `cost.ramps` says of so many chunks.
    """

    longest: Floats
    forward: Floats
    backward: Floats
    hop: Floats
    pp: Ints
    batches: Ints
    virtual: Ints
    overlap_p2p: Bools
    head: Floats | float = 0.0
    ramp: Floats | float = 1.0


def least_passes(turns: Turns) -> Floats:
    """Seconds of all passes at least, per row."""
    pp, batches, virtual = turns.pp, turns.batches, turns.virtual
    total = turns.forward + turns.backward
    waits = np.where(turns.overlap_p2p, 0.0, turns.hop)
    single = virtual == 1
    at_work = batches * (turns.longest + np.where(single, 1, virtual) * waits)
    there_and_back = 2 * total + (batches - 1.0 - pp) * turns.longest
    there_and_back = there_and_back + (batches - 1 + 2 * (pp - 1)) * waits
    there_and_back = np.where(batches > pp, there_and_back, 0.0)
    one_way = total + (batches - 1) * turns.longest / 2 + 2 * (pp - 1) * turns.hop
    ramp = (pp - 1) / (batches * virtual)
    around = np.where(turns.overlap_p2p, (virtual * pp - 1) * turns.hop, 0.0)
    mean = (batches * total / pp * (1 + ramp) + around) / (1 + ramp / 2)
    of_heads = total + (batches - 1) * turns.head + 2 * (virtual * pp - 1) * turns.hop
    found = np.maximum(np.maximum(at_work, mean), of_heads)
    found = np.maximum(found, turns.ramp * batches * total / pp)
    found = np.maximum(found, np.where(single, np.maximum(there_and_back, one_way), 0.0))
    found = np.maximum(found, np.where(single, 0.0, _rounds(turns, total)))
    return np.where(pp > 1, found, batches * total)


def _rounds(turns: Turns, total: Floats) -> Floats:
    """Of the first micro-batch, of the last one back, and of all between them."""
    pp, virtual, around = turns.pp, turns.virtual, turns.pp * turns.hop
    once = (virtual - 1) * around + np.maximum(turns.forward, turns.backward)
    of_groups = (turns.batches / pp - 1) * once
    zigzag = zigzag_seconds(total, around - turns.hop, pp, turns.batches, virtual)
    return np.maximum(of_groups, zigzag) + total + 2 * (virtual * around - turns.hop)
