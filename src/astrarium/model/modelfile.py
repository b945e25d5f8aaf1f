"""Model files: a user's own list of layers, equal or not, in YAML, TOML or JSON.

docs/commands.md describes the blocks (`transformer`, `conv`, `custom`, `projector`, `embedding`,
`head`) and their keys. Measured `seconds` of a layer correct its prediction
(`astrarium.cost.measured`). Not modelled: connections of blocks of different width other than a
projector (count them in the narrower block).
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from astrarium import documents
from astrarium.errors import InputError
from astrarium.model import build
from astrarium.model.blocks import (
    ELEMENT_BYTES,
    Block,
    Carried,
    CustomBlock,
    Embedding,
    Head,
    LayerTiming,
    Model,
    Norm,
)

# Limits that keep a mistyped number from filling the memory; no known model comes near.
LARGEST_COUNT = 10**9
LARGEST_FIGURE = 1e21
MOST_LAYERS = 10**4

FAMILY = "model-file"
DEFAULT_SEQ_LENGTH = 2048  # of files with Transformer blocks; a sample counts as a token elsewhere
FLOPS_PER_MULTIPLY_ADD = 2

Count: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
OptionalCount: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
Figure: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST_FIGURE)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
Repeats: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_LAYERS)]


class NormKind(StrEnum):
    """Normalisation of a block, and of the head after it."""

    RMS = "rmsnorm"
    LAYER = "layernorm"
    PLAIN = "plain"  # a layer norm without learned numbers


_VECTORS = {NormKind.RMS: 1, NormKind.LAYER: 2, NormKind.PLAIN: 0}


class Moved(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bytes that kernels read and write; backward defaults to twice forward."""

    forward: Figure
    backward: Figure | None = None


class TimingEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Measured seconds of one layer with one micro-batch; backward may be left out."""

    forward: Seconds
    backward: Seconds | None = None


Measured: TypeAlias = dict[str, dict[Count, TimingEntry]]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="block"):
    """An entry of `layers`."""


class _MeasuredEntry(_Entry, kw_only=True):
    """An entry that may carry measured seconds, for a micro-batch of `measured_samples`."""

    seconds: Measured = {}
    measured_samples: Count = 1


class EmbeddingEntry(_Entry, tag="embedding"):
    """The token table; `parameters` are what it has beyond that (positions, norms).

    One that comes later reads the table of the first if it is `shared`; otherwise the table is
    there, and the first has none.
    """

    hidden: Count | None = None
    parameters: Amount = 0
    shared: bool = False


class HeadEntry(_MeasuredEntry, tag="head"):
    """The projection to the vocabulary or to classes; `parameters` come on top of it."""

    outputs: Count | None = None
    hidden: Count | None = None
    tied: bool = False
    bias: bool = False
    parameters: Amount | None = None


class TransformerEntry(_MeasuredEntry, tag="transformer"):
    """Attention and a feed-forward part, dense or with experts of width `ffn`.

    `parameters` are what a sample or the other of two streams meets: no product of every token.
    """

    heads: Count
    ffn: Count
    count: Repeats = 1
    hidden: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    gated: bool = True
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    norm: NormKind = NormKind.RMS
    parallel: bool = False
    rotary: bool = True
    causal: bool = True
    window: Count | None = None
    experts: OptionalCount = 0
    experts_per_token: OptionalCount = 0
    shared_ffn: OptionalCount = 0
    seq_length: Count | None = None
    sequences: Count = 1
    cross: bool = False
    parameters: Amount = 0
    name: Annotated[str, Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if self.sequences > 1 and not self.seq_length:
            raise ValueError("seq_length: missing; sequences need their length")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads: expected a divisor of the {self.heads} heads, got {self.kv_heads}"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token: expected 1..{self.experts}, got {self.experts_per_token}"
            )
        if not self.experts and (self.experts_per_token or self.shared_ffn):
            raise ValueError("experts: missing; experts_per_token and shared_ffn need it")


class ProjectorEntry(_Entry, tag="projector"):
    """Carries the tokens of one stack to the width of the next; `ffn` is a width in between."""

    inputs: Count
    outputs: Count | None = None
    ffn: Count | None = None
    bias: bool = True
    norm: NormKind | None = None
    seq_length: Count | None = None
    sequences: Count = 1
    count: Annotated[int, Meta(ge=1, le=1)] = 1


class ConvEntry(_MeasuredEntry, tag="conv"):
    """A convolution over `height` x `width` positions of its input."""

    inputs: Count
    outputs: Count
    kernel: Count
    height: Count
    width: Count
    stride: Count = 1
    bias: bool = True
    count: Repeats = 1
    name: str = "conv"


class CustomEntry(_MeasuredEntry, tag="custom"):
    """A layer given by its totals for one sample."""

    name: Annotated[str, Meta(min_length=1)]
    parameters: Amount
    output_bytes: Figure
    activation_bytes: Figure
    forward_flops: Figure = 0.0
    transient_bytes: Figure = 0.0
    moved_bytes: Moved = Moved(0.0)
    divided: Annotated[float, Meta(ge=0, le=1)] = 1.0
    launch_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    count: Repeats = 1

    def __post_init__(self) -> None:
        if not self.forward_flops and not self.seconds:
            raise ValueError("forward_flops: missing; give it, or measured seconds")


BodyEntry: TypeAlias = TransformerEntry | ProjectorEntry | ConvEntry | CustomEntry
Entry: TypeAlias = EmbeddingEntry | HeadEntry | BodyEntry
_E = TypeVar("_E", EmbeddingEntry, HeadEntry)


class ModelFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    hidden: Count
    layers: Annotated[list[Entry], Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1)] | None = None
    vocab: OptionalCount = 0
    seq_length: Count | None = None

    def __post_init__(self) -> None:
        inputs = 0
        for position, entry in enumerate(self.layers):
            if isinstance(entry, EmbeddingEntry):
                self._check_embedding(position, entry)
                inputs += position > 0
            if isinstance(entry, HeadEntry) and position < len(self.layers) - 1:
                raise ValueError(f"layers[{position}]: a head can only come last")
            if isinstance(entry, TransformerEntry) and entry.cross and not inputs:
                raise ValueError(
                    f"layers[{position}].cross: nothing to attend to; an embedding must come"
                    " between the encoder and the layers that read it"
                )
            self._check_width(position, entry)
        layers = sum(entry.count for entry in self.body)
        if not 1 <= layers <= MOST_LAYERS:
            raise ValueError(f"layers: expected 1..{MOST_LAYERS} layers between the ends")

    def _check_embedding(self, position: int, entry: EmbeddingEntry) -> None:
        """Check that it comes first, or makes the input of a transformer behind other layers."""
        following = self.layers[position + 1 : position + 2]
        if position and not (following and isinstance(following[0], TransformerEntry)):
            raise ValueError(
                f"layers[{position}]: an embedding can only come first, or before a transformer"
            )
        if entry.shared and not position:
            raise ValueError(f"layers[{position}].shared: there is no table before the first")

    def _check_width(self, position: int, entry: Entry) -> None:
        if not isinstance(entry, TransformerEntry) or entry.head_dim:
            return
        hidden = entry.hidden or self.hidden
        if hidden % entry.heads:
            raise ValueError(
                f"layers[{position}].heads: expected a divisor of the hidden size {hidden},"
                f" got {entry.heads}; or give head_dim"
            )

    @property
    def body(self) -> list[BodyEntry]:
        return [e for e in self.layers if not isinstance(e, EmbeddingEntry | HeadEntry)]


def load_model_file(path: Path) -> Model:
    return _model(documents.load(path, ModelFile), path.stem, str(path))


def model_from_mapping(values: object, name: str, label: str) -> Model:
    """Build a model from the content of a model file; `label` goes into errors."""
    try:
        document = msgspec.convert(values, ModelFile, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{label}: {error}") from None
    return _model(document, name, label)


def _model(document: ModelFile, name: str, label: str) -> Model:
    blocks, carried = _blocks(document, label)
    later = [e for e in document.layers[1:] if isinstance(e, EmbeddingEntry)]
    first_vocab = document.vocab if all(e.shared for e in later) else 0
    transformers = [e for e in document.body if isinstance(e, TransformerEntry)]
    length = document.seq_length or (DEFAULT_SEQ_LENGTH if transformers else 1)
    embedding = _end(document.layers[0], EmbeddingEntry) or EmbeddingEntry()
    return Model(
        name=document.name or name,
        family=FAMILY,
        architecture=_architecture(document.body, later),
        hidden=document.hidden,
        max_seq_length=length,
        embedding=Embedding(first_vocab, embedding.hidden or document.hidden, embedding.parameters),
        blocks=tuple(blocks),
        head=_head(document, transformers, label),
        carried=carried,
    )


def _blocks(
    document: ModelFile, label: str
) -> tuple[list[Block | CustomBlock], tuple[Carried, ...]]:
    """All layers in order, and which outputs cross attention reads, up to which layer."""
    blocks: list[Block | CustomBlock] = []
    read_until: dict[int, int] = {}
    source, table = 0, None
    for position, entry in enumerate(document.layers):
        if isinstance(entry, HeadEntry):
            continue
        if isinstance(entry, EmbeddingEntry):
            if position:
                width = entry.hidden or document.hidden
                source = len(blocks) - 1
                table = Embedding(document.vocab, width, entry.parameters, entry.shared)
            continue
        block = _body_block(entry, document, label)
        if isinstance(block, Block) and isinstance(entry, TransformerEntry) and entry.cross:
            block = _reading(block, entry, blocks[source])
            read_until[source] = len(blocks) + entry.count - 1
        first = block
        if table is not None and isinstance(block, Block):
            first = replace(block, name=block.name + build.FIRST, embedding=table)
            table = None
        blocks += [first, *[block] * (entry.count - 1)]
    return blocks, tuple(Carried(*pair) for pair in read_until.items())


def _reading(block: Block, entry: TransformerEntry, encoder: Block | CustomBlock) -> Block:
    """Add attention to the output of the encoder's last layer."""
    length, width = None, block.hidden
    if isinstance(encoder, Block):
        width = encoder.hidden
        length = encoder.tokens(1) if encoder.seq_length else None
    shape = _shape(entry, block.hidden)
    return build.with_cross_attention(block, shape, context_length=length, context_hidden=width)


def _end(entry: Entry, kind: type[_E]) -> _E | None:
    return entry if isinstance(entry, kind) else None


def _head(document: ModelFile, transformers: list[TransformerEntry], label: str) -> Head:
    """By default a final norm, like that of the last block, and an untied projection."""
    entry = _end(document.layers[-1], HeadEntry) or HeadEntry(tied=not document.vocab)
    width = entry.hidden or document.hidden
    outputs = entry.outputs or document.vocab or 1  # without a vocabulary: one value, no weights
    parameters = entry.parameters
    if parameters is None:
        parameters = _VECTORS[transformers[-1].norm] * width if transformers else 0
    timings = _timings(entry, "head", label)
    return Head(width, outputs, entry.tied, entry.bias, parameters, timings)


def _architecture(body: list[BodyEntry], later: list[EmbeddingEntry]) -> build.Architecture:
    transformers = [entry for entry in body if isinstance(entry, TransformerEntry)]
    if later:
        reads = any(entry.cross for entry in transformers)
        return build.Architecture.ENCODER_DECODER if reads else build.Architecture.MULTIMODAL
    if len(transformers) < len(body):
        return build.Architecture.CUSTOM
    causal = any(entry.causal for entry in transformers)
    return build.Architecture.DECODER if causal else build.Architecture.ENCODER


def _body_block(entry: BodyEntry, document: ModelFile, label: str) -> Block | CustomBlock:
    if isinstance(entry, TransformerEntry):
        block = _transformer(entry, entry.hidden or document.hidden)
        return replace(block, timings=_timings(entry, "transformer", label))
    if isinstance(entry, ProjectorEntry):
        return _projector(entry, document.hidden)
    if isinstance(entry, ConvEntry):
        return _convolution(entry, label)
    return CustomBlock(
        name=entry.name,
        parameter_count=entry.parameters,
        forward_flops=entry.forward_flops,
        activation_bytes=entry.activation_bytes,
        output_bytes=entry.output_bytes,
        timings=_timings(entry, entry.name, label),
        moved_bytes=_moved(entry.moved_bytes),
        divided=entry.divided,
        launch_seconds=entry.launch_seconds,
        transient_bytes=entry.transient_bytes,
    )


def _moved(moved: Moved) -> tuple[float, float]:
    return moved.forward, 2 * moved.forward if moved.backward is None else moved.backward


def _transformer(entry: TransformerEntry, hidden: int) -> Block:
    block = build.transformer_block(_shape(entry, hidden), entry.window, sparse=entry.experts > 0)
    return replace(block, name=entry.name) if entry.name else block


def _projector(entry: ProjectorEntry, hidden: int) -> Block:
    outputs = entry.outputs or hidden
    norms = (Norm("projector_norm", entry.inputs, _VECTORS[entry.norm]),) if entry.norm else ()
    return build.projector(
        entry.inputs,
        (entry.ffn, outputs) if entry.ffn else (outputs,),
        bias=entry.bias,
        norms=norms,
        seq_length=entry.seq_length,
        sequences=entry.sequences,
    )


def _shape(entry: TransformerEntry, hidden: int) -> build.Shape:
    kv_heads = entry.kv_heads or entry.heads
    head_dim = entry.head_dim or hidden // entry.heads
    bias, shared = entry.bias, entry.shared_ffn
    sizes = (entry.experts, entry.experts_per_token, entry.ffn, shared)
    experts = build.Experts(*sizes, shared_bias=bias, bias=bias) if entry.experts else None
    return build.Shape(
        hidden=hidden,
        layers=1,
        heads=entry.heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=entry.ffn,
        vocab=0,
        max_seq_length=1,
        gated=entry.gated,
        qkv_bias=entry.bias or entry.qkv_bias,
        out_bias=entry.bias,
        mlp_bias=entry.bias,
        norm_vectors=_VECTORS[entry.norm],
        head_norms=build.query_key_norms(entry.heads, kv_heads, head_dim) if entry.qk_norm else (),
        causal=entry.causal,
        rotary_dim=head_dim if entry.rotary else 0,
        parallel_residual=entry.parallel,
        experts=experts,
        extra_parameters=entry.parameters,
        seq_length=entry.seq_length,
        sequences=entry.sequences,
    )


def _convolution(entry: ConvEntry, label: str) -> CustomBlock:
    weights = entry.inputs * entry.outputs * entry.kernel**2
    positions = -(-entry.height // entry.stride) * -(-entry.width // entry.stride)
    output = ELEMENT_BYTES * entry.outputs * positions
    return CustomBlock(
        name=entry.name,
        parameter_count=weights + (entry.outputs if entry.bias else 0),
        forward_flops=float(FLOPS_PER_MULTIPLY_ADD * weights * positions),
        activation_bytes=float(ELEMENT_BYTES * entry.inputs * entry.height * entry.width),
        output_bytes=float(output),
        timings=_timings(entry, entry.name, label),
    )


def _timings(entry: _MeasuredEntry, name: str, label: str) -> dict[str, dict[int, LayerTiming]]:
    """Return measured seconds under the names that the catalog has for the GPUs."""
    from astrarium.catalog import find_gpu

    timings: dict[str, dict[int, LayerTiming]] = {}
    for gpu, by_degree in entry.seconds.items():
        try:
            known = find_gpu(gpu).name
        except InputError as error:
            raise InputError(f"{label}: {name}: seconds: {error}") from None
        timings[known] = {
            degree: LayerTiming(timing.forward, timing.backward, entry.measured_samples)
            for degree, timing in by_degree.items()
        }
    return timings
