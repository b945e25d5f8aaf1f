"""Clusters: links between pools, and the form of the plan document."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.cluster import Cluster, Link, Pool, parse_gpus
from astrarium.cluster.types import check_cluster
from astrarium.errors import InputError

TWO = parse_gpus("h100:16,l4:8")
FAST, SLOW = (pool.name for pool in TWO.pools)


def test_default_link_is_the_slower_side() -> None:
    fast, slow = TWO.pools
    link = TWO.link_between(FAST, SLOW)
    assert link.bandwidth == slow.inter_node_bandwidth < fast.inter_node_bandwidth
    assert link.latency == slow.inter_node_latency > fast.inter_node_latency
    assert TWO.link_between(SLOW, FAST).bandwidth == link.bandwidth


def test_given_link_counts_in_both_directions() -> None:
    given = Link((FAST, SLOW), 1e9, 1e-4)
    cluster = Cluster(TWO.pools, (given,))
    assert cluster.link_between(FAST, SLOW) is given
    assert cluster.link_between(SLOW, FAST) is given


def test_unknown_pool_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"did you mean 'L4-24GB'\?.*pools: "):
        TWO.link_between(FAST, "L4-24G")


def test_document_has_units_in_its_keys_and_repeats_the_alias() -> None:
    document = parse_gpus("h100:64").to_dict()
    (pool,) = document["pools"]
    assert document["gpus"] == 64
    assert pool["gpu"] == "H100-SXM5-80GB"
    assert pool["gpu_as_given"] == "h100"
    assert pool["intra_node_bytes_per_second"] == 450e9
    assert pool["inter_node_bytes_per_second"] == 400e9
    assert pool["nodes"] == 8


@pytest.mark.parametrize("text", ["h100:64", "H100-SXM5-80GB:8", "gb200:128,t4:2", "mi300x:8"])
def test_document_reads_back_equal(text: str) -> None:
    cluster = parse_gpus(text)
    assert Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster
    if len(cluster.pools) > 1:
        names = tuple(pool.name for pool in cluster.pools[:2])
        linked = Cluster(cluster.pools, (Link((names[0], names[1]), 2e9, 3e-5),))
        assert Cluster.from_dict(json.loads(json.dumps(linked.to_dict()))) == linked


@pytest.mark.parametrize("document", [{}, {"pools": [{}], "links": []}, {"pools": 3, "links": []}])
def test_damaged_document_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Cluster.from_dict(document)


def test_fewer_nodes_are_a_pool_like_any_other() -> None:
    (pool,) = parse_gpus("gb200:144").pools
    assert pool.gpus_per_domain == 72
    assert replace(pool, nodes=4).gpus_per_domain == 16


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster(()), "at least one pool"),
        (Cluster((TWO.pools[0], TWO.pools[0])), "two pools are called"),
        (Cluster(TWO.pools, (Link((FAST, FAST), 1e9, 0.0),)), "joins a pool with itself"),
        (Cluster(TWO.pools, (Link((FAST, "x"), 1e9, 0.0),)), "no pool is called 'x'"),
        (
            Cluster(TWO.pools, (Link((FAST, SLOW), 1e9, 0.0), Link((SLOW, FAST), 1e9, 0.0))),
            "two links between",
        ),
    ],
)
def test_clusters_that_do_not_fit_together(cluster: Cluster, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_cluster(cluster)


def billed(pool: Pool, *gpus: int) -> list[int]:
    return pool.billed_gpus(np.array(gpus)).tolist()


def test_whole_nodes_are_paid_where_no_sizes_are_on_offer() -> None:
    (pool,) = parse_gpus("h100:64").pools
    assert billed(replace(pool, rented_sizes=()), 0, 1, 8, 9, 64) == [0, 8, 8, 16, 64]


def test_fewer_gpus_than_a_node_are_paid_as_the_smallest_instance_that_holds_them() -> None:
    (pool,) = parse_gpus("h100:64").pools
    pool = replace(pool, rented_sizes=(1, 4, 8))
    assert billed(pool, 1, 2, 3, 4, 5, 8, 16, 20) == [1, 4, 4, 4, 8, 8, 16, 24]
    assert billed(replace(pool, rented_sizes=(1, 2)), 1, 2, 3, 5, 8) == [1, 2, 4, 6, 8]


def test_a_part_of_a_node_is_paid_as_what_can_be_rented() -> None:
    (part,) = parse_gpus("mi355x:2").pools  # offered by eight only
    assert part.num_gpus == 2
    assert billed(part, 1, 2) == [8, 8]
    (unlisted,) = parse_gpus("h800:4").pools
    assert billed(unlisted, 4) == [8]


@given(
    node=st.sampled_from([1, 2, 4, 8]),
    sizes=st.sets(st.integers(1, 16)),
    counts=st.tuples(st.integers(0, 64), st.integers(0, 64)),
)
def test_more_gpus_are_never_paid_less(node: int, sizes: set[int], counts: tuple[int, int]) -> None:
    pool = replace(TWO.pools[0], gpus_per_node=node, rented_sizes=tuple(sorted(sizes)))
    few, many = sorted(counts)
    for_few, for_many = billed(pool, few, many)
    assert few <= for_few <= for_many
    if few <= node:  # the same in a pool that has no more than these
        small = replace(pool, nodes=1, gpus_per_node=max(few, 1))
        if sizes:
            assert billed(small, few) == [for_few]
