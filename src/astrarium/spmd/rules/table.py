"""Layouts that an operator can work on, and those of its results.

A rule is valid on any devices and for any ratios: run on the local parts of its inputs, the
operator gives the local part of its result. Most operators are described by naming the axes of
their arguments, as einsum does:

    linear           "...i, oi, +o -> ...o"      linear=(0, 1)

- a letter is an axis. Dividing an axis divides every argument that has it; arguments without it
  are `copied`. A result without it is a sum over it, so `partial`;
- `...` stands for any leading axes, each of them an axis of its own; they are broadcast as torch
  does it, and an argument of length 1 does not have the axis;
- `!` after a letter: the operator needs the axis whole; `_` is such an axis without a name;
- `+` before an argument: it is added to the result, so it must be `partial` where the result is;
- arguments named in `linear`: with one of them `partial` (and the others `copied`) the result is
  `partial`. `linear=()`: it is so with all that are added `partial` together.

Operators that no notation describes have functions (`DESCRIBED` says which).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Final

from astrarium.errors import InputError
from astrarium.spmd.graph import CONSTANT, GETITEM, INPUT, KEEP, PARAMETER, Graph, Node
from astrarium.spmd.rules import elements, layers, losses, products, views
from astrarium.spmd.rules.layout import COPIED, REPLICATE, ShardRule, TensorLayout, shard
from astrarium.spmd.rules.notation import Call, Pattern, call_of, operator_name, rules_of_pattern

# What names the axes of an operator's tensors; None: it works on whole tensors alone.
DESCRIBED: Final[dict[str, Callable[[Call], Pattern | None]]] = {
    **products.DESCRIBED,
    **views.DESCRIBED,
    **elements.DESCRIBED,
    **losses.DESCRIBED,
    **layers.DESCRIBED,
}
# Ways to run an operator that do not follow from the names of its axes.
OTHERS: Final[dict[str, Callable[[Call], Iterator[ShardRule]]]] = {
    **products.OTHERS,
    **views.OTHERS,
    **losses.OTHERS,
    **layers.OTHERS,
}
PLACES_SHOWN: Final = 3


def without_rule(nodes: Collection[Node], name: str = "the module") -> InputError:
    """The refusal of operators that no rule is known for: the most frequent first, with places."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.op, []).append(node.source)
    lines = [f"{name}: no rule says how to divide these operators:"]
    operators = sorted(found, key=lambda op: (-len(found[op]), op))
    for op in operators:
        places = [*dict.fromkeys(filter(None, found[op]))]
        more = len(places) - PLACES_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        where = f": {'; '.join(places[:PLACES_SHOWN])}{rest}" if places else ""
        times = f"{len(found[op])} times" if len(found[op]) > 1 else "once"
        lines.append(f"  {op}, {times}{where}")
    options = " ".join(f"--allow-replicate {op}" for op in operators)
    return InputError("\n".join([*lines, f"To compute them whole on every device: {options}"]))


def operators_without_rule(graph: Graph, allow_replicate: Collection[str] = ()) -> list[Node]:
    """Nodes without a rule that depend on more than constants and are not allowed."""
    return [
        node
        for node, constant in zip(graph.nodes, graph.constant, strict=True)
        if not (constant or _has_rule(node) or _allowed(node.op, allow_replicate))
    ]


def _has_rule(node: Node) -> bool:
    return node.is_source or node.op in (GETITEM, KEEP) or operator_name(node.op) in DESCRIBED


def _allowed(op: str, allow_replicate: Collection[str]) -> bool:
    return op in allow_replicate or operator_name(op) in allow_replicate or "*" in allow_replicate


def rules_of(
    graph: Graph, node: Node, allow_replicate: Collection[str] = ()
) -> tuple[ShardRule, ...]:
    """All ways to run a node, in one tuple for equal nodes; `allow_replicate`: whole, too."""
    if not _has_rule(node) and not _allowed(node.op, allow_replicate):
        missing = operators_without_rule(graph, allow_replicate)
        if node in missing:
            raise without_rule(missing)
    if node.op == GETITEM:
        several = graph.nodes[node.inputs[0]]
        layouts = tuple(rule.gives for rule in rules_of(graph, several, allow_replicate))
        return _handed_on(call_of(graph, several), node.args[1], layouts)
    return _rules_of_call(call_of(graph, node, node.name in graph.of_parameters))


@lru_cache(maxsize=65536)
def _rules_of_call(call: Call) -> tuple[ShardRule, ...]:
    if call.op in (INPUT, PARAMETER, CONSTANT):
        return tuple(_of_source(call))
    name = operator_name(call.op)
    rules = [ShardRule("replicate", (REPLICATE,) * len(call.operands), REPLICATE)]
    if call.of_parameters and call.gradient:
        rules.append(ShardRule("copied", tuple(map(call.whole, call.operands)), COPIED))
    describe = DESCRIBED.get(name)
    pattern = describe(call) if describe else None
    if pattern is not None:
        rules.extend(rules_of_pattern(call, pattern))
    rules.extend(OTHERS[name](call) if name in OTHERS else ())
    return tuple(dict.fromkeys(rules))


@lru_cache(maxsize=65536)
def _handed_on(
    several: Call, result: int, layouts: tuple[TensorLayout, ...]
) -> tuple[ShardRule, ...]:
    """One of several results, which are not converted together."""
    return tuple(
        ShardRule(str(layout), (layout,), layout_of_result(several, result, layout))
        for layout in dict.fromkeys(layouts)
    )


def layout_of_result(several: Call, result: int, layout: TensorLayout) -> TensorLayout:
    """The layout of another result of an operator whose first one has a layout."""
    others = layers.OTHER_RESULTS.get(operator_name(several.op))
    return others(several, layout) if others and result else layout


def _of_source(call: Call) -> Iterator[ShardRule]:
    """Sources are there whole, or in pieces along any dimension; constants whole alone."""
    yield ShardRule("replicate", (), REPLICATE)
    if call.op != CONSTANT:
        for dim, length in enumerate(call.shape):
            if length > 1:
                yield ShardRule(f"shard {dim}", (), shard(dim))
