"""Facts of a model that decide neither time nor memory, but which model is trained.

The epsilon of norms, activation, rotary positions, the scores of a router. Absent keys take the
defaults of `data/model_families.json`. `trained_facts` compares models of software with the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from astrarium.errors import InputError
from astrarium.model.blocks import Block, Model
from astrarium.model.scans import Recurrence, Scan
from astrarium.plans.job import Job
from astrarium.value import Value

Values = Mapping[str, Any]
Key = tuple[str, Any]  # a key of the config and its default

RMS, LAYER = "RMSNorm", "LayerNorm"
NO_LIMIT: Final = 1


class Router(Value, frozen=True):
    """The choice of experts: Megatron's names, and the keys of the config that decide."""

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
    normalization: str = RMS
    epsilon: Key = ("rms_norm_eps", 1e-6)
    activation: Key = ("hidden_act", "silu")
    theta: Key = ("rope_theta", 10_000)
    scaling: Values | None = None  # of rotary positions, where the config says nothing
    zero_centered: bool = False  # norms keep their scale as the difference to one
    sinks: bool = False  # a learned value for each head in the softmax
    router: Router | None = None


class _Families(Value, frozen=True):
    """The content of `data/model_families.json`."""

    families: dict[str, ModelFamily]
    others: dict[str, ModelFamily]
    not_in_megatron: dict[str, str]  # by architecture or model_type: why
    # Numbers of a stretch of rotary positions, and what an absent one stands for.
    stretch: dict[str, dict[str, float | None]]


_TABLES: Final = msgspec.json.decode(
    (Path(__file__).parent / "data" / "model_families.json").read_bytes(), type=_Families
)
FAMILIES: Final = _TABLES.families
NOT_IN_MEGATRON: Final = _TABLES.not_in_megatron
_STRETCH: Final = _TABLES.stretch


def read(values: Values, key: Key) -> Any:  # noqa: ANN401  of the type of the default
    """A value of the config; absent and null take the default."""
    found = values.get(key[0])
    if isinstance(key[1], float) and not isinstance(found, int | float | None):
        raise InputError(f"config.json: {key[0]}: expected a number, got {found!r}")
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


# What two models of the same sizes may differ in: another model would be trained.

Facts = Mapping[str, object]


def trained_facts(config: Mapping[str, Any]) -> Facts | None:
    """The facts of a config; None if its family is not known."""
    values = text_values(config)
    kind = str(values.get("model_type"))
    family = FAMILIES.get(kind) or _TABLES.others.get(kind)
    return None if family is None else dict(_facts(values, family))


def _facts(values: Mapping[str, Any], family: ModelFamily) -> Iterator[tuple[str, object]]:
    rope = rope_of(values, family)
    yield "theta", rope.theta
    yield "rope_type", rope.kind
    for key, usual in _STRETCH.get(rope.kind, {}).items():
        yield key, rope.scaling.get(key, usual)
    yield "epsilon", float(read(values, family.epsilon))
    yield "activation", activation_of(values, family)
    if family.router is not None:
        yield from _router(values, family.router)


def _router(values: Mapping[str, Any], router: Router) -> Iterator[tuple[str, object]]:
    yield "score", router.score
    yield "normalised", bool(read(values, router.normalised))
    yield "route_scale", float(read(values, router.scaling))
    grouped = read(values, router.choice) != "greedy"
    yield "groups", read(values, router.groups) if grouped else NO_LIMIT
    yield "group_topk", read(values, router.group_topk) if grouped else NO_LIMIT


def differing(planned: Facts, offered: Facts) -> dict[str, str]:
    """The differences in words; numbers of a stretch count only within one kind."""
    numbers = {key for kind in _STRETCH.values() for key in kind}
    other_kind = planned.get("rope_type") != offered.get("rope_type")
    every = dict.fromkeys((*planned, *offered))
    keys = [key for key in every if not (other_kind and key in numbers)]
    return {
        key: f"{key} {_word(offered.get(key))} instead of {_word(planned.get(key))}"
        for key in keys
        if planned.get(key) != offered.get(key)
    }


def _word(value: object) -> str:
    if value in (None, ""):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


KERNELS: Final = {
    Recurrence.SSD: "mamba-ssm and causal-conv1d",
    Recurrence.DELTA: "flash-linear-attention and causal-conv1d",
}


def scan_of(model: Model) -> Scan | None:
    """The scan that a model has; it has one in all layers with a scan."""
    every = (scan for block in model.kinds if isinstance(block, Block) for scan in block.scans)
    return next(every, None)


def scan_needs(job: Job) -> Iterator[str]:
    """Packages that the scans of a model need."""
    scan = scan_of(job.model)
    if scan is not None and scan.kind in KERNELS:
        yield f"{KERNELS[scan.kind]}, which have the kernels of its scans, on every node"
