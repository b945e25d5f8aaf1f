"""The devices of a program: what each computes, holds and is joined by.

A cluster is taken device by device: pool by pool, node by node. Devices of the same type and
memory form a class; operators are priced once for a class. The mesh has one level, all devices,
or two: across nodes, and inside each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog import Gpu
from astrarium.catalog.runtimes import DEFAULT, find_runtime
from astrarium.cluster import Cluster
from astrarium.cost.collectives import Fabric, Group, fabric_across, fabric_of, place
from astrarium.cost.efficiency import OperatorModel
from astrarium.cost.laws import measured_links, operators_of
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError
from astrarium.value import Value

PROCESSOR_RUNTIME: Final = "megatron-cpu"  # whose process was measured on cores

PRODUCT_SIDE: Final = 8192.0  # of the matrices that devices are compared by
# Number formats of the operator models. Others are not multiplied.
_FORMATS: Final = {"float32": "fp32", "float64": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class RankedDevice(Value, frozen=True):
    """One device of the cluster, in the order of ranks."""

    rank: int
    pool: str
    gpu: Gpu
    node: int  # counted over all pools
    room: float  # bytes that tensors may take


class Devices(Value, frozen=True, dict=True):
    """All devices, their classes, and the links of each level of the mesh, outermost first."""

    cluster: Cluster
    devices: tuple[RankedDevice, ...]
    mesh: tuple[int, ...]
    class_of: Ints  # by device
    operators: tuple[OperatorModel, ...]  # by class
    fabrics: tuple[Fabric, ...]  # by level
    groups: tuple[Group, ...]  # by level
    compute_ratio: float = 1.0  # measured over modelled seconds of computation

    @property
    def count(self) -> int:
        return len(self.devices)

    @property
    def levels(self) -> int:
        return len(self.mesh)

    @cached_property
    def room(self) -> Floats:
        """Bytes that tensors may take, by device."""
        return np.array([device.room for device in self.devices])

    @cached_property
    def class_room(self) -> tuple[float, ...]:
        """The same by class; devices of a class have equal room."""
        return self.least_by_class(self.room)

    def least_by_class(self, by_device: Floats) -> tuple[float, ...]:
        """The least of a figure in each class of devices."""
        classes = range(len(self.operators))
        return tuple(float(by_device[self.class_of == one].min()) for one in classes)

    @cached_property
    def coordinates(self) -> Ints:
        """The place of each device on each level of the mesh: [level, device]."""
        return np.array(np.unravel_index(np.arange(self.count), self.mesh), np.int64)

    def speed(self, dtype: str = "float32") -> Floats:
        """Large matrix products per second, by device, to compare devices with: not a peak."""
        flops = 2.0 * PRODUCT_SIDE**3
        sides = (PRODUCT_SIDE,) * 3
        by_class = [
            flops / float(model.gemm(*sides, dtype=usable_format(model, dtype)))
            for model in self.operators
        ]
        return np.array(by_class)[self.class_of]


def usable_format(model: OperatorModel, dtype: str) -> str:
    """The format, or the other of 16 bits, or fp32 as such (torch's TF32 is not asked for)."""
    wanted = _FORMATS.get(dtype, "fp32")
    order = (wanted, "fp16", "fp32") if wanted == "bf16" else (wanted, "fp32")
    return next((name for name in order if name in model.gpu.peak_flops), wanted)


def devices_of(
    cluster: Cluster, memory_bytes: float | None = None, levels: int = 1, tuning: Tuning = NEUTRAL
) -> Devices:
    """Take a cluster apart; `memory_bytes` limits what tensors may take on a device."""
    devices = _listed(cluster, memory_bytes, tuning)
    keys = [(device.gpu.name, device.room) for device in devices]
    distinct = list(dict.fromkeys(keys))
    firsts = [devices[keys.index(key)].gpu for key in distinct]
    mesh = _mesh(cluster, levels)
    fabric = _fabric(cluster, tuning)
    return Devices(
        cluster=cluster,
        devices=devices,
        mesh=mesh,
        class_of=np.array([distinct.index(key) for key in keys], np.int64),
        operators=tuple(operators_of(gpu, tuning) for gpu in firsts),
        fabrics=(fabric,) * levels,
        groups=_groups(mesh, fabric),
        compute_ratio=tuning.compute,
    )


def _listed(
    cluster: Cluster, memory_bytes: float | None, tuning: Tuning
) -> tuple[RankedDevice, ...]:
    found: list[RankedDevice] = []
    node = 0
    for pool in cluster.pools:
        room = _usual_room(pool.gpu, tuning) if memory_bytes is None else float(memory_bytes)
        if room <= 0:
            raise InputError(
                f"{pool.name}: {room / 2**30:.2f} GiB are left for tensors; allow more (--memory)"
            )
        for _ in range(pool.nodes):
            ranks = range(len(found), len(found) + pool.gpus_per_node)
            found.extend(RankedDevice(rank, pool.name, pool.gpu, node, room) for rank in ranks)
            node += 1
    return tuple(found)


def _usual_room(gpu: Gpu, tuning: Tuning) -> float:
    """Memory less what a process takes before its first tensor: driver, libraries, channels."""
    runtime = find_runtime(PROCESSOR_RUNTIME if gpu.is_processor else DEFAULT)
    return gpu.memory_bytes - runtime.reserved_bytes - tuning.memory_bytes


def _mesh(cluster: Cluster, levels: int) -> tuple[int, ...]:
    if levels == 1:
        return (cluster.num_gpus,)
    if levels != 2:
        raise InputError(f"a mesh of {levels} levels is not known; choose 1 or 2")
    sizes = sorted({pool.gpus_per_node for pool in cluster.pools})
    if len(sizes) > 1:
        raise InputError(
            "two levels of a mesh need nodes of equal size, and these have"
            f" {' and '.join(map(str, sizes))} GPUs; use one level"
        )
    return sum(pool.nodes for pool in cluster.pools), sizes[0]


def _fabric(cluster: Cluster, tuning: Tuning) -> Fabric:
    pools = cluster.pools
    if len(pools) == 1:
        fabric = fabric_of(pools[0])
    else:
        fabric = fabric_across(cluster, [pool.name for pool in pools])
    if all(pool.gpu.is_processor for pool in pools):
        # Cores of one machine reach each other alike, in one pool or in several.
        fabric = replace(fabric, gpus_per_domain=cluster.num_gpus, gpus_per_node=cluster.num_gpus)
    return replace(
        measured_links(fabric, tuning.messages),
        intra_time_ratio=tuning.intra_link,
        inter_time_ratio=tuning.inter_link,
    )


def _groups(mesh: tuple[int, ...], fabric: Fabric) -> tuple[Group, ...]:
    """The groups of each level: ranks that are as far apart as inner levels have."""
    strides = np.cumprod((1, *mesh[:0:-1]))[::-1]
    return tuple(
        place(size, int(stride), fabric.gpus_per_domain)
        for size, stride in zip(mesh, strides, strict=True)
    )
