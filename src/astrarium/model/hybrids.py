"""Layers of several kinds in one stack: a scan in the place of attention, or one part alone.

Each takes an ordinary layer apart (`build.transformer_block`), so that norms, weights and experts
are described once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from astrarium.model.blocks import Block, Linear, Module, Split
from astrarium.model.scans import Recurrence, Scan

NAMES: Final = {Recurrence.SSD: "mamba", Recurrence.DELTA: "delta", Recurrence.DECAY: "lightning"}
ATTENTION: Final = "attention"


def scan_linears(hidden: int, scan: Scan, *, bias: bool = False) -> tuple[Linear, ...]:
    """Projections around a scan, fused as in Megatron."""
    part = Module.ATTENTION
    return (
        Linear("in_proj", hidden, scan.projected, Split.COLUMN, part, bias),
        Linear("out_proj", scan.inner, hidden, Split.ROW, part, bias),
    )


def with_scan(block: Block, scan: Scan, *, bias: bool = False) -> Block:
    """Put a scan in the place of attention and its norms of queries and keys."""
    return replace(
        block,
        name=f"{NAMES[scan.kind]}-{block.name}",
        linears=(*scan_linears(block.hidden, scan, bias=bias), *_feed_forward(block)),
        norms=tuple(norm for norm in block.norms if not norm.per_head),
        attentions=(),
        scans=(scan,),
    )


def beside_attention(block: Block, scan: Scan, *, bias: bool = False) -> Block:
    """Let a scan and attention read the same input and add up their outputs."""
    return replace(
        block,
        name=f"{NAMES[scan.kind]}-{ATTENTION}-{block.name}",
        linears=(*scan_linears(block.hidden, scan, bias=bias), *block.linears),
        scans=(scan,),
    )


def mixing_alone(block: Block) -> Block:
    """Only the part that mixes tokens, with its norm."""
    norms = tuple(norm for norm in block.norms if norm.name == "attention_norm" or norm.per_head)
    return replace(
        block,
        name=NAMES[block.scans[0].kind] if block.scans else ATTENTION,
        linears=tuple(x for x in block.linears if x.module is Module.ATTENTION),
        norms=norms,
        gated=False,
        experts=0,
        experts_per_token=0,
        parallel_residual=True,
    )


def feed_forward_alone(block: Block) -> Block:
    """Only the feed-forward part, dense or of experts, with its norm."""
    return replace(
        block,
        name="experts" if block.experts else "mlp",
        linears=_feed_forward(block),
        norms=tuple(norm for norm in block.norms if norm.name == "mlp_norm"),
        attentions=(),
        scans=(),
        parallel_residual=True,
    )


def parts_of(block: Block) -> tuple[Block, ...]:
    found = []
    if block.attentions or block.scans:
        found.append(mixing_alone(block))
    if _feed_forward(block):
        found.append(feed_forward_alone(block))
    return tuple(found)


def _feed_forward(block: Block) -> tuple[Linear, ...]:
    return tuple(x for x in block.linears if x.module is not Module.ATTENTION)
