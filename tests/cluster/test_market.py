"""Pools at the prices of a book."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.catalog import find_gpu, find_instance, gpus
from astrarium.catalog.prices import Book, Offer, book_of
from astrarium.cluster import Cluster, Network, Pool, load_cluster, parse_gpus
from astrarium.cluster.market import (
    Power,
    market_pools,
    priced,
    refused_notes,
    stale_notes,
    unpriced_notes,
    with_discount,
    with_power,
    with_prices,
    without_unpriced,
)
from astrarium.errors import InputError

TODAY = date(2026, 11, 16)
H100 = "H100-SXM5-80GB"


def offer(cloud: str, gpus: int, usd: float | None, **figures: object) -> Offer:
    made = Offer(cloud, "us", f"{cloud}-{gpus}", H100, gpus, usd, None, "2026-11-01", "own.csv")
    return replace(made, **figures)  # type: ignore[arg-type]


def test_a_pool_is_priced_by_the_cheapest_whole_node() -> None:
    book = Book((offer("a", 1, 1.0), offer("a", 8, 20.0), offer("b", 8, 18.0)), TODAY)
    (pool,) = priced(parse_gpus("h100:16"), book).pools
    assert (pool.cloud, pool.instance, pool.region) == ("b", "b-8", "us")
    assert pool.usd_per_gpu_hour == pytest.approx(2.25)
    assert (pool.price_date, pool.price_origin) == ("2026-11-01", "own.csv")
    assert pool.rented_sizes == (8,)
    assert pool.requested == "h100"


def test_sizes_are_those_whose_gpus_cost_no_more() -> None:
    book = Book((offer("a", 8, 20.0), offer("a", 4, 10.1), offer("a", 2, 5.5)), TODAY)
    (pool,) = priced(parse_gpus("h100:16"), book).pools
    assert pool.rented_sizes == (4, 8)


def test_a_part_of_a_node_is_rented_as_the_instance_that_costs_least() -> None:
    book = Book((offer("a", 8, 16.0), offer("b", 2, 6.0)), TODAY)
    (pool,) = priced(parse_gpus("h100:2"), book).pools
    assert (pool.instance, pool.usd_per_gpu_hour) == ("b-2", 3.0)
    (pool,) = priced(parse_gpus("h100:2"), Book((offer("a", 8, 16.0),), TODAY)).pools
    assert (pool.usd_per_gpu_hour, pool.rented_sizes) == (2.0, (8,))


def test_smaller_instances_are_no_price_of_nodes() -> None:
    book = Book((offer("a", 4, 12.0),), TODAY)
    cluster = priced(parse_gpus("h100:16"), book)
    assert cluster.pools[0].usd_per_gpu_hour is None
    assert unpriced_notes(cluster, book) == (
        "a rents H100-SXM5-80GB in instances of at most 4 GPUs, which are no price of nodes of 8;"
        " --price h100=USD sets one",
    )
    assert priced(parse_gpus("h100:4"), book).pools[0].usd_per_gpu_hour == 3.0


def test_a_price_comes_with_the_network_of_its_offer() -> None:
    """What is known of lambda's eight H100 says nothing about the network between such nodes."""
    book = book_of(TODAY, clouds=["lambda"])
    several, one = (priced(parse_gpus(f"h100:{count}"), book) for count in (64, 8))
    assert several.pools[0].usd_per_gpu_hour is None
    assert "network between instances that lambda rents" in unpriced_notes(several, book)[0]
    assert one.pools[0].cloud == "lambda"
    (pool,) = priced(parse_gpus("h100:64"), book_of(TODAY, clouds=["lambda", "aws"])).pools
    assert (pool.cloud, pool.network) == ("aws", Network.EFA)


@pytest.mark.parametrize(
    ("gpus", "usd"), [("gh200:1", 2.29), ("gh200:4", None), ("gh200:64", None)]
)
def test_the_price_of_one_gpu_is_not_that_of_a_supercomputers_nodes(
    gpus: str, usd: float | None
) -> None:
    cluster = parse_gpus(gpus)
    assert cluster.pools[0].usd_per_gpu_hour == usd
    notes = refused_notes(cluster)
    assert bool(notes) is (usd is None)
    assert all("GH200-96GB in instances of at most 1 GPU" in note for note in notes)
    assert refused_notes(parse_gpus("a800:8")) == ()  # nobody rents it out


def test_what_is_cheapest_may_be_said() -> None:
    spot = offer("a", 8, 20.0, spot_usd_per_hour=4.0)
    book = Book((spot, offer("b", 8, 10.0)), TODAY)
    (usual,) = priced(parse_gpus("h100:8"), book).pools
    (taken,) = priced(
        parse_gpus("h100:8"), book, lambda pool: (pool.spot_usd_per_gpu_hour or 9.0,)
    ).pools
    assert (usual.cloud, taken.cloud) == ("b", "a")


def test_rates_per_gpu_are_good_for_whole_nodes() -> None:
    book = Book((offer("a", 1, 2.0, note="rate-card"), offer("b", 8, 20.0)), TODAY)
    (pool,) = priced(parse_gpus("h100:16"), book).pools
    assert (pool.cloud, pool.usd_per_gpu_hour) == ("a", 2.0)
    assert pool.rented_sizes == parse_gpus("h100:16").pools[0].rented_sizes


def test_rates_per_gpu_are_billed_like_the_default() -> None:
    card = offer("a", 1, 2.0, note="rate-card")
    (pool,) = priced(parse_gpus("h100:2"), Book((card, offer("a", 8, 15.0)), TODAY)).pools
    assert (pool.usd_per_gpu_hour, pool.billed_gpus(np.array([1, 2])).tolist()) == (2.0, [1, 2])
    # Clouds rent this type out by eights only, so that a rate for one GPU is paid eight times.
    eights = next(g for g in gpus() if g.rented_sizes == (8,))
    card = replace(card, gpu=eights.name, usd_per_hour=1.5)
    four = replace(offer("b", 4, 7.0), gpu=eights.name)
    (pool,) = priced(parse_gpus(f"{eights.name}:2"), Book((card, four), TODAY)).pools
    assert (pool.cloud, pool.rented_sizes) == ("b", (4,))


def test_links_are_those_of_the_instance() -> None:
    book = book_of(TODAY, clouds=["gcp"], region="us")
    (pool,) = priced(parse_gpus("h100:16"), book).pools
    instance = find_instance(pool.instance)
    assert pool.inter_node_bandwidth == instance.inter_node_bandwidth == 100e9
    assert pool.network is Network.TCPXO
    (default,) = parse_gpus("h100:16").pools
    assert default.inter_node_bandwidth == 400e9


def test_what_the_market_does_not_have_has_no_price() -> None:
    both = priced(parse_gpus("h100:8,mi300x:8"), book_of(TODAY, clouds=["aws"]))
    assert [pool.usd_per_gpu_hour is None for pool in both.pools] == [False, True]
    kept, notes = without_unpriced(both)
    assert [pool.gpu.name for pool in kept.pools] == [H100]
    assert notes == ("no price is known for MI300X-192GB; --price mi300x=USD sets one: left out",)
    nothing = priced(parse_gpus("mi300x:8"), book_of(TODAY, clouds=["aws"]))
    assert without_unpriced(nothing) == (nothing, ())
    assert "--price mi300x=USD" in unpriced_notes(nothing)[0]


def test_stated_prices_win() -> None:
    cluster = with_prices(parse_gpus("h100:8,a100:8"), {H100: 2.5})
    assert cluster.pools[0].usd_per_gpu_hour == 2.5
    assert cluster.pools[0].price_origin == "--price"
    assert cluster.pools[1] == parse_gpus("a100:8").pools[0]
    with pytest.raises(InputError, match=r"T4-16GB is none of the GPUs asked about"):
        with_prices(cluster, {"T4-16GB": 1.0})


def test_prices_and_machines_of_a_cluster_file_stay(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "pools:\n"
        "  - {name: a, gpu: h100, nodes: 2, gpus_per_node: 4, usd_per_gpu_hour: 1.0}\n"
        "  - {name: b, gpu: h100, nodes: 2, gpus_per_node: 4, inter_node: 100 Gb/s}\n"
    )
    a, b = priced(load_cluster(file), book_of(TODAY, clouds=["aws"], region="us")).pools
    assert (a.usd_per_gpu_hour, a.cloud) == (1.0, "")
    assert b.usd_per_gpu_hour == pytest.approx(6.88)
    assert (b.cloud, b.rented_sizes) == ("aws", ())
    assert b.inter_node_bandwidth == 12.5e9


def test_discounts_and_power() -> None:
    (pool,) = with_discount(parse_gpus("h100:8"), 0.25).pools
    default = find_gpu("h100").usd_per_gpu_hour
    assert default is not None
    assert pool.usd_per_gpu_hour == pytest.approx(0.75 * default)
    owned = with_prices(parse_gpus("h100:8,a100:8"), {H100: 0.0})
    hot, rented = with_power(owned, Power(0.2, 0.5)).pools
    assert hot.usd_per_gpu_hour == pytest.approx(0.7 * 0.5 * 0.2)
    assert hot.billed_gpus(np.array([3, 8])).tolist() == [3, 8], "power is drawn by what is used"
    assert rented == owned.pools[1]
    with pytest.raises(InputError, match=r"owned machines.*--price h100=0 owns them"):
        with_power(parse_gpus("h100:8"), Power(0.2, 1.0))


def test_stale_prices_are_named_with_their_date() -> None:
    vast = priced(parse_gpus("h100:8"), book_of(TODAY, clouds=["vast"]))
    (note,) = stale_notes(vast, TODAY)
    assert "H100-SXM5-80GB at vast is stale: of 2025-10-27, 385 days old" in note
    (default,) = stale_notes(parse_gpus("k80:4"), TODAY)
    assert "K80-12GB is stale: of 2024-08-19" in default
    assert stale_notes(parse_gpus("h100:8"), TODAY) == ()
    assert stale_notes(with_prices(parse_gpus("k80:8"), {"K80-12GB": 1.0}), TODAY) == ()


def test_a_market_has_a_pool_for_every_cloud_and_type() -> None:
    pools = market_pools(book_of(TODAY, clouds=["aws", "lambda"], region="us"), 64)
    names = [pool.name for pool in pools]
    assert len(set(names)) == len(names)
    assert {"H100-SXM5-80GB@aws", "H100-SXM5-80GB@lambda", "B200-SXM6-180GB@aws"} <= set(names)
    aws = pools[names.index("H100-SXM5-80GB@aws")]
    assert (aws.instance, aws.nodes, aws.gpus_per_node) == ("p5.48xlarge", 8, 8)
    assert aws.rented_sizes == (1, 8)
    assert aws.network is Network.EFA
    alone = pools[names.index("H100-SXM5-80GB@lambda")]
    assert alone.nodes == 1, "nothing is known about the network between them"
    assert Cluster(pools).num_gpus > 64
    with pytest.raises(InputError, match="no offer with an on-demand price"):
        market_pools(book_of(TODAY, clouds=["mithril"]), 64)


@given(st.sampled_from(["aws", "gcp", "azure", "oci", "nebius", "runpod", "lambda"]), st.data())
def test_another_offer_never_makes_a_node_dearer(cloud: str, data: st.DataObject) -> None:
    book = book_of(TODAY, clouds=["coreweave", cloud], region="us")
    few = Book(tuple(o for o in book.offers if o.cloud == "coreweave"), TODAY)
    count = data.draw(st.sampled_from([8, 16]))
    (before,), (after,) = (priced(parse_gpus(f"h100:{count}"), each).pools for each in (few, book))
    assert before.usd_per_gpu_hour is not None
    assert after.usd_per_gpu_hour is not None
    assert after.usd_per_gpu_hour <= before.usd_per_gpu_hour


def test_of_many_stale_prices_the_oldest_is_named() -> None:
    days = ("2026-01-01", "2024-05-05", "2026-02-01", "2026-01-03", "2026-01-04")
    pools = tuple(
        replace(pool_at(f"cloud{i}"), price_date=day, cloud=f"cloud{i}")
        for i, day in enumerate(days)
    )
    (note,) = stale_notes(Cluster(pools), TODAY)
    assert note.startswith("5 of 5 prices are stale; the price of H100-SXM5-80GB at cloud1")
    assert "2024-05-05" in note
    assert len(stale_notes(Cluster(pools[:4]), TODAY)) == 4


def pool_at(name: str) -> Pool:
    return replace(parse_gpus("h100:8").pools[0], name=name)
