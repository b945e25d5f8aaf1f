"""Link kinds and networks: every kind has constants, every figure a source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import astrarium.catalog
from astrarium.catalog import find_gpu, gpus
from astrarium.cluster.interconnect import (
    TCP_UP_TO,
    Collective,
    LinkKind,
    Network,
    default_network,
    link_kind,
    link_profile,
    network_profile,
)

DOCUMENT: dict[str, Any] = json.loads(
    (Path(astrarium.catalog.__file__).parent / "data" / "collectives.json").read_text("utf-8")
)


@pytest.mark.parametrize("kind", LinkKind)
def test_link_constants_make_sense(kind: LinkKind) -> None:
    profile = link_profile(kind)
    assert 0.1e-6 < profile.hop < 10e-6
    for operation in Collective:
        found = profile.operations[operation]
        assert 0.0 <= found.local_copy < 1.0  # else more ranks would be faster
        for line in (*found.lines, *((profile.in_switch,) if profile.in_switch else ())):
            assert 0.0 < line.efficiency <= 1.0
            assert 0.0 <= line.hop < 10e-6
            assert 1e-6 < line.overhead < 200e-6


@pytest.mark.parametrize("network", Network)
def test_network_constants_make_sense(network: Network) -> None:
    profile = network_profile(network)
    assert 1e-6 < profile.latency < 100e-6
    counts = {len(link_profile(kind).operations[o].lines) for kind in LinkKind for o in Collective}
    assert counts == {len(profile.lines)}
    assert all(0.0 < line.efficiency <= 1.0 and line.latencies >= 1.0 for line in profile.lines)


def test_every_entry_names_its_sources() -> None:
    for table in (DOCUMENT["links"], DOCUMENT["networks"]):
        for entry in table.values():
            assert entry["fitted_to"]
            assert set(entry["sources"]) <= set(DOCUMENT["sources"])
    assert all(source["title"] and source["date"] for source in DOCUMENT["sources"].values())
    entries = [*DOCUMENT["links"].values(), *DOCUMENT["networks"].values(), DOCUMENT["overlap"]]
    assert {s for entry in entries for s in entry["sources"]} == set(DOCUMENT["sources"])


@pytest.mark.parametrize(
    ("name", "gpus_per_node", "kind"),
    [
        ("h100", 8, LinkKind.NVLINK4),
        ("gb300", 4, LinkKind.NVLINK5),
        ("a100", 8, LinkKind.NVLINK3),
        ("v100", 8, LinkKind.NVLINK2),
        ("P100-SXM2-16GB", 8, LinkKind.NVLINK2),
        ("mi300x", 8, LinkKind.XGMI),
        ("t4", 4, LinkKind.PCIE),
        ("H100-PCIe-80GB", 8, LinkKind.PCIE),
        ("H100-NVL-94GB", 2, LinkKind.NVLINK4),
    ],
)
def test_link_kinds(name: str, gpus_per_node: int, kind: LinkKind) -> None:
    assert link_kind(find_gpu(name), gpus_per_node) is kind


def test_every_gpu_has_a_link_kind() -> None:
    for gpu in gpus():
        kind = link_kind(gpu, gpu.gpus_per_node)
        assert (kind is LinkKind.XGMI) <= (gpu.vendor == "AMD")


def test_default_network_follows_the_rate() -> None:
    assert default_network(TCP_UP_TO) is Network.TCP
    assert default_network(TCP_UP_TO * 1.01) is Network.INFINIBAND
