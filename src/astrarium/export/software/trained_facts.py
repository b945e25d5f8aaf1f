"""What two models of the same sizes may differ in: positions, norms, activation, router.

It costs no time and no memory, and yet another model would be trained. Software with models of its
own is held to these facts of the plan's config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.export.software.megatron_facts import (
    FAMILIES,
    NO_LIMIT,
    ModelFamily,
    Router,
    activation_of,
    read,
    rope_of,
    text_values,
)

Facts = Mapping[str, object]

# Numbers of a stretch of rotary positions, and what an absent one stands for.
_STRETCH: Final[Mapping[str, Mapping[str, float | None]]] = {
    "llama3": {
        "factor": None,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": None,
    },
    "yarn": {
        "factor": None,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": None,
    },
}
_GEMMA: Final = ModelFamily(activation=("hidden_activation", "gelu_pytorch_tanh"))
# Families that are read for no other purpose.
_FURTHER: Final[Mapping[str, ModelFamily]] = {
    "gemma2": _GEMMA,
    "gemma3_text": replace(_GEMMA, theta=("rope_theta", 1_000_000)),
    "llama4_text": ModelFamily(
        epsilon=("rms_norm_eps", 1e-5),
        theta=("rope_theta", 500_000),
        router=Router("sigmoid", normalised=("norm_topk_prob", False)),
    ),
}


def trained_facts(config: Mapping[str, Any]) -> Facts | None:
    """The facts of a config; None if its family is not known."""
    values = text_values(config)
    kind = str(values.get("model_type"))
    family = FAMILIES.get(kind) or _FURTHER.get(kind)
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


def unlike(planned: Facts, offered: Facts) -> dict[str, str]:
    """What differs, in words; numbers of a stretch tell nothing beside one of another kind."""
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
