"""A small program written by hand: an MLP of two equal layers on two devices, one twice as fast.

The batch of 6 is divided 4 + 2. The first layer is data parallel, the second is divided by columns;
so layers are not alike. Seconds and bytes are made up.
"""

from __future__ import annotations

import numpy as np

from astrarium.cluster import Cluster, parse_gpus
from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.program import (
    Conversion,
    DeviceMemoryPart,
    DevicePart,
    DeviceProgram,
    How,
    Instruction,
    ProgramDocument,
    SourcePart,
    SynthesisPart,
)
from astrarium.spmd.rules import COPIED, PARTIAL, REPLICATE, Axes, Division, ShardRule, rules_of
from astrarium.spmd.rules.layout import shard

LINEAR = "aten.linear.default"
BATCH, HIDDEN, SCALAR = 6, 8, ()
GIB = 2.0**30


def graph() -> Graph:
    x = Node("x", INPUT, (BATCH, HIDDEN), "float32", target="x")
    nodes, blocks, last = [x], [-1], 0
    for layer in (0, 1):
        path = f"layers.{layer}"
        weight = Node(
            f"w{layer}", PARAMETER, (HIDDEN, HIDDEN), "float32",
            needs_gradient=True, target=f"{path}.weight", path=path,
        )  # fmt: skip
        product = Node(
            f"linear{layer}", LINEAR, (BATCH, HIDDEN), "float32", (Ref(last), Ref(len(nodes))),
            needs_gradient=True, path=path, source=f"{path}, mlp.py:12",
        )  # fmt: skip
        nodes += [weight, product]
        blocks += [layer, layer]
        last = len(nodes) - 1
    nodes.append(
        Node("loss", "aten.mean.default", SCALAR, "float32", (Ref(last),), needs_gradient=True)
    )
    return Graph(tuple(nodes), "mlp", (*blocks, -1))


def axes() -> Axes:
    return Axes(((0, 1), (2, 1), (0, 2), (3, 2), (0, 3), ()), (6, 8, 8, 8),
                ("batch", "in", "hidden", "out"))  # fmt: skip


def rule(node: int, name: str) -> ShardRule:
    whole = graph()
    return next(one for one in rules_of(whole, whole.nodes[node]) if one.name == name)


def instructions(*, alike: bool = False) -> tuple[Instruction, ...]:
    size = (200.0, 100.0)
    sync = Conversion(0, "none", "all-reduce")
    found = [Instruction(0, (shard(0),), bytes=size)]
    for node in (1, 3) if alike else (1,):
        way, needed = rule(node + 1, "shard 0"), ((shard(0),), (COPIED,))
        found.append(Instruction(node, (REPLICATE,), bytes=(1024.0, 1024.0)))
        found.append(Instruction(node, (COPIED,), ((REPLICATE,),), (), sync, 0.001))
        found.append(Instruction(node + 1, (shard(0),), needed, (way,), None, 0.002, size))
    if not alike:
        gather, needed = Conversion(0, "all-gather", "reduce-scatter"), ((COPIED,), (shard(0),))
        found.append(Instruction(3, (shard(0),), bytes=(512.0, 512.0)))
        found.append(Instruction(2, (COPIED,), ((shard(0),),), (), gather, 0.0005))
        way = rule(4, "shard o")
        found.append(Instruction(4, (shard(1),), needed, (way,), None, 0.0015, size))
    dim = 0 if alike else 1
    mean = rule(5, f"shard {dim}")
    found.append(Instruction(5, (PARTIAL,), ((shard(dim),),), (mean,), None, 0.0005))
    reduce = Conversion(0, "all-reduce", "none", forward_how=How.PADDED)
    found.append(Instruction(5, (REPLICATE,), ((PARTIAL,),), (), reduce, 0.0005, (4.0, 4.0)))
    return tuple(found)


def cluster() -> Cluster:
    return parse_gpus("a100:1,v100:1")


def document(*, alike: bool = False) -> ProgramDocument:
    """The program; `alike`: both layers are data parallel."""
    pools = cluster().pools
    pieces = Division(np.array([[4, 2], [8, 0], [5, 3], [4, 4]], np.int64))
    program = DeviceProgram(
        graph(), axes(), (pieces,), (2,), instructions(alike=alike), 0.0075, (3 * GIB, 4 * GIB)
    )
    memory = tuple(
        DeviceMemoryPart(
            rank, (rank + 3) * GIB, 16 * GIB, GIB, GIB / 2, GIB / 2, (rank + 0.75) * GIB, GIB / 4
        )
        for rank in (0, 1)
    )
    return ProgramDocument(
        SourcePart("examples/mlp.py:make", BATCH, {"layers": 2, "hidden": 8}),
        cluster(),
        tuple(DevicePart(i, pool.name, pool.gpu.name, i) for i, pool in enumerate(pools)),
        program,
        {"compute": 0.0045, "communication": 0.002, "update": 0.001},
        memory,
        SynthesisPart(0.25, 3, 1234, optimal=True, bound_gap=0.0),
        {"data parallel, even": 0.015, "tensor parallel, even": 0.03},
    )
