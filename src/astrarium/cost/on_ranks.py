"""Costs of every rank of a layout: seconds of a micro-batch, messages with its parameters."""

from __future__ import annotations

from astrarium.arrays import Floats
from astrarium.value import Value


class RankSeconds(Value, frozen=True):
    """Seconds of one micro-batch by cause on each rank."""

    forward: Floats
    backward: Floats
    tp: Floats
    tp_overlapped: Floats
    cp: Floats
    ep: Floats
    sent_forward: Floats  # of all these messages, what the forward pass sends
    sent_forward_overlapped: Floats
    again: Floats  # the whole forward pass of the rank's layers, if it were redone
    messages_again: Floats  # of which messages
    launch: Floats  # what the host takes to launch all of it
    launch_forward: Floats  # of which the forward pass of the rank's layers
    launch_again: Floats


class Exchange(Value, frozen=True):
    """Seconds of messages with all parameters of a rank."""

    reduce: Floats  # gradients summed everywhere
    scatter: Floats  # gradients summed, each rank its part
    gather: Floats  # weights

    def __add__(self, after: Exchange) -> Exchange:
        reduce, scatter = self.reduce + after.reduce, self.scatter + after.scatter
        return Exchange(reduce, scatter, self.gather + after.gather)


class DataMessages(Value, frozen=True):
    """Data-parallel messages of each rank's parameters, dense then expert groups.

    Arrays of (layouts, ranks), but for `tied`: (layouts,).
    """

    at_once: Exchange
    in_buckets: Exchange  # one call for each
    in_layers: Exchange  # likewise; `reduce` is that of buckets
    last_bucket: Floats  # share of it, which has nothing to hide behind; 0 where not known
    unpack: Floats  # gathered weights brought to their places, beside nothing
    tied: Floats  # gradients of a table that first and last stage both hold
    shared: Floats  # of a copy of it on a stage between them
    slowdown: Floats  # of the computation beside them, as a share
    on_same_links: Floats  # other messages of one pass of a micro-batch, on the same adapters


class EndSeconds(Value, frozen=True):
    """Of the passes of one micro-batch, what embedding and head take: arrays of (layouts,)."""

    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats
