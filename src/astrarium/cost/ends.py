"""The two ends of a model: embedding on the first pipeline rank, head and loss on the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.collectives import (
    Fabric,
    all_gather_seconds,
    all_reduce_seconds,
    place,
    reduce_scatter_seconds,
)
from astrarium.cost.efficiency import OperatorModel, Pointwise
from astrarium.cost.kernels import under_power_limit
from astrarium.cost.measured import measured_shards, nearest_measured
from astrarium.cost.stages import StageTable
from astrarium.cost.tally import (
    FLOAT_BYTES,
    VOCAB_MULTIPLE,
    Shards,
    least_backward_seconds,
    summed_seconds,
    weight_products,
)
from astrarium.model.blocks import CustomBlock, Model
from astrarium.model.workload import Precision, Workload
from astrarium.value import Value

# The projection to the vocabulary stays in 16 bits in 8-bit recipes: it is no module of
# TransformerEngine.
HEAD_DTYPE: Final = dict.fromkeys((Precision.FP8, Precision.MXFP8, Precision.FP4), "bf16")


_OF_FROZEN: Final = ("frozen_embedding", "frozen_head", "frozen_tied")


class EndCosts(Value, frozen=True):
    """One row per shard; seconds and bytes of one micro-batch, parameters of one rank."""

    embedding_forward: Floats
    embedding_backward: Floats
    embedding_message: Floats  # both directions
    embedding_parameters: Floats
    head_forward: Floats
    head_backward: Floats
    head_message_forward: Floats
    head_message_backward: Floats
    head_parameters: Floats
    tied_parameters: Floats  # the head's copy of a shared table, when it sits on another rank
    shared_parameters: Floats  # the same of a later input that reads the first one's table
    head_activations: Floats
    head_transient: Floats  # what the head's 16-bit weight gradient needs beyond the logits' peak
    trained: Floats  # 1, or 0 where all of it is frozen
    # Parameters of a frozen model beside the trained one.
    frozen_embedding: Floats
    frozen_head: Floats
    frozen_tied: Floats  # as `tied_parameters`
    boundary_bytes: Floats  # what one rank hands to the next stage, by cut: see `boundary_bytes`


def end_costs(
    workload: Workload, shards: Shards, ops: OperatorModel, fabric: Fabric, runtime: Runtime
) -> EndCosts:
    model, tp, element = workload.model, shards.tp, workload.precision.element_bytes
    # The ends see the tokens of the layers beside them: patches here, text there.
    first, last = (model.blocks[end].tokens(workload.seq_length) for end in (0, -1))
    tokens = shards.tokens(last) * model.head.passes
    residual = tokens / shards.residual_split * model.hidden * element
    entered = shards.tokens(first) * _entry_width(model) * element
    sequence = shards.sequence_parallel
    enter_reduce, enter_gather = _messages(shards, fabric, entered)
    reduce, gather = _messages(shards, fabric, tokens * model.hidden * element)

    pads = runtime.pads_vocabulary
    outputs = dealt(model.head.outputs, tp, pads=pads)
    projection = _projection(workload, shards, ops, runtime)
    logits = tokens * outputs
    table = dealt(model.embedding.vocab, tp, pads=pads) * model.embedding.hidden
    trains = workload.adapters is None

    def passed(kind: Pointwise, elements: Floats, *, backward: bool) -> Floats:
        return ops.pointwise(kind, elements, backward=backward, fused=kind in runtime.fused)

    loss_forward, loss_backward = (
        passed(Pointwise.RMS_NORM, residual / element, backward=backward)
        + passed(Pointwise.CROSS_ENTROPY, logits, backward=backward)
        + (projection.added if backward and trains else 0.0)
        for backward in (False, True)
    )
    return EndCosts(
        embedding_forward=passed(Pointwise.EMBEDDING, entered / element, backward=False),
        # A lookup's gradient is a whole 16-bit table, which no product adds to the fp32 sum.
        embedding_backward=passed(Pointwise.EMBEDDING, entered / element, backward=True)
        + summed_seconds(ops, runtime, table)
        if trains and not model.frozen_front
        else np.zeros(len(shards)),
        # Without sequence parallelism the way back needs no message.
        embedding_message=enter_reduce + np.where(sequence, enter_gather, 0.0),
        embedding_parameters=table + model.embedding.other_parameters,
        head_forward=loss_forward + projection.forward_among(loss_forward),
        head_backward=loss_backward + projection.backward_among(loss_backward),
        head_message_forward=np.where(sequence, gather, 0.0),
        head_message_backward=np.where(sequence, gather + reduce, reduce),
        head_parameters=np.where(model.head.tied, 0.0, outputs * model.head.inputs)
        + model.head.other_parameters
        + (outputs if model.head.bias else 0.0),
        tied_parameters=np.where(model.head.tied, outputs * model.head.inputs, 0.0),
        shared_parameters=np.where(any(model.reads_first_table), table, 0.0),
        head_activations=2 * residual
        + logits * (runtime.logit_bytes + runtime.divided_logit_bytes * (tp > 1)),
        # The gradient of the head's weight follows when the fp32 copy is gone.
        head_transient=np.maximum(
            outputs * model.head.inputs * element * trains - logits * FLOAT_BYTES, 0.0
        ),
        trained=np.full(len(shards), float(trains)),
        **dict.fromkeys(_OF_FROZEN, np.zeros(len(shards))),
        # A mask goes forward only: half of it in each direction stands for that.
        boundary_bytes=boundary_bytes(workload, shards)
        + runtime.sent_mask_bytes * workload.seq_length**2 / 2,
    )


class _Projection(Value, frozen=True):
    """The products of the head's weight: at full clock, and at least at the power limit."""

    forward: Floats
    forward_limit: Floats
    backward: Floats
    backward_limit: Floats
    added: Floats  # to sum 16-bit gradients
    off: Floats  # measured over predicted seconds, forward

    def forward_among(self, other: Floats) -> Floats:
        """Seconds among other kernels, which leave power to them."""
        return self.off * under_power_limit(self.forward, self.forward_limit, other)

    def backward_among(self, other: Floats) -> Floats:
        return self.off * under_power_limit(self.backward, self.backward_limit, other)


def _projection(
    workload: Workload, shards: Shards, ops: OperatorModel, runtime: Runtime
) -> _Projection:
    head = workload.model.head
    tokens = shards.tokens(workload.model.blocks[-1].tokens(workload.seq_length)) * head.passes
    outputs = dealt(head.outputs, shards.tp, pads=runtime.pads_vocabulary)
    inputs = np.full(len(shards), float(head.inputs))
    dtype = HEAD_DTYPE.get(workload.precision, workload.precision.value)
    forward, dgrad, wgrad, added = weight_products(ops, runtime, tokens, outputs, inputs, dtype)
    flops = 2 * tokens * outputs * inputs
    settled = ops.settled_seconds(flops, dtype)
    trains = workload.adapters is None
    predicted = _Projection(
        forward,
        settled,
        dgrad + wgrad if trains else dgrad,
        least_backward_seconds(ops, runtime, flops, dtype) if trains else settled,
        added,
        np.ones(len(shards)),
    )
    timings = head.timings.get(ops.gpu.name)
    if not timings:
        return predicted
    unmeasured = replace(workload, model=replace(workload.model, head=replace(head, timings={})))
    there = _projection(unmeasured, measured_shards(timings, shards), ops, runtime)
    measured = np.array([timings[degree].forward_seconds for degree in sorted(timings)])
    off = measured / there.forward_among(np.zeros_like(measured))
    return replace(predicted, off=off[nearest_measured(timings, shards.tp)])


def boundary_bytes(workload: Workload, shards: Shards) -> Floats:
    """Bytes that one rank hands on, by shard (rows) and cut (0 to the number of layers).

    A single column stands for all cuts where they are alike, as in models of one kind of layer.
    Sequence parallelism divides streams of tokens; the outputs of layers that are known only by
    their totals go whole. A stage of the head alone gets what the last layer makes; one of the
    embedding alone hands on as much as the first layer.
    """
    model, seq_length = workload.model, workload.seq_length
    divided, whole = np.zeros(model.num_layers + 1), np.zeros(model.num_layers + 1)
    last = model.num_layers - 1
    for cut in range(1, model.num_layers + 1):
        for layer in model.handed_over(cut) or (last,):
            block = model.blocks[layer]
            elements = whole if isinstance(block, CustomBlock) else divided
            elements[cut] += block.output_elements(seq_length)
    divided[0], whole[0] = divided[1], whole[1]
    inner = slice(1, max(model.num_layers, 2))
    if len({*divided[inner]}) == 1 and len({*whole[inner]}) == 1:
        divided, whole = divided[inner][:1], whole[inner][:1]
    parts = divided / shards.residual_split[:, None] + whole
    element = workload.precision.element_bytes
    return parts * (shards.micro_batch / shards.cp)[:, None] * element


def _entry_width(model: Model) -> int:
    first = model.blocks[0]
    return model.hidden if isinstance(first, CustomBlock) else first.hidden


def _messages(shards: Shards, fabric: Fabric, num_bytes: Floats) -> tuple[Floats, Floats]:
    """Seconds to sum up and to gather such a tensor among tensor-parallel ranks."""
    group = place(shards.tp, np.ones_like(shards.tp), shards.domain)
    reduce = np.where(
        shards.sequence_parallel,
        reduce_scatter_seconds(fabric, num_bytes, group),
        all_reduce_seconds(fabric, num_bytes, group),
    )
    return reduce, all_gather_seconds(fabric, num_bytes, group)


def dealt(vocab: int, tp: Ints, *, pads: bool) -> Floats:
    """A rank's part of the vocabulary. Small outputs (class heads) are never padded."""
    if not pads:
        return np.ceil(vocab / tp)
    multiple = VOCAB_MULTIPLE * tp
    padded = np.where(vocab < VOCAB_MULTIPLE * 8, vocab, np.ceil(vocab / multiple) * multiple)
    return padded / tp


class PlacedEnds:
    """Puts per-shard costs of embedding and head on the ranks that hold them."""

    def __init__(
        self, model: Model, costs: EndCosts, shard: Ints, stages: StageTable, stage_row: Ints
    ) -> None:
        self._costs, self._shard = costs, shard
        self._has_embedding = stages.has_embedding[stage_row]
        self._has_head = stages.has_head[stage_row]
        reads = (stages.layers[stage_row] * np.array(model.reads_first_table)).any(axis=2)
        held = self._has_embedding | (self._has_head & model.head.tied)
        # Parameters of the token table once more, where a later input is apart from the first.
        self.copies = np.where(reads & ~held, costs.shared_parameters[shard][:, None], 0.0)

    def first(self, per_shard: Floats) -> Floats:
        return np.where(self._has_embedding, per_shard[self._shard][:, None], 0.0)

    def last(self, per_shard: Floats) -> Floats:
        return np.where(self._has_head, per_shard[self._shard][:, None], 0.0)

    def tied(self, apart: Bools) -> Floats:
        """Parameters of a tied head by layout, where it is apart from its table."""
        return np.where(apart, self._costs.tied_parameters[self._shard], 0.0)

    def parameters(self, apart: Bools) -> Floats:
        """Parameters of embedding and head, and of copies of the table that are apart from it."""
        tied = np.where(self._has_head, self.tied(apart)[:, None], 0.0)
        return (
            self.first(self._costs.embedding_parameters)
            + self.last(self._costs.head_parameters)
            + tied
            + self.copies
        )

    def frozen(self, apart: Bools) -> Floats:
        """Parameters of embedding and head of a frozen model beside the trained one."""
        costs = self._costs
        tied = np.where(apart[:, None], self.last(costs.frozen_tied), 0.0)
        return self.first(costs.frozen_embedding) + self.last(costs.frozen_head) + tied

    def half_at_each(self, amount: float) -> Floats:
        """An amount that belongs to both ends of the model."""
        return (self._has_embedding * 0.5 + self._has_head * 0.5) * amount
