"""Brings a captured graph into one form: few operators, no node that does nothing, none unread.

Every rewriting keeps the loss and its gradients. Reshapes and expansions carry whole shapes, so
that local ones can be derived; casts name a dtype alone; sources stand just before their first
reader, so that the nodes of a layer are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from astrarium.spmd.graph import CONSTANT, KEEP, PARAMETER, Graph, Node, Ref
from astrarium.spmd.layers import find_blocks

FLOATS: Final = frozenset({"float64", "float32", "bfloat16", "float16"})

# Results that hold no gradient of what they are computed from, though they are floats.
STOPS: Final = frozenset(
    f"aten.{name}" for name in (
        "detach", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like",
        "bernoulli", "new_zeros", "new_ones", "new_full", "new_empty", "sign", "floor", "ceil",
        "round",
    )
)  # fmt: skip
SAME: Final = ("contiguous", "clone", "alias", "lift_fresh", "lift_fresh_copy", "positive")
RESHAPES: Final = (
    "view", "_unsafe_view", "reshape", "reshape_as", "view_as", "flatten", "unflatten", "ravel",
)  # fmt: skip
EXPANSIONS: Final = ("expand", "expand_as", "broadcast_to")
NATIVE_DROPOUT: Final = "aten.native_dropout.default"
CASTS: Final = ("to", "_to_copy", "type_as", "float", "half", "bfloat16")

Values = Sequence[Node]
# What becomes of a node: another node, or the number of the one whose value it has.
Rewriting = Callable[[Node, Values], Node | int]


def normalise(nodes: Sequence[Node], name: str = "") -> Graph:
    """Return the graph of these nodes, the last of which is the loss."""
    kept = _simplified(nodes)
    kept = _sources_by_readers(_living(kept, len(kept) - 1))
    kept = _with_gradients(kept)
    return Graph(tuple(kept), name, find_blocks(kept))


def packet(op: str) -> str:
    """The operator without its overload: "aten.add" of "aten.add.Tensor"."""
    return op.rpartition(".")[0] if op.count(".") > 1 else op


def with_refs(node: Node, numbers: Sequence[int] | dict[int, int]) -> Node:
    """The node, reading node `numbers[i]` wherever it read node i."""

    def moved(value: Any) -> Any:  # noqa: ANN401  whatever torch takes
        if isinstance(value, Ref):
            return Ref(numbers[value.node])
        return [moved(item) for item in value] if isinstance(value, list | tuple) else value

    args = tuple(moved(value) for value in node.args)
    kwargs = tuple((key, moved(value)) for key, value in node.kwargs)
    return replace(node, args=args, kwargs=kwargs)


def _simplified(nodes: Sequence[Node]) -> list[Node]:
    kept: list[Node] = []
    numbers: list[int] = []
    for node in nodes:
        moved = with_refs(node, numbers)
        rewriting = REWRITINGS.get(packet(node.op))
        result = rewriting(moved, kept) if rewriting else moved
        if isinstance(result, int):
            numbers.append(result)
        else:
            numbers.append(len(kept))
            kept.append(result)
    # The last node may stand for an earlier one: everything after that is unread.
    return kept[: numbers[-1] + 1]


def _living(nodes: list[Node], result: int) -> list[Node]:
    """Only the nodes that the result depends on."""
    alive = {result}
    for index in range(result, -1, -1):
        if index in alive:
            alive.update(nodes[index].inputs)
    return _reordered(nodes, sorted(alive))


def _reordered(nodes: list[Node], order: Sequence[int]) -> list[Node]:
    numbers = {old: new for new, old in enumerate(order)}
    return [with_refs(nodes[old], numbers) for old in order]


def _sources_by_readers(nodes: list[Node]) -> list[Node]:
    """Put parameters, and sources with one reader, before their first reader; others in front."""
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        for read in dict.fromkeys(node.inputs):
            readers.setdefault(read, []).append(index)
    late = {
        index
        for index, node in enumerate(nodes)
        if node.op == PARAMETER or (node.op == CONSTANT and len(readers.get(index, ())) == 1)
    }
    order = [i for i, node in enumerate(nodes) if node.is_source and i not in late]
    placed: set[int] = set()
    for index, node in enumerate(nodes):
        if node.is_source:
            continue
        wanted = [i for i in dict.fromkeys(node.inputs) if i in late and i not in placed]
        order += [*wanted, index]
        placed.update(wanted)
    return _reordered(nodes, order)


def _with_gradients(nodes: list[Node]) -> list[Node]:
    """Mark the values that gradients flow into: between the loss and a parameter."""
    trained = flows(nodes)
    reached = {len(nodes) - 1} if trained[-1] else set()
    for index in range(len(nodes) - 1, -1, -1):
        if index in reached:
            reached.update(i for i in _with_gradient(nodes[index]) if trained[i])
    return [replace(node, needs_gradient=i in reached) for i, node in enumerate(nodes)]


def flows(nodes: Sequence[Node]) -> list[bool]:
    """Whether each value depends on a parameter in a way that has a gradient."""
    found: list[bool] = []
    for node in nodes:
        inherited = (
            any(found[index] for index in _with_gradient(node)) and packet(node.op) not in STOPS
        )
        # Of several results the first says nothing about the others: `getitem` will.
        several = node.dtype not in FLOATS and packet(node.op) in MIXED
        found.append((node.op == PARAMETER or inherited) and (node.dtype in FLOATS or several))
    return found


def _with_gradient(node: Node) -> tuple[int, ...]:
    """Inputs that a gradient may go back to: of new values of buffers there is none."""
    return node.inputs[:1] if node.op == KEEP else node.inputs


MIXED: Final = frozenset({"aten.sort", "aten.topk", "aten.unbind"})


def _first(node: Node) -> int:
    return next(iter(node.inputs))


def _same(node: Node, kept: Values) -> Node | int:
    return _first(node)


def _detached(node: Node, kept: Values) -> Node | int:
    return node if flows(kept)[_first(node)] else _first(node)


def _reshaped(node: Node, kept: Values) -> Node | int:
    source = _first(node)
    if kept[source].shape == node.shape:
        return source
    return replace(node, op="aten.reshape.default", args=(Ref(source), list(node.shape)), kwargs=())


def _expanded(node: Node, kept: Values) -> Node | int:
    source = _first(node)
    if kept[source].shape == node.shape:
        return source
    return replace(node, op="aten.expand.default", args=(Ref(source), list(node.shape)), kwargs=())


def _cast(node: Node, kept: Values) -> Node | int:
    source = _first(node)
    if kept[source].dtype == node.dtype:
        return source
    return replace(node, op="aten.to.dtype", args=(Ref(source), f"torch.{node.dtype}"), kwargs=())


def _dropped(node: Node, kept: Values) -> Node | int:
    _, probability, training = node.args
    if node.op != NATIVE_DROPOUT and (probability == 0 or not training):
        return _first(node)  # that with a mask stays: its results are read one by one
    if not training:
        probability = 0.0
    return replace(node, op="aten.dropout.default", args=(node.args[0], probability, True))


def _item(node: Node, kept: Values) -> Node | int:
    """The form of dropout that also gives its mask has become the one that does not."""
    source, index = node.args
    return node if kept[source.node].op != "aten.dropout.default" or index else source.node


def _copied(node: Node, kept: Values) -> Node | int:
    _, given = node.args[:2]
    before = kept[given.node]
    return given.node if (before.shape, before.dtype) == (node.shape, node.dtype) else node


def _sliced(node: Node, kept: Values) -> Node | int:
    source = _first(node)
    if kept[source].shape == node.shape:
        return source
    given = list(node.args[1:]) + [None] * (5 - len(node.args))
    dim, start, end, step = (
        default if value is None else value
        for value, default in zip(given, (0, 0, 2**63 - 1, 1), strict=True)
    )
    dim %= len(node.shape)
    start, end, step = slice(start, end, step).indices(kept[source].shape[dim])
    return replace(node, args=(Ref(source), dim, start, end, step), kwargs=())


def _unchanged(neutral: float) -> Rewriting:
    """For `x + 0` and `x * 1`: the other operand is a number that changes nothing."""

    def rewriting(node: Node, kept: Values) -> Node | int:
        source, other = node.args[:2]
        if not isinstance(source, Ref) or other != neutral or node.kwargs:
            return node
        before = kept[source.node]
        return source.node if (before.shape, before.dtype) == (node.shape, node.dtype) else node

    return rewriting


def _squeezed(node: Node, kept: Values) -> Node | int:
    return _first(node) if kept[_first(node)].shape == node.shape else node


def _transposed(node: Node, kept: Values) -> Node | int:
    if len(node.shape) < 2:
        return _first(node)
    return replace(node, op="aten.transpose.int", args=(Ref(_first(node)), 0, 1), kwargs=())


def _chunked(node: Node, kept: Values) -> Node | int:
    source, chunks = node.args[:2]
    dim = node.args[2] if len(node.args) > 2 else 0
    size = -(-kept[source.node].shape[dim] // chunks)
    return replace(node, op="aten.split.Tensor", args=(source, size, dim), kwargs=())


def _split(node: Node, kept: Values) -> Node | int:
    return replace(node, op="aten.split_with_sizes.default") if "sizes" in node.op else node


REWRITINGS: Final[dict[str, Rewriting]] = {
    **{f"aten.{name}": _same for name in SAME},
    **{f"aten.{name}": _reshaped for name in RESHAPES},
    **{f"aten.{name}": _expanded for name in EXPANSIONS},
    **{f"aten.{name}": _cast for name in CASTS},
    "aten.detach": _detached,
    "aten.copy": _copied,
    "aten.dropout": _dropped,
    "aten.native_dropout": _dropped,
    "getitem": _item,
    "aten.slice": _sliced,
    "aten.add": _unchanged(0),
    "aten.sub": _unchanged(0),
    "aten.mul": _unchanged(1),
    "aten.div": _unchanged(1),
    "aten.squeeze": _squeezed,
    "aten.t": _transposed,
    "aten.chunk": _chunked,
    "aten.split": _split,
}
