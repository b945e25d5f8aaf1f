from __future__ import annotations

import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from astrarium.catalog.price_files import (
    MOST_USD_PER_HOUR,
    parse_percent,
    read_price_file,
)
from astrarium.catalog.prices import EVERY_CLOUD, OWN_CLOUD, Offer, book_of, offers
from astrarium.errors import InputError

TODAY = date(2026, 11, 16)
SKYPILOT = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p5.48xlarge,192,2048,H100,8,{},60,20,us-east-1,us-east-1a
p5.48xlarge,192,2048,H100,8,{},60,30,us-east-1,us-east-1b
p5.48xlarge,192,2048,H100,8,{},70,,us-west-2,us-west-2a
p5.48xlarge,192,2048,H100,8,{},80,,eu-north-1,eu-north-1a
p4d.24xlarge,96,1152,A100,8,{},32,,us-east-1,us-east-1a
p3.2xlarge,8,61,V100,1,{},3.06,,us-east-1,us-east-1a
m5.large,2,8,,,,0.096,,us-east-1,us-east-1a
trn1.32xlarge,128,512,Trainium,16,{},21.5,,us-east-1,us-east-1a
dl1.24xlarge,96,768,Gaudi HL-205,8,{},13.1,,us-east-1,us-east-1a
g5.xlarge,4,16,A10G,1,{},,,us-east-1,us-east-1a
g6f.xlarge,4,16,L4,0.125,{},0.2,,us-east-1,us-east-1a
"""


def offers_in(path: Path) -> tuple[Offer, ...]:
    return read_price_file(path).offers


def file_of(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_skypilot_catalogs_are_read_as_they_lie_in_the_cache(tmp_path: Path) -> None:
    file = file_of(tmp_path, "catalogs/v8/aws/vms.csv", SKYPILOT)
    os.utime(file, (1787400000, 1787400000))
    read = read_price_file(file)
    found = {(offer.instance, offer.region): offer for offer in read.offers}
    assert set(found) == {
        ("p5.48xlarge", "us"),
        ("p5.48xlarge", "europe"),
        ("p4d.24xlarge", "us"),
        ("p3.2xlarge", "us"),
    }
    p5 = found["p5.48xlarge", "us"]
    assert (p5.cloud, p5.gpu, p5.gpus) == ("aws", "H100-SXM5-80GB", 8)
    assert (p5.usd_per_hour, p5.spot_usd_per_hour, p5.regions) == (65.0, 25.0, 2)
    assert p5.date == date.fromtimestamp(1787400000).isoformat()
    assert found["p4d.24xlarge", "us"].gpu == "A100-SXM4-40GB"
    assert found["p3.2xlarge", "us"].gpu == "V100-SXM2-16GB"
    notes = " | ".join(read.notes)
    assert "2 rows of accelerators that the catalog does not know left out (Trainium, " in notes
    assert "1 rows without a GPU left out" in notes
    assert "1 rows without a price left out" in notes
    assert "1 rows without an instance of whole GPUs left out" in notes


def test_of_several_versions_of_a_cache_the_newest_counts(tmp_path: Path) -> None:
    file_of(tmp_path, "v7/aws/vms.csv", SKYPILOT.replace(",60,", ",50,"))
    file_of(tmp_path, "v10/aws/vms.csv", SKYPILOT)
    file_of(tmp_path, "v10/nowhere/vms.csv", SKYPILOT)
    found = offers_in(tmp_path)
    assert {offer.cloud for offer in found} == {"aws", "nowhere"}
    assert {o.usd_per_hour for o in found if (o.instance, o.region) == ("p5.48xlarge", "us")} == {
        65
    }


def test_a_folder_without_catalogs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder without vms\.csv.*~/\.sky/catalogs"):
        offers_in(tmp_path)


OWN = """\
gpu,cloud,instance,gpus,usd_per_hour,usd_per_gpu_hour,spot_usd_per_gpu_hour,region,discount_percent,date
h100,aws,p5.48xlarge,8,50,,2.5,us,20,2026-10-01
a100,,,,,1.5,,,,
h200,ours,node,8,,0,,,,
"""


def test_contracts_as_a_table(tmp_path: Path) -> None:
    h100, a100, h200 = offers_in(file_of(tmp_path, "own.csv", OWN))
    source = str(tmp_path / "own.csv")
    assert h100 == Offer(
        "aws",
        "us",
        "p5.48xlarge",
        "H100-SXM5-80GB",
        8,
        40.0,
        20.0,
        "2026-10-01",
        source,
        "discount",
    )
    assert (a100.cloud, a100.region, a100.usd_per_gpu_hour) == (OWN_CLOUD, "any", 1.5)
    assert a100.marks == ("rate-card",)
    assert (h200.usd_per_hour, h200.gpus, h200.marks) == (0.0, 8, ())


def test_contracts_as_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    yaml = """\
prices:
  - {gpu: h100, cloud: aws, instance: p5.48xlarge, gpus: 8, usd_per_hour: 50, region: us,
     spot_usd_per_gpu_hour: 2.5, discount_percent: 20, date: 2026-10-01}
  - gpu: a100
    usd_per_gpu_hour: "$1.50"
  - {gpu: h200, cloud: ours, instance: node, gpus: 8, usd_per_gpu_hour: 0}
"""
    toml = """\
[[prices]]
gpu = "h100"
cloud = "aws"
instance = "p5.48xlarge"
gpus = 8
usd_per_hour = 50
spot_usd_per_gpu_hour = 2.5
region = "us"
discount_percent = 20
date = "2026-10-01"
[[prices]]
gpu = "a100"
usd_per_gpu_hour = 1.5
[[prices]]
gpu = "h200"
cloud = "ours"
instance = "node"
gpus = 8
usd_per_gpu_hour = 0
"""
    files = [
        file_of(tmp_path, name, text)
        for name, text in (("own.csv", OWN), ("own.yaml", yaml), ("own.toml", toml))
    ]
    without = [[_without_source(offer) for offer in offers_in(file)] for file in files]
    assert without[0] == without[1] == without[2]


def _without_source(offer: Offer) -> tuple[object, ...]:
    return tuple(getattr(offer, name) for name in Offer.__dataclass_fields__ if name != "source")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,usd_per_gpu_hour\nh100,-2", r"own\.csv:2: usd_per_gpu_hour: '-2': negative"),
        ("gpu,usd_per_gpu_hour\n\nh100,cheap", r"own\.csv:3: usd_per_gpu_hour: 'cheap': not a"),
        (
            "gpu,usd_per_gpu_hour\nh1000,2",
            r"own\.csv:2: gpu: unknown GPU type.*did you mean 'h100'",
        ),
        ("gpu,usd_per_gpu_hours\nh100,2", r"own\.csv:1: unknown key.*did you mean 'usd_per_gpu_"),
        ("cloud,usd_per_gpu_hour\naws,2", r"own\.csv:1: gpu is missing"),
        ("gpu,usd_per_hour\nh100,20", r"own\.csv:2: usd_per_hour is the price of a whole instance"),
        ("gpu,gpus,usd_per_hour,usd_per_gpu_hour\nh100,8,20,2", r"both given; keep one"),
        ("gpu,usd_per_gpu_hour\nh100,", r"own\.csv:2: no price; give usd_per_hour with gpus"),
        ("gpu,usd_per_gpu_hour\nh100,2e9", rf"more than \${MOST_USD_PER_HOUR:,.0f} per hour"),
        ("gpu,usd_per_gpu_hour,discount_percent\nh100,2,130", r"percentage from 0 to below 100"),
        ("gpu,usd_per_gpu_hour,date\nh100,2,soon", r"'soon': not a date; expected one such as"),
        ("gpu,gpus,usd_per_hour\nh100,1.5,2", r"own\.csv:2: gpus: '1.5'"),
        ("gpu,gpus,usd_per_hour\nh100,5000,2", r"the most is 1024"),
        ("gpu,usd_per_gpu_hour\nh100,2,3", r"3 cells under 2 columns"),
        ("gpu,usd_per_gpu_hour\n", r"a header, but no prices"),
        ("\n", r"is empty; name a file"),
        ('gpu,usd_per_gpu_hour\n"h100,2', r"is not CSV"),
    ],
)
def test_bad_tables_are_refused_with_line_and_way_out(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        offers_in(file_of(tmp_path, "own.csv", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prices:\n  - {gpu: h100, usd_per_gpu_hour: -1}",
            r"own\.yaml:2: prices\[0\]: usd_per_gpu",
        ),
        ("prices:\n  - 3", r"own\.yaml:2: prices\[0\]: expected keys such as gpu"),
        ("costs: []", r"expected a list 'prices'"),
        ("prices:\n  - {gpu: h100, usd: 1}", r"unknown key 'usd'"),
    ],
)
def test_bad_documents_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        offers_in(file_of(tmp_path, "own.yaml", text))


def test_missing_and_unknown_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        offers_in(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="unknown kind of file"):
        offers_in(file_of(tmp_path, "prices.txt", "x"))


@pytest.mark.parametrize(("text", "share"), [("30", 0.3), ("12.5 %", 0.125), ("0", 0.0)])
def test_percentages(text: str, share: float) -> None:
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["100", "-1", "nan", "much", ""])
def test_bad_percentages(text: str) -> None:
    with pytest.raises(InputError, match="expected a percentage"):
        parse_percent(text)


# Books


def test_own_prices_take_the_place_of_the_same_cloud_and_type() -> None:
    own = Offer("aws", "us", "deal", "H100-SXM5-80GB", 8, 16.0, None, "", "own.csv")
    book = book_of(TODAY, own=[own])
    assert [o for o in book.of("H100-SXM5-80GB") if o.cloud == "aws"] == [own]
    assert len(book.offers) == 1 + len(offers()) - len(offers("h100", ["aws"]))


def test_a_book_keeps_to_clouds_and_regions() -> None:
    book = book_of(TODAY, clouds=["aws", "oci"], region="Europe")
    assert {offer.cloud for offer in book.offers} == {"aws", "oci"}
    assert {offer.region for offer in book.offers} == {"europe", "any"}
    with pytest.raises(InputError, match=r"unknown region 'euorpe' \(did you mean 'europe'"):
        book_of(TODAY, region="euorpe")
    with pytest.raises(InputError, match="unknown cloud 'ours'"):
        book_of(TODAY, clouds=["ours"])


def test_own_prices_belong_to_the_market_by_their_cloud() -> None:
    ours, azure, own = (
        Offer(cloud, "any", "deal", "H100-SXM5-80GB", 8, 16.0, None, "", "own.csv")
        for cloud in ("ours", "azure", OWN_CLOUD)
    )
    every = [ours, azure, own]
    kept = book_of(TODAY, clouds=["azure"], own=every).of("H100-SXM5-80GB")
    assert set(kept) == {azure, own}
    assert book_of(TODAY, clouds=["ours"], own=every).offers == (ours, own)
    assert book_of(TODAY, clouds=[], own=every).offers == tuple(every)


@pytest.mark.parametrize("cloud", ["AWS", " Amazon ", "E C2"])
def test_clouds_of_own_prices_are_understood_as_elsewhere(cloud: str) -> None:
    own = Offer(cloud, "any", "deal", "H100-SXM5-80GB", 8, 16.0, None, "", "own.csv")
    (found,) = book_of(TODAY, clouds=["aws"], own=[own]).of("H100-SXM5-80GB")
    assert found == replace(own, cloud="aws")


def test_own_clouds_are_found_however_they_are_written(tmp_path: Path) -> None:
    own = offers_in(file_of(tmp_path, "own.csv", "gpu,cloud,usd_per_gpu_hour\nh100,My Cloud,2"))
    for name in ("My Cloud", "mycloud", "MY CLOUD"):
        (found,) = book_of(TODAY, clouds=[name], own=own).offers
        assert (found.cloud, found.usd_per_hour) == ("mycloud", 2.0)


def test_own_prices_elsewhere_leave_what_can_be_had_here() -> None:
    own = Offer("aws", "europe", "deal", "H100-SXM5-80GB", 8, 16.0, None, "", "own.csv")
    here = book_of(TODAY, clouds=["aws"], region="us", own=[own])
    assert here.offers == book_of(TODAY, clouds=["aws"], region="us").offers
    there = book_of(TODAY, clouds=["aws"], region="europe", own=[own])
    assert there.of("H100-SXM5-80GB") == (own,)


@pytest.mark.parametrize("region", ["us", "us-east-1", "US-EAST-1"])
def test_own_regions_belong_to_their_class(region: str) -> None:
    own, basement = (
        Offer("aws", word, "deal", "H100-SXM5-80GB", 8, 16.0, None, "", "own.csv")
        for word in ("us-east-1", "Basement")
    )
    book = book_of(TODAY, clouds=["aws"], region=region, own=[own, basement])
    assert book.of("H100-SXM5-80GB") == (replace(own, region="us"),)
    assert book_of(TODAY, clouds=[], region="basement", own=[own, basement]).offers == (basement,)


def test_discounts_come_off_on_demand_prices() -> None:
    own = Offer("ours", "any", "deal", "H100-SXM5-80GB", 8, 16.0, None, "", "own.csv")
    book = book_of(TODAY, own=[own], discounts={"aws": 0.5, EVERY_CLOUD: 0.1})
    before = {(o.cloud, o.region, o.instance, o.date): o for o in offers("h100")}
    for offer in book.of("H100-SXM5-80GB"):
        if offer.cloud == "ours":
            assert offer.usd_per_hour == pytest.approx(0.9 * 16.0)
            continue
        old = before[offer.cloud, offer.region, offer.instance, offer.date]
        assert offer.spot_usd_per_hour == old.spot_usd_per_hour
        if old.usd_per_hour is not None:
            share = 0.5 if offer.cloud == "aws" else 0.1
            assert offer.usd_per_hour == pytest.approx(old.usd_per_hour * (1 - share))


def test_own_prices_that_state_a_discount_have_no_other(tmp_path: Path) -> None:
    table = (
        "gpu,cloud,usd_per_gpu_hour,discount_percent\nh100,ours,2,10\na100,ours,2,\nh200,ours,2,0"
    )
    own = offers_in(file_of(tmp_path, "own.csv", table))
    for discounts in ({"Ours": 0.5}, {EVERY_CLOUD: 0.5}):
        found = book_of(TODAY, clouds=[], own=own, discounts=discounts).offers
        assert [offer.usd_per_hour for offer in found] == pytest.approx([1.8, 1.0, 2.0])


def test_discounts_that_come_off_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"nothing here is priced by gcp; prices are of aws$"):
        book_of(TODAY, clouds=["aws"], discounts={"gcp": 0.5})


def test_own_spot_prices_leave_on_demand_prices(tmp_path: Path) -> None:
    table = "gpu,cloud,region,spot_usd_per_gpu_hour\nh100,AWS,us-east-1,1.5"
    own = offers_in(file_of(tmp_path, "own.csv", table))
    book = book_of(TODAY, clouds=["aws"], own=own)
    before = {(o.region, o.instance): o for o in offers("h100", ["aws"])}
    usable = book.usable("H100-SXM5-80GB")
    assert {(o.region, o.instance) for o in usable} == set(before)
    for offer in usable:
        old = before[offer.region, offer.instance]
        spot = 1.5 * old.gpus if old.region == "us" else old.spot_usd_per_hour
        assert offer == replace(old, spot_usd_per_hour=spot)


def test_stale_offers_are_used_only_where_nothing_is_fresh() -> None:
    fresh = {o.cloud for o in book_of(TODAY).usable("H100-SXM5-80GB")}
    assert "vast" not in fresh
    assert {"aws", "gcp", "lambda"} <= fresh
    assert {o.cloud for o in book_of(TODAY, clouds=["vast"]).usable("H100-SXM5-80GB")} == {"vast"}
    later = book_of(date(2030, 1, 1)).usable("H100-SXM5-80GB")
    assert "vast" in {offer.cloud for offer in later}
