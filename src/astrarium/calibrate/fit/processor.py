"""Clusters of cores with the figures that a profile of the processor has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astrarium.calibrate.measure.sections import SEND
from astrarium.cluster import Cluster, Pool


def with_measured_cores(cluster: Cluster, header: Mapping[str, Any]) -> Cluster:
    """The cluster with rates, memory and links of a profile; what is no core stays as it is."""
    pools = tuple(_measured(pool, header) for pool in cluster.pools)
    return replace(cluster, pools=pools)


def _measured(pool: Pool, header: Mapping[str, Any]) -> Pool:
    core, device = header.get("core"), header["device"]
    if core is None or not pool.gpu.is_processor:
        return pool
    share = pool.gpu.share
    memory = device.get("memory_bytes", 0) // max(device.get("cores", 1), 1)
    gpu = replace(
        pool.gpu,
        peak_flops={"fp32": core["flops"]},
        memory_bytes=memory or pool.gpu.memory_bytes,
    )
    call, byte = core["messages"][SEND]
    rate, latency = share / byte, call / share
    return replace(
        pool,
        gpu=gpu,
        intra_node_bandwidth=rate,
        inter_node_bandwidth=rate * pool.gpus_per_node,
        intra_node_latency=latency,
        inter_node_latency=latency,
    )
