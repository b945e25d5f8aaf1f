"""The least time of an interleaved pipeline, whatever the sizes of its chunks.

Chunks of the model go round the ring of stages `virtual` times. The execution (`replay`) is the
time of such a pipeline; here are four chains of passes that occur in every one of them, so that
the longest is a lower bound that costs a few sums. For each stage:

- the first micro-batch goes straight to the stage, which then does all its passes, and the last
  gradient goes straight back;
- the first micro-batch goes through all chunks and comes back to the stage, which then does what is
  left; the last gradient goes straight back;
- the same with time reversed;
- both: all chunks forward, the passes between the first backward and the last forward pass of the
  stage, and all chunks backward.

`warm_up` passes of a stage come before its first backward pass: `pp` of every chunk, of the last
one fewer, or of the first one some more. Of a stage's chunks only the first and the last one occur
by themselves in these chains; the others count together.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.walks import Stages
from astrarium.value import Value


class _Way(Value, frozen=True):
    """One direction of the passes, runs by position: (rows, runs).

    whole: all chunks of a stage; first, last: its first and its last chunk, with the embedding in
    the first chunk of the first stage and the head in the last chunk of the last stage.
    """

    whole: Floats
    first: Floats
    last: Floats

    def warm_up(self, pp: Floats, behind: Floats) -> Floats:
        """The passes of a stage until those of the other direction begin."""
        passes = 2 * behind + 1
        of_last = np.minimum(passes, pp)
        again = np.maximum(passes - pp, 0.0)
        return pp * (self.whole - self.last) + of_last * self.last + again * self.first


def interleaved_bound(stages: Stages, num_micro_batches: Ints, virtual: Ints) -> Floats:
    """Seconds of the interleaved order at least; several stages, whole groups of micro-batches."""
    count, link = stages.count.astype(float), stages.p2p
    pp = count.sum(axis=1, keepdims=True)
    batches, rounds = num_micro_batches.astype(float)[:, None], virtual.astype(float)[:, None]
    goes = _way(stages, stages.forward, stages.embedding_forward, stages.head_forward)
    comes = _way(stages, stages.backward, stages.embedding_backward, stages.head_backward)
    all_links = (count * link).sum(axis=1, keepdims=True)
    closing = link[:, -1:]  # from the last stage to the first, between chunks only
    all_forward, all_backward = (
        (count * way.whole).sum(axis=1, keepdims=True) + rounds * all_links - closing
        for way in (goes, comes)
    )
    every_pass = batches * (goes.whole + comes.whole)
    longest = np.zeros(len(count))
    for step in (np.zeros_like(count), np.maximum(count - 1, 0.0)):  # either end of a run
        behind = pp - 1 - _before(np.ones_like(link), count, step)
        there, back = (_before(way.first + link, count, step) for way in (goes, comes))
        links_behind = all_links - closing - _before(link, count, step)
        up, down = (_behind(way.last, count, step) + links_behind for way in (goes, comes))
        first_back = all_forward + down + every_pass - goes.warm_up(pp, behind)
        last_forth = up + all_backward - comes.warm_up(pp, behind)
        several = batches * rounds > 2 * behind + (rounds - 1) * pp + 1
        chains = (
            there + every_pass + back,
            first_back + back,
            there + every_pass + last_forth,
            np.where(several, first_back + last_forth, 0.0),
        )
        best = np.where(count > 0, np.maximum.reduce(chains), 0.0)
        longest = np.maximum(longest, best.max(axis=1))
    return longest


def _way(stages: Stages, passes: Floats, embedding: Floats, head: Floats) -> _Way:
    """Layers are spread over chunks as the shares say; embedding and head have their own."""
    layers = passes.copy()
    layers[:, 0] -= embedding
    layers[:, -1] -= head
    first, last = layers * stages.first_share, layers * stages.last_share
    first[:, 0] += embedding
    last[:, -1] += head
    return _Way(passes, first, last)


def _before(values: Floats, count: Floats, step: Floats) -> Floats:
    """The sum over all stages before the one so many steps into a run."""
    summed = count * values
    return np.cumsum(summed, axis=1) - summed + step * values


def _behind(values: Floats, count: Floats, step: Floats) -> Floats:
    """The sum over all stages behind it."""
    summed = count * values
    after = summed[:, ::-1].cumsum(axis=1)[:, ::-1] - summed
    return after + np.maximum(count - 1 - step, 0.0) * values
