"""Seconds of collective operations, by size, group and placement.

An operation runs on the best of several algorithms, each with several lines (the effect of
NCCL's protocols), and a line costs

    overhead + hops x hop + network hops x latency + max(bytes / rate) over the links it uses,

where a rate is bandwidth x efficiency of that line. Lines that start fast move bytes slowly, so
the least over lines is the ramp of bandwidth with message size. The algorithms:

- ring: every operation but all-to-all. One ring per adapter visits all ranks of a domain before
  it leaves it, so it is hierarchical in bytes, and its hops grow with the ranks, in a row;
- tree (all-reduce): sums inside a domain, then along a binary tree between domains; hops grow
  with the ranks of one domain and the logarithm of the domains;
- in-switch (all-reduce, NVLink 4 and newer with a switch): the domain sums while it forwards;
- doubling (all-gather and reduce-scatter with one rank per domain; "PAT", NCCL 2.23 and newer):
  few network hops and little work per rank, at some cost in bandwidth;
- direct (all-to-all, send): every rank to every other.

Groups that share a node share its adapters: with `per_domain` ranks of a group in a domain and
all other GPUs of the node doing the same for their groups, a group has `per_domain` GPUs' worth
of the network. Links without a switch (meshes) give a group only the links between its members.
Blocks of nodes may be joined by fewer links than their nodes have (`oversubscription`); messages
that leave a block share those, as far as they use more than them.
Each of these prices a message alone; `contention_seconds` is what two kinds of messages on the
same links cost each other, `compute_slowdown` what a message costs the computation beside it.

Constants and their errors are in `catalog/data/collectives.json`. More bytes, more latency and
less bandwidth are never faster. More ranks are never faster as long as the group divides the
domain or is a multiple of its part of it, and links are switched: on a mesh two ranks have one
link and eight have all. Zero bytes and groups of one cost nothing: no call is made.

Not modelled: in-network reduction between nodes (SHARP), congestion by other jobs, and the launch
of a call that the host issues too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cluster import Cluster, Pool
from astrarium.cluster.interconnect import (
    PCIE,
    TO_ANY_PEER,
    Collective,
    Line,
    LinkProfile,
    Network,
    NetworkLine,
    NetworkProfile,
    OperationProfile,
    link_profile,
    network_profile,
    overlap_profile,
)
from astrarium.value import Value

_Number: TypeAlias = Floats | float

# A binary tree makes an inner node send to a parent and two children what its two half-size
# trees carry: S between two domains, 3/2 S between three, 2 S from four on.
_TREE_BYTES_LIMIT: Final = 2.0

# A level of a tree receives from two children, sums and sends on: twice a ring's network hop, and
# 0.92 of its rate. The hop is fitted to all-reduce on 2 to 256 nodes of EFA, TCPXO and Slingshot,
# whose mean error falls from 0.099 to 0.067, 0.115 to 0.108 and 0.124 to 0.087; NCCL's tuner has
# 1.9, 2.1 and 1.0 by protocol, and the rate is the tuner's (src/graph/tuning.cc).
TREE_HOPS_PER_LEVEL: Final = 2.0
TREE_EFFICIENCY: Final = 0.92

# What an all-to-all reaches between nodes of the rate that rings reach: 84.6 of 95 GB/s on two
# nodes of 8 A100 and 4 x 200 Gb/s (19.83 GB/s of bus bandwidth; NVIDIA/nccl issue 1138, 2024-01).
ALL_TO_ALL_NETWORK_EFFICIENCY: Final = 0.89

# The doubling algorithm as NCCL's tuner prices it (src/graph/tuning.cc, 2.23 to 2.29): three
# quarters of a ring's rate, a network hop at 1/3.5 of a ring's, and work per rank that is still
# linear. It exists for one rank per domain only.
DOUBLING_EFFICIENCY: Final = 0.75
DOUBLING_HOP_SHARE: Final = 1.0 / 3.5
DOUBLING_RANK_SECONDS: Final = 2.8e-6


class Fabric(Value, frozen=True):
    """The links of a pool as collectives see them; bytes/s per direction, and seconds."""

    gpus_per_domain: int
    gpus_per_node: int
    intra_bandwidth: float  # per GPU
    peer_bandwidth: float  # of which one peer can have this much
    intra_latency: float  # per hop
    inter_bandwidth: float  # per node
    inter_latency: float  # per hop
    link: LinkProfile
    network: NetworkProfile
    # Measured over predicted seconds of messages inside and between domains, learned for a
    # cluster; 1 is what the catalog says.
    intra_time_ratio: float = 1.0
    inter_time_ratio: float = 1.0
    doubling: bool = True  # whether the library has it: NCCL 2.23 (2024-09) and newer
    one_adapter: bool = False  # gathers and scatters leave a node through one adapter only
    oversubscription: float = 1.0  # what nodes of a block can send over what can leave the block
    gpus_per_block: int = 0

    @property
    def switched(self) -> bool:
        """Whether any two GPUs of a domain have the whole rate between them."""
        return self.peer_bandwidth >= self.intra_bandwidth


class Group(Value, frozen=True):
    """Ranks that work together, and how many of them share a fast domain."""

    size: Ints
    per_domain: Ints
    stride: Ints | int = 1  # from one member to the next, in ranks


class _Path(Value, frozen=True):
    """The load of an algorithm on the links: hops in a row, seconds of bytes at full bandwidth."""

    hops: _Number
    network_hops: _Number
    intra_seconds: Floats
    network_seconds: Floats


def fabric_of(pool: Pool) -> Fabric:
    """Return the links of a pool."""
    intra = pool.intra_node_bandwidth
    # Meshes: one peer has its own links only. PCIe and memory reach every peer alike.
    peer = intra if pool.link in TO_ANY_PEER else min(intra, pool.gpu.link_bandwidth_to_peer)
    return Fabric(
        gpus_per_domain=pool.gpus_per_domain,
        gpus_per_node=pool.gpus_per_node,
        intra_bandwidth=intra,
        peer_bandwidth=peer,
        intra_latency=pool.intra_node_latency,
        inter_bandwidth=pool.inter_node_bandwidth,
        inter_latency=pool.inter_node_latency,
        link=link_profile(pool.link),
        network=network_profile(pool.network),
        oversubscription=pool.oversubscription,
        gpus_per_block=pool.block_nodes * pool.gpus_per_node,
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
    thinned = [fabric for fabric in fabrics if fabric.oversubscription > 1.0]
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
        oversubscription=max(fabric.oversubscription for fabric in fabrics),
        gpus_per_block=min(fabric.gpus_per_block for fabric in thinned) if thinned else 0,
    )


def place(size: ArrayLike, stride: ArrayLike, domain: ArrayLike) -> Group:
    """Return the group whose `size` members are `stride` ranks apart, by domains of `domain`.

    Ranks fill domains in order. Where groups do not fit into domains evenly, the result is the
    group that is cut most often: it is the slowest, and the others wait for it.
    """
    sizes, strides, domains = (np.asarray(x, dtype=np.int64) for x in (size, stride, domain))
    together = np.gcd(sizes * strides, domains) // strides
    per_domain = np.asarray(np.minimum(np.maximum(together, 1), sizes))
    if sizes.shape != per_domain.shape:
        sizes = np.broadcast_to(sizes, per_domain.shape)
    return Group(sizes, per_domain, strides)


def all_reduce_seconds(fabric: Fabric, num_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds to sum `num_bytes` on each rank into the same on each rank."""
    data = np.asarray(num_bytes, dtype=np.float64)
    size, domains = _ranks(group)
    operation = fabric.link.operations[Collective.ALL_REDUCE]
    per_link = _link_seconds(fabric, operation, data, group)
    per_adapter = _adapter_seconds(fabric, data, group)
    ring_seconds = per_link * (2.0 * (size - 1.0) + operation.local_copy) / size
    levels = 2.0 * TREE_HOPS_PER_LEVEL * np.ceil(np.log2(domains))
    tree_adapters = per_adapter * np.minimum(domains / 2.0, _TREE_BYTES_LIMIT) / TREE_EFFICIENCY
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
    if fabric.link.in_switch is not None and fabric.switched:
        in_switch = _Path(0.0, levels, per_link, tree_adapters)
        always = (fabric.link.in_switch,) * len(lines)
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
    operation = fabric.link.operations[Collective.ALL_TO_ALL]
    # What leaves the domain passes through it first, to the adapter that is nearest to the goal.
    sent = (size - 1.0 + operation.local_copy) / size
    outside = (size - group.per_domain) / size
    per_gpu = data / (fabric.inter_bandwidth / fabric.gpus_per_node * ALL_TO_ALL_NETWORK_EFFICIENCY)
    if fabric.oversubscription > 1.0:
        in_block = place(group.size, group.stride, fabric.gpus_per_block).per_domain
        farther = (size - in_block) / size
        outside = np.maximum(outside, fabric.oversubscription * farther)
    path = _Path(
        hops=size - 1.0,
        network_hops=np.minimum(domains - 1.0, 1.0),
        intra_seconds=_link_seconds(fabric, operation, data, group) * sent,
        network_seconds=per_gpu * outside,
    )
    return _of_calls(_fastest(fabric, operation.lines, path), data, group)


def send_seconds(
    fabric: Fabric,
    num_bytes: ArrayLike,
    crosses_domain: ArrayLike,
    senders: ArrayLike | None = None,
) -> Floats:
    """Seconds to send `num_bytes` to one rank while all other GPUs of the node send as much.

    Or so many `senders` of them, where given.
    """
    data = np.asarray(num_bytes, dtype=np.float64)
    crosses: Bools = np.asarray(crosses_domain, dtype=np.bool_)
    lines = fabric.link.operations[Collective.ALL_TO_ALL].lines
    nothing = np.zeros(())
    seconds = nothing
    if not crosses.all():
        inside = _Path(1.0, 0.0, data / fabric.peer_bandwidth, nothing)
        seconds = _fastest(fabric, lines, inside)
    if crosses.any():
        share = fabric.inter_bandwidth / fabric.gpus_per_node
        contended = data if senders is None else data * adapter_share(fabric, senders)
        if senders is not None and fabric.oversubscription > 1.0:
            # Of a block's ranks, so many are within that distance of its end.
            leaving = np.minimum(np.asarray(senders) / fabric.gpus_per_block, 1.0)
            contended = contended * np.maximum(fabric.oversubscription * leaving, 1.0)
        outside = _fastest(fabric, lines, _Path(0.0, 1.0, nothing, contended / share))
        seconds = np.where(crosses, outside, seconds)
    return np.where(data > 0.0, seconds, 0.0)


def adapter_share(fabric: Fabric, senders: ArrayLike) -> Floats:
    """Seconds of a GPU that sends with so many others of its node, over those with all of them.

    Of a TCP network a node has one adapter: whoever sends has it. Otherwise each has its own part.
    """
    count = np.asarray(senders, dtype=np.float64)
    if fabric.network.network is not Network.TCP:
        return np.ones_like(count)
    return np.asarray(np.minimum(count / fabric.gpus_per_node, 1.0))


def crosses_domains(group: Group) -> Bools:
    """Whether messages of a group leave the fast domain."""
    return np.asarray(group.size > group.per_domain)


def compute_slowdown(fabric: Fabric, group: Group) -> Floats:
    """By which share computation takes longer while messages of a group run beside it.

    Each channel of NCCL holds a multiprocessor. Links inside a domain get many of them, a network
    a few for each adapter; a ring between domains passes through the GPUs once per adapter of the
    ranks that share a domain.
    """
    profile = overlap_profile()
    on_links = fabric.link.kind not in PCIE
    inside = profile.link_channels if on_links else profile.adapter_channels
    between = np.minimum(group.per_domain * profile.adapter_channels, profile.link_channels)
    channels = np.where(crosses_domains(group), between, inside)
    share = profile.compute_slowdown * (channels / profile.link_channels)
    return np.where(group.size > 1, share, 0.0)


def contention_seconds(message: ArrayLike, other: ArrayLike, window: ArrayLike) -> Floats:
    """Seconds that `other` messages are late because `message` runs on the same links.

    Each is priced as if it were alone; the other messages are spread over a window of time, and
    `message` is there for a part of it. While both run each has half of the links, so what falls
    into that part takes twice as long. No rate is lost: bytes in all over bandwidth.
    """
    data, late, span = (np.asarray(x, dtype=np.float64) for x in (message, other, window))
    both = np.minimum(data, span)
    share = np.divide(both, span, out=np.zeros(both.shape), where=span > 0.0)
    return np.minimum(late * share, data)


def _ring_pass_seconds(
    fabric: Fabric, collective: Collective, num_bytes: ArrayLike, group: Group
) -> Floats:
    """Seconds of one pass around the ring: all-gather, or reduce-scatter the other way round."""
    data = np.asarray(num_bytes, dtype=np.float64)
    size, domains = _ranks(group)
    operation = fabric.link.operations[collective]
    sent = (size - 1.0 + operation.local_copy) / size
    through = group
    if fabric.one_adapter:
        through = replace(group, per_domain=np.where(crosses_domains(group), 1, group.size))
    path = _Path(
        hops=size - domains,
        network_hops=domains - 1.0,
        intra_seconds=_link_seconds(fabric, operation, data, group) * sent,
        network_seconds=_adapter_seconds(fabric, data, through) * (size - 1.0) / size,
    )
    seconds = _fastest(fabric, operation.lines, path)
    alone = (group.per_domain == 1) & (group.size > 1)
    if fabric.doubling and np.any(alone):
        doubled = _doubling_seconds(fabric, operation, path, size)
        seconds = np.where(alone, np.minimum(seconds, doubled), seconds)
    return _of_calls(seconds, data, group)


def _doubling_seconds(
    fabric: Fabric, operation: OperationProfile, ring: _Path, size: Floats
) -> Floats:
    """Seconds of a gather or scatter by doubling: only the line that moves bytes best has it."""
    line, outer = operation.lines[-1], fabric.network.lines[-1]
    levels = np.ceil(np.log2(np.maximum(size, 1.0)))
    work = size * (DOUBLING_RANK_SECONDS * fabric.inter_time_ratio)
    path = _Path(
        hops=0.0,
        network_hops=levels * DOUBLING_HOP_SHARE,
        intra_seconds=np.zeros(()),
        network_seconds=ring.network_seconds / DOUBLING_EFFICIENCY,
    )
    return _line_seconds(fabric, line, outer, path) + work


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
    if fabric.oversubscription > 1.0:
        # A ring leaves a block once for all domains that it visits there.
        in_block = place(group.size, group.stride, fabric.gpus_per_block).per_domain
        leaving = np.where(in_block < group.size, np.minimum(group.per_domain / in_block, 1.0), 0.0)
        share = share / np.maximum(fabric.oversubscription * leaving, 1.0)
    return np.where(group.size > group.per_domain, data / share, 0.0)


def _fastest(fabric: Fabric, lines: Sequence[Line], path: _Path) -> Floats:
    """Return the seconds of a path on its best line."""
    seconds: Floats = np.minimum.reduce(
        [
            _line_seconds(fabric, line, outer, path)
            for line, outer in zip(lines, fabric.network.lines, strict=True)
        ]
    )
    return seconds


def _line_seconds(fabric: Fabric, line: Line, outer: NetworkLine, path: _Path) -> Floats:
    inside, between = fabric.intra_time_ratio, fabric.inter_time_ratio
    hop = line.hop * (fabric.intra_latency / fabric.link.hop)
    moving = np.maximum(
        path.intra_seconds * (inside / line.efficiency),
        path.network_seconds * (between / outer.efficiency),
    )
    start: _Number = line.overhead * inside
    if between != inside:
        start = line.overhead * np.where(np.asarray(path.network_hops) > 0.0, between, inside)
    passing = path.hops * (hop * inside)
    crossing = path.network_hops * (outer.latencies * fabric.inter_latency * between)
    return np.asarray(moving + start + passing + crossing)


def _of_calls(seconds: Floats, data: Floats, group: Group) -> Floats:
    """Drop the seconds where no call is made."""
    return np.where((group.size > 1) & (data > 0.0), seconds, 0.0)
