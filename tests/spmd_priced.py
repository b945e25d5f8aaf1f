"""Small graphs, devices and divisions for tests of prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.cluster import parse_gpus
from astrarium.cost.tuning import Tuning
from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.price import Devices, PriceSettings, devices_of, price_program, with_price
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import (
    Axes,
    Division,
    Holding,
    ShardRule,
    find_axes,
    rules_of,
    whole_granules,
)
from astrarium.spmd.solve import solve
from astrarium.spmd.synthesis.build import build_problem, unpriced_program

Rules = tuple[tuple[ShardRule, ...], ...]

_KINDS = ("residual", "layer_norm", "gelu", "embedding", "bias_gradient")
CORE = Tuning(
    laws={
        "linear": (5e-6, 1e-11, 2e-10),
        "attention_forward": (5e-6, 2e-10, 1e-11, 2e-10),
        "attention_backward": (5e-6, 2e-10, 1e-11, 2e-10),
        "update": (5e-6, 2e-10),
        **{f"{kind}_{way}": (5e-6, 2e-10) for kind in _KINDS for way in ("forward", "backward")},
    },
    messages=dict.fromkeys(("send", "all_reduce", "all_gather", "reduce_scatter"), (1e-4, 1e-9)),
)


def perceptron(batch: int = 24, width: int = 48, inner: int = 96, layers: int = 1) -> Graph:
    """Layers of two linear maps with a GELU between, and a loss; each layer is a block."""
    nodes: list[Node] = []
    blocks: list[int] = []

    def add(name: str, op: str, shape: tuple[int, ...], *args: object, block: int = -1) -> Ref:
        dtype = "int64" if name == "target" else "float32"
        nodes.append(Node(name, op, shape, dtype, args, (), op != INPUT, name))
        blocks.append(block)
        return Ref(len(nodes) - 1)

    value = add("x", INPUT, (batch, width))
    for layer in range(layers):
        for part, (rows, columns) in enumerate(((inner, width), (width, inner))):
            weight = add(f"w{layer}.{part}", PARAMETER, (rows, columns), block=layer)
            bias = add(f"b{layer}.{part}", PARAMETER, (rows,), block=layer)
            shape = (batch, rows)
            args = (value, weight, bias)
            value = add(f"l{layer}.{part}", "aten.linear.default", shape, *args, block=layer)
            if part == 0:
                value = add(f"g{layer}", "aten.gelu.default", shape, value, block=layer)
    target = add("target", INPUT, (batch,))
    add("loss", "aten.cross_entropy_loss.default", (), value, target)
    return Graph(tuple(nodes), "perceptron", tuple(blocks))


def rules_and_axes(graph: Graph) -> tuple[Rules, Axes]:
    rules = tuple(rules_of(graph, node) for node in graph.nodes)
    return rules, find_axes(graph, rules)


def cluster(spec: str, levels: int = 1, tuning: Tuning | None = None) -> Devices:
    return devices_of(parse_gpus(spec), levels=levels, tuning=tuning or Tuning())


def divided(axes: Axes, devices: Devices, ratios: Sequence[float] | None = None) -> list[Division]:
    """Every axis by the same ratios; by default equally."""
    found = []
    for size in devices.mesh:
        shares = np.ones(size) if ratios is None else np.asarray(ratios, np.float64)
        rows = [whole_granules(shares, granules) for granules in axes.granules]
        found.append(Division(np.array(rows)))
    return found


def data_parallel(graph: Graph, rules: Rules, stored: str = "replicate") -> Rules:
    """Of each node's rules those that divide the batch; parameters are `stored` by this rule."""
    found = []
    for index, node in enumerate(graph.nodes):
        mine = [
            rule
            for rule in rules[index]
            if (node.op == PARAMETER and rule.name == stored)
            or (node.op == INPUT and rule.gives.is_shard and rule.gives.dim == 0)
            or (
                not node.is_source
                and all(layout.dim <= 0 for layout in rule.needs)
                and any(layout.is_shard for layout in rule.needs)
                and not any(layout.spread is Holding.PARTIAL for layout in rule.needs)
                and all(
                    not layout.is_shard or graph.nodes[read].op != PARAMETER
                    for read, layout in zip(node.inputs, rule.needs, strict=True)
                )
            )
        ]
        found.append(tuple(mine) or rules[index])
    return tuple(found)


def repriced(
    program: DeviceProgram, devices: Devices, divisions: Sequence[Division] | None = None
) -> DeviceProgram:
    """The program with other divisions, and all that is predicted of it anew."""
    divided = tuple(program.divisions if divisions is None else divisions)
    price = price_program(program, devices, divided)
    return with_price(replace(program, divisions=divided), price)


def solved(
    graph: Graph,
    devices: Devices,
    ratios: Sequence[float] | None = None,
    *,
    rules: Rules | None = None,
    micro_batches: int = 1,
) -> DeviceProgram:
    """The best program for a division of all axes."""
    all_rules, axes = rules_and_axes(graph)
    divisions = divided(axes, devices, ratios)
    settings = PriceSettings(micro_batches)
    problem = build_problem(graph, rules or all_rules, axes, divisions, devices, settings)
    solution = solve(problem)
    program = unpriced_program(problem, solution, graph, axes, divisions, devices, settings)
    return repriced(program, devices)
