"""Modules that are named as models, without a function: catalog names and config.json files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from astrarium.api import request
from astrarium.errors import InputError
from astrarium.spmd.capture import NAMED_FACTORY

INSTALL: Final = "pip install transformers"
FLOAT32: Final = (
    "computed in float32; --set dtype=bfloat16 or dtype=float16 multiplies in 16 bits, as plans do"
)


def named_module(
    reference: str, sizes: Mapping[str, Any]
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The factory of a model, its sizes, and notes on those that were not given."""
    described = request.model(reference)
    if "model_type" not in (described.config or {}):
        raise InputError(
            f"{reference}: a model file has no code to capture; name a config.json, or a function"
            " that makes the module, as FILE.py:FUNCTION"
        )
    if find_spec("transformers") is None:
        raise InputError(
            f"{reference}: transformers must be installed to make this module: {INSTALL}"
        )
    found, notes = {"model": reference, **sizes}, []
    if "sequence" not in sizes:
        length, why = request.default_length(described)
        found["sequence"] = length
        notes.append(f"{length:,} tokens in a sequence, {why}; --set sequence=N for others")
    if "dtype" not in sizes:
        notes.append(FLOAT32)
    return NAMED_FACTORY, found, tuple(notes)
