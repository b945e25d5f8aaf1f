"""Seconds of collective operations, by size, group and placement.

An operation runs on the best of several algorithms, each with several lines (the effect of
NCCL's protocols), and a line costs

    overhead + hops x hop + network hops x latency + max(bytes / rate) over the links it uses,

where a rate is bandwidth x efficiency of that line. Lines that start fast move bytes slowly, so
the least over lines is the ramp of bandwidth with message size. The algorithms:

- ring: every operation but all-to-all; hops grow with the ranks, all of them in a row;
- tree (all-reduce): hops grow with the ranks of one domain and the logarithm of the domains;
- in-switch (all-reduce, NVLink 4 and newer with a switch): the domain sums while it forwards;
- direct (all-to-all, send): every rank to every other.

Groups that share a node share its adapters: with `per_domain` ranks of a group in a domain and
all other GPUs of the node doing the same for their groups, a group has `per_domain` GPUs' worth
of the network. Links without a switch (meshes) give a group only the links between its members.

Constants and their errors are in `catalog/data/collectives.json`. More bytes, more latency and
less bandwidth are never faster. More ranks are never faster as long as the group divides the
domain or is a multiple of its part of it, and links are switched: on a mesh two ranks have one
link and eight have all. Zero bytes and groups of one cost nothing: no call is made.

Not modelled: hierarchical all-gather and reduce-scatter, in-network reduction between nodes
(SHARP), congestion above the node, and the launch of a call that the host issues too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cluster import Cluster, Pool
from astrarium.cluster.interconnect import (
    Collective,
    Line,
    LinkKind,
    Network,
    NetworkLine,
    OperationProfile,
    link_profile,
    network_profile,
)

_Number: TypeAlias = Floats | float

# A binary tree makes an inner node send to a parent and two children what its two half-size
# trees carry: S between two domains, 3/2 S between three, 2 S from four on.
_TREE_BYTES_LIMIT: Final = 2.0

# What an all-to-all reaches between nodes of the rate that rings reach: 84.6 of 95 GB/s on two
# nodes of 8 A100 and 4 x 200 Gb/s (19.83 GB/s of bus bandwidth; NVIDIA/nccl issue 1138, 2024-01).
ALL_TO_ALL_NETWORK_EFFICIENCY: Final = 0.89

# By how much longer computation takes while a collective runs beside it: the published mean over
# GPT and LLaMA training on 4 A100, H100, MI210 and MI250; the largest is 0.40 (arXiv
# 2507.03114, 2025-07). It is not fitted here, and nothing in this module applies it.
COMPUTE_SLOWDOWN_UNDER_OVERLAP: Final = 0.189


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of a pool as collectives see them; bytes/s per direction, and seconds."""

    gpus_per_domain: int
    gpus_per_node: int
    intra_bandwidth: float  # per GPU
    peer_bandwidth: float  # of which one peer can have this much
    intra_latency: float  # per hop
    inter_bandwidth: float  # per node
    inter_latency: float  # per hop
    link: LinkKind
    network: Network

    @property
    def switched(self) -> bool:
        """Whether any two GPUs of a domain have the whole rate between them."""
        return self.peer_bandwidth >= self.intra_bandwidth


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that work together, and how many of them share a fast domain."""

    size: Ints
    per_domain: Ints


@dataclass(frozen=True, slots=True)
class _Path:
    """What an algorithm asks of the links: hops in a row, seconds of bytes at full bandwidth."""

    hops: _Number
    network_hops: _Number
    intra_seconds: Floats
    network_seconds: Floats


def fabric_of(
    pool: Pool, *, intra_time_ratio: float = 1.0, inter_time_ratio: float = 1.0
) -> Fabric:
    """Return the links of a pool; the ratios say how much longer messages take there."""
    intra = pool.intra_node_bandwidth
    # Meshes: one peer has its own links only. PCIe reaches every peer alike.
    peer = intra if pool.link is LinkKind.PCIE else min(intra, pool.gpu.link_bandwidth_to_peer)
    return Fabric(
        gpus_per_domain=pool.gpus_per_domain,
        gpus_per_node=pool.gpus_per_node,
        intra_bandwidth=intra / intra_time_ratio,
        peer_bandwidth=peer / intra_time_ratio,
        intra_latency=pool.intra_node_latency * intra_time_ratio,
        inter_bandwidth=pool.inter_node_bandwidth / inter_time_ratio,
        inter_latency=pool.inter_node_latency * inter_time_ratio,
        link=pool.link,
        network=pool.network,
    )


def fabric_across(cluster: Cluster, names: Sequence[str]) -> Fabric:
    """Return the links of a group that spans pools: the slowest of each kind."""
    pools = [cluster.pool(name) for name in names]
    fabrics = [fabric_of(pool) for pool in pools]
    links = [
        cluster.link_between(one, other)
        for index, one in enumerate(names)
        for other in names[:index]
    ]
    slowest = min(fabrics, key=lambda fabric: fabric.intra_bandwidth)
    farthest = max(fabrics, key=lambda fabric: fabric.inter_latency)
    gpus_per_node = min(fabric.gpus_per_node for fabric in fabrics)
    per_gpu = [fabric.inter_bandwidth / fabric.gpus_per_node for fabric in fabrics]
    # A link's rate is per node; the fuller of its two nodes leaves the least to a GPU.
    per_gpu += [
        link.bandwidth / max(cluster.pool(name).gpus_per_node for name in link.between)
        for link in links
    ]
    return Fabric(
        gpus_per_domain=min(fabric.gpus_per_domain for fabric in fabrics),
        gpus_per_node=gpus_per_node,
        intra_bandwidth=slowest.intra_bandwidth,
        peer_bandwidth=min(fabric.peer_bandwidth for fabric in fabrics),
        intra_latency=max(fabric.intra_latency for fabric in fabrics),
        inter_bandwidth=min(per_gpu) * gpus_per_node,
        inter_latency=max([farthest.inter_latency, *(link.latency for link in links)]),
        link=slowest.link,
        network=farthest.network,
    )


def place(size: ArrayLike, stride: ArrayLike, domain: ArrayLike) -> Group:
    """Return the group whose `size` members are `stride` ranks apart, by domains of `domain`.

    Ranks fill domains in order. Where groups do not fit into domains evenly, the result is the
    group that is cut most often: it is the slowest, and the others wait for it.
    """
    sizes, strides, domains = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.int64) for value in (size, stride, domain))
    )
    per_domain = np.clip(np.gcd(sizes * strides, domains) // strides, 1, sizes)
    return Group(sizes, per_domain)


def all_reduce_seconds(fabric: Fabric, num_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds to sum `num_bytes` on each rank into the same on each rank."""
    data = np.asarray(num_bytes, dtype=np.float64)
    size, domains = _ranks(group)
    profile = link_profile(fabric.link)
    operation = profile.operations[Collective.ALL_REDUCE]
    per_link = _link_seconds(fabric, operation, data, group)
    per_adapter = _adapter_seconds(fabric, data, group)
    ring_seconds = per_link * (2.0 * (size - 1.0) + operation.local_copy) / size
    levels = 2.0 * np.ceil(np.log2(domains))
    tree_adapters = per_adapter * np.minimum(domains / 2.0, _TREE_BYTES_LIMIT)
    ring = _Path(
        hops=2.0 * (size - domains),
        network_hops=2.0 * (domains - 1.0),
        intra_seconds=ring_seconds,
        network_seconds=per_adapter * 2.0 * (size - 1.0) / size,
    )
    together = np.asarray(group.per_domain, dtype=np.float64)
    tree = _Path(2.0 * (together - 1.0), levels, ring_seconds, tree_adapters)
    lines = operation.lines
    seconds = np.minimum(_fastest(fabric, lines, ring), _fastest(fabric, lines, tree))
    if profile.in_switch is not None and fabric.switched:
        in_switch = _Path(0.0, levels, per_link, tree_adapters)
        always = (profile.in_switch,) * len(lines)
        seconds = np.minimum(seconds, _fastest(fabric, always, in_switch))
    return _of_calls(seconds, data, group)


def all_gather_seconds(fabric: Fabric, num_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds until each rank has all `num_bytes`, of which each rank gave a part."""
    return _ring_pass_seconds(fabric, Collective.ALL_GATHER, num_bytes, group)


def reduce_scatter_seconds(fabric: Fabric, num_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds to sum `num_bytes` on each rank, each rank keeping a part of the sum."""
    return _ring_pass_seconds(fabric, Collective.REDUCE_SCATTER, num_bytes, group)


def all_to_all_seconds(fabric: Fabric, num_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds for each rank to send `num_bytes` in all, in equal parts to all, itself included."""
    data = np.asarray(num_bytes, dtype=np.float64)
    size, domains = _ranks(group)
    operation = link_profile(fabric.link).operations[Collective.ALL_TO_ALL]
    # What leaves the domain passes through it first, to the adapter that is nearest to the goal.
    sent = (size - 1.0 + operation.local_copy) / size
    outside = (size - group.per_domain) / size
    per_gpu = data / (fabric.inter_bandwidth / fabric.gpus_per_node * ALL_TO_ALL_NETWORK_EFFICIENCY)
    path = _Path(
        hops=size - 1.0,
        network_hops=np.minimum(domains - 1.0, 1.0),
        intra_seconds=_link_seconds(fabric, operation, data, group) * sent,
        network_seconds=per_gpu * outside,
    )
    return _of_calls(_fastest(fabric, operation.lines, path), data, group)


def send_seconds(fabric: Fabric, num_bytes: ArrayLike, crosses_domain: ArrayLike) -> Floats:
    """Seconds to send `num_bytes` to one rank while all other GPUs of the node send as much."""
    data = np.asarray(num_bytes, dtype=np.float64)
    crosses: Bools = np.asarray(crosses_domain, dtype=np.bool_)
    lines = link_profile(fabric.link).operations[Collective.ALL_TO_ALL].lines
    nothing = np.zeros(())
    inside = _Path(1.0, 0.0, data / fabric.peer_bandwidth, nothing)
    share = fabric.inter_bandwidth / fabric.gpus_per_node
    outside = _Path(0.0, 1.0, nothing, data / share)
    seconds = np.where(crosses, _fastest(fabric, lines, outside), _fastest(fabric, lines, inside))
    return np.where(data > 0.0, seconds, 0.0)


def _ring_pass_seconds(
    fabric: Fabric, collective: Collective, num_bytes: ArrayLike, group: Group
) -> Floats:
    """Seconds of one pass around the ring: all-gather, or reduce-scatter the other way round."""
    data = np.asarray(num_bytes, dtype=np.float64)
    size, domains = _ranks(group)
    operation = link_profile(fabric.link).operations[collective]
    sent = (size - 1.0 + operation.local_copy) / size
    path = _Path(
        hops=size - domains,
        network_hops=domains - 1.0,
        intra_seconds=_link_seconds(fabric, operation, data, group) * sent,
        network_seconds=_adapter_seconds(fabric, data, group) * (size - 1.0) / size,
    )
    return _of_calls(_fastest(fabric, operation.lines, path), data, group)


def _ranks(group: Group) -> tuple[Floats, Floats]:
    """Return the ranks of a group and the domains they are spread over."""
    size = np.asarray(group.size, dtype=np.float64)
    return size, np.ceil(size / group.per_domain)


def _link_seconds(
    fabric: Fabric, operation: OperationProfile, data: Floats, group: Group
) -> Floats:
    """Return the seconds of `data` on the links of one GPU inside the domain, at full rate."""
    together = group.per_domain
    bandwidth: Floats | float = fabric.intra_bandwidth
    if not fabric.switched:
        bandwidth = np.minimum(bandwidth, fabric.peer_bandwidth * np.maximum(together - 1.0, 1.0))
    factor: Floats | float = 1.0
    for ranks, value in operation.efficiency_above_ranks:
        factor = np.where(together > ranks, value, factor)
    return np.where(together > 1, data / (bandwidth * factor), 0.0)


def _adapter_seconds(fabric: Fabric, data: Floats, group: Group) -> Floats:
    """Return the seconds of `data` on the adapters of the ranks in one domain; 0 if not used."""
    share = group.per_domain * (fabric.inter_bandwidth / fabric.gpus_per_node)
    return np.where(group.size > group.per_domain, data / share, 0.0)


def _fastest(fabric: Fabric, lines: Sequence[Line], path: _Path) -> Floats:
    """Return the seconds of a path on its best line."""
    hop_scale = fabric.intra_latency / link_profile(fabric.link).hop
    network = network_profile(fabric.network)
    seconds: Floats = np.minimum.reduce(
        [
            _line_seconds(line, line.hop * hop_scale, outer, fabric.inter_latency, path)
            for line, outer in zip(lines, network.lines, strict=True)
        ]
    )
    return seconds


def _line_seconds(
    line: Line, hop: float, outer: NetworkLine, latency: float, path: _Path
) -> Floats:
    moving = np.maximum(
        path.intra_seconds / line.efficiency, path.network_seconds / outer.efficiency
    )
    starting = line.overhead + path.hops * hop + path.network_hops * (outer.latencies * latency)
    return np.asarray(moving + starting)


def _of_calls(seconds: Floats, data: Floats, group: Group) -> Floats:
    """Drop the seconds where no call is made."""
    return np.where((group.size > 1) & (data > 0.0), seconds, 0.0)
