"""Kinds of links and networks, and the constants measured for each of them.

A link kind is a generation of the connection inside a node or NVLink domain; a network is the
transport between nodes. Bandwidths belong to a pool; here are the time to start, the time per hop,
and the share of the bandwidth that collectives reach. `catalog/data/collectives.json` has the
figures with sources and errors of the fit (`benchmarks/fit_collectives.py`);
`astrarium.cost.collectives` has the formulas. Not modelled here: topology above the node, which is
a pool's own, and congestion by other jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.catalog import Gpu
from astrarium.value import Value

_DATA: Final = Path(__file__).parent.parent / "catalog" / "data" / "collectives.json"
_MICRO: Final = 1e-6

# Of the 44 listed instances with at most 100 Gb/s per node, two (ND40rs_v2, NC24rs_v3) have
# RDMA; above that rate all but the gVNIC shapes of GCP have.
TCP_UP_TO: Final = 12.5e9


class LinkKind(StrEnum):
    """Links inside a node; older and newer generations count as the nearest."""

    NVLINK2 = "nvlink2"
    NVLINK3 = "nvlink3"
    NVLINK4 = "nvlink4"
    NVLINK5 = "nvlink5"
    XGMI = "xgmi"
    PCIE = "pcie"
    PCIE_HOST = "pcie-host"  # without peer access: through host memory
    GLOO = "gloo"  # processes on the cores of one machine


NVLINK: Final = (LinkKind.NVLINK2, LinkKind.NVLINK3, LinkKind.NVLINK4, LinkKind.NVLINK5)
PCIE: Final = (LinkKind.PCIE, LinkKind.PCIE_HOST)
TO_ANY_PEER: Final = (*PCIE, LinkKind.GLOO)  # one peer can have the whole rate


class Network(StrEnum):
    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    EFA_V1 = "efa-v1"
    TCPXO = "tcpxo"
    SLINGSHOT = "slingshot"
    TCP = "tcp"
    GLOO = "gloo"  # processes on the cores of one machine, of which each counts as a node


# By what the catalog calls the fabric of an instance; the first that fits counts.
_FABRICS: Final = (
    (r"EFA v1", Network.EFA_V1),
    (r"EFA", Network.EFA),
    (r"TCPXO?", Network.TCPXO),
    (r"InfiniBand", Network.INFINIBAND),
    (r"RoCE", Network.ROCE),
    (r"TCP|ENA|Ethernet|gVNIC|internet", Network.TCP),
)


class Collective(StrEnum):
    """Operations with constants of their own."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


class Line(Value, frozen=True):
    """One way of running an operation inside a domain; the slower to start move bytes faster."""

    overhead: float  # seconds, paid once
    hop: float  # seconds per hop
    efficiency: float  # of the bandwidth


class NetworkLine(Value, frozen=True):
    """The same line between domains."""

    latencies: float  # latencies of the network per hop
    efficiency: float


class OperationProfile(Value, frozen=True):
    """The behaviour of one operation on a kind of link."""

    lines: tuple[Line, ...]
    local_copy: float  # cost of the part a rank keeps, relative to a part that is sent
    efficiency_above_ranks: tuple[tuple[int, float], ...]  # (more ranks than, factor), rising


class LinkProfile(Value, frozen=True):
    kind: LinkKind
    hop: float  # nominal seconds per hop, what `Pool.intra_node_latency` stands for
    operations: Mapping[Collective, OperationProfile]
    in_switch: Line | None  # all-reduce summed by the switch
    relative_error: float  # mean, on sources that the fit did not see


class NetworkProfile(Value, frozen=True):
    network: Network
    latency: float
    lines: tuple[NetworkLine, ...]
    relative_error: float  # mean, on sources that the fit did not see


class OverlapProfile(Value, frozen=True):
    """The slow-down of computation by messages that run beside it."""

    compute_slowdown: float  # share of the time, beside messages on NVLink
    link_channels: int  # of NCCL on NVLink; each holds a multiprocessor
    adapter_channels: int  # for each adapter, or on PCIe


def link_kind(gpu: Gpu, gpus_per_node: int) -> LinkKind:
    """Return what joins all GPUs of a node: bridges between some of them do not count."""
    if gpu.is_processor:
        return LinkKind.GLOO
    if gpu.nvlink_domain < max(gpus_per_node, 2):
        return LinkKind.PCIE
    if generation := re.search(r"NVLink(\d)", gpu.link_type):
        return LinkKind(f"nvlink{min(max(int(generation[1]), 2), 5)}")
    return LinkKind.XGMI


def default_network(inter_node_bandwidth: float) -> Network:
    """Return the usual network at this rate per node."""
    return Network.TCP if inter_node_bandwidth <= TCP_UP_TO else Network.INFINIBAND


def network_of_fabric(fabric: str) -> Network | None:
    """Return the network that the catalog describes in words; None if it is not known."""
    found = (network for pattern, network in _FABRICS if re.search(pattern, fabric))
    return next(found, None)


@cache
def link_profile(kind: LinkKind) -> LinkProfile:
    entry = _document()["links"][kind]
    in_switch = entry.get("in_switch_all_reduce")
    return LinkProfile(
        kind=kind,
        hop=entry["hop_us"] * _MICRO,
        operations={operation: _operation(entry, operation) for operation in Collective},
        in_switch=_line(in_switch) if in_switch else None,
        relative_error=entry["relative_error"],
    )


@cache
def network_profile(network: Network) -> NetworkProfile:
    entry = _document()["networks"][network]
    lines = tuple(NetworkLine(x["latencies"], x["efficiency"]) for x in entry["lines"])
    return NetworkProfile(network, entry["latency_us"] * _MICRO, lines, entry["relative_error"])


@cache
def overlap_profile() -> OverlapProfile:
    """Return what computation loses to messages beside it."""
    entry = _document()["overlap"]
    return OverlapProfile(
        entry["compute_slowdown"], entry["link_channels"], entry["adapter_channels"]
    )


def _operation(entry: Mapping[str, Any], operation: str) -> OperationProfile:
    """Read one operation; a name in its place means "as that operation"."""
    found = entry[operation]
    if isinstance(found, str):
        return _operation(entry, found)
    factors = found.get("efficiency_above_ranks", {})
    return OperationProfile(
        lines=tuple(_line(line) for line in found["lines"]),
        local_copy=found["local_copy"],
        efficiency_above_ranks=tuple(sorted((int(n), f) for n, f in factors.items())),
    )


def _line(entry: Mapping[str, float]) -> Line:
    return Line(entry["overhead_us"] * _MICRO, entry["hop_us"] * _MICRO, entry["efficiency"])


@cache
def _document() -> Any:  # noqa: ANN401  (JSON, read by the functions above only)
    return json.loads(_DATA.read_text(encoding="utf-8"))
