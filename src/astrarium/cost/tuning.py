"""Tuning: a few named factors that measurements of one device or cluster taught.

All are neutral unless a profile says otherwise. They are applied where the cost model has the
quantity they correct, so that search, prediction and validation see the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Operators(StrEnum):
    """Classes of operators that can have a time ratio of their own."""

    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Ratios of true to modelled time, and what is missing in seconds and bytes."""

    origin: str = ""  # where it was learned, for reports
    compute: float = 1.0  # all computation of forward and backward passes
    host: float = 1.0  # what the host takes to launch kernels
    intra_link: float = 1.0  # messages inside a node's fast domain
    inter_link: float = 1.0  # messages between nodes
    step_seconds: float = 0.0  # added to every iteration
    memory_bytes: float = 0.0  # added to what is reserved on every GPU
    operators: Mapping[str, float] = field(default_factory=dict)  # by operator class

    def of(self, operator_class: str) -> float:
        """The time ratio of one class of operators."""
        return self.operators.get(operator_class, 1.0)


NEUTRAL = Tuning()
