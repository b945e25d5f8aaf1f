"""All flags that a request may have, with their defaults, from the functions of the package.

The arguments of `astrarium.plan` and `astrarium.predict` are the flags; so a new flag needs no
second list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, Final

from astrarium.api import calls
from astrarium.api.wording import FLAGS

# Flags that name files: nothing on the server's disk is read.
FILES: Final = ("profile", "prices", "compare", "compare_gpus", "as_type")
SEVERAL: Final = ("rule", "price", "discount", "interruptions")  # may be repeated
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "objective": ("throughput", "cost", "time"),
    "mode": ("exact", "up-to"),
    "precision": ("bf16", "fp16", "fp8"),
    "spot": ("never", "always", "mix"),
    "region": ("us", "europe", "asia", "other"),
}
_DEFAULTS: Final[Mapping[str, object]] = {"spot": "never", "rule": None, "sensitivity": False}


def _arguments(call: Callable[..., Any], terms: type) -> dict[str, object]:
    """The flags that a function of the package takes, with their defaults."""
    found: dict[str, object] = {
        FLAGS.get(name, name): None if one.default is Parameter.empty else one.default
        for name, one in signature(call).parameters.items()
        if one.kind is not Parameter.VAR_KEYWORD
    }
    found |= dict.fromkeys(terms.__annotations__)
    return {**found, **{name: value for name, value in _DEFAULTS.items() if name in found}}


PLAN_FLAGS: Final = _arguments(calls.plan, calls.RunFlags)
PREDICT_FLAGS: Final = _arguments(calls.predict, calls.PriceTerms)
WHY_NOT_FLAGS: Final = {**PLAN_FLAGS, "strategy": None}
