"""The model that Megatron-LM builds from its options, compared with the planned one.

The options are read back as those of anybody's script are: what was lost or changed on the way to
Megatron shows as a difference of weights, and the export is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.configs.megatron.importing import described
from astrarium.model import build
from astrarium.model.blocks import Block, CustomBlock, Model
from astrarium.model.hybrids import parts_of

Flags = Mapping[str, object]  # option without dashes -> True, a value, or a list of them

_PATTERN: Final = "hybrid-layer-pattern"


def words(options: Flags) -> tuple[str, ...]:
    return tuple(word for name, value in options.items() for word in _words(name, value))


def _words(name: str, value: object) -> Iterator[str]:
    yield f"--{name}"
    if value is True:
        return
    yield from map(_text, value if isinstance(value, list) else [value])


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def difference(model: Model, seq_length: int, flags: Flags) -> str:
    """The difference between Megatron's model and the planned one; "" if there is none."""
    shape, why = shape_of(flags, model.vocab)
    if shape is None:
        return why
    built = build.assemble(model.name, model.family, build.Architecture.DECODER, shape)
    if built.parameters != model.parameters:
        return (
            f"Megatron would build it with {built.parameters:,} parameters instead of"
            f" {model.parameters:,}"
        )
    planned = _layers(model) if _PATTERN in flags else model.blocks
    for layer, (own, other) in enumerate(zip(planned, built.blocks, strict=True)):
        if not (isinstance(own, Block) and isinstance(other, Block)):
            return f"layer {layer} is known by its size only"
        if _weights(own) != _weights(other) or not _same_attention(own, other, seq_length):
            return f"Megatron would build layer {layer} differently"
    return ""


def _weights(block: Block) -> tuple[Any, ...]:
    """What decides weights; the length of the chunks of a scan is up to the kernels."""
    norms = sorted((norm.width, norm.vectors, norm.groups) for norm in block.norms)
    figures = (block.gated, block.experts_per_token, block.extra_parameters)
    return block.linears, norms, figures, [replace(scan, chunk=1) for scan in block.scans]


def _same_attention(own: Block, other: Block, seq_length: int) -> bool:
    """A window beyond the end of the sequence counts as no window."""
    seen = [
        [
            replace(one, window=one.window if one.window and one.window < seq_length else None)
            for one in block.attentions
        ]
        for block in (own, other)
    ]
    return seen[0] == seen[1]


def _layers(model: Model) -> tuple[Block | CustomBlock, ...]:
    """Megatron's layers of a hybrid model: every part is one."""
    return tuple(
        part
        for block in model.blocks
        for part in (parts_of(block) if isinstance(block, Block) else (block,))
    )


def shape_of(flags: Flags, vocab: int) -> tuple[build.Shape | None, str]:
    """The stack that the options describe, with what readers of scripts leave out; or why not."""
    found = described(words(flags))
    shape, biased = found.shape, "disable-bias-linear" not in flags
    if shape is None:
        return None, found.why_no_shape
    experts = shape.experts and replace(
        shape.experts, shared_bias=biased, router_bias=biased, bias=biased
    )
    sinks = shape.heads if flags.get("softmax-type") == "learnable" else 0
    return replace(shape, vocab=vocab, experts=experts, extra_parameters=sinks), ""
