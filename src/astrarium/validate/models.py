"""The model of a measured row: from the catalog by its name, or built from stated sizes.

A public model keeps what its name implies (experts, latent attention, ties) as long as the sizes
a row states agree with it; fewer layers than the original shorten the stack. Everything else is
built as the GPT of Megatron (biases, layer norms, learned positions, tied embeddings) or as a
Llama (gated feed-forward part, RMS norms, rotary positions), by family name and proportions.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Final

from astrarium.catalog import find_model_entry, is_model_name
from astrarium.errors import InputError
from astrarium.model.blocks import Attention, Block, Model
from astrarium.model.build import Architecture, Experts, Latent, Shape, assemble
from astrarium.model.load import model_of_entry
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import flag_of
from astrarium.value import Value

# Names that tables use for entries of the catalog.
OTHER_NAMES: Final = {
    "llama3405b": "llama-3.1-405b",
    "nemotron340b": "nemotron-4-340b",
    "nemotron15b": "nemotron-4-15b",
    "gpt35b": "megatron-5b",
    "gpt320b": "gpt-20b",
    "llama7b": "llama-7b",
    "deepseekv3671b": "deepseek-v3",
}
# Public models that the catalog does not hold, as their authors' recipes size them.
SIZES: Final = {
    # NeMo recipes nemotron3_8b, nemotron3_22b; squared ReLU, 256,000 tokens
    "nemotron8b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 256000},
    "nemotron22b": {"layers": 40, "hidden": 6144, "heads": 48, "ffn": 24576, "vocab": 256000},
    # bigscience-workshop/bigscience, train/tr8-104B-wide
    "gpt104b": {"layers": 64, "hidden": 11600, "heads": 80, "ffn": 46400, "vocab": 50257},
    # internlm/internlm-7b, -20b: config.json
    "internlm7b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 103168},
    "internlm20b": {"layers": 60, "hidden": 5120, "heads": 40, "ffn": 13824, "vocab": 103168},
}
LLAMA_LIKE: Final = (
    r"llama|mistral|mixtral|qwen|deepseek|internlm|\byi\b|gemma|baichuan|swiglu|olmo|glm|aquila|"
    r"kimi|moonlight|smollm"
)
GPT_LIKE: Final = r"gpt|mpt|opt\b|bloom|bert|megatron|turing|mt-nlg|falcon|pythia|nemotron|\bt5\b"
ENCODER: Final = r"\bbert|roberta"
OTHER_BLOCKS: Final = r"\bt5\b|hybrid|mamba|retro|clip|llava|vit\b|multimodal"
# Vocabularies of families that tables leave out: GPT-2's as Megatron pads it, and Llama's.
GPT_VOCAB: Final = 51200
BERT_VOCAB: Final = 30592
LLAMA_VOCAB: Final = 32000
FFN_RATIO: Final = 4  # of a plain feed-forward part to the width of the model
MEGATRON_GATED_STEP: Final = 64  # Megatron rounds the width of a gated part down to it


# Widths of heads that attention kernels know, and the most usual.
HEAD_DIMS: Final = (64, 80, 96, 128, 192, 256)
USUAL_HEAD_DIM: Final = 128
LATENT_ROTARY_DIM: Final = 64  # of a head of latent attention, beside its other part
# Shares by which a number of parameters as printed may differ from a model's: above FAR another
# model is looked for, which has to come NEAR.
FAR: Final = 0.05
NEAR: Final = 0.02


class Sizes(Value, frozen=True):
    """Everything a row says that decides its model."""

    name: str
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    ffn: int | None
    vocab: int | None
    experts: int | None
    topk: int | None
    shared_ffn: int | None
    kv_rank: int | None
    q_rank: int | None
    seq_length: int
    params_b: float | None
    gated: bool | None
    tied: bool | None
    dense_layers: int | None


def model_of(row: MeasuredRow, seq_length: int) -> Model:
    return _model(
        Sizes(
            name=row.model,
            layers=row.layers,
            hidden=row.hidden,
            heads=row.heads,
            kv_heads=row.kv_heads,
            head_dim=row.head_dim,
            ffn=row.ffn,
            vocab=row.vocab,
            experts=row.moe_experts,
            topk=row.moe_topk,
            shared_ffn=row.moe_shared_ffn,
            kv_rank=row.kv_lora_rank,
            q_rank=row.q_lora_rank,
            seq_length=seq_length,
            params_b=row.params_b,
            gated=_gated(row),
            tied=_tied(row),
            dense_layers=_dense_layers(row.notes),
        )
    )


def _gated(row: MeasuredRow) -> bool | None:
    stated = flag_of(row.gated_mlp)
    return True if stated is None and re.search(r"swiglu|geglu", row.notes.lower()) else stated


def _tied(row: MeasuredRow) -> bool | None:
    stated = flag_of(row.tied_embeddings)
    if stated is not None:
        return stated
    notes = row.notes.lower()
    if re.search(r"\buntied?\b|untie-", notes):
        return False
    return True if re.search(r"\btied\b", notes) else None


def _dense_layers(notes: str) -> int | None:
    found = re.search(r"dense_layers ?= ?(\d+)|(\d+) dense layers?", notes)
    return int(found[1] or found[2]) if found else None


@cache
def _model(sizes: Sizes) -> Model:
    known = _from_catalog(sizes)
    if known is not None:
        return known
    words = sizes.name.lower()
    if re.search(OTHER_BLOCKS, words):
        raise InputError("layers other than Transformer decoders and encoders are not modelled")
    filled = _with_public_sizes(sizes)
    for name in ("layers", "hidden", "heads"):
        if getattr(filled, name) is None:
            raise InputError(f"{name} not stated, and '{_bare(sizes.name)}' is no known model")
    hidden, heads = filled.hidden or 0, filled.heads or 1
    open_width = filled.head_dim is None and filled.params_b is None
    if open_width and hidden > heads and hidden % heads:
        raise InputError(f"hidden {hidden} is no multiple of heads {heads}; state head_dim")
    usual, *others = _head_dims(filled)
    found = _nearest(replace(filled, head_dim=usual))
    if filled.params_b is None or _distance(found, filled.params_b) <= FAR:
        return found
    shards = [_nearest(replace(filled, head_dim=width)) for width in others]
    nearest = min([found, *shards], key=lambda model: _distance(model, filled.params_b or 0.0))
    return nearest if _distance(nearest, filled.params_b) <= NEAR else found


def _nearest(sizes: Sizes) -> Model:
    """Of gated or plain, tied or untied as a row leaves it open: by its number of parameters."""
    models = [
        _built(sizes, gated, tied)
        for gated in _gated_options(sizes)
        for tied in _tied_options(sizes, gated)
    ]
    if sizes.params_b is None:
        return models[0]
    stated = sizes.params_b
    return min(models, key=lambda model: _distance(model, stated))


def _distance(model: Model, params_b: float) -> float:
    return abs(model.parameters / (params_b * 1e9) - 1.0)


def _head_dims(sizes: Sizes) -> tuple[int, ...]:
    """Widths of a head, the likely one first.

    A model stands for one tensor-parallel shard where its heads would be wider than any kernel's.
    """
    if sizes.head_dim is not None:
        return (sizes.head_dim,)
    own = (sizes.hidden or 0) // (sizes.heads or 1)
    if own > HEAD_DIMS[-1]:
        return (USUAL_HEAD_DIM, *HEAD_DIMS)
    return (own, *HEAD_DIMS)


def _bare(name: str) -> str:
    return re.sub(r"\(.*?\)", "", name).strip()


def _key(name: str) -> str:
    return re.sub(r"[\s_/-]+", "", _bare(name).lower())


def _from_catalog(sizes: Sizes) -> Model | None:
    name = OTHER_NAMES.get(_key(sizes.name), _bare(sizes.name))
    if not is_model_name(name):
        return None
    model = model_of_entry(find_model_entry(name))
    if not _agrees(model, sizes):
        return None
    model = _shortened(model, sizes)
    if sizes.vocab is not None and sizes.vocab != model.vocab:
        model = replace(
            model,
            embedding=replace(model.embedding, vocab=sizes.vocab),
            head=replace(model.head, outputs=sizes.vocab),
        )
    if sizes.tied is not None and sizes.tied != model.head.tied:
        model = replace(model, head=replace(model.head, tied=sizes.tied))
    return model


def _agrees(model: Model, sizes: Sizes) -> bool:
    """Whether the sizes a row states are those of the model; a stack may be shorter."""
    first = model.blocks[-1]
    if not isinstance(first, Block) or not first.attentions:
        return False
    attention: Attention = first.attentions[0]
    latent = attention.key_dim != attention.value_dim
    pairs = [
        (sizes.hidden, model.hidden),
        (sizes.heads, attention.heads),
        (None if latent else sizes.kv_heads, attention.kv_heads),
        (None if latent else sizes.head_dim, attention.key_dim),
        (sizes.experts, first.experts or None),
        (sizes.gated, first.gated),
    ]
    if any(stated is not None and stated != own for stated, own in pairs):
        return False
    if sizes.layers is not None and sizes.layers > model.num_layers:
        return False
    return sizes.ffn is None or bool(first.experts) or sizes.ffn == _ffn(first)


def _ffn(block: Block) -> int:
    return next((linear.inputs for linear in block.linears if linear.name == "fc2"), 0)


def _shortened(model: Model, sizes: Sizes) -> Model:
    layers = sizes.layers or model.num_layers
    if layers == model.num_layers:
        return model
    blocks = model.blocks[:layers]
    if sizes.dense_layers is not None and sizes.dense_layers < layers:
        dense = model.blocks[: sizes.dense_layers]
        blocks = dense + model.blocks[len(dense) - layers :]
    return replace(model, blocks=blocks)


def _with_public_sizes(sizes: Sizes) -> Sizes:
    known = SIZES.get(_key(sizes.name), {})
    stated = {name: getattr(sizes, name) for name in known}
    if any(value is not None and value != known[name] for name, value in stated.items()):
        return sizes
    return replace(sizes, **known)  # type: ignore[arg-type]


def _is_llama(sizes: Sizes, gated: bool) -> bool:
    """By name; where that says nothing, a gated feed-forward part is a Llama's."""
    words = sizes.name.lower()
    return bool(re.search(LLAMA_LIKE, words)) or (gated and not re.search(GPT_LIKE, words))


def _gated_options(sizes: Sizes) -> tuple[bool, ...]:
    if sizes.gated is not None:
        return (sizes.gated,)
    if re.search(LLAMA_LIKE, sizes.name.lower()):
        return (True,)
    plain = sizes.ffn is None or sizes.ffn == FFN_RATIO * (sizes.hidden or 0)
    if plain or re.search(GPT_LIKE, sizes.name.lower()):
        return (False,)
    return (True, False)


def _tied_options(sizes: Sizes, gated: bool) -> tuple[bool, ...]:
    if sizes.tied is not None:
        return (sizes.tied,)
    usual = not _is_llama(sizes, gated)
    return (usual, not usual)


def _built(sizes: Sizes, gated: bool, tied: bool) -> Model:
    hidden, layers, heads = sizes.hidden or 0, sizes.layers or 0, sizes.heads or 0
    encoder = bool(re.search(ENCODER, sizes.name.lower()))
    llama = _is_llama(sizes, gated)
    head_dim = sizes.head_dim or hidden // heads
    if head_dim < 1:
        raise InputError(f"{heads} heads do not fit into a hidden size of {hidden}")
    if heads % (sizes.kv_heads or heads):
        raise InputError(f"heads {heads} is no multiple of kv_heads {sizes.kv_heads}")
    ffn = sizes.ffn or _usual_ffn(hidden, gated)
    vocab = sizes.vocab or (BERT_VOCAB if encoder else LLAMA_VOCAB if llama else GPT_VOCAB)
    experts = None
    if sizes.experts:
        experts = Experts(sizes.experts, sizes.topk or 1, ffn, sizes.shared_ffn or 0)
    latent = None
    if sizes.kv_rank:
        latent = Latent(sizes.q_rank, sizes.kv_rank, head_dim, LATENT_ROTARY_DIM, head_dim)
    bias = not llama and experts is None
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=sizes.kv_heads or heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        max_seq_length=sizes.seq_length,
        gated=gated,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_vectors=1 if llama else 2,
        causal=not encoder,
        rotary_dim=head_dim if llama else 0,
        experts=experts,
        latent=latent,
        tied=tied,
        embedding_parameters=0 if llama else sizes.seq_length * hidden,
    )
    kind = Architecture.ENCODER if encoder else Architecture.DECODER
    return assemble(sizes.name, "measured", kind, shape)


def _usual_ffn(hidden: int, gated: bool) -> int:
    if not gated:
        return FFN_RATIO * hidden
    return int(FFN_RATIO * hidden * 2 / 3) // MEGATRON_GATED_STEP * MEGATRON_GATED_STEP
