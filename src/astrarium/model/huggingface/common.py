"""What the adapters share: the sizes every config states, and the windows of local layers."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.model.build import Shape
from astrarium.model.huggingface.config import MOST_LAYERS, Config

FULL_ATTENTION = "full_attention"
_USUAL = ("num_attention_heads", "num_hidden_layers")


def base(config: Config) -> Shape:
    """Read the common keys; the result is a llama-like stack without biases."""
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    kv_heads = config.count_or("num_key_value_heads", heads)
    if heads % kv_heads:
        what = f"expected a divisor of the {heads} attention heads, got {kv_heads}"
        raise config.failure("num_key_value_heads", what)
    head_dim = _head_dim(config, hidden, heads)
    return Shape(
        hidden=hidden,
        layers=config.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=config.count_or("intermediate_size", 4 * hidden),
        vocab=config.count("vocab_size"),
        max_seq_length=config.count("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings"),
        rotary_dim=int(head_dim * config.rotary_fraction()),
    )


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    stated = config.optional_count("head_dim")
    if stated is None and hidden % heads:
        what = f"expected a divisor of the hidden size {hidden}, got {heads}; or state head_dim"
        raise config.failure("num_attention_heads", what)
    return stated if stated is not None else hidden // heads


def same_window(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of configs in which all layers have it, or none has."""
    return (config.optional_count("sliding_window"),) * layers


def chosen_windows(config: Config, is_local: Sequence[bool]) -> tuple[int | None, ...]:
    """Return the window of the layers that `is_local` picks; `layer_types` overrules it."""
    types = config.layer_flags("layer_types", len(is_local))
    if types is not None:
        is_local = [entry != FULL_ATTENTION for entry in types]
    if not any(is_local):
        return ()
    window = config.optional_count("sliding_window")
    return tuple(window if local else None for local in is_local)


def alternating_windows(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return windows where every `sliding_window_pattern`-th layer sees everything."""
    period = config.count("sliding_window_pattern")
    return chosen_windows(config, [(layer + 1) % period != 0 for layer in range(layers)])


def stack(config: Config, half: str, hidden: int, ffn: int, vocab: int, positions: int) -> Shape:
    """A stack with a bias on every weight, no gate and no rotation: one half, or a tower.

    `half` begins the keys of its heads and layers; "" means the usual keys.
    """
    heads_key, layers_key = (f"{half}_attention_heads", f"{half}_layers") if half else _USUAL
    heads = config.count(heads_key)
    if hidden % heads:
        what = f"expected a divisor of the hidden size {hidden}, got {heads}"
        raise config.failure(heads_key, what)
    return Shape(
        hidden=hidden,
        layers=config.count(layers_key, most=MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        max_seq_length=positions,
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        causal=False,
    )
