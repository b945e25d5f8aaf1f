"""Models with scans as options of Megatron-LM.

Mamba-2 makes a pattern with a letter for each part of a layer, which `pretrain_hybrid.py` builds;
bars in it divide it into stages. Gated delta nets are a variant of attention in the layers of
`pretrain_gpt.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from astrarium.export.software.model_facts import scan_of
from astrarium.model.blocks import Block, Model
from astrarium.model.hybrids import parts_of
from astrarium.model.scans import Recurrence

SCRIPT: Final = "pretrain_hybrid.py"
SPEC: Final = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
LETTERS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "experts": "E"}
TAPS: Final = 4  # of the convolution, which no option changes


def is_hybrid(model: Model) -> bool:
    """Whether `pretrain_hybrid.py` builds it."""
    scan = scan_of(model)
    return scan is not None and scan.kind is Recurrence.SSD


def parts_per_layer(model: Model) -> int:
    """Megatron's layers for one of ours: it counts every part of a hybrid model."""
    return max(len(parts_of(b)) for b in model.kinds if isinstance(b, Block))


def hybrid_refused(model: Model) -> str:
    """Why Megatron cannot build a model with scans; "" if nothing here says so."""
    scan = scan_of(model)
    if scan is None:
        return ""
    blocks = [block for block in model.kinds if isinstance(block, Block)]
    if scan.kind is Recurrence.DECAY:
        return "Megatron has no lightning attention"
    if any(block.scans and block.attentions for block in blocks):
        return "Megatron has attention and scans in layers of their own, not side by side"
    if any(x.bias for b in blocks if b.scans for x in b.linears if x.name == "in_proj"):
        return "the projections of Megatron's scans have no bias"
    if scan.kind is Recurrence.DELTA:
        return ""
    if scan.taps != TAPS or not scan.taps_bias:
        return f"Megatron's convolution has {TAPS} taps and a bias"
    if model.family != "nemotron_h" and scan.groups > 1:
        return "Megatron normalises what scans make in groups of heads, not all heads together"
    return ""


def pattern_of(model: Model, stages: Sequence[int] = ()) -> str:
    """A letter for each part of each layer, a bar between two stages of so many layers."""
    letters = [
        "".join(LETTERS[part.name] for part in parts_of(block))
        for block in model.blocks
        if isinstance(block, Block)
    ]
    if len(stages) < 2:
        return "".join(letters)
    taken = iter(letters)
    return "|".join("".join(next(taken) for _ in range(count)) for count in stages)


def scan_flags(model: Model, stages: Sequence[int] = ()) -> Iterator[tuple[str, object]]:
    scan = scan_of(model)
    if scan is None:
        return
    if is_hybrid(model):
        yield "hybrid-layer-pattern", pattern_of(model, stages)
        yield "spec", SPEC
        yield "mamba-state-dim", scan.state
        yield "mamba-head-dim", scan.head_dim
        yield "mamba-num-groups", scan.groups
        yield "mamba-num-heads", scan.heads
        return
    yield "experimental-attention-variant", "gated_delta_net"
    yield "linear-attention-freq", _frequency(model)
    yield "linear-conv-kernel-dim", scan.taps
    yield "linear-key-head-dim", scan.state
    yield "linear-value-head-dim", scan.head_dim
    yield "linear-num-key-heads", scan.groups
    yield "linear-num-value-heads", scan.heads
    if any(a.gated for b in model.kinds if isinstance(b, Block) for a in b.attentions):
        yield "attention-output-gate", True


def _frequency(model: Model) -> object:
    """Every n-th layer is attention; or a list with a one for each scan."""
    scans = [bool(block.scans) for block in model.blocks if isinstance(block, Block)]
    every = scans.index(False) + 1 if False in scans else 0
    if every and scans == [(layer + 1) % every != 0 for layer in range(len(scans))]:
        return every
    return f"[{','.join(str(int(scan)) for scan in scans)}]"
