"""Small graphs and clusters that tests of synthesis share; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping

from astrarium.catalog import find_gpu
from astrarium.cluster import Cluster
from astrarium.cluster.build import Machines, build_pool
from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.price import Devices, devices_of


def chain(batch: int, widths: tuple[int, ...], *, blocks: bool = False, head: int = 10) -> Graph:
    """Linear layers with ReLU between them, a head, and the mean of the cross entropy."""
    nodes = [
        Node("x", INPUT, (batch, widths[0]), "float32", target="x"),
        Node("labels", INPUT, (batch,), "int64", target="labels"),
    ]
    block = [-1, -1]

    def linear(name: str, source: int, outputs: int, number: int) -> int:
        inputs = nodes[source].shape[1]
        first = len(nodes)
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            target = f"{name}.{part}"
            nodes.append(
                Node(target, PARAMETER, shape, "float32", needs_gradient=True, target=target)
            )
        nodes.append(
            Node(
                name,
                "aten.linear.default",
                (batch, outputs),
                "float32",
                (Ref(source), Ref(first), Ref(first + 1)),
                needs_gradient=True,
                path=name,
            )
        )
        block.extend([number] * 3)
        return len(nodes) - 1

    at = 0
    for index, width in enumerate(widths[1:]):
        at = linear(f"layers.{index}", at, width, index if blocks else -1)
        relu = Node(
            f"relu_{index}", "aten.relu.default", (batch, width), "float32", (Ref(at),),
            needs_gradient=True, path=f"layers.{index}",
        )  # fmt: skip
        nodes.append(relu)
        block.append(index if blocks else -1)
        at = len(nodes) - 1
    at = linear("head", at, head, -1)
    loss = Node(
        "loss", "aten.cross_entropy_loss.default", (), "float32", (Ref(at), Ref(1)),
        needs_gradient=True, path="",
    )  # fmt: skip
    nodes.append(loss)
    block.append(-1)
    return Graph(tuple(nodes), "chain", tuple(block) if blocks else ())


def mixed_devices(
    pools: Mapping[str, int],
    memory_bytes: float | None = None,
    *,
    nodes: int = 1,
    inter_node_bandwidth: float = 1.3e9,
    levels: int = 1,
) -> Devices:
    """Pools of GPUs by type, in nodes of so many."""
    machines = Machines(inter_node_bandwidth=inter_node_bandwidth)
    return devices_of(
        Cluster(
            tuple(
                build_pool(gpu, find_gpu(gpu), nodes, count, gpu, machines=machines)
                for gpu, count in pools.items()
            )
        ),
        memory_bytes,
        levels,
    )
