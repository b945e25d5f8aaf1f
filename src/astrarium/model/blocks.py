"""Blocks of models: weights, norms, attention, scans, in the order data flows.

Parameter counts, FLOPs, GEMM shapes, activation bytes and messages all follow from the same
`Linear`, `Norm`, `Attention` and `Scan` entries, so they cannot disagree. Nothing here knows GPUs
or strategies, except how Megatron splits each weight (`Split`). A layer may work on tokens of its
own (`Block.tokens`); figures "per token" are per token of the workload, so that they add up.

Not modelled: biases in GEMM time (fused), dropout masks of models that train without dropout, the
products of convolutions that make tokens (patches of an image, frames of a sound).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import msgspec

from astrarium.model.scans import Scan
from astrarium.value import Value

ELEMENT_BYTES = 2  # activations are kept and sent in 16-bit formats
PREDICTION = "mtp"  # the name of layers that predict a further token


class Split(StrEnum):
    """The split of a weight under tensor parallelism."""

    COLUMN = "column"  # outputs divided among ranks
    ROW = "row"  # inputs divided among ranks, outputs summed
    REPLICATED = "replicated"


class Module(StrEnum):
    """The part of a block an operator belongs to; recompute policies select by it."""

    ATTENTION = "attention"
    MLP = "mlp"
    ROUTER = "router"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"


class Linear(Value, frozen=True):
    """A weight matrix of `outputs` x `inputs`; `copies` of it exist, each token uses `active`.

    `context` weights multiply what cross attention reads, not the tokens of their layer.
    """

    name: str
    inputs: int
    outputs: int
    split: Split
    module: Module
    bias: bool = False
    copies: int = 1
    active: float = 1.0
    context: bool = False

    @property
    def parameters(self) -> int:
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.bias else 0))

    @property
    def active_parameters(self) -> float:
        return self.parameters * self.active / self.copies

    @property
    def flops_per_token(self) -> float:
        return 2.0 * self.inputs * self.outputs * self.active


class Norm(Value, frozen=True):
    """A normalisation over `width` features with `vectors` learned vectors (RMS 1, layer 2).

    `per_head` norms (query/key norms) act on head-split activations, on `groups` heads of `width`
    features each; the others act on the residual stream or on what is replicated beside it, and
    are what sequence parallelism divides. `context` norms act on what cross attention reads.
    """

    name: str
    width: int
    vectors: int = 1
    per_head: bool = False
    groups: int = 1
    context: bool = False

    @property
    def parameters(self) -> int:
        return self.width * self.vectors

    @property
    def features(self) -> int:
        """Values that pass through the norm per token."""
        return self.width * self.groups


class Attention(Value, frozen=True):
    """The scores-and-values part of attention; its projections are `Linear` entries.

    `key_dim` and `value_dim` are per head (equal except for MLA). `window` is the number of
    earlier tokens a local layer sees. `cross` attends to an encoder's output. `gated`: the output
    is multiplied by a gate that the projection of the queries makes.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    causal: bool = True
    window: int | None = None
    rotary_dim: int = 0
    cross: bool = False
    gated: bool = False

    def flops_per_token(self, seq_length: int) -> float:
        """Forward FLOPs for one token at average depth; causal attention does half the work."""
        visible = float(seq_length)
        if self.causal:
            visible = (seq_length + 1) / 2
        if self.window is not None and self.window < seq_length:
            full, tail = self.window, seq_length - self.window
            head_part = full * (full + 1) / 2 if self.causal else full * full
            visible = (head_part + tail * full) / seq_length
        return 2.0 * self.heads * (self.key_dim + self.value_dim) * visible


class LayerTiming(Value, frozen=True):
    """Measured seconds of one layer with a micro-batch of `samples`: how AMP profiles enter.

    Without `backward_seconds` the backward pass is as much off its prediction as the forward pass.
    """

    forward_seconds: float
    backward_seconds: float | None = None
    samples: int = 1


# GPU name -> tensor-parallel degree -> what was measured there.
Timings: TypeAlias = Mapping[str, Mapping[int, LayerTiming]]


class Embedding(Value, frozen=True):
    """Tables and projections before the first block, on the first pipeline stage.

    `vocab` rows of the token table are divided by tensor parallelism; everything in
    `other_parameters` (positions, token types, norms, patch projection) is replicated. A model
    with two inputs has another one at the block where the second comes in (`Block.embedding`);
    `shared` says that it reads the table of the first.
    """

    vocab: int
    hidden: int
    other_parameters: int = 0
    shared: bool = False

    @property
    def token_parameters(self) -> int:
        return 0 if self.shared else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        return self.token_parameters + self.other_parameters


class Block(Value, frozen=True, dict=True):
    """One layer: what Megatron counts in --num-layers.

    `gated` tells whether the feed-forward part multiplies two projections (SwiGLU, GeGLU).
    `parallel_residual`: the residual stream is added to once, by parts side by side or by one part
    alone. `scans` carry a state along the sequence, beside attention or instead of it.
    `extra_parameters` are weights outside `linears` and `norms` (relative position tables,
    attention sinks): no GEMM, counted once per rank. `timings` correct the predicted time.

    A sample is `sequences` sequences of `seq_length` tokens to this layer (images, windows of one);
    by default it is one of the workload's length. Cross attention reads `context_length` tokens of
    a sample. `embedding` makes the tokens of an input that comes in here. A `frozen` layer, at the
    front of its model, has no backward pass.
    """

    name: str
    hidden: int
    linears: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    attentions: tuple[Attention, ...]
    gated: bool
    scans: tuple[Scan, ...] = ()
    experts: int = 0
    experts_per_token: int = 0
    expert_groups: int = 1
    groups_per_token: int = 1
    parallel_residual: bool = False
    extra_parameters: int = 0
    seq_length: int | None = None
    sequences: int = 1
    context_length: int | None = None
    embedding: Embedding | None = None
    timings: Timings = msgspec.field(default_factory=dict)
    frozen: bool = False

    @cached_property
    def parameters(self) -> int:
        return (
            sum(linear.parameters for linear in self.linears)
            + sum(norm.parameters for norm in self.norms)
            + sum(scan.parameters for scan in self.scans)
            + self.extra_parameters
            + (self.embedding.parameters if self.embedding else 0)
        )

    @cached_property
    def active_parameters(self) -> int:
        inactive = sum(linear.parameters - linear.active_parameters for linear in self.linears)
        return round(self.parameters - inactive)

    def length(self, seq_length: int) -> int:
        """Tokens of one of the layer's sequences in a workload of `seq_length`."""
        return self.seq_length or seq_length

    def tokens(self, seq_length: int) -> int:
        """Tokens of one sample in this layer."""
        return self.sequences * self.length(seq_length)

    def context_tokens(self, seq_length: int) -> int:
        """Tokens of one sample that cross attention reads."""
        return self.context_length or seq_length

    def flops_per_token(self, seq_length: int) -> float:
        """Forward FLOPs of matrix products; norms and activations are bandwidth, not FLOPs."""
        own, context = self.length(seq_length), self.context_tokens(seq_length)
        per_own = sum(x.flops_per_token for x in self.linears if not x.context)
        per_own += sum(x.flops_per_token(context if x.cross else own) for x in self.attentions)
        per_own += sum(x.flops_per_token(own) for x in self.scans)
        per_context = sum(x.flops_per_token for x in self.linears if x.context)
        share = self.tokens(seq_length) / seq_length
        return per_own * share + per_context * (context / seq_length)

    def output_elements(self, seq_length: int) -> float:
        """Elements of one sample that leave the layer."""
        return float(self.tokens(seq_length) * self.hidden)

    def __hash__(self) -> int:
        return hash((self.name, self.parameters, self.linears))


class CustomBlock(Value, frozen=True, dict=True):
    """A layer known only by its size, and by measurements if the user has them.

    Bytes and FLOPs are per sample (one sequence, one image) and for the whole layer. Tensor
    parallelism divides the parameters, and `divided` of the rest: 1 is all of it. `moved_bytes`
    are read and written by the kernels of each pass beside matrix products. `timings` correct the
    predicted time, `launch_seconds` is what the host needs for the kernels of a forward pass.
    `transient_bytes` live only while a pass is in the layer, beside its output.
    """

    name: str
    parameter_count: int
    forward_flops: float
    activation_bytes: float
    output_bytes: float
    timings: Timings = msgspec.field(default_factory=dict)
    moved_bytes: tuple[float, float] = (0.0, 0.0)  # forward, backward
    divided: float = 1.0
    launch_seconds: float = 0.0
    transient_bytes: float = 0.0

    @property
    def parameters(self) -> int:
        return self.parameter_count

    @property
    def active_parameters(self) -> int:
        return self.parameter_count

    def flops_per_token(self, seq_length: int) -> float:
        return self.forward_flops / seq_length

    def tokens(self, seq_length: int) -> int:
        """Tokens of one sample; nothing else is known than the workload's."""
        return seq_length

    def output_elements(self, seq_length: int) -> float:
        return self.output_bytes / ELEMENT_BYTES

    def __hash__(self) -> int:
        return hash((self.name, self.parameter_count, self.forward_flops, self.output_bytes))


@dataclass(frozen=True, slots=True)
class Head:
    """The part behind the last block: final norm, transforms, the projection to `outputs`.

    `tied` heads reuse the token table: no parameters of their own in the model, but a copy on
    the last pipeline stage. `outputs` is the vocabulary for language models, classes for ViT.
    `timings` are of the projection alone, without the loss. `passes` are those of its tokens: one
    for the next token, and one for each further token that is predicted.
    """

    inputs: int
    outputs: int
    tied: bool
    bias: bool = False
    other_parameters: int = 0
    timings: Timings = field(default_factory=dict, hash=False)
    passes: int = 1

    @property
    def projection_parameters(self) -> int:
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        own = 0 if self.tied else self.projection_parameters
        return own + (self.outputs if self.bias else 0) + self.other_parameters

    @property
    def flops_per_token(self) -> float:
        return 2.0 * self.inputs * self.outputs * self.passes


class Carried(Value, frozen=True):
    """The output of layer `source`, which layers up to `until` read beside what reaches them."""

    source: int
    until: int


@dataclass(frozen=True)
class Model:
    """An ordered list of blocks between an embedding and a head.

    `carried` are outputs that skip layers: what an encoder made for every cross attention.
    `config` is what it was built from, the content of a config.json or a model file: what decides
    neither time nor memory, such as the base of rotary positions, is found there.
    """

    name: str
    family: str
    architecture: str
    hidden: int
    max_seq_length: int
    embedding: Embedding
    blocks: tuple[Block | CustomBlock, ...]
    head: Head
    carried: tuple[Carried, ...] = ()
    config: Mapping[str, object] | None = field(default=None, compare=False, repr=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)  # of the config, a note for each

    @cached_property
    def vocab(self) -> int:
        """Entries of the token table, of the first input or of a later one."""
        later = (block.embedding.vocab for _, block in self.later_inputs if block.embedding)
        return self.embedding.vocab or next(later, 0)

    @cached_property
    def later_inputs(self) -> tuple[tuple[int, Block], ...]:
        """The layers at which another input comes in than at the first: text behind a tower."""
        blocks = enumerate(self.blocks)
        return tuple(
            (i, b)
            for i, b in blocks
            if isinstance(b, Block) and b.embedding and b.name != PREDICTION
        )

    @cached_property
    def reads_first_table(self) -> tuple[bool, ...]:
        """For each kind: whether an input enters there that shares the table of the first."""
        inputs = (kind.embedding if isinstance(kind, Block) else None for kind in self.kinds)
        return tuple(entry is not None and entry.shared for entry in inputs)

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    @property
    def mtp_layers(self) -> int:
        """Layers that predict further tokens; the last ones."""
        return self.head.passes - 1

    @cached_property
    def kinds(self) -> tuple[Block | CustomBlock, ...]:
        """Distinct blocks in order of first appearance."""
        return tuple(dict.fromkeys(self.blocks))

    @cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        index = {block: i for i, block in enumerate(self.kinds)}
        return tuple(index[block] for block in self.blocks)

    @cached_property
    def parameters(self) -> int:
        """Distinct parameters, tied weights once: the number model cards print."""
        body = sum(block.parameters for block in self.blocks)
        return self.embedding.parameters + body + self.head.parameters

    @cached_property
    def frozen_front(self) -> tuple[Block, ...]:
        """Layers that only have a forward pass."""
        return tuple(one for one in self.blocks if isinstance(one, Block) and one.frozen)

    @cached_property
    def active_parameters(self) -> int:
        """Parameters one token meets: experts scaled by the share of them a token uses."""
        body = sum(block.active_parameters for block in self.blocks)
        return self.embedding.parameters + body + self.head.parameters

    def flops_per_token(self, seq_length: int) -> float:
        """Model FLOPs of a training token: forward, and twice that back where layers train."""
        of_block = {id(b): b for b in self.blocks}  # equal layers are mostly one object
        flops = {key: block.flops_per_token(seq_length) for key, block in of_block.items()}
        forward = sum(flops[id(block)] for block in self.blocks)
        once = sum(flops[id(block)] for block in self.frozen_front)
        return 3.0 * (forward + self.head_flops_per_token(seq_length)) - 2.0 * once

    def head_flops_per_token(self, seq_length: int) -> float:
        """Forward FLOPs of the head, which sees the tokens of the last layer."""
        return self.head.flops_per_token * (self.blocks[-1].tokens(seq_length) / seq_length)

    def handed_over(self, cut: int) -> tuple[int, ...]:
        """Layers before `cut` whose output is needed behind it: the last, and those read later."""
        if not 0 < cut <= self.num_layers or (cut == self.num_layers and not self.mtp_layers):
            return ()
        # What the last layer itself made is the stream already.
        beside = {x.source for x in self.carried if x.source < cut - 1 and x.until >= cut}
        return (*sorted(beside), cut - 1)

    def boundary_elements(self, cut: int, seq_length: int) -> float:
        """Elements of one sample that layers before `cut` hand to those from `cut` on."""
        made = (self.blocks[layer] for layer in self.handed_over(cut))
        return sum(block.output_elements(seq_length) for block in made)

    @cached_property
    def max_experts(self) -> int:
        return max((b.experts for b in self.blocks if isinstance(b, Block)), default=0)
