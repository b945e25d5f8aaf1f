"""Rules of the user: expressions over strategy, model and cluster; true drops a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astrarium.arrays import Bools
from astrarium.catalog.runtimes import Runtime
from astrarium.errors import repairs_among
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.document import SHORT_NAMES
from astrarium.strategy.expression import Rule, compile_rule
from astrarium.strategy.options import megatron_aliases
from astrarium.strategy.validity import COLUMN_CHOICES, COLUMN_TYPES, COLUMNS
from astrarium.value import Value


class UserRule(Value, frozen=True):
    rule: Rule

    @property
    def label(self) -> str:
        return self.rule.text

    @property
    def names(self) -> frozenset[str]:
        return self.rule.names

    def rejects(self, columns: Mapping[str, Any]) -> Bools:
        return self.rule.evaluate(columns)


def user_rules(texts: Sequence[str]) -> tuple[UserRule, ...]:
    """Parsed rules; InputError with the column of the mistake."""
    aliases = {**megatron_aliases(), **SHORT_NAMES} if texts else {}
    found = []
    for index, text in enumerate(texts):
        with repairs_among(texts, index, "\n"):
            rule = compile_rule(text, COLUMNS, aliases, COLUMN_TYPES, COLUMN_CHOICES)
        found.append(UserRule(rule))
    return tuple(found)


def overlaps_named(rules: Sequence[UserRule]) -> frozenset[str]:
    """Overlap switches that some rule reads, so that both settings must be looked at."""
    read = {name for rule in rules for name in rule.names}
    return frozenset(switch for switch in OVERLAP_SWITCHES if f"overlap_{switch}" in read)


def offloads(runtime: Runtime, rules: Sequence[UserRule]) -> bool:
    """Whether states in host memory are compared with others from the start."""
    named = any("offload_optimizer" in rule.names for rule in rules)
    return named or not runtime.offloads_parameters
