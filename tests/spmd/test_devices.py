"""Devices of clusters: order, classes, room, levels."""

from __future__ import annotations

import numpy as np
import pytest
from spmd_priced import CORE, cluster

from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.spmd.price import devices_of


def test_devices_stand_pool_by_pool_and_node_by_node() -> None:
    devices = cluster("v100:16,p100:8")
    assert [device.rank for device in devices.devices] == list(range(24))
    assert [device.node for device in devices.devices] == [0] * 8 + [1] * 8 + [2] * 8
    assert devices.class_of.tolist() == [0] * 16 + [1] * 8
    assert [model.gpu.name[:4] for model in devices.operators] == ["V100", "P100"]
    assert devices.mesh == (24,)


def test_room_is_memory_less_what_the_runtime_takes_or_what_is_given() -> None:
    usual = cluster("v100:2")
    gpu = usual.devices[0].gpu
    assert usual.room.tolist() == [gpu.memory_bytes - 1288490189] * 2
    limited = devices_of(parse_gpus("v100:2,p100:1"), 15 * 2**30)
    assert limited.room.tolist() == [15 * 2**30] * 3
    assert limited.class_room == (15.0 * 2**30,) * 2
    with pytest.raises(InputError, match=r"-1\.00 GiB are left for tensors; allow more"):
        devices_of(parse_gpus("v100:2"), -(2**30))


def test_two_levels_are_nodes_and_what_is_inside_them() -> None:
    devices = cluster("v100:16,p100:16", levels=2)
    assert devices.mesh == (4, 8)
    assert devices.coordinates[:, 9].tolist() == [1, 1]
    across, inside = devices.groups
    assert (int(across.size), int(across.per_domain)) == (4, 1)
    assert (int(inside.size), int(inside.per_domain)) == (8, 8)
    with pytest.raises(InputError, match="nodes of equal size, and these have 4 and 8 GPUs"):
        cluster("v100:8,p100:4", levels=2)
    with pytest.raises(InputError, match="a mesh of 3 levels is not known"):
        cluster("v100:8", levels=3)


def test_a_slowed_core_is_a_class_of_its_own_and_slower_by_its_share() -> None:
    devices = cluster("cpu-core:1,CPU-core@25%:1", tuning=CORE)
    fast, slow = devices.speed()
    assert fast / slow == pytest.approx(4.0)
    # Cores of one machine are one domain, though they are two pools.
    assert int(devices.groups[0].per_domain) == 2
    assert np.isclose(devices.fabrics[0].intra_bandwidth, 0.25 * 2e9)


def test_devices_are_compared_in_the_format_of_a_program() -> None:
    v100, a100, t4 = cluster("v100:1,a100:1,t4:1").speed()
    assert a100 > v100 > t4
    v100_half, a100_half, t4_half = cluster("v100:1,a100:1,t4:1").speed("bfloat16")
    assert a100_half > v100_half > t4_half
    # Tensor cores multiply 16 bits only, V100's without bf16 in fp16.
    assert a100_half / v100_half > a100 / v100
    assert v100_half > 2 * v100
