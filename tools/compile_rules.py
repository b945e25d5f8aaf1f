"""Writes the syntax tree of every built-in rule beside its text.

Run it after editing a rule: `python tools/compile_rules.py`. The package evaluates the stored
trees, so that starting it does not need the parser; a test compares texts and trees.
"""

from __future__ import annotations

import json
from pathlib import Path

from astrarium.strategy.rule_parser import tree_of

RULES = Path(__file__).parents[1] / "src/astrarium/strategy/data/validity_rules.json"


def compiled(text: str) -> str:
    """The rule file with all trees renewed, a line for every field."""
    document = json.loads(text)
    entries = []
    for rule in document["rules"]:
        rule["tree"] = tree_of(rule["when"])
        fields = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in rule.items()]
        entries.append("  {\n" + ",\n".join(fields) + "\n  }")
    rules = ",\n".join(entries)
    return f'{{\n "rules": [\n{rules}\n ]\n}}\n'


if __name__ == "__main__":
    RULES.write_text(compiled(RULES.read_text(encoding="utf-8")), encoding="utf-8")
