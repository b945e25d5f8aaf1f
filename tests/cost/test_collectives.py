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
from astrarium.catalog import find_gpu
from astrarium.cluster import Cluster, Link, LinkKind, Network, Pool, parse_gpus
from astrarium.cluster.build import Machines, build_pool
from astrarium.cluster.interconnect import link_profile, network_profile, overlap_profile
from astrarium.cost.collectives import (
    ALL_TO_ALL_NETWORK_EFFICIENCY,
    DOUBLING_EFFICIENCY,
    DOUBLING_RANK_SECONDS,
    TREE_HOPS_PER_LEVEL,
    Fabric,
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    compute_slowdown,
    contention_seconds,
    crosses_domains,
    fabric_across,
    fabric_of,
    place,
    reduce_scatter_seconds,
    send_seconds,
)
from astrarium.cost.tally import beside

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

PCIE_GPUS = ("rtx-4090", "l40s", "t4", "h100-pcie")

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


# Share of 48.5 GB/s per GPU that all-gather reaches on nodes of 8 GPUs and adapters (SimAI).
LARGE_GATHERS = [
    (8, 1024, 0.9),
    (16, 256, 0.57),
    (32, 1024, 0.74),
    (64, 512, 0.384),
    (64, 4096, 0.755),
    (128, 2048, 0.5535),
    (128, 16384, 0.919),
]


@pytest.mark.parametrize(("nodes", "mib", "share"), LARGE_GATHERS)
def test_gathers_of_up_to_1024_gpus(nodes: int, mib: float, share: float) -> None:
    fabric = fabric_of(POOLS["h100:1024"])
    ranks, data = 8 * nodes, mib * MIB
    seconds = float(all_gather_seconds(fabric, data, place(ranks, 1, 8)))
    measured = (ranks - 1) / ranks * data / (8 * 48.5e9 * share)
    assert seconds == pytest.approx(measured, rel=0.15)


# Bus bandwidth in GB/s on Perlmutter, 4 A100 and 4 adapters a node: (operation, GPUs used per
# node, nodes, MiB, GB/s), from the fit published with the measurements.
PERLMUTTER = [
    ("all_reduce", 4, 16, 64, 50.7),
    ("all_reduce", 4, 128, 256, 55.7),
    ("all_gather", 4, 16, 64, 42.9),
    ("all_gather", 4, 64, 256, 45.1),
    ("reduce_scatter", 4, 128, 1024, 56.2),
    ("all_gather", 1, 32, 16, 10.2),
    ("reduce_scatter", 1, 128, 64, 10.3),
]


@pytest.mark.parametrize(("operation", "used", "nodes", "mib", "rate"), PERLMUTTER)
def test_collectives_on_up_to_128_nodes_of_slingshot(
    operation: str, used: int, nodes: int, mib: float, rate: float
) -> None:
    (pool,) = parse_gpus("a100:8").pools
    eight = on_network(pool, Network.SLINGSHOT, 100e9)
    fabric = replace(
        eight, gpus_per_domain=4, gpus_per_node=4, peer_bandwidth=100e9, doubling=False
    )
    ranks, data = used * nodes, mib * MIB
    seconds = OPERATIONS[operation](fabric, data, Group(np.asarray(ranks), np.asarray(used)))
    moved = (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks * data
    assert float(seconds) == pytest.approx(moved / (rate * 1e9), rel=0.3)


def test_latency_grows_with_the_ranks_of_rings_and_the_levels_of_trees() -> None:
    fabric = replace(fabric_of(POOLS["h100:1024"]), doubling=False)
    small, ranks = 1e5, 8 * 2 ** np.arange(3, 11)
    gather, reduce = (
        operation(fabric, small, place(ranks, 1, 8))
        for operation in (all_gather_seconds, all_reduce_seconds)
    )
    assert np.allclose(gather[1:] / gather[:-1], 2.0, rtol=0.15)  # twice the ranks, twice the time
    step = np.diff(reduce)
    assert np.allclose(step, step[0], rtol=0.2)  # twice the ranks, one level more
    assert step[0] == pytest.approx(2 * TREE_HOPS_PER_LEVEL * fabric.inter_latency, rel=0.2)


def test_doubling_serves_small_gathers_of_one_rank_per_node() -> None:
    modern = fabric_of(POOLS["h100:1024"])
    older = replace(modern, doubling=False)
    apart, together = place(512, 8, 8), place(512, 1, 8)
    for operation in (all_gather_seconds, reduce_scatter_seconds):
        assert operation(modern, 4e6, apart) < 0.6 * operation(older, 4e6, apart)
        # What work per rank is left is linear.
        assert operation(modern, 4e6, apart) > 512 * DOUBLING_RANK_SECONDS
        assert operation(modern, 1e11, apart) == operation(older, 1e11, apart)
        assert operation(modern, 4e6, together) == operation(older, 4e6, together)
    assert all_reduce_seconds(modern, 4e6, apart) == all_reduce_seconds(older, 4e6, apart)
    assert DOUBLING_EFFICIENCY < 1.0


@given(
    operation=operations,
    fabric=fabrics,
    data=sizes,
    size=powers,
    stride=powers,
    ratio=st.floats(0.5, 2.0),
)
def test_learned_ratios_scale_the_whole_message(
    operation: Operation, fabric: Fabric, data: float, size: int, stride: int, ratio: float
) -> None:
    group = place(size, stride, fabric.gpus_per_domain)
    neutral = operation(fabric, data, group)
    inside = operation(replace(fabric, intra_time_ratio=ratio), data, group)
    both = operation(replace(fabric, intra_time_ratio=ratio, inter_time_ratio=ratio), data, group)
    assert both == pytest.approx(neutral * ratio)
    if not crosses_domains(group):
        assert inside == pytest.approx(neutral * ratio)
    longer, shorter = max(ratio, 1.0), min(ratio, 1.0)
    between = operation(replace(fabric, inter_time_ratio=ratio), data, group)
    for seconds in (inside, between):
        assert neutral * shorter * (1 - 1e-9) <= seconds <= neutral * longer * (1 + 1e-9)


def test_learned_ratios_scale_sends() -> None:
    fabric = fabric_of(POOLS["h100:1024"])
    tuned = replace(fabric, intra_time_ratio=1.5, inter_time_ratio=1.25)
    for crosses, ratio in ((False, 1.5), (True, 1.25)):
        expected = send_seconds(fabric, 1e7, crosses) * ratio
        assert send_seconds(tuned, 1e7, crosses) == pytest.approx(expected)


def test_computation_loses_to_the_rate_of_the_messages_beside_it() -> None:
    full = overlap_profile().compute_slowdown
    assert full == pytest.approx((0.189 + 0.153) / 2, abs=5e-4)
    fabric = fabric_of(POOLS["h100:1024"])
    assert compute_slowdown(fabric, place(1, 1, 8)) == 0.0
    assert compute_slowdown(fabric, place(8, 1, 8)) == full  # NVLink
    assert compute_slowdown(fabric, place(64, 1, 8)) == full  # rings over eight adapters
    one_adapter = compute_slowdown(fabric, place(64, 8, 8))
    assert one_adapter == pytest.approx(full * 4 / 24)
    slow = compute_slowdown(fabric_of(POOLS["t4:32"]), place(4, 1, 8))
    assert slow == one_adapter  # PCIe


times = st.floats(0.0, 10.0)


@given(message=times, other=times, more=times, computation=times)
def test_messages_on_the_same_links_delay_each_other(
    message: float, other: float, more: float, computation: float
) -> None:
    window = computation + other
    late = float(contention_seconds(message, other, window))
    assert 0.0 <= late <= min(message, other) * (1 + 1e-9)
    assert late <= float(contention_seconds(message + more, other, window)) + 1e-12
    assert contention_seconds(message, 0.0, window) == 0.0
    # All of the window: both together take what they took one after the other.
    assert contention_seconds(window, other, window) == pytest.approx(other)


@given(message=times, computation=times, late=times, slowdown=st.floats(0.0, 1.0))
def test_running_beside_is_never_slower_than_running_after(
    message: float, computation: float, late: float, slowdown: float
) -> None:
    one, other = np.asarray(message), np.asarray(computation)
    added = beside(one, other, np.asarray(slowdown), late)
    assert max(message - computation, 0.0) * (1 - 1e-9) <= added <= message
    assert beside(one, other, np.asarray(slowdown)) <= added


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
    assert per_node[1] == pytest.approx(63 / 64 * large / (50e9 * 0.96), rel=1e-3)


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
    assert fabric_of(POOLS["t4:32"]).link.kind is LinkKind.PCIE
    assert fabric_of(POOLS["t4:32"]).switched
    assert not fabric_of(POOLS["v100:64"]).switched


def test_every_kind_states_its_error_on_sources_it_has_not_seen() -> None:
    for kind in LinkKind:
        assert link_profile(kind).kind is kind
        assert 0.0 < link_profile(kind).relative_error < 0.3
    for network in Network:
        assert network_profile(network).network is network
        assert 0.0 < network_profile(network).relative_error < 0.3


@pytest.mark.parametrize("kind", LinkKind)
def test_lines_that_move_bytes_faster_come_later(kind: LinkKind) -> None:
    for operation in link_profile(kind).operations.values():
        rates = [line.efficiency for line in operation.lines]
        assert rates == sorted(rates)


@given(operations, sizes, st.integers(2, 8), st.sampled_from(PCIE_GPUS))
def test_without_peer_access_nothing_is_faster(
    operation: Operation, data: float, ranks: int, gpu: str
) -> None:
    with_access, without = (
        fabric_of(build_pool("node", find_gpu(gpu), 1, 8, gpu, machines=Machines(peer_access=said)))
        for said in (True, False)
    )
    group = Group(np.array(ranks), np.array(ranks))
    assert operation(with_access, data, group) <= operation(without, data, group)
    assert send_seconds(with_access, data, False) <= send_seconds(without, data, False)


def thin(times: float, nodes: int) -> Fabric:
    """H100 whose blocks of nodes have a part of their rate between them."""
    return fabric_of(replace(POOLS["h100:1024"], oversubscription=times, block_nodes=nodes))


def test_messages_within_a_block_have_the_whole_rate() -> None:
    full, divided = fabric_of(POOLS["h100:1024"]), thin(7.0, 16)
    for operation in OPERATIONS.values():
        inside, beyond = place(128, 1, 8), place(256, 1, 8)
        assert operation(divided, 1e9, inside) == operation(full, 1e9, inside)
        assert operation(divided, 1e9, beyond) >= operation(full, 1e9, beyond)


def test_a_ring_leaves_a_block_once() -> None:
    full, divided = fabric_of(POOLS["h100:1024"]), thin(7.0, 16)
    near, far = place(256, 1, 8), place(8, 128, 8)  # 16 nodes of each block, one GPU of each block
    assert all_gather_seconds(divided, 1e10, near) == all_gather_seconds(full, 1e10, near)
    slower = all_gather_seconds(divided, 1e10, far) / all_gather_seconds(full, 1e10, far)
    assert 6.0 < slower.item() <= 7.0
    # An all-to-all sends most of its bytes elsewhere.
    slower = all_to_all_seconds(divided, 1e10, near) / all_to_all_seconds(full, 1e10, near)
    assert 3.0 < slower.item() < 7.0


def test_of_a_stage_those_near_its_end_leave_the_block() -> None:
    full, divided = fabric_of(POOLS["h100:1024"]), thin(8.0, 16)
    whole = send_seconds(full, 1e10, True).item()
    sent = [send_seconds(divided, 1e10, True, stride).item() for stride in (8, 16, 64, 128, 512)]
    assert sent == sorted(sent)
    assert sent[1] == pytest.approx(whole)
    assert sent[2] == pytest.approx(4 * whole, rel=1e-3)
    assert sent[3:] == pytest.approx([8 * whole] * 2, rel=1e-3)
