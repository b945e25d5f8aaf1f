from __future__ import annotations

import pytest

from astrarium.catalog import LinkFigureKind, find_gpu, link_figures, links, sources
from astrarium.catalog.links import LinkOwner, LinkScope


def test_links_are_si_per_direction() -> None:
    by_name = {link.name: link for link in links()}
    assert by_name["NVLink4"].bandwidth == 450e9
    assert by_name["NVLink4"].per is LinkOwner.GPU
    assert by_name["InfiniBand NDR 4x"].bandwidth == 50e9
    assert by_name["InfiniBand NDR 4x"].scope is LinkScope.INTER_NODE
    assert by_name["EFA v2 (p5)"].per is LinkOwner.NODE
    assert by_name["NVLink6"].doubts == "announced"


@pytest.mark.parametrize(
    ("gpu", "link"),
    [
        ("v100", "NVLink2"),
        ("a100", "NVLink3"),
        ("h100", "NVLink4"),
        ("b200", "NVLink5"),
        ("mi300x", "xGMI MI300X/MI325X"),
    ],
)
def test_gpu_types_have_the_bandwidth_of_their_link(gpu: str, link: str) -> None:
    bandwidths = {link.name: link.bandwidth for link in links()}
    assert find_gpu(gpu).link_bandwidth == bandwidths[link]


def test_names_are_unique_and_sources_known() -> None:
    for records in (links(), link_figures()):
        assert len({record.name for record in records}) == len(records) > 20
        for record in records:
            assert set(record.sources["*"]) <= set(sources()), record.name


def test_figures_are_si() -> None:
    figures = {figure.name: figure for figure in link_figures()}
    assert figures["NCCL hw latency NET Ring LL"].value == pytest.approx(2.7e-6)
    two_nodes = figures["all-reduce 8 B, 2x p5.48xlarge"]
    assert [two_nodes.value, two_nodes.upper] == pytest.approx([65e-6, 74e-6])
    assert figures["GCP cross-zone same region"].value == pytest.approx(0.01 / 1e9)
    assert figures["ND96isr_H100_v5 all-reduce floor"].value == 460e9
    assert figures["calculon A100 IB efficiency"].value == 0.9


@pytest.mark.parametrize("kind", LinkFigureKind)
def test_figures_of_one_kind(kind: LinkFigureKind) -> None:
    found = link_figures(kind)
    assert found
    assert {figure.kind for figure in found} == {kind}
    free = kind is LinkFigureKind.TRANSFER_PRICE  # inside a zone nothing is charged
    assert all(figure.value > 0 or free for figure in found)
    assert all(figure.upper is None or figure.upper > figure.value for figure in found)


def test_efficiencies_are_fractions() -> None:
    assert all(f.value < 1 for f in link_figures(LinkFigureKind.EFFICIENCY))
