"""Lists the operators of a graph that no rule says how to divide."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from astrarium.spmd.graph import GETITEM, Graph
from astrarium.value import Value

PLACES_SHOWN: Final = 3


class Missing(Value, frozen=True):
    """An operator without a rule, and where the module calls it."""

    op: str
    count: int
    places: tuple[str, ...]  # each once, in order: "layer.3.attention, modeling_bert.py:211"


def unsupported(graph: Graph, known: Collection[str]) -> list[Missing]:
    """Operators that are not `known` (with or without overload), the most frequent first.

    What depends on constants alone needs no rule: every device computes it by itself.
    """
    places: dict[str, list[str]] = {}
    for node, constant in zip(graph.nodes, graph.constant, strict=True):
        named = node.op in known or node.op.rpartition(".")[0] in known
        if not node.is_source and node.op != GETITEM and not constant and not named:
            places.setdefault(node.op, []).append(node.source)
    found = [
        Missing(op, len(where), tuple(dict.fromkeys(filter(None, where))))
        for op, where in places.items()
    ]
    return sorted(found, key=lambda missing: (-missing.count, missing.op))


def missing_message(missing: list[Missing], name: str = "") -> str:
    """All of them in one message, with the way out."""
    lines = [f"{name or 'the module'}: no rule says how to divide these operators:"]
    for item in missing:
        shown = "; ".join(item.places[:PLACES_SHOWN])
        more = len(item.places) - PLACES_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        where = f": {shown}{rest}" if shown else ""
        times = f"{item.count} times" if item.count > 1 else "once"
        lines.append(f"  {item.op}, {times}{where}")
    options = " ".join(f"--allow-replicate {item.op}" for item in missing)
    lines.append(f"To compute them whole on every device: {options}")
    return "\n".join(lines)
