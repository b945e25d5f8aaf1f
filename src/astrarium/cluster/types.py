"""Pools of GPUs, the links between them, and the cluster they form.

Bandwidths are bytes/s and direction: inside a node per GPU, between nodes per node. Latencies
are seconds per hop of the smallest message. All nodes of a pool are equal; GPUs of one place in
their nodes share a rail. Storage is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import convert, to_builtins

from astrarium.arrays import Ints
from astrarium.catalog import Gpu, find_gpu
from astrarium.cluster.interconnect import LinkKind, Network
from astrarium.documents.clusters import Link as Link
from astrarium.documents.clusters import PoolPart
from astrarium.errors import InputError, check_printable, did_you_mean
from astrarium.value import Value

CLUSTER_FILE = "cluster file"  # origin of prices that stand in one
MOST_POOLS = 100  # that a user lists; a search over more takes minutes
LARGEST_CLUSTER = 2**24  # GPUs; sixteen times the largest search asked for


class Pool(Value, frozen=True):
    """Nodes of one GPU type."""

    name: str
    gpu: Gpu
    nodes: int
    gpus_per_node: int
    intra_node_bandwidth: float  # per GPU, as all GPUs of a node reach each other
    inter_node_bandwidth: float  # per node
    nvlink_domain: int  # GPUs that can reach each other at intra_node_bandwidth, at least a node
    intra_node_latency: float
    inter_node_latency: float
    link: LinkKind
    network: Network
    usd_per_gpu_hour: float | None = None
    spot_usd_per_gpu_hour: float | None = None
    requested: str = ""  # the GPU as the user wrote it, if other than its name
    rented_sizes: tuple[int, ...] = ()  # GPUs of instances on offer, ascending; (): whole nodes
    cloud: str = ""  # whose offer the prices are; "" if they are nobody's in particular
    instance: str = ""
    region: str = ""
    price_date: str = ""  # ISO
    price_origin: str = ""  # source of the offer: a code of the catalog, a file or a flag
    interruptions_per_hour: float | None = None  # of one spot node
    memory_margin: int = 0  # bytes of each GPU that plans leave free
    oversubscription: float = 1.0  # what nodes of a block can send over what can leave the block
    block_nodes: int = 0  # nodes that have the whole rate among themselves; 0: all of them
    host_memory: int = 0  # bytes of a node that are no GPU's; 0: not known
    slowdown: float = 1.0  # what computation on its GPUs takes over what it should

    @property
    def usable_bytes(self) -> int:
        """Memory of a GPU that a plan may fill."""
        return self.gpu.memory_bytes - self.memory_margin

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def gpus_per_domain(self) -> int:
        """GPUs in one NVLink domain when the whole pool is used."""
        return int(self.domain_of(np.array([self.num_gpus]))[0])

    def domain_of(self, gpus: Ints) -> Ints:
        """GPUs in one NVLink domain: whole nodes, equal domains if possible (128 of 72: 2 x 64)."""
        capacity = max(self.nvlink_domain // self.gpus_per_node, 1)
        nodes = -(-gpus // self.gpus_per_node)
        if (nodes <= capacity).all():
            return nodes * self.gpus_per_node
        domain = np.full(nodes.shape, capacity)
        for alike in range(capacity // 2 + 1, capacity + 1):
            domain[nodes % alike == 0] = alike
        return np.where(nodes <= capacity, nodes, domain) * self.gpus_per_node

    def billed_gpus(self, gpus: Ints) -> Ints:
        """GPUs that are paid for when this number is used."""
        return billed_gpus(gpus, self.gpus_per_node, self.rented_sizes)


def billed_gpus(gpus: Ints, gpus_per_node: int, rented_sizes: Sequence[int]) -> Ints:
    """GPUs paid for if `gpus` are used: whole nodes, or the smallest instances that hold them."""
    sizes = np.array(tuple(rented_sizes) or (gpus_per_node,))
    nodes = -(-gpus // gpus_per_node)
    in_node = np.minimum(gpus, gpus_per_node)
    index = np.searchsorted(sizes, in_node)
    one = sizes[np.minimum(index, len(sizes) - 1)]
    several = -(-in_node // sizes[-1]) * sizes[-1]
    return np.where(gpus > 0, nodes * np.where(index < len(sizes), one, several), 0)


class Cluster(Value, frozen=True):
    """Pools, and the links between them that are not the default."""

    pools: tuple[Pool, ...]
    links: tuple[Link, ...] = ()

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    def pool(self, name: str) -> Pool:
        for pool in self.pools:
            if pool.name == name:
                return pool
        names = [pool.name for pool in self.pools]
        raise InputError(
            f"no pool is called '{name}'{did_you_mean(name, names)}; pools: {', '.join(names)}"
        )

    def part(self, pools: Sequence[Pool]) -> Cluster:
        """Return some of the pools with the links between them."""
        names = {pool.name for pool in pools}
        links = (link for link in self.links if names.issuperset(link.between))
        return Cluster(tuple(pools), tuple(links))

    def link_between(self, first: str, second: str) -> Link:
        """Return the link of two pools; by default the slower side's network."""
        for link in self.links:
            if set(link.between) == {first, second}:
                return link
        sides = (self.pool(first), self.pool(second))
        return Link(
            (first, second),
            min(side.inter_node_bandwidth for side in sides),
            max(side.inter_node_latency for side in sides),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the form of the plan document: SI numbers, units in the keys."""
        return {
            "gpus": self.num_gpus,
            "pools": [_pool_to_dict(pool) for pool in self.pools],
            "links": to_builtins(self.links),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Cluster:
        try:
            pools = tuple(_pool_from_dict(entry) for entry in document["pools"])
            links = convert(document["links"], tuple[Link, ...])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the plan's cluster cannot be read: {type(error).__name__} {error}; make it again"
            ) from None
        return check_cluster(cls(pools, links))


def check_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster if its names fit together and its size makes sense."""
    names = [pool.name for pool in cluster.pools]
    if not names:
        raise InputError("a cluster needs at least one pool of GPUs")
    for index, name in enumerate(names):
        check_printable(f"pools[{index}].name", name)
        if names.count(name) > 1:
            raise InputError(f"two pools are called '{name}'; give each its own name")
    if cluster.num_gpus > LARGEST_CLUSTER:
        raise InputError(
            f"{cluster.num_gpus:,} GPUs are more than the largest cluster, {LARGEST_CLUSTER:,}"
        )
    seen: set[frozenset[str]] = set()
    for link in cluster.links:
        ends = frozenset(cluster.pool(name).name for name in link.between)
        text = " and ".join(f"'{name}'" for name in link.between)
        if len(ends) < len(link.between):
            raise InputError(f"the link between {text} joins a pool with itself; drop it")
        if ends in seen:
            raise InputError(f"there are two links between {text}; keep one")
        seen.add(ends)
    return cluster


# Keys of documents that have another name here.
_FIELDS = {
    "intra_node_link": "link",
    "intra_node_bytes_per_second": "intra_node_bandwidth",
    "intra_node_latency_seconds": "intra_node_latency",
    "inter_node_bytes_per_second": "inter_node_bandwidth",
    "inter_node_latency_seconds": "inter_node_latency",
    "host_memory_bytes": "host_memory",
}


def _pool_to_dict(pool: Pool) -> dict[str, Any]:
    of_gpu = {
        "gpu": pool.gpu.name,
        "gpu_as_given": pool.requested or pool.gpu.name,
        "gpus": pool.num_gpus,
        "memory_bytes_per_gpu": pool.gpu.memory_bytes,
    }
    keys = [key for key in PoolPart.__struct_fields__ if key != "price_source"]
    return {
        key: of_gpu[key] if key in of_gpu else getattr(pool, _FIELDS.get(key, key)) for key in keys
    }


def _pool_from_dict(entry: Mapping[str, Any]) -> Pool:
    given, gpu = entry["gpu_as_given"], entry["gpu"]
    fields = {_FIELDS.get(key, key): value for key, value in entry.items()}
    known = {key: fields[key] for key in Pool.__struct_fields__ if key in fields}
    return Pool(
        **{
            **known,
            "gpu": find_gpu(gpu),
            "link": LinkKind(fields["link"]),
            "network": Network(fields["network"]),
            "requested": "" if given == gpu else given,
            "rented_sizes": tuple(fields.get("rented_sizes", ())),
        }
    )
