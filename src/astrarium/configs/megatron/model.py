"""The model that Megatron's settings describe.

Names are those of Megatron's namespace (`hidden_size`), as a log prints them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from astrarium.configs.megatron.hybrid import layer_pattern, segments_of, with_scans
from astrarium.configs.settings import Settings
from astrarium.errors import InputError
from astrarium.model.build import Experts, Latent, Shape, query_key_norms

# Settings that change what a layer is beyond what they state in full.
_NEEDS_MODEL: Final = {
    "heterogeneous_layers_config_path": "layers of several kinds",
    "encoder_num_layers": "an encoder",
    "moe_latent_size": "experts in a latent space",
}
_LATENT: Final = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_WITHOUT: Final = ("alibi", "none", "relative")  # positions that turn no heads
_OFF: Final = ("False", "1", "0")
MOST_LAYERS: Final = 10_000
LAYER_NORM_VECTORS: Final = 2


def shape_of(s: Settings, where: str = "log") -> tuple[Shape | None, str]:
    """The shape that the settings state, or None and why not."""
    for name, what in _NEEDS_MODEL.items():
        if name in s and s.text(name) not in _OFF:
            return None, f"{what} ({name}) cannot be rebuilt from a {where}"
    if s.text("experimental_attention_variant") not in ("", "gated_delta_net"):
        return None, f"another sort of attention cannot be rebuilt from a {where}"
    letters = "".join(segments_of(s))
    hidden, layers = s.count("hidden_size"), len(letters) or s.count("num_layers")
    heads = s.count("num_attention_heads")
    if not (hidden and layers and heads) or layers > MOST_LAYERS:
        return None, f"the {where} does not state the model (hidden_size, num_layers, heads)"
    try:
        with_experts = () if letters else expert_layers(s, layers)
    except InputError as error:
        return None, str(error)
    head_dim = s.count("kv_channels") or hidden // heads
    groups = s.count("num_key_value_heads")  # of Megatron-DeepSpeed
    grouped = s.flag("group_query_attention") or groups
    ffn = s.count("ffn_hidden_size") or default_ffn(hidden, gated=s.flag("swiglu"))
    length = s.count("max_position_embeddings", "seq_length", "encoder_seq_length") or 0
    learned, rotated = has_position_table(s), int(head_dim * (s.number("rotary_percent") or 1.0))
    vectors = 1 if s.text("normalization") == "RMSNorm" else LAYER_NORM_VECTORS
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=(groups or s.count("num_query_groups") or heads) if grouped else heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=s.count("vocab_size_before_padding", "vocab_size", "padded_vocab_size") or 0,
        max_seq_length=length,
        gated=s.flag("swiglu") or s.flag("quick_geglu") or "glu_activation" in s,
        qkv_bias=s.flag("add_bias_linear") or s.flag("add_qkv_bias"),
        out_bias=s.flag("add_bias_linear"),
        mlp_bias=s.flag("add_bias_linear"),
        norm_vectors=vectors,
        rotary_dim=0 if learned or s.word("position_embedding_type") in _WITHOUT else rotated,
        windows=_windows(s, layers),
        gated_attention=s.flag("attention_output_gate"),
        experts=_experts(s, ffn),
        expert_layers=with_experts,
        tied=not s.flag("untie_embeddings_and_output_weights"),
        embedding_parameters=hidden * length if learned else 0,
    )
    if s.flag("multi_latent_attention"):
        if not all(name in s for name in _LATENT):
            what = f"latent attention (multi_latent_attention) without {', '.join(_LATENT)}"
            return None, f"{what} cannot be rebuilt from a {where}"
        return _with_latent(s, shape), ""
    if s.flag("qk_layernorm"):
        norms = query_key_norms(heads, shape.kv_heads, head_dim, vectors=vectors)
        shape = replace(shape, head_norms=norms)
    try:
        return with_scans(s, shape), ""
    except InputError as error:
        return None, str(error)


def has_position_table(s: Settings) -> bool:
    """Whether positions are learned; `--use-rotary-position-embeddings` is an older spelling."""
    rotary = s.flag("use_rotary_position_embeddings")
    return not rotary and s.word("position_embedding_type") in ("", "None", "learned_absolute")


def default_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron's width where none is stated: 4 h, or 2/3 of it in multiples of 64 if gated."""
    return int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden


def _windows(s: Settings, layers: int) -> tuple[int | None, ...]:
    """`(4095,0)` sees 4,095 earlier tokens and the token itself."""
    numbers = re.findall(r"-?\d+", s.text("window_size"))
    back = int(numbers[0]) if numbers else -1
    if back <= 0:
        return ()
    every = s.text("window_attn_skip_freq")
    if not every:
        return (back + 1,) * layers
    if every.isdigit():  # every n-th layer sees everything
        sees_all = tuple((number + 1) % max(int(every), 1) == 0 for number in range(layers))
    else:
        sees_all = tuple(not one for one in layer_pattern(every, layers, "window_attn_skip_freq"))
    return tuple(None if whole else back + 1 for whole in sees_all)


def _with_latent(s: Settings, shape: Shape) -> Shape:
    kv_rank, nope, rope, value = (s.count(name) or 0 for name in _LATENT)
    bias = s.flag("add_bias_linear")
    latent = Latent(s.count("q_lora_rank"), kv_rank, nope, rope, value, bias)
    return replace(shape, latent=latent, rotary_dim=rope)


def _experts(s: Settings, ffn: int) -> Experts | None:
    count = s.count("num_experts")
    if not count:
        return None
    return Experts(
        count=count,
        per_token=s.count("moe_router_topk") or 2,
        ffn=s.count("moe_ffn_hidden_size") or ffn,
        shared_ffn=s.count("moe_shared_expert_intermediate_size") or 0,
        shared_gate=s.flag("moe_shared_expert_gate"),
        groups=s.count("moe_router_num_groups") or 1,
        groups_per_token=s.count("moe_router_group_topk") or 1,
    )


def expert_layers(s: Settings, layers: int) -> tuple[bool, ...]:
    """The layers with experts: every n-th, or those of a pattern such as ([0]*3+[1]*58)."""
    if not s.count("num_experts"):
        return ()
    return layer_pattern(s.text("moe_layer_freq") or "1", layers, "moe_layer_freq")
