"""Optimizers as data: their states, the traffic of an update, and what programs call them.

Each constant of `data/optimizers.json` is `[value, source]`. A runtime says what its update moves
with AdamW in fp32; `with_optimizer` gives the same runtime with another optimizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.runtimes import Constant, Runtime
from astrarium.errors import InputError, did_you_mean, flag, instead
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "optimizers.json"
ADAMW: Final = "adamw"
MASTER_BYTES: Final = 4.0  # of an fp32 weight, which is part of `Runtime.optimizer_bytes`


class OptimizerFacts(Value, frozen=True):
    """Bytes are of one parameter, beside its master weight and its gradient."""

    name: str
    title: str
    state_bytes: float
    moved_bytes: float  # of states, read and written by an update
    software: Mapping[str, Any]  # rule set of a runtime -> what its files say
    end_state_bytes: float  # of embedding and head
    newton_schulz_steps: float = 0  # of each matrix of a layer
    whole_gradients: bool = False  # ranks that share the update need whole ones


def optimizer_names() -> tuple[str, ...]:
    return tuple(_entries())


@cache
def find_optimizer(name: str = ADAMW) -> OptimizerFacts:
    entries = _entries()
    if name not in entries:
        why = _data()["not_priced"].get(name)
        says = f"unknown optimizer '{name}'{did_you_mean(name, entries)}"
        if why:
            says = f"{name} is not priced: {why}"
        raise InputError(
            f"{says}; known: {', '.join(entries)}", "optimizer", instead(name, list(entries))
        )
    values = {one.name: one.value for one in describe_optimizer(name)}
    values.setdefault("end_state_bytes", values["state_bytes"])
    return OptimizerFacts(
        name=name, title=entries[name]["title"], software=entries[name]["as"], **values
    )


def describe_optimizer(name: str) -> tuple[Constant, ...]:
    given = _entries()[name]
    return tuple(Constant(key, *given[key]) for key in given if key not in _TEXTS)


def optimizer_called(word: str) -> str | None:
    """The optimizer that a configuration means, None if it is not known."""
    plain = word.strip().lower().rpartition(".")[2].replace("-", "_")
    entries = _entries().items()
    return next((name for name, entry in entries if plain in entry["words"]), None)


def check_software(name: str, runtime: Runtime) -> None:
    """Refuse an optimizer that plans for a runtime cannot have; any may be predicted elsewhere."""
    known = [ADAMW] if runtime.name in _data()["adamw_alone"] else list(_entries())
    there = [one for one in known if runtime.program in find_optimizer(one).software]
    if not runtime.rules or find_optimizer(name).name in there:
        return
    raise InputError(
        f"{runtime.name} has no {name}; {flag('optimizer')} {', '.join(there)} can be planned for"
        " it",
        "optimizer",
    )


@cache
def with_optimizer(runtime: Runtime, name: str) -> Runtime:
    """The runtime with another optimizer than AdamW in fp32."""
    if name == ADAMW:
        return runtime
    usual, other = find_optimizer(), find_optimizer(name)
    less = usual.state_bytes - other.state_bytes
    moved = runtime.optimizer_moved_bytes - usual.moved_bytes + other.moved_bytes
    return replace(
        runtime, optimizer_bytes=runtime.optimizer_bytes - less, optimizer_moved_bytes=moved
    )


_TEXTS: Final = ("title", "as", "words")


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(DATA.read_bytes())
    return data


def _entries() -> Mapping[str, Any]:
    entries: Mapping[str, Any] = _data()["optimizers"]
    return entries
