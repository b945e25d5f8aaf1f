from __future__ import annotations

import re

from astrarium.catalog import Figure, Instance, describe_instance, gpus, instances, sources
from astrarium.catalog.records import join_doubts, unit_of


def test_sources_are_dated_and_titled() -> None:
    for code, source in sources().items():
        assert source.code == code
        assert source.title
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", source.date), code
        assert source.url == "" or source.url.startswith("https://"), code


def test_licences_that_ask_for_a_mention_are_mentioned() -> None:
    assert sources()["ml-engineering"].licence == "CC BY-SA 4.0"
    assert sources()["azure-docs"].licence == "CC BY 4.0"
    assert sources()["skypilot-catalog"].licence == "no licence file"


def test_every_source_is_cited() -> None:
    cited: set[str] = set()
    for records in (gpus(), instances()):
        for record in records:
            cited.update(code for codes in record.sources.values() for code in codes)
    assert cited == set(sources())


def test_units_follow_from_the_ending_of_a_key() -> None:
    assert unit_of("memory_gib").factor == 2**30
    assert unit_of("bf16_tflops").text == "TFLOP/s"
    assert unit_of("inter_node_gbits_per_s").factor == 0.125e9
    assert unit_of("link_to_peer_gbytes_per_s").factor == 1e9
    assert unit_of("gpus_per_node").text == ""


def test_figures_fall_back_on_what_holds_for_all() -> None:
    cited = {"*": ("assumed",), "vcpus": ("azure-docs",), "usd_per_hour": ("skypilot-catalog",)}
    instance = Instance(
        name="one",
        gpu="X",
        gpus_per_node=8,
        vcpus=4,
        usd_per_hour=2.5,
        price_dates=("2026-01-01", "2026-02-01"),
        sources=cited,
        doubts_by_figure={"vcpus": "counted twice"},
    )
    assert describe_instance(instance) == (
        Figure("gpu", "X", "", ("assumed",), sources()["assumed"].date, ""),
        Figure("gpus_per_node", "8", "", ("assumed",), sources()["assumed"].date, ""),
        Figure("vcpus", "4", "", ("azure-docs",), sources()["azure-docs"].date, "counted twice"),
        Figure(
            "usd_per_hour",
            "2.5",
            "USD per hour",
            ("skypilot-catalog",),
            "2026-01-01 to 2026-02-01",
            "",
        ),
    )


def test_doubts_in_one_line() -> None:
    assert join_doubts({"*": "guessed", "vcpus": "recalled"}) == "guessed; vcpus: recalled"
    assert join_doubts({}) == ""
