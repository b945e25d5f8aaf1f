from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from compile_prices import (
    LEAST_SHARE,
    LEAST_SPOT_SHARE,
    MOST_SHARE,
    book_text,
    compiled,
    default_offers,
    median_price,
    with_prices,
)

from astrarium.catalog import find_gpu, gpus, instances, sources
from astrarium.catalog.prices import (
    ANY_REGION,
    RATE_CARD,
    REGIONS,
    STALE_AFTER_DAYS,
    Offer,
    age_days,
    cloud_names,
    find_cloud,
    is_stale,
    offers,
    read_book,
    region_class,
    rented_sizes,
)
from astrarium.catalog.records import read_table
from astrarium.errors import InputError

LARGEST_BOOK_BYTES = 150_000
BUILT_IN_GPUS, BUILT_IN_INSTANCES = read_table("gpus.json"), read_table("instances.json")


def test_every_offer_is_complete_and_in_dollars() -> None:
    assert dict[str, object](read_table("prices.json"))["currency"] == "USD"
    assert len(offers()) > 1500
    for offer in offers():
        assert offer.gpu in BUILT_IN_GPUS
        assert offer.source in sources()
        assert date.fromisoformat(offer.date).year >= 2023
        assert offer.region in (*REGIONS, ANY_REGION)
        assert offer.gpus >= 1
        assert offer.regions >= 1
        given = [offer.usd_per_hour, offer.spot_usd_per_hour]
        assert any(price is not None for price in given)
        assert all(price > 0 for price in given if price is not None)
        if offer.usd_per_hour is not None:
            assert offer.least_usd_per_hour is not None
            assert offer.most_usd_per_hour is not None
            assert offer.least_usd_per_hour <= offer.usd_per_hour <= offer.most_usd_per_hour


def test_the_book_is_small() -> None:
    from astrarium.catalog import records

    assert (records._DATA / "prices.json").stat().st_size < LARGEST_BOOK_BYTES


def test_no_offer_is_named_twice() -> None:
    keys = [(o.cloud, o.region, o.instance, o.gpu, o.gpus, o.date) for o in offers()]
    assert len(set(keys)) == len(keys)


def test_outliers_are_left_out() -> None:
    for gpu in {offer.gpu for offer in offers()}:
        own = offers(gpu)
        usual = median_price(own)
        assert usual is not None
        for offer in own:
            if offer.usd_per_gpu_hour is not None:
                assert 0.9 * LEAST_SHARE * usual < offer.usd_per_gpu_hour < 1.1 * MOST_SHARE * usual
            if offer.spot_usd_per_gpu_hour is not None:
                assert offer.spot_usd_per_gpu_hour > 0.9 * LEAST_SPOT_SHARE * usual


def test_stale_prices_stay_only_where_a_cloud_has_no_newer_one() -> None:
    stale = [offer for offer in offers() if "stale" in offer.marks]
    assert {"vast", "ovhcloud"} <= {offer.cloud for offer in stale}
    fresh = {(o.cloud, o.gpu, o.gpus) for o in offers() if "stale" not in o.marks}
    assert not {(o.cloud, o.gpu, o.gpus) for o in stale} & fresh
    assert all(offer.date < "2025-11-10" for offer in stale)


@pytest.mark.parametrize("name", BUILT_IN_GPUS)
def test_default_prices_of_types_are_medians_of_the_book(name: str) -> None:
    gpu, own = find_gpu(name), offers(name)
    assert gpu.rented_sizes == rented_sizes(own)
    newest = date.fromisoformat(max(offer.date for offer in offers()))
    chosen = default_offers(own, gpu.gpus_per_node, newest)
    assert gpu.usd_per_gpu_hour == median_price(chosen)
    assert gpu.spot_usd_per_gpu_hour == median_price(chosen, spot=True)
    days = [offer.date for offer in chosen]
    assert gpu.price_dates == ((min(days), max(days)) if own else None)
    if not own:
        return
    assert BUILT_IN_GPUS[name]["price_clouds"] == len({offer.cloud for offer in chosen})
    stale = [offer for offer in own if is_stale(offer.date, newest)]
    assert gpu.price_offers_left_out == (0 if len(stale) == len(own) else len(stale))
    assert len(stale) == len(own) or not set(stale) & set(chosen)
    if gpu.price_good_for is None:
        assert all(o.gpus >= gpu.gpus_per_node or RATE_CARD in o.marks for o in chosen)
    else:
        assert gpu.price_good_for == max(offer.gpus for offer in chosen) < gpu.gpus_per_node


def test_prices_of_instances_are_medians_of_the_book() -> None:
    compared = 0
    for instance in instances():
        own = [offer for offer in offers() if offer.instance == instance.name]
        for price, spot in ((instance.usd_per_hour, False), (instance.spot_usd_per_hour, True)):
            per_gpu = median_price(own, spot=spot)
            if per_gpu is not None:
                assert price == pytest.approx(per_gpu * instance.gpus_per_node, rel=1e-5)
                compared += 1
    assert compared > 100


def test_offers_are_found_by_alias_and_cloud() -> None:
    h100 = offers("h100", ["AWS", "google"])
    assert {offer.cloud for offer in h100} == {"aws", "gcp"}
    assert {offer.gpu for offer in h100} == {"H100-SXM5-80GB"}
    p5 = next(o for o in h100 if o.instance == "p5.48xlarge" and o.region == "us")
    assert (p5.gpus, p5.usd_per_hour, p5.date) == (8, 55.04, "2026-08-22")
    assert p5.usd_per_gpu_hour == pytest.approx(6.88)
    assert offers("h800") == ()


@pytest.mark.parametrize(
    ("name", "cloud"), [("AWS", "aws"), ("Google Cloud", "gcp"), ("oracle", "oci"), (" do ", "do")]
)
def test_clouds_have_the_names_people_use(name: str, cloud: str) -> None:
    assert find_cloud(name) == cloud
    assert cloud in cloud_names()


def test_an_unknown_cloud_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"unknown cloud 'azur' \(did you mean 'azure'\?\)"):
        find_cloud("azur")
    assert find_cloud("Ours", known=["ours"]) == "ours"


def test_a_price_is_stale_after_half_a_year() -> None:
    today = date(2026, 11, 16)
    assert age_days("2026-11-09", today) == 7
    assert age_days("", today) is None
    assert STALE_AFTER_DAYS == 180
    assert not is_stale("2026-05-20", today)
    assert is_stale("2026-05-19", today)
    assert not is_stale("", today)


def test_an_offer_without_region_is_to_be_had_everywhere() -> None:
    offer = Offer("c", "any", "i", "H100-SXM5-80GB", 8, 10.0, None, "2026-01-01", "s")
    assert offer.is_in("us")
    assert offer.is_in(None)
    assert not Offer("c", "asia", "i", "g", 8, 10.0, None, "", "s").is_in("us")


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("us-east-1", "us"),
        ("ca-central-1", "other"),
        ("northamerica-northeast1", "other"),
        ("Georgia, US, NA", "us"),
        ("Czechia, CZ, EU", "europe"),
        ("(any)", "any"),
        ("ap-southeast-1", "asia"),
        ("ap-southeast-2", "other"),
        ("NO", "europe"),
        ("IN", "asia"),
    ],
)
def test_regions_have_a_class(region: str, expected: str) -> None:
    assert region_class(region) == expected


def test_gpus_without_an_offer_have_no_default_price() -> None:
    unpriced = [gpu for gpu in gpus() if gpu.usd_per_gpu_hour is None]
    assert {gpu.name for gpu in unpriced} >= {"H800-SXM5-80GB", "A800-SXM4-80GB"}
    assert all(not offers(gpu.name) for gpu in unpriced)


TABLE = """\
cloud,region,instance_type,gpu,gpu_count,on_demand_usd_per_hour,spot_usd_per_hour,spot_zone_median,\
catalog_date,source,currency,note
a,us-1,big,H100-SXM5-80GB,8,32,8,10,2026-08-01,skypilot-catalog v8,USD,
a,us-2,big,H100-SXM5-80GB,8,40,,,2026-08-01,skypilot-catalog v8,USD,
a,eu-1,big,H100-SXM5-80GB,8,48,,,2026-08-01,skypilot-catalog v8,USD,broker over other clouds
a,us-1,old,H100-SXM5-80GB,8,16,,,2024-08-01,skypilot-catalog v8,USD,
b,us-1,bid,H100-SXM5-80GB,1,,0.01,,2026-08-01,skypilot-catalog v8,USD,auction
b,us-1,slip,H100-SXM5-80GB,1,0.2,,,2026-08-01,skypilot-catalog v8,USD,
b,us-1,old,H100-SXM5-80GB,4,20,,,2024-08-01,skypilot-catalog v8,USD,
c,it-1,euro,H100-SXM5-80GB,8,32,,,2026-08-01,skypilot-catalog v8,EUR,
"""


def test_a_table_is_compiled_into_medians(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(TABLE, encoding="utf-8")
    made, left_out = compiled(file)
    found = {(o.cloud, o.region, o.instance): o for o in made}
    assert set(found) == {("a", "us", "big"), ("a", "europe", "big"), ("b", "us", "old")}
    big = found["a", "us", "big"]
    assert (big.usd_per_hour, big.spot_usd_per_hour, big.regions) == (36.0, 10.0, 2)
    assert (big.least_usd_per_hour, big.most_usd_per_hour) == (32.0, 40.0)
    assert found["a", "europe", "big"].marks == ("broker",)
    assert found["b", "us", "old"].marks == ("stale",)
    assert left_out == {
        "not in USD": 1,
        "outlier on demand": 1,
        "outlier spot": 1,
        "stale, a newer one is there": 1,
    }


def test_the_book_reads_back_as_it_was_compiled() -> None:
    table = json.loads(book_text(offers(), {}))
    assert tuple(read_book(table)) == offers()


def test_other_figures_of_a_data_file_stay() -> None:
    text = '{\n  "G": {\n    "x": 1, "usd_per_gpu_hour": 2, "price_dates": ["a", "b"],\n'
    text += '    "sources": {"*": ["s"], "usd_per_gpu_hour": ["s"]}\n  }\n}\n'
    renewed = with_prices(text, {"G": {"usd_per_gpu_hour": (3.5, ["t"])}, "H": {}})
    expected = json.loads(text)["G"] | {"usd_per_gpu_hour": 3.5}
    expected["sources"]["usd_per_gpu_hour"] = ["t"]
    assert json.loads(renewed)["G"] == expected
