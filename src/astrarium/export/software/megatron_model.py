"""The model as options of Megatron-LM, or why `pretrain_gpt.py` cannot build it.

Sizes come from the model's blocks, the rest from its config. The options are read back as those of
a script are, and the model built again: a `difference` between the two refuses the export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from astrarium.configs.megatron.importing import described
from astrarium.export.features import layers_of_stages
from astrarium.export.software import model_facts as facts
from astrarium.export.software.megatron_hybrid import hybrid_refused, is_hybrid, scan_flags
from astrarium.model import build
from astrarium.model.blocks import Attention, Block, CustomBlock, Linear, Model
from astrarium.model.build import PRE_NORMS
from astrarium.model.hybrids import parts_of
from astrarium.model.prediction import without_predictions
from astrarium.plans.job import Job

GELUS: Final = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
# (activation, gated) -> options; anything else has none.
ACTIVATIONS: Final[Mapping[tuple[str, bool], Flags]] = {
    ("silu", True): {"swiglu": True},
    ("relu2", False): {"squared-relu": True},
    ("quick_gelu", True): {
        "quick-geglu": True,
        "glu-linear-offset": 1.0,
        "activation-func-clamp-value": 7.0,
    },
    **{(name, False): {} for name in GELUS},
}
# Megatron's own figures for stretched positions, which no option changes.
LLAMA3_SCALING: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MLA_YARN: Final = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}


def model_refused(job: Job) -> str:
    """Why Megatron-LM cannot build the model; "" if it can."""
    return _refused(job.model, job.workload.seq_length)


def _refused(model: Model, seq_length: int) -> str:
    named = facts.NOT_IN_MEGATRON.get(model.architecture) or facts.NOT_IN_MEGATRON.get(model.family)
    if named:
        return named
    model = without_predictions(model)
    structure = _STRUCTURE[_OF_LAYERS:] if is_hybrid(model) else _STRUCTURE
    found = hybrid_refused(model)
    found = found or next((why for when, why in structure if when(model, seq_length)), "")
    return found or difference(model, seq_length, dict(flags_of(model, seq_length)))


def _values(model: Model) -> facts.Values:
    return facts.text_values(model.config or {})


def _blocks(model: Model) -> tuple[Block, ...]:
    return tuple(block for block in model.kinds if isinstance(block, Block))


def _linear(model: Model, name: str) -> Linear | None:
    every = (linear for block in _blocks(model) for linear in block.linears)
    return next((linear for linear in every if linear.name == name), None)


def _has(model: Model, name: str) -> bool:
    return _linear(model, name) is not None


def _biased(model: Model, *names: str) -> bool:
    linears = (_linear(model, name) for name in names)
    return any(linear.bias for linear in linears if linear)


def _windows(model: Model, seq_length: int) -> list[int | None]:
    """The window of each layer, where it is shorter than the sequence."""
    blocks = (block for block in model.blocks if isinstance(block, Block))
    every = [next((a.window for a in block.attentions), None) for block in blocks]
    return [window if window and window < seq_length else None for window in every]


def _activation(model: Model) -> tuple[str, bool]:
    if not _ffn(model):
        return GELUS[0], False  # Megatron's default, which no layer reads
    gated = any(block.gated for block in _blocks(model))
    return facts.activation_of(_values(model), facts.FAMILIES[model.family]), gated


def _attention(model: Model) -> Attention | None:
    return next((a for block in _blocks(model) for a in block.attentions), None)


def _learned_positions(model: Model) -> bool:
    return model.embedding.other_parameters > 0


def _rope(model: Model) -> facts.Rope:
    return facts.rope_of(_values(model), facts.FAMILIES[model.family])


def _is_latent(model: Model) -> bool:
    return _has(model, "kv_up")


def _unknown_scaling(model: Model) -> bool:
    rope = _rope(model)
    if not rope.kind or _learned_positions(model):
        return False
    if _is_latent(model):
        return rope.kind != "yarn" or not _agrees(rope.scaling, MLA_YARN)
    if rope.kind == "llama3":
        return not _agrees(rope.scaling, LLAMA3_SCALING)
    return rope.kind != "yarn" and not (rope.kind == "linear" and _factor(rope).is_integer())


def _agrees(given: facts.Values, fixed: facts.Values) -> bool:
    return all(float(given.get(key, value)) == value for key, value in fixed.items())


def _factor(rope: facts.Rope) -> float:
    return float(rope.scaling.get("factor", 1.0))


# Checked in this order; the message is that of the first condition that holds. The first ones ask
# for layers of two parts, which hybrid models need not have.
_OF_LAYERS: Final = 2
_STRUCTURE: Final[tuple[tuple[Callable[[Model, int], bool], str], ...]] = (
    (
        lambda m, s: any(block.parallel_residual for block in _blocks(m)),
        "Megatron puts attention and feed-forward part one behind the other, not side by side",
    ),
    (
        lambda m, s: any(
            [n.name for n in block.norms[: len(PRE_NORMS)]] != list(PRE_NORMS)
            or any(n.name.endswith("post_norm") for n in block.norms)
            for block in _blocks(m)
        ),
        "Megatron has one norm in front of each sublayer, and none behind",
    ),
    (lambda m, s: _has(m, "position"), "Megatron has no relative positions as in Transformer-XL"),
    (lambda m, s: m.head.bias, "Megatron's output layer has no bias"),
    (
        lambda m, s: m.family not in facts.FAMILIES,
        "it is not known how models of this type are written for Megatron",
    ),
    (
        lambda m, s: _activation(m) not in ACTIVATIONS,
        "its activation has no option in Megatron (there are SwiGLU, squared ReLU and GELU)",
    ),
    (
        lambda m, s: _biased(m, "proj") and not _biased(m, "fc2", "expert_fc2"),
        "Megatron has biases on queries, keys and values, or on all weights, and this has them on"
        " attention only",
    ),
    (
        lambda m, s: len({w for w in _windows(m, s) if w}) > 1,
        "Megatron has one window for all layers that have one",
    ),
    (
        lambda m, s: _learned_positions(m) and m.max_seq_length < s,
        "its table of positions is shorter than the sequences",
    ),
    (
        lambda m, s: _unknown_scaling(m),
        "no option of Megatron stretches rotary positions in this way",
    ),
)


def model_flags(job: Job) -> Flags:
    stages = layers_of_stages(job.strategy)
    return dict(flags_of(job.model, job.workload.seq_length, stages))


def flags_of(
    model: Model, seq_length: int, stages: Sequence[int] = ()
) -> Iterator[tuple[str, object]]:
    """Options of a model that Megatron can build; a hybrid's say where its `stages` end."""
    if model.mtp_layers:
        yield "mtp-num-layers", model.mtp_layers
        model = without_predictions(model)
    values, family = _values(model), facts.FAMILIES[model.family]
    norm = facts.normalization_of(values, family)
    if not is_hybrid(model):
        yield "num-layers", model.num_layers
    yield "hidden-size", model.hidden
    yield "ffn-hidden-size", _ffn(model) or model.hidden
    yield from _heads(model)
    yield from scan_flags(model, stages)
    yield "seq-length", seq_length
    yield "max-position-embeddings", max(model.max_seq_length, seq_length)
    yield from _positions(model)
    yield "normalization", norm
    yield "norm-epsilon", float(facts.read(values, family.epsilon))
    if family.zero_centered:
        yield "apply-layernorm-1p", True
    if any(n.per_head for block in _blocks(model) for n in block.norms) or _is_latent(model):
        yield "qk-layernorm", True
    yield from ACTIVATIONS[_activation(model)].items()
    if not _biased(model, "fc2", "expert_fc2"):
        yield "disable-bias-linear", True
        if _biased(model, "qkv"):
            yield "add-qkv-bias", True
    if family.sinks:
        yield "softmax-type", "learnable"
    yield from _local(model, seq_length)
    if not model.head.tied:
        yield "untie-embeddings-and-output-weights", True
    yield from _experts(model, values, family)


def _heads(model: Model) -> Iterator[tuple[str, object]]:
    attention = _attention(model)
    if attention is None:
        yield "num-attention-heads", 1  # Megatron asks for it; no layer reads it
        return
    yield "num-attention-heads", attention.heads
    if _is_latent(model):
        yield from _latent(model)
        return
    yield "kv-channels", attention.key_dim
    if attention.kv_heads != attention.heads:
        yield "group-query-attention", True
        yield "num-query-groups", attention.kv_heads


def _ffn(model: Model) -> int:
    dense = _linear(model, "fc2") or _linear(model, "expert_fc2")
    return dense.inputs if dense else 0


def _latent(model: Model) -> Iterator[tuple[str, object]]:
    down, up = _linear(model, "kv_down"), _linear(model, "kv_up")
    queries = _linear(model, "q_down")
    attention = _attention(model)
    if down is None or up is None or attention is None:
        return
    rope_dim = down.outputs - up.inputs
    yield "multi-latent-attention", True
    if queries:
        yield "q-lora-rank", queries.outputs
    yield "kv-lora-rank", up.inputs
    yield "qk-head-dim", attention.key_dim - rope_dim
    yield "qk-pos-emb-head-dim", rope_dim
    yield "v-head-dim", attention.value_dim


def _positions(model: Model) -> Iterator[tuple[str, object]]:
    attention = _attention(model)
    if attention is None or not attention.rotary_dim:
        kind = "learned_absolute" if _learned_positions(model) else "none"
        yield "position-embedding-type", kind
        return
    rope = _rope(model)
    plain_yarn = rope.kind == "yarn" and not _is_latent(model)
    yield "position-embedding-type", "yarn" if plain_yarn else "rope"
    yield "rotary-base", round(rope.theta)
    if _is_latent(model):
        # Latent attention fuses rotary positions only in this form; a factor of 1 changes nothing.
        yield "rope-type", "yarn"
    elif attention.rotary_dim != attention.key_dim:
        yield "rotary-percent", attention.rotary_dim / attention.key_dim
    yield from _stretched(rope, latent=_is_latent(model))


def _stretched(rope: facts.Rope, *, latent: bool) -> Iterator[tuple[str, object]]:
    """Options that stretch rotary positions beyond their original length."""
    given = rope.scaling
    if rope.kind == "llama3":
        yield "use-rope-scaling", True
        yield "rope-scaling-factor", _factor(rope)
    elif rope.kind == "linear":
        yield "rotary-seq-len-interpolation-factor", int(_factor(rope))
    elif rope.kind == "yarn":
        yield "rotary-scaling-factor", _factor(rope)
        yield "mscale", float(given.get("mscale", 1.0))
        yield "mscale-all-dim", float(given.get("mscale_all_dim", 0.0))
        if not latent:
            length = given.get("original_max_position_embeddings", 4096)
            yield "yarn-original-max-position-embeddings", int(length)
            yield "yarn-beta-fast", float(given.get("beta_fast", 32.0))
            yield "yarn-beta-slow", float(given.get("beta_slow", 1.0))
            if given.get("truncate") is False:
                yield "no-yarn-correction-range-round-to-int", True


def _local(model: Model, seq_length: int) -> Iterator[tuple[str, object]]:
    """Layers that see a window of earlier tokens; the token itself is one of them."""
    windows = _windows(model, seq_length)
    longest = next((window for window in windows if window), None)
    if longest is None:
        return
    yield "window-size", f"{longest - 1},0"
    if None in windows:
        yield "window-attn-skip-freq", pattern([bool(window) for window in windows])


def _experts(
    model: Model, values: facts.Values, family: facts.ModelFamily
) -> Iterator[tuple[str, object]]:
    inner, router = _linear(model, "expert_fc2"), family.router
    if inner is None or router is None:
        return
    moe = next(block for block in _blocks(model) if block.experts)
    yield "num-experts", moe.experts
    yield "moe-router-topk", moe.experts_per_token
    yield "moe-ffn-hidden-size", inner.inputs
    sparse = [bool(block.experts) for block in model.blocks if isinstance(block, Block)]
    if not all(sparse) and not is_hybrid(model):
        yield "moe-layer-freq", pattern(sparse)
    shared = _linear(model, "shared_fc2")
    if shared:
        yield "moe-shared-expert-intermediate-size", shared.inputs
    if _has(model, "shared_gate"):
        yield "moe-shared-expert-gate", True
    yield from _routed(values, router)


def _routed(values: facts.Values, router: facts.Router) -> Iterator[tuple[str, object]]:
    scaling = float(facts.read(values, router.scaling))
    before = router.score == "softmax" and not facts.read(values, router.normalised)
    yield "moe-router-score-function", router.score
    if before:
        yield "moe-router-pre-softmax", True
    if scaling != 1.0:
        yield "moe-router-topk-scaling-factor", scaling
    if router.has_bias:
        yield "moe-router-enable-expert-bias", True
    groups = facts.read(values, router.groups)
    if groups > facts.NO_LIMIT and facts.read(values, router.choice) != "greedy":
        yield "moe-router-num-groups", groups
        yield "moe-router-group-topk", facts.read(values, router.group_topk)
    yield "moe-router-load-balancing-type", router.balancing
    yield "moe-aux-loss-coeff", float(facts.read(values, router.coefficient))


def pattern(layers: list[bool]) -> str:
    """Layers as Megatron's list expression: ([0]*3+[1]*58)."""
    runs: list[tuple[int, int]] = []
    for layer in map(int, layers):
        if runs and runs[-1][0] == layer:
            runs[-1] = (layer, runs[-1][1] + 1)
        else:
            runs.append((layer, 1))
    half = len(runs) // 2
    if half > 1 and len(runs) % 2 == 0 and runs == runs[:2] * half:
        return f"({_list_of(runs[:2])})*{half}"
    return f"({_list_of(runs)})"


def _list_of(runs: list[tuple[int, int]]) -> str:
    return "+".join(f"[{value}]*{count}" for value, count in runs)


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
    """All that decides weights; the chunks of a scan are up to the kernels."""
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
