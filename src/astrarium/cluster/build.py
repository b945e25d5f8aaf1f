"""Pools from `--gpus` or from a GPU type and the user's figures; the catalog supplies the rest.

The rate inside a node is that at which *all* its GPUs reach each other: the NVLink rate where
the link covers the node, else PCIe. Bridges between pairs of cards in a larger node are left
out, as many hosts have none. A part of a node is joined as the whole node is.

A count of `--gpus` below a node is a part of one node and divides it; a count above is whole nodes.
`4x2` is four nodes of two GPUs each, whose share of the usual network is that of two GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from astrarium import units
from astrarium.catalog import Gpu, find_gpu, find_instance
from astrarium.cluster.interconnect import (
    PCIE,
    LinkKind,
    Network,
    default_network,
    link_kind,
    link_profile,
    network_of_fabric,
    network_profile,
)
from astrarium.cluster.types import LARGEST_CLUSTER, MOST_POOLS, Cluster, Pool, check_cluster
from astrarium.errors import THIS, InputError, Repair, in_shell, repairs_among, repairs_in
from astrarium.value import Value

T = TypeVar("T")

_NODES: Final = re.compile(r"\s*([^x]+)x([^x]+)\s*")  # nodes of some size: 4x2
_COUNT_FIRST: Final = re.compile(r"(\d+)\s*x\s*([A-Za-z][\w.-]*)")
_RACK: Final = "rack"  # the catalog's word for NVLink that leaves the node


class Machines(Value, frozen=True):
    """The user's figures for the nodes of a pool; None means the catalog's figure."""

    intra_node_bandwidth: float | None = None
    inter_node_bandwidth: float | None = None
    intra_node_latency: float | None = None
    inter_node_latency: float | None = None
    nvlink_domain: int | None = None
    peer_access: bool | None = None
    network: Network | None = None
    usd_per_gpu_hour: float | None = None
    spot_usd_per_gpu_hour: float | None = None
    rented_sizes: tuple[int, ...] = ()  # whole nodes only
    oversubscription: float = 1.0
    block_nodes: int = 0
    host_memory: int = 0  # bytes of a node; 0: what its usual instance has


def build_pool(
    name: str,
    gpu: Gpu,
    nodes: int,
    gpus_per_node: int,
    requested: str,
    *,
    node_size: int | None = None,
    machines: Machines | None = None,
) -> Pool:
    """Return the pool with every figure filled in; `node_size` if the pool is part of a node."""
    given = machines or Machines()
    kind = _link(gpu, node_size or gpus_per_node, given.peer_access)
    intra = _first(
        given.intra_node_bandwidth, gpu.pcie_bandwidth if kind in PCIE else gpu.link_bandwidth
    )
    inter = _first(given.inter_node_bandwidth, gpu.inter_node_bandwidth)
    network = given.network or _usual_network(gpu, inter)
    priced = gpu.price_good_for is None or nodes * gpus_per_node <= gpu.price_good_for
    return Pool(
        name=name,
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        intra_node_bandwidth=intra,
        inter_node_bandwidth=inter,
        nvlink_domain=_domain(gpu, gpus_per_node, given.nvlink_domain),
        intra_node_latency=_first(given.intra_node_latency, link_profile(kind).hop),
        inter_node_latency=_first(given.inter_node_latency, network_profile(network).latency),
        link=kind,
        network=network,
        usd_per_gpu_hour=_first(given.usd_per_gpu_hour, gpu.usd_per_gpu_hour if priced else None),
        spot_usd_per_gpu_hour=_first(
            given.spot_usd_per_gpu_hour, gpu.spot_usd_per_gpu_hour if priced else None
        ),
        requested="" if requested == gpu.name else requested,
        rented_sizes=given.rented_sizes,
        oversubscription=given.oversubscription,
        block_nodes=given.block_nodes,
        host_memory=given.host_memory or _host_memory(gpu, gpus_per_node),
    )


def _link(gpu: Gpu, gpus_per_node: int, peer_access: bool | None) -> LinkKind:
    """Return what joins the GPUs of a node; links of their own have peer access unless denied."""
    kind = link_kind(gpu, gpus_per_node)
    denied = peer_access is False
    if kind is LinkKind.PCIE and peer_access is None:
        denied = not gpu.peer_access
    return LinkKind.PCIE_HOST if denied else kind


def _usual_network(gpu: Gpu, inter_node_bandwidth: float) -> Network:
    """The network at a rate: that of the type's own instance where it has this rate."""
    if gpu.is_processor:
        return Network.GLOO
    usual = default_network(inter_node_bandwidth)
    if usual is not Network.TCP or inter_node_bandwidth != gpu.inter_node_bandwidth:
        return usual
    return network_of_fabric(_fabric(gpu.inter_node_instance)) or usual


def _fabric(instance: str) -> str:
    """The network of an instance in the catalog; "" if it does not know the instance."""
    try:
        return find_instance(instance).fabric if instance else ""
    except InputError:
        return ""


def _host_memory(gpu: Gpu, gpus_per_node: int) -> int:
    """Bytes of a node's own memory that go with these GPUs in the type's instance; 0: not known."""
    try:
        usual = find_instance(gpu.inter_node_instance) if gpu.inter_node_instance else None
    except InputError:
        return 0
    if usual is None or usual.host_memory_bytes is None:
        return 0
    return usual.host_memory_bytes * gpus_per_node // usual.gpus_per_node


def _domain(gpu: Gpu, gpus_per_node: int, given: int | None) -> int:
    """Return the size of a domain: a node, or the rack if NVLink spans it."""
    if given is None:
        is_whole = gpu.nvlink_domain > gpus_per_node and gpu.nvlink_domain % gpus_per_node == 0
        spans_rack = _RACK in gpu.link_type and is_whole
        return gpu.nvlink_domain if spans_rack else gpus_per_node
    if given % gpus_per_node:
        raise InputError(
            f"nvlink_domain: {given} GPUs are not a whole number of nodes of {gpus_per_node}"
        )
    return given


def _first(given: float | None, otherwise: T) -> float | T:
    return otherwise if given is None else given


# "h100:64,a100:4x2", or counts by type.
GpusGiven: TypeAlias = str | Mapping[str, units.Amount] | Sequence[tuple[str, units.Amount]]


def parse_gpus(given: GpusGiven) -> Cluster:
    """Read "TYPE:COUNT[,TYPE:COUNT...]", or the same as names and numbers."""
    text = gpus_text(given)
    if not text.strip():
        raise InputError("no GPUs given; expected TYPE:COUNT[,TYPE:COUNT...] such as h100:64")
    entries = _entries(given)
    if len(entries) > MOST_POOLS:
        raise InputError(f"{len(entries):,} GPU types; at most {MOST_POOLS} make a cluster")
    typed = [entry for entry, _, _ in entries]
    pools: list[Pool] = []
    for index, entry in enumerate(entries):
        with repairs_among(typed, index):
            pools.append(_pool(*entry, text))
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if other.gpu.name == pool.gpu.name:
                total = other.num_gpus + pool.num_gpus
                raise InputError(
                    f"{text}: {pool.gpu.name} appears twice; write the sum,"
                    f" {pool.requested or pool.gpu.name}:{total}"
                    + in_shell(", or give the machines in a cluster file")
                )
    return check_cluster(Cluster(tuple(pools)))


def gpus_text(given: GpusGiven) -> str:
    return given if isinstance(given, str) else ",".join(entry for entry, _, _ in _entries(given))


def _entries(given: GpusGiven) -> list[tuple[str, str, units.Amount]]:
    """Each entry as it would be typed, its type and its count; "" where either is missing."""
    if isinstance(given, str):
        texts = [entry.strip() for entry in given.split(",")]
        return [(text, *_divided(text)) for text in texts]
    pairs = given.items() if isinstance(given, Mapping) else given
    return [
        (f"{name}:{units.echo(count)}" if count != "" else name, name, count)
        for name, count in pairs
    ]


def _divided(entry: str) -> tuple[str, str]:
    name, _, count = entry.partition(":")
    return name.strip(), count.strip()


def _pool(entry: str, name: str, amount: units.Amount, text: str) -> Pool:
    if not entry:
        raise InputError(f"{text}: an entry is empty; expected TYPE:COUNT[,TYPE:COUNT...]")
    if not name:
        raise InputError(f"{entry}: the GPU type is missing; expected TYPE:COUNT such as h100:64")
    turned = _COUNT_FIRST.fullmatch(entry)
    if turned:
        raise InputError(f"{entry}: the type comes first; write {turned[2]}:{turned[1]}")
    with repairs_in(lambda meant: f"{meant}:{units.echo(amount)}"):
        gpu = find_gpu(name)
    if amount == "":
        raise InputError(
            f"{entry}: the number of GPUs is missing; write {name}:{gpu.gpus_per_node} "
            f"for one node of {gpu.name}",
            repairs=_counts(name, gpu.gpus_per_node),
        )
    stated = _NODES.fullmatch(amount) if isinstance(amount, str) else None
    if stated:
        return _stated_nodes(gpu, entry, name, *stated.groups())
    nodes, gpus_per_node = _machines(gpu, _count(entry, amount), entry)
    machines = Machines(rented_sizes=gpu.rented_sizes or (gpu.gpus_per_node,))
    size = (nodes, gpus_per_node)
    return build_pool(gpu.name, gpu, *size, name, node_size=gpu.gpus_per_node, machines=machines)


def _stated_nodes(gpu: Gpu, entry: str, name: str, nodes: str, size: str) -> Pool:
    """The pool of `4x2`: networks are bought with the GPUs, so smaller nodes have slower ones."""
    counts = (_count(entry, nodes, "nodes"), _count(entry, size, "GPUs in a node"))
    _check_size(entry, counts[0] * counts[1])
    share = min(counts[1] / gpu.gpus_per_node, 1.0)
    machines = Machines(
        inter_node_bandwidth=gpu.inter_node_bandwidth * share, rented_sizes=counts[1:]
    )
    return build_pool(gpu.name, gpu, *counts, name, machines=machines)


def _count(entry: str, amount: units.Amount, what: str = "GPUs") -> int:
    try:
        count = units.parse_count(amount)
    except InputError as error:
        raise InputError(f"{entry}: number of {what}: {error}") from None
    _check_size(entry, count)
    return count


def _check_size(entry: str, count: int) -> None:
    if count > LARGEST_CLUSTER:
        raise InputError(
            f"{entry}: {count:,} GPUs are more than the largest cluster, {LARGEST_CLUSTER:,}"
        )


def _machines(gpu: Gpu, count: int, entry: str) -> tuple[int, int]:
    """Return nodes and GPUs per node that make up the count."""
    node = gpu.gpus_per_node
    if count % node == 0:
        return count // node, node
    if count < node and node % count == 0:
        return 1, count
    if count > node:
        below, above = count // node * node, (count // node + 1) * node
    else:
        parts = [part for part in range(1, node + 1) if node % part == 0]
        below = max(part for part in parts if part < count)
        above = min(part for part in parts if part > count)
    size = max(part for part in range(1, node + 1) if count % part == 0)
    raise InputError(
        f"{entry}: {gpu.name} comes in nodes of {node}; use {below} or {above}, or name the nodes:"
        f" {count // size}x{size} is {count // size} of {size}",
        repairs=[
            *_counts(_divided(entry)[0], below, above),
            Repair(
                f"Use {count // size:,} nodes of {size}",
                {THIS: f"{_divided(entry)[0]}:{count // size}x{size}"},
            ),
        ],
    )


def _counts(name: str, *counts: int) -> list[Repair]:
    return [Repair(f"Use {count:,} GPUs", {THIS: f"{name}:{count}"}) for count in counts]
