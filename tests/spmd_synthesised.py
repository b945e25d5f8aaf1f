"""Synthesised programs for cores so slow, and links so fast, that small models are divided."""

from __future__ import annotations

from dataclasses import replace

from astrarium.cluster import parse_gpus
from astrarium.cost.tuning import Tuning
from astrarium.spmd.graph import PARAMETER
from astrarium.spmd.price import Devices, devices_of
from astrarium.spmd.program import DeviceProgram

FLOP, ELEMENT = 1e-6, 1e-7  # seconds
_KINDS = ("residual", "layer_norm", "gelu", "embedding", "bias_gradient")
SLOW = Tuning(
    laws={
        "linear": (0.0, FLOP, 0.0),
        "attention_forward": (0.0, 0.0, FLOP, 0.0),
        "attention_backward": (0.0, 0.0, FLOP, 0.0),
        "update": (0.0, ELEMENT),
        **{f"{kind}_{way}": (0.0, ELEMENT) for kind in _KINDS for way in ("forward", "backward")},
    },
    messages=dict.fromkeys(("send", "all_reduce", "all_gather", "reduce_scatter"), (1e-6, 1e-8)),
)
CORES = {
    2: "CPU-core:1,CPU-core@40%:1",
    3: "CPU-core:1,CPU-core@60%:1,CPU-core@30%:1",
    4: "CPU-core:2,CPU-core@50%:1,CPU-core@25%:1",
}
NODES = "CPU-core:2,CPU-core@40%:2"  # two of two cores each


def cores(text: str, memory_bytes: float | None = None, levels: int = 1) -> Devices:
    """Cores with links as the messages say."""
    call, byte = SLOW.messages["send"]
    cluster = parse_gpus(text)
    pools = tuple(
        replace(
            pool,
            intra_node_bandwidth=1.0 / byte,
            inter_node_bandwidth=1.0 / byte,
            intra_node_latency=call,
            inter_node_latency=call,
        )
        for pool in cluster.pools
    )
    return devices_of(replace(cluster, pools=pools), memory_bytes, levels, SLOW)


def divided_nodes(program: DeviceProgram) -> list[int]:
    """Computed nodes of which devices have pieces."""
    nodes = program.graph.nodes
    return [
        one.node
        for one in program.instructions
        if one.conversion is None
        and not nodes[one.node].is_source
        and any(layout.is_shard for layout in one.gives)
    ]


def stored_in_pieces(program: DeviceProgram) -> list[int]:
    """Parameters of which no device has the whole."""
    nodes = program.graph.nodes
    return [
        one.node
        for one in program.instructions
        if one.conversion is None
        and nodes[one.node].op == PARAMETER
        and any(layout.is_shard for layout in one.gives)
    ]


def messages(program: DeviceProgram) -> set[str]:
    """Names of all operations between devices."""
    found = {
        what
        for one in program.instructions
        if one.conversion is not None
        for what in (one.conversion.forward, one.conversion.backward)
    }
    inside = {m.collective.value for o in program.instructions for r in o.rules for m in r.messages}
    return (found | inside) - {"none", "slice", "fill", "mask"}
