"""Compares measured collectives with the model of the links inside a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from astrarium.catalog import Gpu
from astrarium.cluster import parse_gpus
from astrarium.cost.collectives import (
    Fabric,
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    fabric_of,
    place,
    reduce_scatter_seconds,
    send_seconds,
)

LEAST_BYTES: Final = 1 << 20  # smaller messages are latency, which training hides or batches

_OPERATIONS: Final[dict[str, Callable[[Fabric, float, Group], Any]]] = {
    "all_reduce": all_reduce_seconds,
    "all_gather": all_gather_seconds,
    "reduce_scatter": reduce_scatter_seconds,
    "all_to_all": all_to_all_seconds,
    "send": lambda fabric, num_bytes, group: send_seconds(fabric, num_bytes, False),
}


def link_ratios(rows: Iterable[Mapping[str, Any]], gpu: Gpu) -> list[float]:
    """Measured over modelled seconds of large messages between GPUs of one node."""
    counted = [
        row
        for row in rows
        if row["operator"] in _OPERATIONS
        and row["num_bytes"] >= LEAST_BYTES
        and row["ranks"] <= gpu.gpus_per_node
    ]
    if not counted:
        return []
    fabric = fabric_of(parse_gpus(f"{gpu.name}:{gpu.gpus_per_node}").pools[0])
    ratios = []
    for row in counted:
        group = place(row["ranks"], 1, fabric.gpus_per_domain)
        seconds = _OPERATIONS[row["operator"]](fabric, row["num_bytes"], group)
        ratios.append(row["median_us"] * 1e-6 / float(np.asarray(seconds)))
    return ratios
