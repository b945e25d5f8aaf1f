"""Seconds of collectives with unequal parts, through the collective model of the project.

Most libraries want equal parts. There are two ways to send unequal ones; the cheaper one is taken:

- padded: every part is filled up to the largest, so n parts move n times the largest;
- grouped: one broadcast for each part of a gather, one reduction for each part of a scatter. In a
  ring, a broadcast of b bytes takes as long as a gather of b n / (n - 1): all b pass every link,
  one after another. Parts follow one another, and each pays its own latency.

Gloo, between cores, has a third way (`PLAIN`): every device sends its piece to each other one, as
in an all-to-all, which takes unequal parts as they are; the busiest device sets the pace. A ring
cuts an all-reduce equally for any ratios, so nothing is cheaper. Gradients of parameters are summed
after the last micro-batch, many in one message (`SYNC_BYTES`); each pays its part of a full one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cluster.interconnect import LinkKind
from astrarium.cost.collectives import (
    Fabric,
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    reduce_scatter_seconds,
)
from astrarium.spmd.price.devices import Devices
from astrarium.spmd.program import How
from astrarium.spmd.rules import MessageKind
from astrarium.value import Value

_RING_PASSES: Final = {
    MessageKind.ALL_GATHER: all_gather_seconds,
    MessageKind.REDUCE_SCATTER: reduce_scatter_seconds,
}
SYNC_BYTES: Final = float(4 << 23)  # gradients of parameters that one message carries
# Elements of gradients that leave together in the backward pass: an eighth of the model's, so that
# all but the last bucket are hidden, within limits. Every message costs a rank time to start, and
# gloo's threads work on its core.
MOST_IN_BUCKET: Final = 1 << 23
LEAST_IN_BUCKET: Final = 1 << 21
BUCKETS: Final = 8
HOWS: Final = (How.PLAIN, How.PADDED, How.GROUPED)
_LARGER: Final = 1.25  # how much larger a piece is than the largest, to lay a line through both
_EVEN: Final = 1e-9  # relative difference of parts that counts as none


def bucket_elements(elements: int) -> int:
    """The number of gradients in one message, of a model with so many in all."""
    return min(MOST_IN_BUCKET, max(LEAST_IN_BUCKET, -(-elements // BUCKETS)))


def unequal_seconds(
    fabric: Fabric, group: Group, collective: MessageKind, parts: Floats
) -> tuple[Floats, Ints]:
    """Seconds of gathers or scatters of these parts ([..., device], bytes), and which of `HOWS`."""
    of_equal = _RING_PASSES[collective]
    size = parts.shape[-1]
    largest = parts.max(axis=-1, initial=0.0)
    padded = of_equal(fabric, size * largest, group)
    if size == 1:
        return padded, np.zeros(padded.shape, np.int64)
    broadcasts = of_equal(fabric, parts * (size / (size - 1.0)), group)
    even = largest - parts.min(axis=-1, initial=np.inf) <= _EVEN * largest
    plain = np.where(even, padded, np.inf)
    if sends_directly(fabric):
        plain = exchange_seconds(fabric, direct_bytes(parts), group)
    ways = np.stack([plain, padded, broadcasts.sum(axis=-1)])  # as in `HOWS`
    return ways.min(axis=0), ways.argmin(axis=0)


def sends_directly(fabric: Fabric) -> bool:
    """Whether gathers and scatters of any parts run as an all-to-all."""
    return fabric.link.kind is LinkKind.GLOO


def direct_bytes(parts: Floats) -> Floats:
    """Bytes of the busiest device if each sends its part to every other."""
    sent = (parts.shape[-1] - 1.0) * parts.max(axis=-1, initial=0.0)
    received = parts.sum(axis=-1) - parts.min(axis=-1, initial=np.inf)
    return np.maximum(sent, received)


def exchange_seconds(fabric: Fabric, sent: Floats, group: Group) -> Floats:
    """Seconds of all-to-all where the busiest device sends or receives `sent` bytes."""
    size = float(np.max(group.size))
    if size <= 1.0:
        return np.zeros_like(sent)
    return all_to_all_seconds(fabric, sent * (size / (size - 1.0)), group)


def exchanged_share(before: Floats, after: Floats) -> float:
    """The share of a tensor that the busiest device exchanges, from dimension to dimension."""
    return float(np.maximum(before * (1.0 - after), after * (1.0 - before)).max(initial=0.0))


class MessageRequest(Value, frozen=True):
    """A message: all bytes of it, and the shares of devices where they matter."""

    level: int
    collective: MessageKind
    num_bytes: float  # of the whole; of an all-to-all: what the busiest device sends
    # Of a gather or scatter: by device of the level; of an all-to-all: the largest, if it counts.
    shares: tuple[float, ...] = ()


@dataclass
class Mailbox:
    """Messages of a graph: each distinct one is priced once, all of one kind in one call."""

    requests: dict[MessageRequest, int] = field(default_factory=dict)

    def ask(self, request: MessageRequest) -> int:
        """The number under which the answer will stand."""
        return self.requests.setdefault(request, len(self.requests))

    def slopes(self, devices: Devices) -> tuple[Floats, Ints]:
        """Seconds for a share of the largest piece, and the level, by number.

        A message in parts costs as much whoever has them; an equal one will be padded as soon as
        it is not equal any more.
        """
        _, hows = self.seconds(devices)
        slopes = np.zeros(len(self.requests))
        for request, number in self.requests.items():
            fabric, group = devices.fabrics[request.level], devices.groups[request.level]
            size = float(np.max(group.size))
            if request.collective in _RING_PASSES:
                if HOWS[int(hows[number])] is How.GROUPED:
                    continue
                largest = max(request.shares)
                direct = sends_directly(fabric) and HOWS[int(hows[number])] is How.PLAIN
                per_share = request.num_bytes * (size - 1.0 if direct else size)
                around = per_share * largest * np.array([1.0, _LARGER])
                of_bytes = exchange_seconds if direct else _RING_PASSES[request.collective]
                step = (_LARGER - 1.0) * largest
            elif request.collective is MessageKind.ALL_TO_ALL:
                around = request.num_bytes * np.array([1.0, _LARGER])
                of_bytes = exchange_seconds
                step = (_LARGER - 1.0) * max(request.shares, default=1.0)
            else:
                continue
            ends = of_bytes(fabric, around, group)
            slopes[number] = float(ends[1] - ends[0]) / step
        levels = np.array([request.level for request in self.requests], np.int64)
        return slopes, levels

    def seconds(self, devices: Devices) -> tuple[Floats, Ints]:
        """Seconds, and which of `HOWS`, by number."""
        seconds = np.zeros(len(self.requests))
        hows = np.zeros(len(self.requests), np.int64)
        kinds: dict[tuple[int, MessageKind], list[tuple[MessageRequest, int]]] = {}
        for request, number in self.requests.items():
            kinds.setdefault((request.level, request.collective), []).append((request, number))
        for (level, collective), entries in kinds.items():
            numbers = np.array([number for _, number in entries])
            sizes = np.array([request.num_bytes for request, _ in entries])
            fabric, group = devices.fabrics[level], devices.groups[level]
            if collective in _RING_PASSES:
                shares = np.array([request.shares for request, _ in entries])
                parts = sizes[:, None] * shares
                seconds[numbers], hows[numbers] = unequal_seconds(fabric, group, collective, parts)
            elif collective is MessageKind.ALL_REDUCE:
                seconds[numbers] = all_reduce_seconds(fabric, sizes, group)
            else:
                seconds[numbers] = exchange_seconds(fabric, sizes, group)
        return seconds, hows
