"""Collectives: close to measurements, monotone in everything that makes them harder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.cluster import Cluster, Link, LinkKind, Network, Pool, parse_gpus
from astrarium.cluster.interconnect import network_profile
from astrarium.cost.collectives import (
    ALL_TO_ALL_NETWORK_EFFICIENCY,
    COMPUTE_SLOWDOWN_UNDER_OVERLAP,
    Fabric,
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    fabric_across,
    fabric_of,
    place,
    reduce_scatter_seconds,
    send_seconds,
)

MIB = 2.0**20
OPERATIONS = {
    "all_reduce": all_reduce_seconds,
    "all_gather": all_gather_seconds,
    "reduce_scatter": reduce_scatter_seconds,
    "all_to_all": all_to_all_seconds,
}
Operation = Callable[[Fabric, ArrayLike, Group], Floats]

SWITCHED = ("h100:1024", "a100:1024", "b200:1024", "gb200:576", "l40s:64", "t4:32")
POOLS = {text: parse_gpus(text).pools[0] for text in (*SWITCHED, "v100:64", "mi300x:64")}

operations = st.sampled_from(list(OPERATIONS.values()))
fabrics = st.sampled_from([fabric_of(pool) for pool in POOLS.values()])
switched_fabrics = st.sampled_from([fabric_of(POOLS[text]) for text in SWITCHED])
sizes = st.floats(min_value=1.0, max_value=1e11)
powers = st.integers(0, 10).map(lambda exponent: 2**exponent)


def on_network(pool: Pool, network: Network, bandwidth: float) -> Fabric:
    latency = network_profile(network).latency
    return fabric_of(
        replace(
            pool,
            network=network,
            inter_node_bandwidth=bandwidth,
            inter_node_latency=latency,
        )
    )


# Published nccl-tests figures: (GPUs, operation, ranks, MiB, microseconds).
ONE_NODE = [
    ("a100:8", "all_reduce", 8, 128, 1169.1),
    ("a100:8", "all_gather", 4, 64, 325.4),
    ("a100:8", "all_to_all", 8, 256, 1197.9),
    ("h100:8", "all_reduce", 2, 64, 253.0),
    ("h100:8", "all_reduce", 8, 16, 122.1),
    ("h100:8", "all_reduce", 8, 0.0625, 18.7),
    ("h100:8", "reduce_scatter", 8, 64, 200.8),
    ("h100:8", "all_to_all", 8, 32, 125.0),
    ("h200:8", "all_gather", 8, 512, 1393.6),
    ("b200:8", "all_reduce", 8, 512, 1340.3),
    ("b200:8", "all_gather", 2, 32, 54.3),
    ("b200:8", "all_to_all", 4, 256, 428.1),
    ("gb200:4", "reduce_scatter", 4, 128, 198.4),
    ("RTX-PRO-6000-Blackwell-96GB:8", "all_reduce", 8, 64, 4927.0),
    ("v100:8", "all_reduce", 2, 128, 5968.0),
    ("v100:8", "all_reduce", 8, 128, 1777.0),
]


@pytest.mark.parametrize(("gpus", "operation", "ranks", "mib", "microseconds"), ONE_NODE)
def test_one_node_is_close_to_measurements(
    gpus: str, operation: str, ranks: int, mib: float, microseconds: float
) -> None:
    fabric = fabric_of(parse_gpus(gpus).pools[0])
    group = place(ranks, 1, fabric.gpus_per_domain)
    seconds = OPERATIONS[operation](fabric, mib * MIB, group)
    assert float(seconds) * 1e6 == pytest.approx(microseconds, rel=0.12)


# (GPUs, network, bytes/s per node, operation, MiB, microseconds).
BETWEEN_NODES = [
    ("a100:16", Network.EFA_V1, 50e9, "all_reduce", 1024, 26217.0),
    ("h100:16", Network.EFA, 400e9, "all_reduce", 16, 298.1),
    ("h100:16", Network.EFA, 400e9, "all_reduce", 16384, 66132.0),
    ("h200:128", Network.EFA, 400e9, "all_reduce", 16384, 92173.0),
    ("b200:32", Network.EFA, 400e9, "all_reduce", 1024, 5747.1),
    ("h200:16", Network.ROCE, 400e9, "all_gather", 1024, 3105.7),
    ("h100:16", Network.TCPXO, 200e9, "all_gather", 256, 1511.0),
]


@pytest.mark.parametrize(
    ("gpus", "network", "bandwidth", "operation", "mib", "microseconds"), BETWEEN_NODES
)
def test_between_nodes_is_close_to_measurements(
    gpus: str, network: Network, bandwidth: float, operation: str, mib: float, microseconds: float
) -> None:
    (pool,) = parse_gpus(gpus).pools
    fabric = on_network(pool, network, bandwidth)
    seconds = OPERATIONS[operation](fabric, mib * MIB, place(pool.num_gpus, 1, 8))
    assert float(seconds) * 1e6 == pytest.approx(microseconds, rel=0.15)


def test_stated_limits_of_infiniband() -> None:
    # 192 of 200 GB/s of bus bandwidth on DGX A100; 19.9 us for 8 bytes between two nodes.
    fabric = on_network(POOLS["a100:1024"], Network.INFINIBAND, 200e9)
    data = 16 * 2.0**30
    busbw = 2 * 31 / 32 * data / float(all_reduce_seconds(fabric, data, place(32, 1, 8)))
    assert busbw == pytest.approx(192e9, rel=0.03)
    assert float(all_reduce_seconds(fabric, 8, place(2, 8, 8))) == pytest.approx(19.9e-6, rel=0.1)


def test_all_to_all_between_nodes_reaches_the_measured_rate() -> None:
    # 2 nodes of 8 A100 and 4 x 200 Gb/s, 4 GiB: 19.83 GB/s of bus bandwidth.
    fabric = on_network(POOLS["a100:1024"], Network.INFINIBAND, 100e9)
    data = 4 * 2.0**30
    busbw = 15 / 16 * data / float(all_to_all_seconds(fabric, data, place(16, 1, 8)))
    assert busbw == pytest.approx(19.83e9, rel=0.03)
    assert 0.8 < ALL_TO_ALL_NETWORK_EFFICIENCY < 1.0


def test_overlap_slowdown_is_the_published_mean() -> None:
    assert pytest.approx(0.189) == COMPUTE_SLOWDOWN_UNDER_OVERLAP


@pytest.mark.parametrize(
    ("size", "stride", "domain", "expected"),
    [
        (8, 1, 8, 8),
        (2, 1, 8, 2),
        (16, 1, 8, 8),
        (4, 2, 8, 4),
        (8, 2, 8, 4),
        (64, 8, 8, 1),
        (64, 16, 8, 1),
        (1, 4, 8, 1),
        (16, 1, 72, 8),
        (12, 1, 8, 4),
        (3, 1, 8, 1),
        (64, 1, 64, 64),
        (4, 3, 8, 1),
    ],
)
def test_placement(size: int, stride: int, domain: int, expected: int) -> None:
    group = place(size, stride, domain)
    assert int(group.size) == size
    assert int(group.per_domain) == expected


@given(size=st.integers(1, 40), stride=st.integers(1, 20), domain=st.integers(1, 20))
def test_placement_never_promises_more_than_the_worst_group_has(
    size: int, stride: int, domain: int
) -> None:
    promised = int(place(size, stride, domain).per_domain)
    worst = size
    for block in range(domain):  # the pattern repeats after `domain` blocks of ranks
        for first in range(stride):
            base = block * size * stride + first
            members = np.bincount((base + stride * np.arange(size)) // domain)
            worst = min(worst, int(members[members > 0].min()))
    assert 1 <= promised <= max(worst, 1)


@given(operation=operations, fabric=fabrics, data=sizes, more=sizes, size=powers, stride=powers)
def test_more_bytes_are_never_faster(
    operation: Operation, fabric: Fabric, data: float, more: float, size: int, stride: int
) -> None:
    group = place(size, stride, fabric.gpus_per_domain)
    assert operation(fabric, data, group) <= operation(fabric, data + more, group)


@given(
    operation=operations,
    fabric=switched_fabrics,
    data=sizes,
    size=powers,
    stride=powers,
    factor=st.sampled_from([2, 4, 8]),
)
def test_more_ranks_are_never_faster(
    operation: Operation, fabric: Fabric, data: float, size: int, stride: int, factor: int
) -> None:
    domain = 64 if fabric.gpus_per_domain == 72 else fabric.gpus_per_domain
    few, many = place(size, stride, domain), place(size * factor, stride, domain)
    assert operation(fabric, data, few) <= operation(fabric, data, many) * (1 + 1e-12)


@pytest.mark.parametrize("operation", OPERATIONS.values())
@pytest.mark.parametrize("text", SWITCHED)
def test_every_next_rank_of_a_domain_costs_more(operation: Operation, text: str) -> None:
    fabric = fabric_of(POOLS[text])
    ranks = np.arange(1, fabric.gpus_per_domain + 1)
    for data in (1e3, 1e5, 1e6, 1e7, 1e8, 1e9):
        seconds = operation(fabric, data, Group(ranks, ranks))
        assert np.all(np.diff(seconds) >= -1e-15)


@given(
    operation=operations,
    fabric=fabrics,
    data=sizes,
    size=powers,
    stride=powers,
    slower=st.sampled_from(
        ["intra_bandwidth", "peer_bandwidth", "inter_bandwidth", "intra_latency", "inter_latency"]
    ),
    factor=st.floats(1.0, 100.0),
)
def test_slower_links_are_never_faster(
    operation: Operation,
    fabric: Fabric,
    data: float,
    size: int,
    stride: int,
    slower: str,
    factor: float,
) -> None:
    value: float = getattr(fabric, slower)
    changed = value * factor if slower.endswith("latency") else value / factor
    group = place(size, stride, fabric.gpus_per_domain)
    # A switched link that gets slower stays switched.
    worse = (
        replace(fabric, intra_bandwidth=changed, peer_bandwidth=min(changed, fabric.peer_bandwidth))
        if slower == "intra_bandwidth"
        else replace(fabric, **{slower: changed})  # type: ignore[arg-type]
    )
    assert operation(fabric, data, group) <= operation(worse, data, group) * (1 + 1e-12)


@given(
    operation=operations,
    fabric=fabrics,
    rows=st.lists(st.tuples(st.floats(0.0, 1e10), powers, powers), min_size=1, max_size=20),
)
def test_batch_equals_scalar(
    operation: Operation, fabric: Fabric, rows: list[tuple[float, int, int]]
) -> None:
    data, size, stride = (np.array(column) for column in zip(*rows, strict=True))
    batch = operation(fabric, data, place(size, stride, fabric.gpus_per_domain))
    single = [
        float(operation(fabric, one, place(ranks, apart, fabric.gpus_per_domain)))
        for one, ranks, apart in rows
    ]
    assert batch.shape == (len(rows),)
    assert batch.tolist() == single


@pytest.mark.parametrize("operation", OPERATIONS.values())
def test_arguments_broadcast(operation: Operation) -> None:
    fabric = fabric_of(POOLS["h100:1024"])
    data = np.array([[1e6], [1e8]])
    seconds = operation(fabric, data, place(np.array([2, 8, 64]), 1, 8))
    assert seconds.shape == (2, 3)


@pytest.mark.parametrize("operation", OPERATIONS.values())
def test_nothing_to_do_costs_nothing(operation: Operation) -> None:
    fabric = fabric_of(POOLS["h100:1024"])
    assert float(operation(fabric, 1e9, place(1, 1, 8))) == 0.0
    assert float(operation(fabric, 0.0, place(64, 1, 8))) == 0.0
    assert float(send_seconds(fabric, 0.0, True)) == 0.0


def test_groups_of_a_node_share_its_adapters() -> None:
    fabric = fabric_of(POOLS["h100:1024"])
    large = 1e11  # far beyond latency
    per_node = {
        k: float(all_gather_seconds(fabric, large, Group(np.asarray(64), np.asarray(k))))
        for k in (1, 2, 4)
    }
    assert per_node[1] / per_node[2] == pytest.approx(2.0, rel=1e-3)
    assert per_node[2] / per_node[4] == pytest.approx(2.0, rel=1e-3)
    assert per_node[1] == pytest.approx(63 / 64 * large / (50e9 * 0.95), rel=1e-3)


def test_leaving_the_node_costs_more_than_staying() -> None:
    for text in SWITCHED[:3]:
        fabric = fabric_of(POOLS[text])
        for operation in OPERATIONS.values():
            for data in np.geomspace(1e2, 1e10, 30):
                inside = operation(fabric, data, place(8, 1, 8))
                outside = operation(fabric, data, place(16, 1, 8))
                assert inside < outside


def test_mesh_gives_two_ranks_one_link() -> None:
    fabric = fabric_of(POOLS["mi300x:64"])
    assert not fabric.switched
    two, eight = (float(all_reduce_seconds(fabric, 4e9, place(n, 1, 8))) for n in (2, 8))
    assert 4e9 / two == pytest.approx(47.7e9, rel=0.08)  # measured bus bandwidths
    assert 2 * 7 / 8 * 4e9 / eight == pytest.approx(313e9, rel=0.05)


@given(fabric=fabrics, data=sizes, more=sizes)
def test_send(fabric: Fabric, data: float, more: float) -> None:
    for crosses in (False, True):
        assert send_seconds(fabric, data, crosses) <= send_seconds(fabric, data + more, crosses)
    inside, outside = send_seconds(fabric, np.array([data, data]), np.array([False, True]))
    assert inside == send_seconds(fabric, data, False)
    assert outside == send_seconds(fabric, data, True)


def test_send_reaches_measured_rates() -> None:
    # Azure's floor for H100 is 335 GB/s between two GPUs; GCP machines with 50 Gb/s gave 6.04.
    fabric = fabric_of(POOLS["h100:1024"])
    assert 1e10 / float(send_seconds(fabric, 1e10, False)) == pytest.approx(335e9, rel=0.1)
    tcp = replace(on_network(POOLS["a100:1024"], Network.TCP, 6.25e9), gpus_per_node=1)
    assert 1e10 / float(send_seconds(tcp, 1e10, True)) == pytest.approx(5.8e9, rel=0.05)


def test_users_rate_caps_the_rate_to_one_peer() -> None:
    (pool,) = parse_gpus("v100:8").pools
    fabric = fabric_of(replace(pool, intra_node_bandwidth=21.25e9))
    assert fabric.peer_bandwidth == 21.25e9
    assert fabric.switched


def test_a_group_across_pools_is_as_slow_as_its_slowest_link() -> None:
    cluster = parse_gpus("h100:16,l4:16")
    fast, slow = (pool.name for pool in cluster.pools)
    mixed = fabric_across(cluster, [fast, slow])
    alone = [fabric_of(pool) for pool in cluster.pools]
    group = place(16, 2, 8)
    for operation in OPERATIONS.values():
        together = operation(mixed, 1e9, group)
        assert all(operation(fabric, 1e9, group) <= together for fabric in alone)
    thin = Cluster(cluster.pools, (Link((fast, slow), 1e8, 1e-3),))
    worse = fabric_across(thin, [slow, fast])
    assert worse.inter_bandwidth == pytest.approx(1e8)
    assert worse.inter_latency == 1e-3
    assert fabric_across(cluster, [fast]) == alone[0]


def test_racks_keep_wide_groups_on_nvlink() -> None:
    rack, nodes = fabric_of(POOLS["gb200:576"]), fabric_of(POOLS["b200:1024"])
    assert (rack.gpus_per_domain, rack.gpus_per_node) == (72, 4)
    inside = all_to_all_seconds(rack, 64 * MIB, place(36, 1, rack.gpus_per_domain))
    across = all_to_all_seconds(nodes, 64 * MIB, place(32, 1, nodes.gpus_per_domain))
    assert 5 * inside < across


def test_unswitched_kinds() -> None:
    assert fabric_of(POOLS["t4:32"]).link is LinkKind.PCIE
    assert fabric_of(POOLS["t4:32"]).switched
    assert not fabric_of(POOLS["v100:64"]).switched
