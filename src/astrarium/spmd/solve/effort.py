"""How much work a search may still do, counted in steps: the same on every machine.

A step is one move of a search from one state to the next, a few microseconds. Other work
is counted in steps that take as long, so that steps stand for seconds without any clock: answers
never depend on how busy a machine is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf


@dataclass
class Effort:
    """Steps that are left; work that was begun may take a few more."""

    left: float = inf

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, steps: float) -> None:
        self.left -= steps

    @contextmanager
    def portion(self, most: float) -> Iterator[Effort]:
        """So many of the steps; what is not needed of them comes back."""
        taken = max(0.0, most)
        part = Effort(taken)
        try:
            yield part
        finally:
            self.left -= taken - part.left if taken < inf else 0.0
