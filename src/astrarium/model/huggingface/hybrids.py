"""Adapters for models whose layers are not all attention: Mamba-2, gated delta nets, lightning.

A layer is a scan or attention, with a feed-forward part behind it; in Nemotron-H every layer is one
of these parts alone, in Falcon-H1 attention and a scan stand side by side. `layer_types` says which
layer is what; older configs use other keys. The correction biases of routers are buffers and do not
count. Not modelled: experts behind a narrower projection, layers that share their weights (Zamba2).
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.blocks import Model
from astrarium.model.build import (
    ATTENTION,
    EXPERTS,
    FEED_FORWARD,
    SCAN,
    Architecture,
    Experts,
    Shape,
    assemble,
    transformer_block,
)
from astrarium.model.huggingface.config import FULL_ATTENTION, MOST_LAYERS, Config, base
from astrarium.model.huggingface.decoders import (
    ATTENTION_BIAS,
    MLP_BIAS,
    experts_of,
    head_norms,
    qwen_expert_layers,
    with_traits,
)
from astrarium.model.hybrids import beside_attention, scan_linears
from astrarium.model.scans import Recurrence, Scan

# What layers are called, in configs of today and of yesterday.
SCANNING = ("linear_attention", "mamba", "hybrid")
ATTENDING = (FULL_ATTENTION, "attention")
LETTERS = {
    **dict.fromkeys(("linear_attention", "mamba"), SCAN),
    **dict.fromkeys(ATTENDING, ATTENTION),
    "mlp": FEED_FORWARD,
    "moe": EXPERTS,
}
DELTA_CHUNK = 64  # of the kernels of flash-linear-attention


def mamba2(config: Config) -> Shape:
    """Nothing but scans: no attention, no feed-forward part."""
    hidden = config.count("hidden_size")
    scan = _mamba(config, config.count("num_attention_heads"), config.count("head_dim"), "n_groups")
    layers = config.count("num_hidden_layers", most=MOST_LAYERS)
    return Shape(
        hidden=hidden,
        layers=layers,
        heads=1,
        kv_heads=1,
        head_dim=1,
        ffn=1,
        vocab=config.count("vocab_size"),
        max_seq_length=config.count("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings"),
        scan=scan,
        scan_bias=config.flag("use_bias"),
        letters=SCAN * layers,
    )


def _mamba(config: Config, heads: int, head_dim: int, groups: str) -> Scan:
    """A scan of Mamba-2; keys are spelled as in `data/defaults.json`."""
    scan = Scan(
        Recurrence.SSD,
        heads=heads,
        head_dim=head_dim,
        groups=config.count(groups),
        state=config.count("mamba_d_state"),
        chunk=config.count("mamba_chunk_size"),
        taps=config.count("mamba_d_conv"),
        taps_bias=config.flag("mamba_conv_bias"),
        norm_width=heads * head_dim,
    )
    if heads % scan.groups:
        raise config.failure(groups, f"expected a divisor of the {heads} heads, got {scan.groups}")
    return scan


def nemotron_h(config: Config) -> Shape:
    """Every layer is a scan, attention, a feed-forward part or experts."""
    letters = _letters(config)
    heads, head_dim = config.count("mamba_num_heads"), config.count("mamba_head_dim")
    return replace(
        base(config),
        layers=len(letters),
        gated=False,
        rotary_dim=0,
        mlp_bias=config.flag("mlp_bias"),
        experts=_nemotron_experts(config),
        scan=_mamba(config, heads, head_dim, "n_groups"),
        scan_bias=config.flag("use_bias"),
        letters=letters,
    )


def _letters(config: Config) -> str:
    pattern, types = config.get("hybrid_override_pattern"), config.items("layers_block_type")
    types = types if types is not None else config.items("layer_types")
    if types is None:
        if not isinstance(pattern, str) or not pattern or not set(pattern) <= {*LETTERS.values()}:
            letters = " ".join(dict.fromkeys(LETTERS.values()))
            what = f"expected a letter of {letters} for each layer, got {pattern!r}"
            raise config.failure("hybrid_override_pattern", what)
        return pattern
    for kind in types:
        if kind not in LETTERS:
            known = ", ".join(LETTERS)
            raise config.failure("layers_block_type", f"expected one of {known}, got {kind!r}")
    return "".join(LETTERS[str(kind)] for kind in types)


def _nemotron_experts(config: Config) -> Experts | None:
    if config.optional_count("moe_latent_size"):
        what = "experts behind a narrower projection are not modelled; expected null"
        raise config.failure("moe_latent_size", what)
    shared = config.count("moe_shared_expert_intermediate_size", least=0)
    bias = config.flag("mlp_bias")
    return experts_of(
        config, config.count("moe_intermediate_size"), shared_ffn=shared, shared_bias=bias
    )


def bamba(config: Config) -> Shape:
    """A scan or attention, then a feed-forward part."""
    shape = ATTENTION_BIAS(config, base(config))
    attending = config.layer_numbers("attn_layer_indices", shape.layers)
    usual = tuple(layer not in attending for layer in range(shape.layers))
    return replace(
        shape,
        mlp_bias=config.flag("mlp_bias"),
        scan=_scan_by_name(config, shape.hidden),
        scan_bias=config.flag("mamba_proj_bias"),
        scan_layers=_scanning(config, "layers_block_type", usual),
    )


def _scan_by_name(config: Config, hidden: int, inner: int | None = None) -> Scan:
    heads = config.count("mamba_n_heads")
    inner = inner or config.count("mamba_expand") * hidden
    stated = config.get("mamba_d_head")
    head_dim = inner // heads if stated in (None, "auto") else config.count("mamba_d_head")
    if heads * head_dim != inner:
        what = f"expected mamba_d_head to make {inner} features, got {heads} of {head_dim}"
        raise config.failure("mamba_n_heads", what)
    return _mamba(config, heads, head_dim, "mamba_n_groups")


def _scanning(config: Config, key: str, usual: tuple[bool, ...]) -> tuple[bool, ...]:
    """The layers that have a scan, as the config says, or as is usual."""
    types = config.layer_flags(key, len(usual))
    for kind in types or ():
        if kind not in SCANNING + ATTENDING:
            known = ", ".join((*ATTENDING, *SCANNING))
            raise config.failure(key, f"expected one of {known} for each layer, got {kind!r}")
    return usual if types is None else tuple(kind in SCANNING for kind in types)


def granite_hybrid(config: Config) -> Shape:
    """A scan or attention, then experts beside a shared one, or the shared one alone."""
    shape = ATTENTION_BIAS(config, base(config))
    shared = config.count("shared_intermediate_size")
    rotary = config.get("position_embedding_type") == "rope"
    return replace(
        shape,
        experts=experts_of(config, shape.ffn, shared_ffn=shared),
        ffn=shared,
        rotary_dim=shape.rotary_dim if rotary else 0,
        scan=_scan_by_name(config, shape.hidden),
        scan_bias=config.flag("mamba_proj_bias"),
        scan_layers=_scanning(config, "layer_types", (True,) * shape.layers),
    )


def falcon_h1(name: str, family: str, config: Config) -> Model:
    """A scan and attention side by side, then a feed-forward part."""
    shape = with_traits(config, base(config), (ATTENTION_BIAS, MLP_BIAS))
    scan = _scan_by_name(config, shape.hidden, config.optional_count("mamba_d_ssm"))
    if not config.flag("mamba_rms_norm"):
        scan = replace(scan, norm_width=0)
    block = beside_attention(
        transformer_block(shape, None, False), scan, bias=config.flag("mamba_proj_bias")
    )
    out = scan_linears(shape.hidden, scan, bias=config.flag("projectors_bias"))[1]
    linears = tuple(out if x.name == out.name else x for x in block.linears)
    blocks = (replace(block, linears=linears),) * shape.layers
    return assemble(name, family, Architecture.DECODER, shape, blocks)


def qwen3_next(config: Config) -> Shape:
    """Qwen3.5 with experts beside a gated shared one."""
    shape = qwen3_5(config)
    shared = config.count("shared_expert_intermediate_size", least=0)
    ffn = config.count("moe_intermediate_size")
    experts = experts_of(config, ffn, shared_ffn=shared, shared_gate=bool(shared))
    sparse = qwen_expert_layers(config, shape.layers) if experts else ()
    return replace(shape, experts=experts, expert_layers=sparse)


def qwen3_5(config: Config) -> Shape:
    """Three gated delta nets to one gated attention, with a dense feed-forward part."""
    shape = with_traits(config, base(config), (ATTENTION_BIAS, head_norms()))
    interval = config.count("full_attention_interval")
    usual = tuple((layer + 1) % interval != 0 for layer in range(shape.layers))
    return replace(
        shape,
        gated_attention=True,
        scan=_delta_net(config),
        scan_layers=_scanning(config, "layer_types", usual),
    )


def _delta_net(config: Config) -> Scan:
    heads, groups = config.count("linear_num_value_heads"), config.count("linear_num_key_heads")
    if heads % groups:
        what = f"expected a divisor of the {heads} heads of values, got {groups}"
        raise config.failure("linear_num_key_heads", what)
    width = config.count("linear_value_head_dim")
    return Scan(
        Recurrence.DELTA,
        heads=heads,
        head_dim=width,
        groups=groups,
        state=config.count("linear_key_head_dim"),
        chunk=DELTA_CHUNK,
        taps=config.count("linear_conv_kernel_dim"),
        norm_width=width,
    )


def minimax(config: Config) -> Shape:
    """Lightning attention in most layers, ordinary attention in some; experts in all."""
    shape = base(config)
    shape = replace(shape, experts=experts_of(config, shape.ffn))
    scan = Scan(
        Recurrence.DECAY,
        heads=shape.heads,
        head_dim=shape.head_dim,
        groups=shape.heads,
        state=shape.head_dim,
        chunk=config.count("block_size"),
        norm_width=shape.heads * shape.head_dim,
    )
    usual = tuple(layer % 2 == 1 for layer in range(shape.layers))
    scanning = _scanning(config, "layer_types", usual)
    return replace(shape, scan=scan, scan_layers=scanning)
