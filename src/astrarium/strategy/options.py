"""All options of Megatron-LM's parser: searched, derived, fixed or neutral.

`data/megatron_options.json` has a line for every option, with the reason, so that nothing that
decides time or memory is forgotten. This module reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from astrarium.value import Value

_OPTIONS: Final = Path(__file__).parent / "data" / "megatron_options.json"

# What an option can be derived from besides the fields of a strategy, a model and a cluster.
WORKLOAD_SOURCES: Final = frozenset(
    {"model", "precision", "numerics", "expert_messages", "optimizer", "runtime", "tokens"}
)


class Treatment(StrEnum):
    SEARCHED = "searched"
    DERIVED = "derived"
    FIXED = "fixed"
    NEUTRAL = "neutral"


class Takes(StrEnum):
    """The kind of value that follows an option on the command line."""

    ON = "on"
    OFF = "off"
    SWITCH = "switch"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"

    @property
    def is_flag(self) -> bool:
        return self in (Takes.ON, Takes.OFF, Takes.SWITCH)


class Option(Value, frozen=True):
    """One option: how Megatron calls it, what is done with it, and why.

    `many` is the number of values if not one, or "+" or "*".
    """

    dest: str
    flags: tuple[str, ...]
    treatment: Treatment = msgspec.field(name="class")
    field: str | None = None
    value: object = None
    why: str = ""
    category: str = ""
    is_alias: bool = msgspec.field(name="alias", default=False)
    takes: Takes = Takes.TEXT
    many: int | str | None = None
    choices: tuple[object, ...] = ()
    default: object = msgspec.UNSET  # Megatron's own, where it is another value

    @property
    def differs_from_default(self) -> bool:
        return self.default is not msgspec.UNSET


@cache
def megatron_options() -> tuple[Option, ...]:
    return msgspec.convert(_document()["options"], tuple[Option, ...])


@cache
def options_by_flag() -> Mapping[str, Option]:
    return {flag: option for option in megatron_options() for flag in option.flags}


def megatron_version() -> str:
    """The version of Megatron-LM whose parser is described."""
    version: str = _document()["runtime"].rpartition(" ")[2]
    return version


def implied_fields() -> Mapping[str, str]:
    """Strategy fields that no option sets, with what Megatron computes them from."""
    implied: Mapping[str, str] = _document()["implied"]
    return implied


def megatron_aliases() -> Mapping[str, str]:
    """Megatron's names of fields, where they mean exactly the same."""
    renamed = {o.dest: o.field for o in megatron_options() if o.is_alias and o.field}
    return {**renamed, **_document()["aliases"]}


@cache
def _document() -> Mapping[str, Any]:
    import json

    document: Mapping[str, Any] = json.loads(_OPTIONS.read_text(encoding="utf-8"))
    return document
