"""What decides neither time nor memory of a model, and yet what is trained: read from its config.

Norms' epsilon, activation, rotary positions, how a router scores. Absent keys take the default of
the transformers class (5.22.2), which stands here by family; sizes are read elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.value import Value

Values = Mapping[str, Any]
Key = tuple[str, Any]  # a key of the config and its default

RMS, LAYER = "RMSNorm", "LayerNorm"
NO_LIMIT: Final = 1


class Router(Value, frozen=True):
    """How experts are chosen: Megatron's names, keys of the config where it decides."""

    score: str = "softmax"
    normalised: Key = ("norm_topk_prob", True)  # false: scores are taken before the choice
    scaling: Key = ("routed_scaling_factor", 1.0)
    choice: Key = ("topk_method", "")  # "greedy": without regard to groups
    groups: Key = ("n_group", NO_LIMIT)
    group_topk: Key = ("topk_group", NO_LIMIT)
    balancing: str = "aux_loss"
    coefficient: Key = ("router_aux_loss_coef", 1e-3)

    @property
    def has_bias(self) -> bool:
        """Scores by sigmoid come with a bias for each expert that keeps the load even."""
        return self.score == "sigmoid"


class ModelFamily(Value, frozen=True):
    """What models of one `model_type` have in common."""

    normalization: str = RMS
    epsilon: Key = ("rms_norm_eps", 1e-6)
    activation: Key = ("hidden_act", "silu")
    theta: Key = ("rope_theta", 10_000)
    scaling: Values | None = None  # of rotary positions, where the config says nothing
    zero_centered: bool = False  # norms keep their scale as the difference to one
    sinks: bool = False  # a learned value for each head in the softmax
    router: Router | None = None


_LLAMA: Final = ModelFamily()
_LAYERS: Final = ModelFamily(LAYER, ("layer_norm_eps", 1e-5), ("hidden_act", "gelu"))
_QWEN_ROUTER: Final = Router(normalised=("norm_topk_prob", False))
_SIGMOID: Final = Router(
    "sigmoid",
    scaling=("routed_scaling_factor", 2.5),
    groups=("n_group", 8),
    group_topk=("topk_group", 4),
    balancing="seq_aux_loss",
    coefficient=("aux_loss_alpha", 1e-4),
)
_GLM_ROUTER: Final = replace(
    _SIGMOID,
    scaling=("routed_scaling_factor", 1.0),
    groups=("n_group", NO_LIMIT),
    group_topk=("topk_group", NO_LIMIT),
)

FAMILIES: Final[Mapping[str, ModelFamily]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "phi3": ModelFamily(epsilon=("rms_norm_eps", 1e-5)),
    "nemotron": ModelFamily(LAYER, ("norm_eps", 1e-5), ("hidden_act", "relu2"), zero_centered=True),
    "mixtral": ModelFamily(
        epsilon=("rms_norm_eps", 1e-5), theta=("rope_theta", 1_000_000), router=Router()
    ),
    "qwen2_moe": replace(_LLAMA, router=_QWEN_ROUTER),
    "qwen3_moe": replace(_LLAMA, router=_QWEN_ROUTER),
    "deepseek_v2": replace(
        _LLAMA,
        router=Router(
            normalised=("norm_topk_prob", False),
            choice=("topk_method", "greedy"),
            balancing="seq_aux_loss",
            coefficient=("aux_loss_alpha", 1e-3),
        ),
    ),
    "deepseek_v3": replace(_LLAMA, router=_SIGMOID),
    "kimi_k2": replace(_LLAMA, router=_SIGMOID),
    "glm4_moe": replace(_LLAMA, epsilon=("rms_norm_eps", 1e-5), router=_GLM_ROUTER),
    "gpt_oss": ModelFamily(
        epsilon=("rms_norm_eps", 1e-5),
        # The config says silu; the model gates with a clamped quick GELU.
        activation=("", "quick_gelu"),
        theta=("rope_theta", 150_000),
        scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        sinks=True,
        router=Router(),
    ),
    "gpt2": ModelFamily(LAYER, ("layer_norm_epsilon", 1e-5), ("activation_function", "gelu_new")),
    "gpt_neox": _LAYERS,
    "megatron_gpt": replace(
        _LAYERS,
        epsilon=("layernorm_epsilon", 1e-5),
        activation=("activation", "gelu"),
        theta=("rotary_base", 10_000),
        router=Router(),
    ),
}


def read(values: Values, key: Key) -> Any:  # noqa: ANN401  of the type of the default
    """A value of the config; absent and null take the default."""
    found = values.get(key[0])
    return key[1] if found is None else found


def text_values(values: Values) -> Values:
    """The part of a config that describes the stack that reads."""
    nested = values.get("text_config")
    return nested if isinstance(nested, Mapping) else values


class Rope(Value, frozen=True):
    """Rotary positions: their base, and how they are stretched ("" if they are not)."""

    theta: float
    kind: str
    scaling: Values


def rope_of(values: Values, family: ModelFamily) -> Rope:
    """Rotary positions of a config in the old form (rope_theta, rope_scaling) or the new one."""
    new, old = values.get("rope_parameters"), values.get("rope_scaling")
    given = next((one for one in (new, old) if isinstance(one, Mapping) and one), None)
    scaling = given if given is not None else family.scaling or {}
    theta = scaling.get("rope_theta") or read(values, family.theta)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    return Rope(float(theta), "" if kind == "default" else str(kind), scaling)


def activation_of(values: Values, family: ModelFamily) -> str:
    """The activation of the feed-forward part, in the words of transformers."""
    if values.get("model_type") == "megatron_gpt":
        if values.get("swiglu"):
            return "silu"
        if values.get("squared_relu"):
            return "relu2"
    return str(read(values, family.activation))


def normalization_of(values: Values, family: ModelFamily) -> str:
    """The kind of norm; only our own type of config says it itself."""
    stated = values.get("normalization")
    return (
        str(stated)
        if values.get("model_type") == "megatron_gpt" and stated
        else (family.normalization)
    )
