"""Adapters for models that see and read: a vision tower, a projector, then a decoder.

The tower reads the patches of an image; the projector hands its tokens to the decoder, where the
token table is. Two keys of our own fill gaps of the configs: `images_per_sample` (1; tiles count as
images) and, for Qwen, `image_size`. All parts are trained. Patches become part of the text's
sequence, except in Mllama, whose text attends to them every few layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from astrarium.model import build
from astrarium.model.blocks import Attention, Block, Carried, Embedding, Model, Module, Norm
from astrarium.model.huggingface import decoders
from astrarium.model.huggingface.config import DEFAULTS, MOST_LAYERS, TOWERS, Config, stack
from astrarium.model.huggingface.decoders import LAYER_NORM_VECTORS
from astrarium.model.huggingface.encoders import patch_projection, patches
from astrarium.value import Value

MLLAMA_EXTRA_TOKENS = 8  # rows of Mllama's token table beyond the vocabulary
MLLAMA_GATES = 2  # numbers that scale the sublayers of a gated block
MLLAMA_PADDING = 8  # tokens of a tile are filled up to a multiple of this


class Tower(Value, frozen=True):
    """A vision tower: blocks, tokens and width of an image, parameters before and behind."""

    blocks: tuple[Block, ...]
    hidden: int
    tokens: int
    before: int
    exit_norms: tuple[Norm, ...] = ()
    unused: int = 0
    carried: tuple[Carried, ...] = ()


def llava(name: str, family: str, config: Config) -> Model:
    """CLIP or SigLIP, two weights, and any decoder; the class token is dropped."""
    vision = config.section("vision_config", {})
    kind = vision.get("model_type") or "clip_vision_model"
    if kind not in TOWER_OF_TYPE:
        what = f"expected one of {', '.join(TOWER_OF_TYPE)}, got {kind!r}"
        raise vision.failure("model_type", what)
    seen = TOWER_OF_TYPE[str(kind)](config)
    text = config.section("text_config", {})
    text_type = text.get("model_type") or "llama"
    if text_type not in TEXT_TYPES:
        what = f"expected one of {', '.join(TEXT_TYPES)}, got {text_type!r}"
        raise text.failure("model_type", what)
    shape = _reading(str(text_type), config)
    chosen = config.text("vision_feature_select_strategy", ("default", "full"))
    tokens = seen.tokens - (1 if chosen == "default" else 0)
    wide = _features(config) * seen.hidden
    bias = config.flag("multimodal_projector_bias")
    bridge = _bridge(config, seen, tokens, wide, (shape.hidden, shape.hidden), bias=bias)
    return _with_tower(name, family, config, seen, bridge, shape)


def _reading(kind: str, config: Config) -> build.Shape:
    """The decoder that a section of the config describes."""
    return decoders.shape_of(kind, config.section("text_config", DEFAULTS[kind]))


def _features(config: Config) -> int:
    """The number of layers of the tower that the projector reads."""
    chosen = config.get("vision_feature_layer")
    return max(len(chosen), 1) if isinstance(chosen, list) else 1


def gemma3(name: str, family: str, config: Config) -> Model:
    """SigLIP; patches are averaged to a fixed number of tokens, normalised and projected."""
    seen = _siglip(config)
    shape = _reading("gemma3_text", config)
    norm = Norm("projector_norm", seen.hidden)
    tokens = config.count("mm_tokens_per_image")
    bridge = _bridge(config, seen, tokens, seen.hidden, (shape.hidden,), bias=False, norm=norm)
    return _with_tower(name, family, config, seen, bridge, shape)


def llama4(name: str, family: str, config: Config) -> Model:
    """Each tile is an image; four neighbouring patches become one token."""
    vision = config.section("vision_config", TOWERS["llama4_vision_model"])
    seen = _with_class_token(config, vision, exit_norm=True)
    shape = _reading("llama4_text", config)
    share = vision.fraction("pixel_shuffle_ratio")
    tokens = max(round(patches(vision) * share * share), 1)
    widths = vision.count("projector_input_dim"), vision.count("projector_output_dim")
    shuffled = vision.count("intermediate_size")
    bridge = _bridge(config, seen, tokens, shuffled, (*widths, shape.hidden), bias=False)
    return _with_tower(name, family, config, seen, bridge, shape)


def qwen2_vl(name: str, family: str, config: Config) -> Model:
    """Images of any size with rotary positions; a square of patches becomes one token."""
    vision = config.section("vision_config", TOWERS["qwen2_vl"])
    hidden = vision.count("embed_dim")
    shape = replace(
        _tower_shape(vision, hidden, int(vision.number("mlp_ratio") * hidden), 1),
        norm_vectors=LAYER_NORM_VECTORS,
    )
    return _qwen(name, family, config, vision, shape, {})


def qwen2_5_vl(name: str, family: str, config: Config) -> Model:
    """Most layers see windows of the image, those in `fullatt_block_indexes` all of it."""
    vision = config.section("vision_config", TOWERS["qwen2_5_vl"])
    hidden, ffn = vision.count("hidden_size"), vision.count("intermediate_size")
    shape = replace(_tower_shape(vision, hidden, ffn, 1), gated=True)
    side, square = _qwen_sides(vision)
    across = -(-side // square)
    windows = across**2
    local = replace(shape, seq_length=-(-(side**2) // windows), sequences=windows)
    everywhere = vision.layer_numbers("fullatt_block_indexes", shape.layers)
    return _qwen(
        name,
        family,
        config,
        vision,
        shape,
        {layer: local for layer in range(shape.layers) if layer not in everywhere},
    )


def _qwen_sides(vision: Config) -> tuple[int, int]:
    """Patches along a side of the image, and along a side of a window."""
    merged = vision.count("spatial_merge_size")
    unit = vision.count("patch_size") * merged
    size = vision.count("image_size")
    if size % unit:
        raise vision.failure("image_size", f"expected a multiple of {unit} pixels, got {size}")
    return size // unit * merged, max(vision.count("window_size") // unit, 1) * merged


def _qwen(
    name: str,
    family: str,
    config: Config,
    vision: Config,
    shape: build.Shape,
    others: Mapping[int, build.Shape],
) -> Model:
    side, _ = _qwen_sides(vision)
    shape = replace(shape, seq_length=side**2, rotary_dim=shape.head_dim)
    pixels = vision.count("temporal_patch_size") * vision.count("patch_size") ** 2
    vectors, square = shape.norm_vectors, vision.count("spatial_merge_size") ** 2
    blocks = tuple(
        _seeing(config, replace(others.get(layer, shape), rotary_dim=shape.head_dim))
        for layer in range(shape.layers)
    )
    before = pixels * vision.count("num_channels") * shape.hidden
    seen = Tower(blocks, shape.hidden, side**2, before)
    # Flat in the published configs, in a section of its own in newer ones.
    nested = config.get("text_config") is not None
    text = config.section("text_config", DEFAULTS[family]) if nested else config
    reading = decoders.shape_of("qwen2", text)
    norm = Norm("projector_norm", shape.hidden, vectors, groups=square)
    wide = square * shape.hidden
    widths = wide, reading.hidden
    bridge = _bridge(config, seen, side**2 // square, wide, widths, bias=True, norm=norm)
    return _with_tower(name, family, config, seen, bridge, reading)


def mllama(name: str, family: str, config: Config) -> Model:
    """All tiles of an image are one sequence, which text layers in between attend to."""
    vision = config.section("vision_config", TOWERS["mllama_vision_model"])
    seen = _mllama_tower(config, vision)
    text = config.section("text_config", DEFAULTS["mllama"])
    shape = replace(decoders.shape_of("llama", text), qkv_bias=False, out_bias=False)
    features = 1 + len(seen.carried)
    bridge = _bridge(config, seen, seen.tokens, features * seen.hidden, (shape.hidden,), bias=True)
    reading = text.layer_numbers("cross_attention_layers", shape.layers)
    own = build.transformer_block(shape, None, False)
    cross = _mllama_cross(shape, bridge.tokens(1))
    blocks = tuple(cross if layer in reading else own for layer in range(shape.layers))
    table = Embedding(shape.vocab + MLLAMA_EXTRA_TOKENS, shape.hidden)
    return _with_tower(name, family, config, seen, bridge, shape, blocks, table)


def _mllama_tower(config: Config, vision: Config) -> Tower:
    hidden, ffn = vision.count("hidden_size"), vision.count("intermediate_size")
    tiles, tokens = vision.count("max_num_tiles"), patches(vision) + 1
    padded = -(-tokens // MLLAMA_PADDING) * MLLAMA_PADDING
    shape = replace(
        _tower_shape(vision, hidden, ffn, tiles * padded),
        qkv_bias=False,
        out_bias=False,
        norm_vectors=LAYER_NORM_VECTORS,
    )
    local = _seeing(config, shape)
    last = replace(local, name="vision-global", extra_parameters=MLLAMA_GATES)
    chosen = vision.layer_numbers("intermediate_layers_indices", shape.layers)
    parts = shape.layers, vision.count("num_global_layers", most=MOST_LAYERS)
    ratios = len(vision.items("supported_aspect_ratios") or []) + 1
    tile_tables = ratios * tiles * (2 + tokens) * hidden + 3
    before = (
        (1 + tokens + 2 * LAYER_NORM_VECTORS) * hidden
        + patch_projection(vision)
        - hidden  # its projection has no bias
        + tile_tables
    )
    return Tower(
        blocks=(*[local] * parts[0], *[last] * parts[1]),
        hidden=hidden,
        tokens=tiles * tokens,
        before=before,
        carried=tuple(Carried(layer, sum(parts)) for layer in sorted(chosen)),
    )


def _mllama_cross(shape: build.Shape, context: int) -> Block:
    """A text layer that attends to the image alone, scaled by two learned numbers."""
    heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_dim
    own = build.transformer_block(shape, None, False)
    inner = tuple(x for x in own.linears if x.module is not Module.ATTENTION)
    return replace(
        own,
        name="cross",
        linears=(*build.cross_attention_linears(shape.hidden, heads, kv_heads, size), *inner),
        norms=(*own.norms, *build.query_key_norms(heads, kv_heads, size)),
        attentions=(Attention(heads, kv_heads, size, size, causal=False, cross=True),),
        extra_parameters=MLLAMA_GATES,
        context_length=context,
    )


def _clip(config: Config) -> Tower:
    vision = config.section("vision_config", TOWERS["clip_vision_model"])
    return _with_class_token(config, vision, exit_norm=True)


def _with_class_token(config: Config, vision: Config, *, exit_norm: bool) -> Tower:
    """A class token before the patches, a norm before the first layer, no bias at the patches."""
    hidden, tokens = vision.count("hidden_size"), patches(vision) + 1
    shape = replace(
        _tower_shape(vision, hidden, vision.count("intermediate_size"), tokens),
        norm_vectors=LAYER_NORM_VECTORS,
    )
    bare = patch_projection(vision) - hidden
    return Tower(
        blocks=(_seeing(config, shape),) * shape.layers,
        hidden=hidden,
        tokens=tokens,
        before=(1 + tokens + LAYER_NORM_VECTORS) * hidden + bare,
        exit_norms=(_exit_norm(hidden),) if exit_norm else (),
    )


def _siglip(config: Config) -> Tower:
    """No class token. A pooling head that nothing reads is part of the class by default."""
    vision = config.section("vision_config", TOWERS["siglip_vision_model"])
    hidden, ffn, tokens = (
        vision.count("hidden_size"),
        vision.count("intermediate_size"),
        patches(vision),
    )
    shape = _tower_shape(vision, hidden, ffn, tokens)
    shape = replace(shape, norm_vectors=LAYER_NORM_VECTORS)
    block = _seeing(config, shape)
    return Tower(
        blocks=(block,) * shape.layers,
        hidden=hidden,
        tokens=tokens,
        before=tokens * hidden + patch_projection(vision),
        exit_norms=(_exit_norm(hidden),),
        # One more layer with a query of its own and one norm instead of two.
        unused=block.parameters - hidden if vision.flag("vision_use_head") else 0,
    )


def _exit_norm(hidden: int) -> Norm:
    return Norm("vision_final_norm", hidden, LAYER_NORM_VECTORS)


def _tower_shape(vision: Config, hidden: int, ffn: int, tokens: int) -> build.Shape:
    return replace(stack(vision, "", hidden, ffn, 0, tokens), seq_length=tokens)


def _seeing(config: Config, shape: build.Shape) -> Block:
    """A block of the tower, for all images of a sample."""
    images = config.count_or("images_per_sample", 1)
    block = build.transformer_block(replace(shape, sequences=shape.sequences * images), None, False)
    return replace(block, name="vision-windows" if shape.sequences > 1 else "vision")


def _bridge(
    config: Config,
    seen: Tower,
    tokens: int,
    inputs: int,
    widths: tuple[int, ...],
    *,
    bias: bool,
    norm: Norm | None = None,
) -> Block:
    """The projector, with the tower's final norm before it."""
    return build.projector(
        inputs,
        widths,
        bias=bias,
        norms=(*seen.exit_norms, *((norm,) if norm else ())),
        seq_length=tokens,
        sequences=config.count_or("images_per_sample", 1),
        extra_parameters=seen.unused,
    )


def _with_tower(
    name: str,
    family: str,
    config: Config,
    seen: Tower,
    bridge: Block,
    shape: build.Shape,
    reading: tuple[Block, ...] | None = None,
    table: Embedding | None = None,
) -> Model:
    """Tower, projector and text; the text's head is tied if either section says so."""
    stated = config.get("tie_word_embeddings") is not None
    tied = config.flag("tie_word_embeddings") if stated else shape.tied
    text = build.assemble(name, family, build.Architecture.MULTIMODAL, replace(shape, tied=tied))
    stack = reading or tuple(block for block in text.blocks if isinstance(block, Block))
    blocks, carried = build.behind((*seen.blocks, bridge), stack, table or text.embedding)
    return replace(
        text,
        embedding=Embedding(0, seen.hidden, seen.before),
        blocks=blocks,
        carried=(*seen.carried, *carried),
    )


TOWER_OF_TYPE: Mapping[str, Callable[[Config], Tower]] = {
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
}
TEXT_TYPES: Final = ("gemma", "gemma2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3")
