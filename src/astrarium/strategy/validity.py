"""Strategies that a runtime accepts, and its reasons to refuse the others.

Every rule names the runtimes it holds for. Those of Megatron-LM are its own checks; those of other
runtimes name what their files can express. The rules are data (`data/validity_rules.json`): a
condition in the rule language with its syntax tree, a reason for the user, and the place where the
runtime enforces it. Rules of origin Astrarium keep a strategy free of contradictions or name what
is not modelled. Options that are held fixed have the value of `data/megatron_options.json`. Not
covered: memory, and versions of installed software.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from astrarium.arrays import Bools
from astrarium.strategy.expression import Column, Rule
from astrarium.value import Value

_DATA: Final = Path(__file__).parent / "data"
_RULES, _COLUMNS = _DATA / "validity_rules.json", _DATA / "rule_columns.json"


class ColumnInfo(Value, frozen=True):
    """A field that rules may name: its type, what it means, and the texts it may hold."""

    type: type
    meaning: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidityRule:
    """A condition under which a strategy is rejected, with the reason given to the user."""

    id: str
    category: str
    reason: str
    origin: str
    runtimes: tuple[str, ...]  # rule sets it belongs to
    rule: Rule = field(repr=False)

    @property
    def names(self) -> frozenset[str]:
        return self.rule.names

    @property
    def label(self) -> str:
        return self.id

    def rejects(self, columns: Mapping[str, Column]) -> Bools:
        """True where the rule forbids a strategy; shaped like the columns it reads, broadcast."""
        return self.rule.evaluate(columns)

    def explained(self, columns: Mapping[str, Column]) -> str:
        """The reason with the values of one strategy filled in."""
        return self.reason.format_map(_Shown(columns))


@cache
def all_rules() -> tuple[ValidityRule, ...]:
    entries = json.loads(_RULES.read_text(encoding="utf-8"))["rules"]
    return tuple(
        ValidityRule(
            entry["id"],
            entry["category"],
            entry["reason"],
            entry["origin"],
            tuple(entry["runtimes"]),
            Rule.from_tree(entry["when"], entry["tree"]),
        )
        for entry in entries
    )


@cache
def rules_of(rule_set: str) -> tuple[ValidityRule, ...]:
    """The rules of `Runtime.rules`; megatron-graphs has those of megatron and its own."""
    sets = {rule_set, rule_set.partition("-")[0]} - {""}
    return tuple(rule for rule in all_rules() if not sets.isdisjoint(rule.runtimes))


def megatron_rules() -> tuple[ValidityRule, ...]:
    """The assertions of Megatron-LM's validation, schedules and sharding."""
    return rules_of("megatron")


def violations(
    columns: Mapping[str, Column], rule_set: str = "megatron", names: Set[str] | None = None
) -> tuple[str, ...]:
    """Why a runtime would not run one strategy, given as scalars; empty if it would.

    With `names`, only rules that read one of these fields are asked.
    """
    rules = (one for one in rules_of(rule_set) if names is None or one.names & names)
    return tuple(one.explained(columns) for one in rules if bool(one.rejects(columns).any()))


class _Shown(dict[str, Column]):
    """Looks values up on demand, so that a lazy mapping computes only what a reason mentions."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> Column:
        return self._columns[name]


_TYPES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in (int, float, bool, str)}
COLUMNS: Final[Mapping[str, ColumnInfo]] = {
    name: ColumnInfo(_TYPES[kind], meaning, tuple(choices))
    for name, (kind, meaning, *choices) in json.loads(_COLUMNS.read_bytes())["columns"].items()
}
COLUMN_TYPES: Final[Mapping[str, type]] = {name: info.type for name, info in COLUMNS.items()}
COLUMN_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    name: info.choices for name, info in COLUMNS.items() if info.choices
}
