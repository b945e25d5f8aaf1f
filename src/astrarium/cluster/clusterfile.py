"""The cluster file: pools of machines and the links between them, in YAML, TOML or JSON.

Quantities are text with a unit (`inter_node: 400 Gb/s`, `latency: 50 us`), or plain numbers
under a key that names the unit (`inter_node_bytes_per_second`, `latency_seconds`). What is left
out comes from the catalog. `peer_access: false` says that the GPUs of a node reach each other
through host memory only. This module needs msgspec and is imported when a file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from astrarium import documents, units
from astrarium.catalog import find_gpu
from astrarium.cluster.build import Machines, build_pool
from astrarium.cluster.interconnect import Network
from astrarium.cluster.types import (
    CLUSTER_FILE,
    LARGEST_CLUSTER,
    MOST_POOLS,
    Cluster,
    Link,
    Pool,
    check_cluster,
)
from astrarium.errors import InputError
from astrarium.value import replace

T = TypeVar("T")

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_CLUSTER)]
_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
_Latency: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
_Price: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class _PoolEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    gpu: _Text
    nodes: _Count
    name: _Text | None = None
    gpus_per_node: _Count | None = None
    intra_node: str | None = None
    intra_node_bytes_per_second: _Positive | None = None
    inter_node: str | None = None
    inter_node_bytes_per_second: _Positive | None = None
    intra_node_latency: str | None = None
    intra_node_latency_seconds: _Latency | None = None
    inter_node_latency: str | None = None
    inter_node_latency_seconds: _Latency | None = None
    nvlink_domain: _Count | None = None
    peer_access: bool | None = None
    network: Network | None = None
    oversubscription: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    block_nodes: _Count | None = None
    host_memory_gib: _Positive | None = None
    usd_per_gpu_hour: _Price | str | None = None
    spot_usd_per_gpu_hour: _Price | str | None = None


class _LinkEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    between: tuple[str, str]
    bandwidth: str | None = None
    bandwidth_bytes_per_second: _Positive | None = None
    latency: str | None = None
    latency_seconds: _Latency | None = None


class _ClusterEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pools: Annotated[list[_PoolEntry], msgspec.Meta(min_length=1, max_length=MOST_POOLS)]
    links: list[_LinkEntry] = msgspec.field(default_factory=list)


def load_cluster(path: Path | str) -> Cluster:
    file = Path(path)

    def place(*key: str | int) -> str:
        return f"{file}:{documents.line_of(file, *key)}"

    return _cluster(documents.load(file, _ClusterEntry), str(file), place)


def cluster_of_content(content: Mapping[str, Any], where: str) -> Cluster:
    """The cluster of the content of a cluster file; complaints call it `where`."""
    return _cluster(documents.checked(content, _ClusterEntry, where), where, lambda *_: where)


def _cluster(entry: _ClusterEntry, where: str, place: Callable[..., str]) -> Cluster:
    """`place` says where a key is, once something is wrong with it."""

    def located(part: str, index: int, build: Callable[[], T]) -> T:
        try:
            return build()
        except InputError as error:
            raise InputError(f"{place(part, index)}: {part}[{index}]: {error}") from None

    pools = Cluster(
        tuple(located("pools", index, partial(_pool, p)) for index, p in enumerate(entry.pools))
    )
    links = tuple(
        located("links", index, partial(_link, link, pools))
        for index, link in enumerate(entry.links)
    )
    try:
        return check_cluster(Cluster(pools.pools, links))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _pool(entry: _PoolEntry) -> Pool:
    gpu = find_gpu(entry.gpu)
    machines = Machines(
        intra_node_bandwidth=_bandwidth(entry, "intra_node"),
        inter_node_bandwidth=_bandwidth(entry, "inter_node"),
        intra_node_latency=_latency(entry, "intra_node_latency"),
        inter_node_latency=_latency(entry, "inter_node_latency"),
        nvlink_domain=entry.nvlink_domain,
        peer_access=entry.peer_access,
        network=entry.network,
        oversubscription=entry.oversubscription,
        block_nodes=_block(entry),
        host_memory=round((entry.host_memory_gib or 0) * 2**30),
        usd_per_gpu_hour=_price(entry, "usd_per_gpu_hour"),
        spot_usd_per_gpu_hour=_price(entry, "spot_usd_per_gpu_hour"),
    )
    gpus_per_node = entry.gpus_per_node or gpu.gpus_per_node
    pool = build_pool(
        entry.name or gpu.name, gpu, entry.nodes, gpus_per_node, entry.gpu, machines=machines
    )
    return pool if machines.usd_per_gpu_hour is None else replace(pool, price_origin=CLUSTER_FILE)


def _block(entry: _PoolEntry) -> int:
    """Return the nodes of a block that is joined to others by fewer links; 0 if there is none."""
    if entry.oversubscription == 1.0:
        return 0
    if entry.block_nodes is None:
        raise InputError(
            f"oversubscription {entry.oversubscription:g} needs block_nodes: the number of nodes"
            " that have the whole rate among themselves, such as those of a rack or pod"
        )
    return entry.block_nodes


def _link(entry: _LinkEntry, pools: Cluster) -> Link:
    """Complete a link by the default between its pools."""
    default = pools.link_between(*entry.between)
    bandwidth, latency = _bandwidth(entry, "bandwidth"), _latency(entry, "latency")
    return Link(
        entry.between,
        default.bandwidth if bandwidth is None else bandwidth,
        default.latency if latency is None else latency,
    )


def _bandwidth(entry: msgspec.Struct, key: str) -> float | None:
    return _quantity(entry, key, f"{key}_bytes_per_second", units.parse_bandwidth)


def _latency(entry: msgspec.Struct, key: str) -> float | None:
    return _quantity(entry, key, f"{key}_seconds", partial(units.parse_seconds, allow_zero=True))


def _price(entry: _PoolEntry, key: str) -> float | None:
    if not isinstance(getattr(entry, key), str):
        return getattr(entry, key)
    return _quantity(entry, key, "", partial(units.parse_usd, allow_zero=True))


def _quantity(
    entry: msgspec.Struct, key: str, number_key: str, parse: Callable[[str], float]
) -> float | None:
    """Return the number that one of two keys gives."""
    text, number = getattr(entry, key), getattr(entry, number_key) if number_key else None
    if text is None:
        return number
    if number is not None:
        raise InputError(f"{key} and {number_key} are both given; keep one")
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None
