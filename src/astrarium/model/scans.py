"""Layers that carry a state along the sequence instead of comparing all pairs of tokens.

A head keeps a matrix of `state` x `head_dim`. Every token lets it decay, adds its key times its
value, and reads it with its query. Training does so in chunks: inside a chunk as attention does,
between chunks through the state. Mamba-2 calls queries, keys and values C, B and x.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from astrarium.value import Value


class Recurrence(StrEnum):
    """The change of the state by a token before it adds to it."""

    SSD = "ssd"  # decay by a learned step: Mamba-2
    DELTA = "delta"  # decay, then take out what is stored under its key: gated delta nets
    DECAY = "decay"  # decay by a fixed factor: lightning attention


# Numbers that the projection makes for each head beside queries, keys, values and gate: the step;
# the decay and the strength of writing; nothing.
STEERING: Final = {Recurrence.SSD: 1, Recurrence.DELTA: 2, Recurrence.DECAY: 0}
# Learned numbers of each head: decay, shift of the step, weight of the input; decay and shift.
LEARNED: Final = {Recurrence.SSD: 3, Recurrence.DELTA: 2, Recurrence.DECAY: 0}


class Scan(Value, frozen=True):
    """A recurrence over the sequence; the projections around it are `Linear` entries.

    `groups` heads of queries and keys are shared by `heads` heads of values. Before it a causal
    convolution of `taps` tokens mixes each feature; behind it stand a gate and a norm with
    `norm_width` learned numbers (0: no norm).
    """

    kind: Recurrence
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int
    taps: int = 0
    taps_bias: bool = False
    norm_width: int = 0

    @property
    def inner(self) -> int:
        """Width of values, gate and output."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together: what the convolution mixes."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Outputs of the projection in front: what the scan reads, its gate and its steering."""
        return self.channels + self.inner + STEERING[self.kind] * self.heads

    @property
    def parameters(self) -> int:
        """All but the projections; tensor parallelism divides them."""
        convolution = self.channels * (self.taps + (1 if self.taps_bias else 0))
        return convolution + LEARNED[self.kind] * self.heads + self.norm_width

    @property
    def tensors(self) -> int:
        """The number of tensors of these parameters."""
        convolution = (1 if self.taps else 0) + (1 if self.taps_bias else 0)
        return convolution + LEARNED[self.kind] + (1 if self.norm_width else 0)

    def flops_per_token(self, seq_length: int) -> float:
        """Forward FLOPs of matrix products; inside a chunk half of the square, as attention."""
        visible = (min(self.chunk, seq_length) + 1) / 2
        scores = self.groups * self.state * visible
        values = self.inner * visible
        through_state = self.inner * self.state  # written once, read once
        if self.kind is not Recurrence.DELTA:
            return 2.0 * (scores + values + 2 * through_state)
        # Keys are compared with keys as well; the solution of that triangle is multiplied with
        # keys and values, and what the state holds under the keys is read. Every head of values
        # has a triangle of its own.
        own_keys = self.heads * self.state * visible
        return 2.0 * (3 * own_keys + 2 * values + 3 * through_state)
