"""What becomes of every option of Megatron-LM's parser: searched, derived, fixed or neutral.

The space of strategies is taken from Megatron's own option list, so that nothing that decides
time or memory is forgotten: `data/megatron_options.json` has a line for every option of the
parser, with the reason for what is done with it. This module only reads that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

_OPTIONS: Final = Path(__file__).parent / "data" / "megatron_options.json"

# What an option can be derived from besides the fields of a strategy, a model and a cluster.
WORKLOAD_SOURCES: Final = frozenset({"model", "precision", "optimizer", "tokens"})


class Treatment(StrEnum):
    """What is done with an option."""

    SEARCHED = "searched"
    DERIVED = "derived"
    FIXED = "fixed"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how Megatron calls it, what is done with it, and why."""

    dest: str
    flags: tuple[str, ...]
    treatment: Treatment
    field: str | None = None
    value: object = None
    why: str = ""
    category: str = ""
    differs_from_default: bool = False
    is_alias: bool = False


@cache
def megatron_options() -> tuple[Option, ...]:
    """All options, in the order of Megatron's help."""
    return tuple(
        Option(
            entry["dest"],
            tuple(entry["flags"]),
            Treatment(entry["class"]),
            entry.get("field"),
            entry.get("value"),
            entry.get("why", ""),
            entry.get("category", ""),
            "default" in entry,
            entry.get("alias", False),
        )
        for entry in _document()["options"]
    )


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
