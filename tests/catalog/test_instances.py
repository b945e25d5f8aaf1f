from __future__ import annotations

import re

import pytest

from astrarium.catalog import (
    Instance,
    describe_instance,
    find_gpu,
    find_instance,
    gpus,
    instances,
    sources,
)
from astrarium.catalog.records import read_table
from astrarium.errors import InputError

each_instance = pytest.mark.parametrize("instance", read_table("instances.json"), indirect=True)


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> Instance:
    return find_instance(request.param)


def test_clouds_and_machines_of_ones_own_are_there() -> None:
    assert len(instances()) >= 90
    assert {"aws", "gcp", "azure", "oci", "lambda", "onprem"} <= {i.cloud for i in instances()}


def test_instances_of_one_type() -> None:
    found = instances("h100")
    assert {"p5.48xlarge", "a3-megagpu-8g", "Standard_ND96isr_H100_v5"} <= {i.name for i in found}
    assert {i.gpu for i in found} == {"H100-SXM5-80GB"}
    with pytest.raises(InputError, match=r"unknown GPU type 'h101'"):
        instances("h101")


@pytest.mark.parametrize("spelling", ["P5.48xlarge", " p5.48XLARGE "])
def test_case_makes_no_difference(spelling: str) -> None:
    assert find_instance(spelling).name == "p5.48xlarge"


def test_the_prefix_of_azure_may_be_left_out() -> None:
    assert find_instance("nd96isr_h100_v5").name == "Standard_ND96isr_H100_v5"
    assert find_instance("n1-standard-64+V100x8").cloud == "gcp"


def test_an_unknown_instance_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"'p5.24xlarge' \(did you mean 'p5.*catalog instances"):
        find_instance("p5.24xlarge")


def test_files_have_units_and_records_are_si() -> None:
    p5 = find_instance("p5.48xlarge")
    assert p5.gpus_per_node == 8
    assert p5.host_memory_bytes == 2048 * 2**30
    assert p5.intra_node_bandwidth == 450e9
    assert p5.inter_node_bandwidth == 400e9
    assert p5.usd_per_hour == 66.3232
    mega = find_instance("a3-megagpu-8g")
    assert mega.inter_node_bandwidth == 200e9
    assert mega.inter_node_total_bandwidth == 225e9


@each_instance
def test_figures_make_sense(instance: Instance) -> None:
    gpu = find_gpu(instance.gpu)
    assert instance.gpu == gpu.name
    assert instance.cloud
    numbers = (
        instance.gpus_per_node,
        instance.vcpus,
        instance.host_memory_bytes,
        instance.intra_node_bandwidth,
        instance.inter_node_bandwidth,
        instance.adapters,
        instance.usd_per_hour,
        instance.spot_usd_per_hour,
    )
    assert all(number > 0 for number in numbers if number is not None)
    assert (instance.intra_node_bandwidth is None) == (instance.gpus_per_node == 1)
    if instance.intra_node_bandwidth is not None:
        assert instance.intra_node_bandwidth <= gpu.link_bandwidth
    if instance.inter_node_bandwidth is not None:
        assert instance.inter_node_total_bandwidth is not None
        assert instance.inter_node_bandwidth <= instance.inter_node_total_bandwidth
    if instance.usd_per_hour is not None and instance.spot_usd_per_hour is not None:
        assert instance.spot_usd_per_hour < instance.usd_per_hour


@each_instance
def test_every_figure_has_a_source_with_a_date(instance: Instance) -> None:
    for figure in describe_instance(instance):
        assert figure.sources, figure.name
        assert set(figure.sources) <= set(sources()), figure.name
        assert re.match(r"20\d\d-\d\d-\d\d", figure.date), figure.name


def test_doubts_and_restrictions_are_shown() -> None:
    shown = {figure.name: figure for figure in describe_instance(find_instance("p3.2xlarge"))}
    assert shown["availability"].value_text == "no longer listed (2026-08)"
    assert "bursts" in shown["inter_node_gbits_per_s"].doubt
    assert "vcpus: recalled" in find_instance("p6e-gb200.36xlarge").doubts


def test_an_unpublished_network_is_not_known() -> None:
    assert find_instance("gpu_8x_v100").inter_node_bandwidth is None


def test_most_training_types_can_be_rented_somewhere() -> None:
    rented = {instance.gpu for instance in instances()}
    nvlinked = {gpu.name for gpu in gpus() if gpu.gpus_per_node == 8 and gpu.nvlink_domain == 8}
    known_without = {"P100-SXM2-16GB", "A800-SXM4-80GB", "H800-SXM5-80GB", "H20-SXM5-96GB"}
    amd_without = {"MI250X-64GB", "MI325X-256GB", "MI350X-288GB", "MI355X-288GB"}
    assert nvlinked - rented == known_without | amd_without
