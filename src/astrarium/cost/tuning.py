"""Tuning: a few named factors that measurements of one device or cluster taught.

All are neutral unless a profile says otherwise. They are applied where the cost model has the
quantity they correct, so that search, prediction and validation see the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import field

from astrarium.value import Value


class Operators(StrEnum):
    """Classes of operators that can have a time ratio of their own."""

    ATTENTION = "attention"


class Tuning(Value, frozen=True):
    """Ratios of true to modelled time, and what is missing in seconds and bytes."""

    origin: str = ""  # where it was learned, for reports
    compute: float = 1.0  # all computation of forward and backward passes
    host: float = 1.0  # what the host takes to launch kernels
    intra_link: float = 1.0  # messages inside a node's fast domain
    inter_link: float = 1.0  # messages between nodes
    step_seconds: float = 0.0  # added to every iteration
    memory_bytes: float = 0.0  # added to what is reserved on every GPU
    operators: Mapping[str, float] = field(default_factory=dict)  # by operator class
    # Of a core of a processor: seconds of its operators (see `astrarium.cost.laws`), their
    # typical error, and the runtime that trains on it.
    laws: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    law_error: float = 0.0
    # The same of messages between two cores: by operation, seconds of a call and of a byte.
    messages: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    runtime: str = ""

    def of(self, operator_class: str) -> float:
        """The time ratio of one class of operators."""
        return self.operators.get(operator_class, 1.0)


NEUTRAL = Tuning()
