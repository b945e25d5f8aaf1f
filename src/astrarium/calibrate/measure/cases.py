"""A case: one thing to time, as plain data. `sections` lists those of a calibration.

A case names an operator and its shape; the same case on another day has the same key, so a
journal knows what is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

# Columns that say what was run; a case has those that apply to it.
IDENTITY: Final = (
    "section",
    "operator",
    "role",
    "dtype",
    "kernel",
    "m",
    "n",
    "k",
    "groups",
    "batch",
    "heads",
    "kv_heads",
    "q_length",
    "kv_length",
    "key_dim",
    "value_dim",
    "causal",
    "num_bytes",
    "parameters",
    "ranks",
)
TEXTS: Final = ("section", "operator", "role", "dtype", "kernel")
# Columns that say what came out: microseconds, calls per batch, seconds since the run began.
TIMES: Final = ("median_us", "min_us", "max_us", "host_us", "calls", "at_seconds")

# Device time of one batch of calls: long against a timer's grain, short against a clock's drift.
WINDOW_SECONDS: Final = 0.008
SUSTAINED_SECONDS: Final = 0.3  # batches that reach the clock the power limit allows at first

Shape = Mapping[str, int | str]


def working_dtype(device: str) -> str:
    """The number format that weights and activations have; processors are slow in 16 bits."""
    return "bf16" if device == "cuda" else "fp32"


class Scale(StrEnum):
    """The size and number of shapes."""

    FULL = "full"  # a GPU, four to five minutes
    QUICK = "quick"  # the same shapes, a fifth of them
    SMALL = "small"  # a processor
    TINY = "tiny"  # the same shapes, a fifth of them

    @property
    def is_small(self) -> bool:
        return self in (Scale.SMALL, Scale.TINY)

    @property
    def is_thinned(self) -> bool:
        return self in (Scale.QUICK, Scale.TINY)


def scale_for(device: str, *, quick: bool) -> Scale:
    if device == "cuda":
        return Scale.QUICK if quick else Scale.FULL
    return Scale.TINY if quick else Scale.SMALL


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time. Without `queue_ahead` the host is what is timed."""

    section: str
    operator: str
    shape: Shape = field(default_factory=dict)
    window_seconds: float = WINDOW_SECONDS
    queue_ahead: bool = True

    @property
    def columns(self) -> dict[str, int | str]:
        return {"section": self.section, "operator": self.operator, **self.shape}

    @property
    def key(self) -> str:
        return case_key(self.columns)


def case_key(columns: Mapping[str, object]) -> str:
    known = [[name, columns[name]] for name in IDENTITY if columns.get(name) is not None]
    return json.dumps(known, separators=(",", ":"))
