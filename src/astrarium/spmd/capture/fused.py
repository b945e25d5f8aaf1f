"""Takes apart projections that a model computes as one: queries, keys and values of GPT-2.

A product with one large weight that is cut into equal parts cannot be divided by heads: a piece of
its columns is not a piece of each part. So the parts become a dimension: the weight of 768 x 2304
becomes one of 768 x 3 x 768, and its last dimension holds the heads of all three. The only argument
of a parameter that was reshaped is its stored shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from astrarium.spmd.graph import PARAMETER, Graph, Node, Ref, find_blocks, with_refs
from astrarium.value import Value

SPLIT: Final = "aten.split.Tensor"
RESHAPE: Final = "aten.reshape.default"


class _Product(Value, frozen=True):
    """The arguments of an operator, and its form with parts."""

    image: int
    weight: int
    bias: int
    equation: str
    columns: int  # the dimension of the weight that is cut


PRODUCTS: Final = {
    "aten.linear.default": _Product(0, 1, 2, "...i,kji->...kj", 0),
    "aten.addmm.default": _Product(1, 2, 0, "...i,ikj->...kj", 1),
}


class _Fused(Value, frozen=True):
    """Nodes of one projection that is cut into parts."""

    product: int
    reshape: int  # -1: none between product and cut
    split: int
    items: tuple[int, ...]
    parts: int


def taken_apart(graph: Graph) -> Graph:
    """The same computation, with fused projections written so that they can be divided by heads."""
    found = {each.product: each for each in _fused(graph)}
    if not found:
        return graph
    rewritten: dict[int, list[Node]] = {}
    for fused in found.values():
        rewritten.update(_rewritten(graph, fused))
    nodes: list[Node] = []
    numbers: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        for new in rewritten.get(index, [node]):
            # Of two nodes in place of one the second reads the first under the number of the one.
            nodes.append(with_refs(new, numbers))
            numbers[index] = len(nodes) - 1
    return Graph(tuple(nodes), graph.name, find_blocks(nodes))


def _fused(graph: Graph) -> Iterator[_Fused]:
    for split, node in enumerate(graph.nodes):
        if node.op != SPLIT or not isinstance(node.args[1], int):
            continue
        before = node.inputs[0]
        width = graph.nodes[before].shape[-1]
        dim = node.args[2] if len(node.args) > 2 else 0
        last = dim % len(node.shape) == len(node.shape) - 1
        reshape = before if graph.nodes[before].op == RESHAPE else -1
        product = graph.nodes[before].inputs[0] if reshape >= 0 else before
        chain = [product, before]
        if (
            last
            and width % node.args[1] == 0
            and width > node.args[1]
            and _is_own_product(graph, product, width)
            and all(len(graph.readers[each]) == 1 for each in chain)
        ):
            items = graph.readers[split]
            yield _Fused(product, reshape, split, items, width // node.args[1])


def _is_own_product(graph: Graph, product: int, width: int) -> bool:
    """Whether it multiplies by parameters that nothing else reads, and gives such columns."""
    node = graph.nodes[product]
    kind = PRODUCTS.get(node.op)
    if kind is None or node.kwargs or node.shape[-1] != width:
        return False
    held = [node.args[k] for k in (kind.weight, kind.bias) if k < len(node.args)]
    held = [value for value in held if value is not None]
    return all(
        isinstance(value, Ref)
        and graph.nodes[value.node].op == PARAMETER
        and not graph.nodes[value.node].args
        and graph.readers[value.node] == (product,)
        for value in held
    ) and (len(held) < 2 or len(graph.nodes[held[1].node].shape) == 1)


def _rewritten(graph: Graph, fused: _Fused) -> Iterator[tuple[int, list[Node]]]:
    node = graph.nodes[fused.product]
    kind = PRODUCTS[node.op]
    parts, width = fused.parts, node.shape[-1] // fused.parts
    weight = node.args[kind.weight]
    shape = (*node.shape[:-1], parts, width)
    columns = kind.columns
    stored = graph.nodes[weight.node]
    yield weight.node, [_reshaped(stored, columns, parts)]
    image = node.args[kind.image]
    operands = [kind.equation, [image, weight]]
    products = [
        replace(node, op="aten.einsum.default", shape=shape, args=tuple(operands), kwargs=())
    ]
    bias = node.args[kind.bias] if kind.bias < len(node.args) else None
    if bias is not None:
        yield bias.node, [_reshaped(graph.nodes[bias.node], 0, parts)]
        products[0] = replace(products[0], name=f"{node.name}_product")
        own = Ref(fused.product)  # the product, which comes just before
        products.append(replace(node, op="aten.add.Tensor", shape=shape, args=(own, bias)))
    yield fused.product, products
    before = fused.product
    if fused.reshape >= 0:
        old = graph.nodes[fused.reshape]
        new = (*old.shape[:-1], parts, width)
        yield fused.reshape, [replace(old, shape=new, args=(old.args[0], list(new)))]
        before = fused.reshape
    yield fused.split, []
    dim = len(graph.nodes[fused.split].shape) - 1
    for item in fused.items:
        old = graph.nodes[item]
        yield item, [replace(old, op="aten.select.int", args=(Ref(before), dim, old.args[1]))]


def _reshaped(stored: Node, dim: int, parts: int) -> Node:
    shape = stored.shape
    new = (*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :])
    return replace(stored, shape=new, args=(list(shape),))
