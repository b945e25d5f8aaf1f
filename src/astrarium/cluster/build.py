"""Pools from a GPU type and the user's figures; the catalog supplies the rest.

The rate inside a node is that at which *all* its GPUs reach each other: the NVLink rate where
the link covers the node, else PCIe. Bridges between pairs of cards in a larger node are left
out, as many hosts have none. A part of a node is joined as the whole node is.
"""

from __future__ import annotations

from typing import Final, TypeVar

from astrarium.catalog import Gpu
from astrarium.cluster.interconnect import (
    PCIE,
    LinkKind,
    Network,
    default_network,
    link_kind,
    link_profile,
    network_profile,
)
from astrarium.cluster.types import Pool
from astrarium.errors import InputError
from astrarium.value import Value

T = TypeVar("T")

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
    kind = link_kind(gpu, node_size or gpus_per_node)
    if given.peer_access is False:
        kind = LinkKind.PCIE_HOST
    intra = _first(
        given.intra_node_bandwidth,
        gpu.pcie_bandwidth if kind in PCIE else gpu.link_bandwidth,
    )
    inter = _first(given.inter_node_bandwidth, gpu.inter_node_bandwidth)
    usual = Network.GLOO if gpu.is_processor else default_network(inter)
    network = given.network or usual
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
        usd_per_gpu_hour=_first(given.usd_per_gpu_hour, gpu.usd_per_gpu_hour),
        spot_usd_per_gpu_hour=_first(given.spot_usd_per_gpu_hour, gpu.spot_usd_per_gpu_hour),
        requested="" if requested == gpu.name else requested,
        rented_sizes=given.rented_sizes,
    )


def _domain(gpu: Gpu, gpus_per_node: int, given: int | None) -> int:
    """Return the size of a domain: a node, or the rack if NVLink spans it."""
    if given is None:
        spans_rack = _RACK in gpu.link_type and gpu.nvlink_domain > gpus_per_node
        return gpu.nvlink_domain if spans_rack else gpus_per_node
    if given % gpus_per_node:
        raise InputError(
            f"nvlink_domain: {given} GPUs are no whole number of nodes of {gpus_per_node}"
        )
    return given


def _first(given: float | None, otherwise: T) -> float | T:
    return otherwise if given is None else given
