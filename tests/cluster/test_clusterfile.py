"""Cluster files: units or unit-bearing keys, defaults from the catalog, errors with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.cluster import Cluster, LinkKind, Network, load_cluster, parse_gpus
from astrarium.errors import InputError

YAML = """
pools:
  - {name: fast, gpu: V100-SXM2-16GB, nodes: 3, gpus_per_node: 4, intra_node: 170 Gb/s,
     inter_node: 10 Gb/s, usd_per_gpu_hour: 3.06}
  - {name: slow, gpu: T4-16GB, nodes: 1, gpus_per_node: 4, intra_node: 50 Gb/s,
     inter_node: 50 Gb/s}
links:
  - {between: [fast, slow], bandwidth: 10 Gb/s, latency: 50 us}
"""
TOML = """
[[pools]]
name = "fast"
gpu = "v100-16gb"
nodes = 3
gpus_per_node = 4
intra_node_bytes_per_second = 21.25e9
inter_node_bytes_per_second = 1.25e9
usd_per_gpu_hour = "$3.06"

[[pools]]
name = "slow"
gpu = "T4-16GB"
nodes = 1
gpus_per_node = 4
intra_node = "6.25 GB/s"
inter_node = "6.25 GB/s"

[[links]]
between = ["fast", "slow"]
bandwidth_bytes_per_second = 1.25e9
latency_seconds = 50e-6
"""


def load(folder: Path, text: str, name: str = "cluster.yaml") -> Cluster:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_cluster(path)


def pool_with(folder: Path, line: str) -> Cluster:
    return load(folder, f"pools:\n  - {{gpu: h100, nodes: 2, {line}}}\n")


def test_the_example(tmp_path: Path) -> None:
    cluster = load(tmp_path, YAML)
    fast, slow = cluster.pools
    assert (fast.nodes, fast.gpus_per_node, cluster.num_gpus) == (3, 4, 16)
    assert fast.intra_node_bandwidth == 21.25e9
    assert fast.inter_node_bandwidth == 1.25e9
    assert fast.usd_per_gpu_hour == 3.06
    assert slow.usd_per_gpu_hour == slow.gpu.usd_per_gpu_hour
    assert fast.network is Network.TCP
    assert (fast.link, slow.link) == (LinkKind.NVLINK2, LinkKind.PCIE)
    link = cluster.link_between("fast", "slow")
    assert (link.bandwidth, link.latency) == (1.25e9, 50e-6)


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    one, other = load(tmp_path, YAML), load(tmp_path, TOML, "cluster.toml")
    documents = [one.to_dict(), other.to_dict()]
    for document in documents:
        for pool in document["pools"]:
            del pool["gpu_as_given"]
    assert documents[0] == documents[1]


def test_what_is_left_out_comes_from_the_catalog(tmp_path: Path) -> None:
    (pool,) = load(tmp_path, "pools: [{gpu: h100, nodes: 2}]").pools
    assert (pool.name, pool.requested) == ("H100-SXM5-80GB", "h100")
    assert (pool.gpus_per_node, pool.nvlink_domain) == (8, 8)
    assert pool.inter_node_bandwidth == pool.gpu.inter_node_bandwidth
    assert pool.inter_node_latency > pool.intra_node_latency > 0


def test_network_latency_and_domain_may_be_given(tmp_path: Path) -> None:
    (pool,) = pool_with(
        tmp_path, "network: efa, inter_node_latency: 30 us, intra_node_latency_seconds: 2.0e-6"
    ).pools
    assert pool.network is Network.EFA
    assert (pool.inter_node_latency, pool.intra_node_latency) == (30e-6, 2e-6)
    wide = load(tmp_path, "pools: [{gpu: gb200, nodes: 18, nvlink_domain: 36}]")
    assert wide.pools[0].gpus_per_domain == 36


def test_nodes_have_the_memory_of_their_usual_instance_unless_stated(tmp_path: Path) -> None:
    (pool,) = pool_with(tmp_path, "host_memory_gib: 512").pools
    assert pool.host_memory == 512 * 2**30
    assert Cluster.from_dict(Cluster((pool,)).to_dict()).pools == (pool,)
    (usual,) = load(tmp_path, "pools: [{gpu: h100, nodes: 2}]").pools
    (half,) = load(tmp_path, "pools: [{gpu: h100, nodes: 2, gpus_per_node: 4}]").pools
    assert usual.host_memory == 2 * half.host_memory > 0
    (unknown,) = load(tmp_path, "pools: [{gpu: h800, nodes: 2}]").pools
    assert unknown.host_memory == 0


def test_blocks_of_nodes_may_be_joined_by_fewer_links(tmp_path: Path) -> None:
    (pool,) = pool_with(tmp_path, "oversubscription: 7, block_nodes: 384").pools
    assert (pool.oversubscription, pool.block_nodes) == (7.0, 384)
    assert Cluster.from_dict(Cluster((pool,)).to_dict()).pools == (pool,)
    (full,) = pool_with(tmp_path, "block_nodes: 384").pools
    assert full.block_nodes == 0  # nothing is thin


def test_a_bridged_pair_is_a_node_when_the_file_says_so(tmp_path: Path) -> None:
    (pool,) = load(tmp_path, "pools: [{gpu: a100-pcie-80gb, nodes: 1, gpus_per_node: 2}]").pools
    assert pool.link is LinkKind.NVLINK3
    assert pool.intra_node_bandwidth == pool.gpu.link_bandwidth


def test_a_link_may_leave_one_figure_to_the_default(tmp_path: Path) -> None:
    text = YAML.replace(", latency: 50 us", "").replace("bandwidth: 10 Gb/s", "latency: 1 ms")
    cluster = load(tmp_path, text)
    link = cluster.link_between("fast", "slow")
    assert link.latency == 1e-3
    assert link.bandwidth == 1.25e9


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("intra_node: 900", "intra_node: expected text"),
        ("intra_node: 900 GB", r"pools\[0\]: intra_node: '900 GB': unknown unit"),
        ("inter_node: 0 Gb/s", "inter_node: .*must be greater than zero"),
        ("inter_node_bytes_per_second: -1", "inter_node_bytes_per_second"),
        ("inter_node: 1 GB/s, inter_node_bytes_per_second: 1.0e9", "are both given; keep one"),
        ("intra_node_latency: 5", "intra_node_latency: expected text"),
        ("gpus_per_node: 0", "gpus_per_node"),
        ("gpus_per_node: 2.5", "gpus_per_node: expected int"),
        ("network: ethernet", "network: expected one of infiniband, roce"),
        ("network: infinband", "did you mean 'infiniband'"),
        ("inter_nod: 1 GB/s", "unknown key.*did you mean 'inter_node'"),
        ("oversubscription: 0.5", "oversubscription"),
        ("host_memory_gib: 0", "host_memory_gib"),
        ("oversubscription: 7", "oversubscription 7 needs block_nodes"),
        ("nvlink_domain: 12", "not a whole number of nodes of 8"),
        ("usd_per_gpu_hour: -1", "usd_per_gpu_hour"),
        ("usd_per_gpu_hour: cheap", "usd_per_gpu_hour: 'cheap'"),
        ("usd_per_gpu_hour: .nan", "finite"),
    ],
)
def test_bad_pools_are_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        pool_with(tmp_path, line)
    assert "cluster.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools: []", "pools"),
        ("links: []", "'pools' is missing"),
        ("pools: [{gpu: h100}]", "'nodes' is missing"),
        ("pools: [{gpu: h10, nodes: 1}]", r"pools\[0\]: unknown GPU type 'h10' \(did you mean"),
        ("pools: [{gpu: h100, nodes: 1}, {gpu: h100, nodes: 2}]", "two pools are called"),
        ("pools: [{gpu: h100, nodes: 16777216}]", "more than the largest cluster"),
        ("pools: [{gpu: h100, nodes: 16777217}]", "nodes"),
        (YAML.replace("[fast, slow]", "[fast, slwo]"), r"links\[0\]: no pool is called 'slwo'"),
        (YAML.replace("[fast, slow]", "[fast]"), "between"),
        (YAML.replace("[fast, slow]", "[fast, fast]"), "joins a pool with itself"),
        ("pools: [", "malformed YAML"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text)
    assert "cluster.yaml" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_cluster(tmp_path / "none.yaml")


def test_complaints_beyond_the_schema_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text("pools:\n  - {gpu: h100, nodes: 2}\n  - {gpu: h1000, nodes: 2}\n")
    with pytest.raises(InputError, match=r"mixed\.yaml:3: pools\[1\]: unknown GPU type 'h1000'"):
        load_cluster(path)


def test_consumer_cards_have_no_peer_access_unless_said(tmp_path: Path) -> None:
    said = "pools: [{gpu: rtx-4090, nodes: 1, gpus_per_node: 8, peer_access: true}]"
    assert parse_gpus("rtx-4090:8").pools[0].link is LinkKind.PCIE_HOST
    assert load(tmp_path, said).pools[0].link is LinkKind.PCIE
    assert parse_gpus("l40s:8").pools[0].link is LinkKind.PCIE
    bridged = "pools: [{gpu: rtx-3090, nodes: 1, gpus_per_node: 2}]"  # over NVLink they have it
    assert load(tmp_path, bridged).pools[0].link is LinkKind.NVLINK3


def test_a_node_whose_instance_has_infiniband_is_not_on_tcp(tmp_path: Path) -> None:
    assert parse_gpus("v100:16").pools[0].network is Network.INFINIBAND  # ND40rs_v2, 100 Gb/s
    assert parse_gpus("v100-16gb:16").pools[0].network is Network.TCP  # p3.16xlarge
    slower = "pools: [{gpu: v100, nodes: 2, inter_node: 25 Gb/s}]"
    assert load(tmp_path, slower).pools[0].network is Network.TCP


def test_gpus_without_peer_access_go_through_the_host(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    for value, kind in (("true", LinkKind.PCIE), ("false", LinkKind.PCIE_HOST)):
        path.write_text(f"pools:\n  - {{gpu: t4, nodes: 2, peer_access: {value}}}\n")
        pool = load_cluster(path).pools[0]
        assert pool.link is kind
        assert pool.intra_node_bandwidth == pool.gpu.pcie_bandwidth
