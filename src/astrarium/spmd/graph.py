"""A training step, operator by operator, as one device computes it: the program to divide.

A graph is a list of nodes in an order in which they can be computed; the last node is the loss.
Nodes are operators of ATen, as `torch.export` writes them, or sources: inputs of a step, parameters
and constants. Values of torch in arguments are strings ("torch.float32"); "torch.device" stands for
the device that runs the node. A constant with a `target` is a buffer, frozen parameter or attribute
of the module; the values of others are their only argument. If a step changes buffers, the last
node is `keep`: it hands on the loss and keeps the new values for the next step. No torch is needed.

Repeated layers are found by the paths of their modules, "encoder.layer.3" (`find_blocks`), and
count as repetitions if their nodes are the same operators on the same shapes, read in the same
places. A model whose layers alternate repeats in twos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from itertools import groupby, pairwise
from math import isfinite, prod
from typing import Any, Final

import msgspec

from astrarium.value import Value, replace

INPUT: Final = "input"
PARAMETER: Final = "parameter"
CONSTANT: Final = "constant"  # buffers and tensors that the module holds, never trained
GETITEM: Final = "getitem"  # one of several results
KEEP: Final = "keep"  # the loss, with the values that buffers have afterwards
SOURCES: Final = (INPUT, PARAMETER, CONSTANT)
_HELD: Final = (PARAMETER, CONSTANT)

# Operators whose result differs from call to call, so that devices cannot each compute their own.
RANDOM: Final = frozenset(
    f"aten.{name}" for name in (
        "alpha_dropout.default", "bernoulli.default", "bernoulli.Tensor", "bernoulli.p",
        "dropout.default", "exponential.default", "feature_dropout.default", "multinomial.default",
        "native_dropout.default", "normal.Tensor_Tensor", "normal.Tensor_float",
        "normal.float_Tensor", "normal.float_float", "normal_functional.default",
        "poisson.default", "rand.default", "rand_like.default", "randint.default", "randint.low",
        "randint_like.default", "randint_like.low_dtype", "randn.default", "randn_like.default",
        "randperm.default", "rrelu.default", "uniform.default",
    )
)  # fmt: skip

ATTENTION: Final = "aten.scaled_dot_product_attention."
# Of these, which are run with numbers drawn by position: they drop elements,
DROPPING: Final = (ATTENTION, "aten.dropout.", "aten.native_dropout.", "aten.feature_dropout.")
# give the numbers themselves,
DRAWING: Final = (
    "aten.rand.", "aten.rand_like.", "aten.randn.", "aten.randn_like.", "aten.bernoulli.",
)  # fmt: skip
# or drop elements between layers that they hold.
RECURRENT: Final = ("aten.lstm.", "aten.gru.", "aten.rnn_tanh.", "aten.rnn_relu.")

DTYPE_BYTES: Final = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2,
    "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class Ref(Value, frozen=True):
    """In the arguments of a node: the value of another node, or one of its several values."""

    node: int


class Node(Value, frozen=True):
    """One operator or source. Operators with several results are read through `getitem` nodes."""

    name: str  # unique in the graph
    op: str  # one of SOURCES, GETITEM, or an operator such as "aten.linear.default"
    shape: tuple[int, ...]  # of the result; of the first where there are several
    dtype: str
    args: tuple[Any, ...] = ()  # as torch takes them; Ref where a node's value goes, lists as lists
    kwargs: tuple[tuple[str, Any], ...] = ()
    needs_gradient: bool = False  # whether a gradient flows back into its value
    target: str = ""  # of a source: the name in the state dict, or of the input
    source: str = ""  # where it comes from: "layer.3.attention, modeling_bert.py:211"
    path: str = ""  # module path without the line: "bert.encoder.layer.3.attention.self.query"
    draw: int = 0  # of one that draws numbers: which drawing of the module is its first, from 1
    computed_in: str = ""  # the number format that inputs are cast to; empty: they stay

    @property
    def inputs(self) -> tuple[int, ...]:
        """Nodes whose values it reads, in the order of the arguments, as often as it reads them."""
        found: list[int] = []
        mapped((self.args, self.kwargs), lambda read: found.append(read.node))
        return tuple(found)

    @property
    def is_source(self) -> bool:
        return self.op in SOURCES

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the state dict: that of a parameter may be another while it is used."""
        return tuple(self.args[0]) if self.op == PARAMETER and self.args else self.shape

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


def mapped(
    value: Any,  # noqa: ANN401  any argument of torch
    change: Callable[[Ref], Any],
    listed: type[list[Any]] | type[tuple[Any, ...]] = list,
) -> Any:  # noqa: ANN401
    """An argument with something else in place of every reference; lists become `listed`."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, list | tuple):
        return listed(mapped(item, change, listed) for item in value)
    return value


def with_refs(node: Node, numbers: Sequence[int] | Mapping[int, int]) -> Node:
    """The node, reading node `numbers[i]` wherever it read node i."""

    def moved(value: Any) -> Any:  # noqa: ANN401  any argument of torch
        return mapped(value, lambda read: Ref(numbers[read.node]))

    kwargs = tuple((key, moved(value)) for key, value in node.kwargs)
    return replace(node, args=tuple(map(moved, node.args)), kwargs=kwargs)


def chance(node: Node) -> float:
    """The chance that an element is dropped; 0 where nothing is, and outside of training."""
    if not node.op.startswith(DROPPING):
        return 0.0
    named = dict(node.kwargs)
    if node.op.startswith(ATTENTION):
        place = 4  # after query, key, value and mask
        given = node.args[place] if len(node.args) > place else named.get("dropout_p")
        return float(given or 0.0)
    given, training = (*node.args[1:], named.get("p"), named.get("train"))[:2]
    return float(given) if training else 0.0


def draws(node: Node) -> int:
    """The number of drawings by position in a node; a single number is not drawn so."""
    if node.op.startswith(DRAWING):
        return int(node.shape != ())
    if node.op.startswith(RECURRENT):
        layers, dropped, training = node.args[4:7]
        return layers - 1 if training and dropped else 0
    return int(chance(node) > 0)


def kept_state(made: Node, loss: Ref, new: Mapping[str, Ref]) -> Node:
    """The node that hands on a loss, made by `made`, and keeps new values of buffers by name."""
    args = (loss, list(new.values()), list(new))
    return Node(KEEP, KEEP, (), made.dtype, args)


class Graph(Value, frozen=True, dict=True):
    """Nodes in order; `inputs[i]` are the nodes that node i reads."""

    nodes: tuple[Node, ...]
    name: str = ""
    # Block of each node: equal numbers for nodes of one repeated layer, -1 outside of all.
    blocks: tuple[int, ...] = ()

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(node.inputs for node in self.nodes)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Nodes that read each node, in order, each once."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, inputs in enumerate(self.inputs):
            for node in dict.fromkeys(inputs):
                found[node].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def index_of(self) -> dict[str, int]:
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def of_parameters(self) -> frozenset[str]:
        """Names of operators that read parameters and constants alone, directly or not."""
        found: set[str] = set()
        for node, inputs in zip(self.nodes, self.inputs, strict=True):
            read = [self.nodes[other] for other in inputs]
            if not node.is_source and all(n.op in _HELD or n.name in found for n in read):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def usual_dtype(self) -> str:
        """The number format of most operators that gradients flow through."""
        counts = Counter(n.dtype for n in self.nodes if n.needs_gradient and not n.is_source)
        return max(counts, key=counts.__getitem__, default="float32")

    @property
    def loss(self) -> int:
        return len(self.nodes) - 1

    @cached_property
    def state(self) -> tuple[str, ...]:
        """Names of the buffers that a step changes."""
        last = self.nodes[-1]
        return tuple(last.args[2]) if last.op == KEEP else ()

    @cached_property
    def constant(self) -> tuple[bool, ...]:
        """Whether each node depends on constants alone: every device can compute it by itself."""
        found: list[bool] = []
        for node, inputs in zip(self.nodes, self.inputs, strict=True):
            found.append(
                node.op not in (INPUT, PARAMETER)
                and node.op not in RANDOM
                and all(found[index] for index in inputs)
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON takes it; `from_dict` reads it."""
        return {
            "name": self.name,
            "nodes": [_node_to_dict(node) for node in self.nodes],
            "blocks": list(self.blocks),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Graph:
        nodes = tuple(_node_from_dict(node) for node in data["nodes"])
        return Graph(nodes, data["name"], tuple(data["blocks"]))


_DEFAULTS: Final = {item.name: item.default for item in fields(Node) if item.default is not MISSING}


def _node_to_dict(node: Node) -> dict[str, Any]:
    """Fields at their defaults are left out: a deep model has thousands of nodes."""
    written: dict[str, Any] = {}
    for item in fields(node):
        value = getattr(node, item.name)
        if item.name == "kwargs":
            value = {key: _encode(part) for key, part in value}
        elif item.name in ("args", "shape"):
            value = [_encode(part) for part in value]
        if item.name not in _DEFAULTS or value not in (_DEFAULTS[item.name], [], {}):
            written[item.name] = value
    return written


def _node_from_dict(data: Mapping[str, Any]) -> Node:
    read = dict(data)
    read["shape"] = tuple(data["shape"])
    read["args"] = tuple(_decode(value) for value in data.get("args", ()))
    read["kwargs"] = tuple((key, _decode(value)) for key, value in data.get("kwargs", {}).items())
    return msgspec.convert(read, Node)


def _encode(value: Any) -> Any:  # noqa: ANN401  any argument of torch
    if isinstance(value, Ref):
        return {"ref": value.node}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}  # JSON has no word for it
    return value


def _decode(value: Any) -> Any:  # noqa: ANN401  any argument of torch
    if isinstance(value, dict):
        return Ref(int(value["ref"])) if "ref" in value else float(value["float"])
    return [_decode(item) for item in value] if isinstance(value, list) else value


LONGEST_PERIOD: Final = 4  # layers that alternate
DEEPEST: Final = 3  # numbers in one path that are tried, the outermost first


class _LayerRun(Value, frozen=True):
    stack: str  # "encoder.layer"
    first: int
    last: int  # one past the last


def find_blocks(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The block of each node, -1 outside of all; blocks are numbered in order."""
    blocks = [-1] * len(nodes)
    for depth in range(DEEPEST):
        found = _repetitions(nodes, _runs(nodes, depth))
        if not found:
            continue
        for number, (first, last) in enumerate(sorted(found)):
            blocks[first:last] = [number] * (last - first)
        break
    return tuple(blocks)


def _layer_of(path: str, depth: int) -> tuple[str, int] | None:
    parts = path.split(".")
    numbered = [index for index, part in enumerate(parts) if part.isdigit()]
    if len(numbered) <= depth:
        return None
    index = numbered[depth]
    return ".".join(parts[:index]), int(parts[index])


def _runs(nodes: Sequence[Node], depth: int) -> list[_LayerRun]:
    runs: list[_LayerRun] = []
    layers = ((_layer_of(node.path, depth), index) for index, node in enumerate(nodes))
    for layer, group in groupby(layers, key=lambda item: item[0]):
        indices = [index for _, index in group]
        if layer is not None:
            runs.append(_LayerRun(layer[0], indices[0], indices[-1] + 1))
    return runs


def _repetitions(nodes: Sequence[Node], runs: list[_LayerRun]) -> list[tuple[int, int]]:
    """Ranges of nodes that repeat each other, of all stacks of layers."""
    found: list[tuple[int, int]] = []
    for _, group in groupby(runs, key=lambda run: run.stack):
        stack = list(group)
        best = max(
            (_stretch(nodes, stack, period) for period in range(1, LONGEST_PERIOD + 1)),
            key=lambda ranges: (sum(last - first for first, last in ranges), len(ranges)),
        )
        found.extend(best)
    return found


def _stretch(nodes: Sequence[Node], stack: list[_LayerRun], period: int) -> list[tuple[int, int]]:
    """The longest series of equal neighbours, each of so many layers; empty if nothing repeats."""
    best: list[tuple[int, int]] = []
    for offset in range(min(period, len(stack))):
        groups = [stack[i : i + period] for i in range(offset, len(stack) - period + 1, period)]
        ranges = [_range_of(group) for group in groups]
        forms = [None if pair is None else _form(nodes, *pair) for pair in ranges]
        series: list[tuple[int, int]] = []
        for index, pair in enumerate(ranges):
            follows = bool(series) and pair is not None and series[-1][1] == pair[0]
            if not follows or forms[index] != forms[index - 1]:
                series = []
            if pair is not None:
                series = [*series, pair]
            if len(series) > max(1, len(best)):
                best = series
    return best


def _range_of(runs: list[_LayerRun]) -> tuple[int, int] | None:
    joined = all(before.last == after.first for before, after in pairwise(runs))
    return (runs[0].first, runs[-1].last) if joined else None


def _form(nodes: Sequence[Node], first: int, last: int) -> list[Any]:
    """The form that repetitions share: all but names and values read from outside."""

    def place(read: Ref) -> tuple[str, int | None, tuple[int, ...]]:
        return ("ref", read.node - first if read.node >= first else None, nodes[read.node].shape)

    return [
        (
            node.op,
            node.shape,
            node.dtype,
            node.needs_gradient,
            mapped([node.args, node.kwargs], place),
        )
        for node in nodes[first:last]
    ]
