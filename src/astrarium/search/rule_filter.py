"""Rules applied to columns of strategies, each at the first step that can decide it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from astrarium.arrays import Bools, Ints
from astrarium.search.fields import (
    RECOMPUTE_FIELDS,
    Fields,
    KnownAt,
    first_step,
    reads_only_options,
)
from astrarium.search.outcome import Rejection
from astrarium.search.space import OVERLAP_SWITCHES


class RejectingRule(Protocol):
    """A rule drops the strategies for which it is true."""

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def label(self) -> str: ...

    def rejects(self, columns: Any) -> Bools: ...  # noqa: ANN401


CausedRules = Sequence[tuple[RejectingRule, Rejection]]
Lost = Counter[tuple[Rejection, str]]  # strategies by the cause and the rule that rejected them


class RuleSteps:
    """Rules sorted by the step that can first decide them."""

    def __init__(self, rules: CausedRules, expanded_overlaps: frozenset[str]) -> None:
        self.of_degrees = [r for r in rules if first_step(r[0].names) is KnownAt.DEGREES]
        self.of_layouts = [r for r in rules if first_step(r[0].names) is KnownAt.LAYOUT]
        late = [r for r in rules if first_step(r[0].names) is KnownAt.OPTIONS]
        free = [f"overlap_{n}" for n in OVERLAP_SWITCHES if n not in expanded_overlaps]
        # Switches not in the written-out space are set from the very rules that name them.
        self.of_switches = {name: [r for r in late if name in r[0].names] for name in free}
        undecided = frozenset(free)
        self.of_options = [
            r for r in late if reads_only_options(r[0].names) and not r[0].names & undecided
        ]
        self.mixed = [r for r in late if r not in self.of_options]
        # Whether any policy that fits may be used: what is left to decide does not ask for it.
        self.recompute_is_free = not any(r[0].names & RECOMPUTE_FIELDS for r in self.mixed)


def apply_rules(rules: CausedRules, columns: Fields, counts: Ints) -> tuple[Bools, Lost]:
    """Rows that survive all rules, and the strategies that each rule was the first to reject."""
    alive = np.ones(len(counts), bool)
    lost: Lost = Counter()
    for rule, cause in rules:
        hit = alive & np.broadcast_to(rule.rejects(columns), alive.shape)
        if hit.any():
            lost[cause, rule.label] += int(counts[hit].sum())
            alive &= ~hit
    return alive, lost
