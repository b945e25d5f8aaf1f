"""Brings a captured graph into one form: few operators, no node that does nothing, none unread.

Every rewriting keeps the loss and its gradients. Reshapes and expansions carry whole shapes, so
that local ones can be derived; casts name a dtype alone; sources stand just before their first
reader, so that the nodes of a layer are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from astrarium.spmd.graph import (
    CONSTANT,
    GETITEM,
    KEEP,
    PARAMETER,
    Graph,
    Node,
    Ref,
    find_blocks,
    with_refs,
)
from astrarium.spmd.rules import EXPERTS

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
BROADCAST: Final = "aten.broadcast_tensors.default"
BAG_SUMS: Final = {0: "sum.dim_IntList", 1: "mean.dim"}  # by the number of the mode
# Operators with one result that others with several become.
SINGLE_NOW: Final = ("aten.dropout.default", *(f"aten.{name}" for name in BAG_SUMS.values()))
CASTS: Final = ("to", "_to_copy", "type_as", "float", "half", "bfloat16")

Values = Sequence[Node]
# What becomes of a node: another node, several, each of which may read those before it, or the
# number of the one whose value it has.
Rewriting = Callable[[Node, Values], Node | tuple[Node, ...] | int]


def normalise(nodes: Sequence[Node], name: str = "") -> Graph:
    kept = _simplified(nodes)
    kept = _sources_by_readers(_living(kept, len(kept) - 1))
    kept = _with_gradients(kept)
    return Graph(tuple(kept), name, find_blocks(kept))


def packet(op: str) -> str:
    """The operator without its overload: "aten.add" of "aten.add.Tensor"."""
    return op.rpartition(".")[0] if op.count(".") > 1 else op


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
            kept.extend(result if isinstance(result, tuple) else (result,))
            numbers.append(len(kept) - 1)
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
        stops = packet(node.op) in STOPS or _is_statistic(node, nodes)
        inherited = not stops and any(found[index] for index in _with_gradient(node))
        # Of several results the first says nothing about the others: `getitem` will.
        several = node.dtype not in FLOATS and packet(node.op) in MIXED
        found.append((node.op == PARAMETER or inherited) and (node.dtype in FLOATS or several))
    return found


def _is_statistic(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether it is what batch norm keeps of its inputs, for the next time that it is called."""
    if node.op != GETITEM or not node.args[1]:
        return False
    return nodes[node.inputs[0]].op == "aten.batch_norm.default"


def _with_gradient(node: Node) -> tuple[int, ...]:
    """Inputs that a gradient may go back to: of new values of buffers there is none."""
    return node.inputs[:1] if node.op == KEEP else node.inputs


MIXED: Final = frozenset({"aten.sort", "aten.topk", "aten.unbind"})


def _first(node: Node) -> int:
    return node.inputs[0]


def _detached(node: Node, kept: Values) -> Node | int:
    return node if flows(kept)[_first(node)] else _first(node)


def _plain(op: str) -> Rewriting:
    """A change of shape alone, with the whole shape as its argument."""

    def rewriting(node: Node, kept: Values) -> Node | int:
        source = _first(node)
        if kept[source].shape == node.shape:
            return source
        return replace(node, op=op, args=(Ref(source), list(node.shape)), kwargs=())

    return rewriting


_expanded = _plain("aten.expand.default")


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


def _item(node: Node, kept: Values) -> Node | tuple[Node, ...] | int:
    """One of several results of what has become an operator with one, or is one of its inputs."""
    source, index = node.args
    made = kept[source.node]
    if made.op == BROADCAST:
        return _expanded(replace(node, args=(made.args[0][index],)), kept)
    single = made.op in SINGLE_NOW and made.shape == node.shape
    return source.node if single and not index else node


def _is_alike(node: Node, other: Node) -> bool:
    return (node.shape, node.dtype) == (other.shape, other.dtype)


def _copied(node: Node, kept: Values) -> Node | int:
    _, given = node.args[:2]
    return given.node if _is_alike(kept[given.node], node) else node


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
        is_neutral = isinstance(source, Ref) and other == neutral and not node.kwargs
        return source.node if is_neutral and _is_alike(kept[source.node], node) else node

    return rewriting


def _squeezed(node: Node, kept: Values) -> Node | int:
    if kept[_first(node)].shape == node.shape:
        return _first(node)
    return _experts(node, kept) or node


def _experts(node: Node, kept: Values) -> Node | None:
    """Rows times matrices looked up for each row, as products by expert; None: it is not so."""
    product = kept[_first(node)]
    if product.op != "aten.bmm.default":
        return None
    for transposed, (matrices, rows) in enumerate((product.args, product.args[::-1])):
        looked_up, row = kept[matrices.node], kept[rows.node]
        single = row.shape[1 if transposed else -1] == 1
        if looked_up.op != "aten.index.Tensor" or row.op != "aten.unsqueeze.default" or not single:
            continue
        weight, places = looked_up.args[0], looked_up.args[1]
        is_list = len(places) == 1 and isinstance(places[0], Ref)
        squeezed = len(node.shape) == 2 and len(kept[weight.node].shape) == 3
        if is_list and squeezed and len(kept[places[0].node].shape) == 1:
            args = (row.args[0], weight, places[0], kept[weight.node].shape[0], bool(transposed))
            return replace(node, op=EXPERTS, args=args, kwargs=())
    return None


def _transposed(node: Node, kept: Values) -> Node | int:
    if len(node.shape) < 2:
        return _first(node)
    return replace(node, op="aten.transpose.int", args=(Ref(_first(node)), 0, 1), kwargs=())


def _reversed(node: Node, kept: Values) -> Node | int:
    """`.T`: all dimensions in the opposite order."""
    source = _first(node)
    if len(node.shape) < 2:
        return source
    order = list(range(len(node.shape)))[::-1]
    return replace(node, op="aten.permute.default", args=(Ref(source), order), kwargs=())


def _bags(node: Node, kept: Values) -> Node | tuple[Node, ...] | int:
    """Bags of equal size, as `nn.EmbeddingBag` makes them: rows looked up and summed."""
    names = ("weight", "words", "offsets", "scale", "mode", "sparse", "weights", "last", "padding")
    given = {**dict(zip(names, node.args, strict=False)), **dict(node.kwargs)}
    offsets, bags = kept[given["offsets"].node], node.shape[0]
    words, weight = kept[given["words"].node], kept[given["weight"].node]
    mode, padding = given.get("mode", 0), given.get("padding", -1)
    size = words.elements // max(bags, 1)
    regular = offsets.op.startswith("aten.arange.") and list(offsets.args) == [0, bags * size, size]
    if not regular or mode not in BAG_SUMS or given.get("weights") is not None:
        return node
    if padding not in (None, -1) or given.get("last") or given.get("scale"):
        return node
    at = len(kept)
    shape = (bags, size, weight.shape[1])
    return (
        replace(
            words, name=f"{node.name}_words", op="aten.reshape.default", shape=shape[:2],
            args=(given["words"], [*shape[:2]]), kwargs=(), target="", source=node.source,
            path=node.path,
        ),
        replace(
            node, name=f"{node.name}_rows", op="aten.embedding.default", shape=shape,
            args=(given["weight"], Ref(at)), kwargs=(),
        ),
        replace(node, op=f"aten.{BAG_SUMS[mode]}", args=(Ref(at + 1), [1]), kwargs=()),
    )  # fmt: skip


def _chunked(node: Node, kept: Values) -> Node | int:
    source, chunks = node.args[:2]
    dim = node.args[2] if len(node.args) > 2 else 0
    size = -(-kept[source.node].shape[dim] // chunks)
    return replace(node, op="aten.split.Tensor", args=(source, size, dim), kwargs=())


REWRITINGS: Final[dict[str, Rewriting]] = {
    **{f"aten.{name}": lambda node, kept: _first(node) for name in SAME},
    **{f"aten.{name}": _plain("aten.reshape.default") for name in RESHAPES},
    **{f"aten.{name}": _expanded for name in EXPANSIONS},
    **{f"aten.{name}": _cast for name in CASTS},
    "aten.detach": _detached,
    "aten.copy": _copied,
    "aten.dropout": _dropped,
    "aten.native_dropout": _dropped,
    GETITEM: _item,
    "aten.slice": _sliced,
    "aten.add": _unchanged(0),
    "aten.sub": _unchanged(0),
    "aten.mul": _unchanged(1),
    "aten.div": _unchanged(1),
    "aten.squeeze": _squeezed,
    "aten.t": _transposed,
    "aten.chunk": _chunked,
    "aten.split": lambda node, kept: (
        replace(node, op="aten.split_with_sizes.default") if "sizes" in node.op else node
    ),
    "aten.numpy_T": _reversed,
    "aten.multiply": lambda node, kept: replace(node, op=f"aten.mul.{node.op.split('.')[-1]}"),
    "aten.embedding_bag": _bags,
}
