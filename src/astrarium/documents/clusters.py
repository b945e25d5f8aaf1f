"""Clusters as documents have them: plans, and programs for unequal devices."""

from __future__ import annotations

from astrarium.value import Value


class PoolPart(Value, frozen=True):
    """Nodes of one GPU type; `price_source` says in words where its price comes from.

    `rented_sizes` are the GPUs of the instances on offer (empty: whole nodes); `cloud` to
    `price_origin` name the offer, where the price is that of one.
    """

    name: str
    gpu: str
    gpu_as_given: str
    gpus: int
    nodes: int
    gpus_per_node: int
    nvlink_domain: int
    intra_node_link: str
    intra_node_bytes_per_second: float
    intra_node_latency_seconds: float
    network: str
    inter_node_bytes_per_second: float
    inter_node_latency_seconds: float
    memory_bytes_per_gpu: int
    usd_per_gpu_hour: float | None
    spot_usd_per_gpu_hour: float | None
    price_source: str = ""
    rented_sizes: tuple[int, ...] = ()
    cloud: str = ""
    instance: str = ""
    region: str = ""
    price_date: str = ""
    price_origin: str = ""
    interruptions_per_hour: float | None = None
    oversubscription: float = 1.0
    block_nodes: int = 0
    host_memory_bytes: int = 0  # of a node; 0: not known
    slowdown: float = 1.0  # of computation, where GPUs are slower than their type


_LINK_KEYS = {"bandwidth": "bandwidth_bytes_per_second", "latency": "latency_seconds"}


class Link(Value, frozen=True, rename=_LINK_KEYS):
    """A connection between two pools; the bandwidth is per node, as `inter_node_bandwidth`."""

    between: tuple[str, str]
    bandwidth: float
    latency: float


class ClusterPart(Value, frozen=True):
    gpus: int
    pools: tuple[PoolPart, ...]
    links: tuple[Link, ...] = ()
