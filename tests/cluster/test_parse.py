"""The text of --gpus: counts that machines can have, and refusals that say what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.catalog import Gpu, gpus
from astrarium.cluster import LARGEST_CLUSTER, LinkKind, Network, parse_gpus
from astrarium.errors import InputError


def test_one_pool_per_type_with_the_catalog_figures() -> None:
    cluster = parse_gpus("h100:64, A100:128")
    first, second = cluster.pools
    assert (first.gpu.name, first.nodes, first.gpus_per_node) == ("H100-SXM5-80GB", 8, 8)
    assert (second.gpu.name, second.num_gpus) == ("A100-SXM4-80GB", 128)
    assert cluster.num_gpus == 192
    assert first.requested == "h100"
    assert second.requested == "A100"
    assert first.intra_node_bandwidth == first.gpu.link_bandwidth
    assert first.inter_node_bandwidth == first.gpu.inter_node_bandwidth
    assert first.usd_per_gpu_hour == first.gpu.usd_per_gpu_hour
    assert first.network is Network.INFINIBAND


def test_counts_may_be_abbreviated() -> None:
    assert parse_gpus("h100:1k").num_gpus == 1000


@pytest.mark.parametrize("count", [1, 2, 4])
def test_part_of_a_node(count: int) -> None:
    (pool,) = parse_gpus(f"h100:{count}").pools
    assert (pool.nodes, pool.gpus_per_node, pool.gpus_per_domain) == (1, count, count)
    assert pool.link is LinkKind.NVLINK4


def test_part_of_a_node_is_joined_as_the_whole_node() -> None:
    (part,) = parse_gpus("a100-pcie-80gb:2").pools
    (whole,) = parse_gpus("a100-pcie-80gb:8").pools
    assert part.link is whole.link is LinkKind.PCIE
    assert part.intra_node_bandwidth == whole.intra_node_bandwidth == whole.gpu.pcie_bandwidth


def test_nodes_of_a_stated_size() -> None:
    (pool,) = parse_gpus("h100:3x4").pools
    assert (pool.nodes, pool.gpus_per_node, pool.gpus_per_domain) == (3, 4, 4)
    assert pool.inter_node_bandwidth == pool.gpu.inter_node_bandwidth / 2
    assert pool.rented_sizes == (4,)
    (large,) = parse_gpus({"v100": "2x16"}).pools
    assert large.inter_node_bandwidth == large.gpu.inter_node_bandwidth
    (uneven,) = parse_gpus("gb200:3x5").pools
    assert uneven.nvlink_domain == 5


def test_racks_count_in_trays_and_share_one_domain() -> None:
    (pool,) = parse_gpus("gb200:64").pools
    assert (pool.nodes, pool.gpus_per_node, pool.nvlink_domain) == (16, 4, 72)
    assert pool.gpus_per_domain == 64


@pytest.mark.parametrize(
    ("count", "domain"), [(72, 72), (128, 64), (144, 72), (1024, 64), (76, 72), (8, 8)]
)
def test_domains_are_filled_evenly_where_possible(count: int, domain: int) -> None:
    assert parse_gpus(f"gb200:{count}").pools[0].gpus_per_domain == domain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100:12", "h100:12: H100-SXM5-80GB comes in nodes of 8; use 8 or 16, or name the"),
        ("h100:12", "2x6 is 2 of 6"),
        ("8xh100", "8xh100: the type comes first; write h100:8"),
        ("h100:0x4", "number of nodes: '0': must be greater than zero"),
        ("h100:4x0", "number of GPUs in a node: '0': must be greater than zero"),
        ("h100:4x2x2", "not a number"),
        ("h100:1Mx32", "more than the largest cluster"),
        ("h100:3", "use 2 or 4"),
        ("h100:7", "use 4 or 8"),
        ("gb200:6", "nodes of 4; use 4 or 8"),
        ("h100", "write h100:8"),
        ("h100:", "write h100:8"),
        (":8", "the GPU type is missing"),
        ("", "no GPUs given"),
        ("  ", "no GPUs given"),
        ("h100:8,", "an entry is empty"),
        ("h100:8,,a100:8", "an entry is empty"),
        ("h100:0", "must be greater than zero"),
        ("h100:-8", "negative"),
        ("h100:8.5", "not whole"),
        ("h100:eight", "not a number"),
        ("h100:8:8", "unknown unit|not a number"),
        ("h100:nan", "not a number"),
        (f"h100:{LARGEST_CLUSTER + 8}", "more than the largest cluster, 16,777,216"),
        ("h100:1e30", "more than the largest cluster"),
        (f"h100:{LARGEST_CLUSTER},a100:8", "more than the largest cluster"),
        ("h100:8,H100-SXM5-80GB:16", "appears twice; write the sum, H100-SXM5-80GB:24"),
        ("h10:8", "did you mean"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_gpus(text)


@given(gpu=st.sampled_from(gpus()), count=st.integers(1, 200))
def test_every_count_is_either_machines_or_a_refusal_with_counts_that_work(
    gpu: Gpu, count: int
) -> None:
    name = gpu.name
    try:
        (pool,) = parse_gpus(f"{name}:{count}").pools
    except InputError as error:
        below, above = (int(word.strip(",")) for word in str(error).split("use ")[1].split()[:3:2])
        assert below < count < above
        for fits in (below, above):
            assert parse_gpus(f"{name}:{fits}").num_gpus == fits
    else:
        assert pool.num_gpus == count
        assert pool.num_gpus % pool.gpus_per_domain == 0 or pool.gpus_per_domain > 8
