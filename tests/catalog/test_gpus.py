from __future__ import annotations

import pickle
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.catalog import Dtype, Gpu, describe_gpu, find_gpu, find_instance, gpus, sources
from astrarium.catalog.gpus import gpu_key
from astrarium.catalog.records import read_table, to_records
from astrarium.errors import InputError

REQUIRED = [
    "V100-SXM2-16GB",
    "V100-SXM2-32GB",
    "T4-16GB",
    "A100-SXM4-40GB",
    "A100-SXM4-80GB",
    "A800-SXM4-80GB",
    "A10G-24GB",
    "L4-24GB",
    "L40S-48GB",
    "RTX-3090-24GB",
    "RTX-4090-24GB",
    "RTX-5090-32GB",
    "H100-SXM5-80GB",
    "H800-SXM5-80GB",
    "H200-SXM5-141GB",
    "GH200-96GB",
    "B200-SXM6-180GB",
    "B300-SXM6-288GB",
    "GB200-NVL72-186GB",
    "GB300-NVL72-288GB",
    "MI300X-192GB",
    "MI325X-256GB",
    "MI355X-288GB",
]

DATE = re.compile(r"20\d\d-\d\d-\d\d")

BUILT_IN = read_table("gpus.json")

each_gpu = pytest.mark.parametrize("gpu", BUILT_IN, indirect=True)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return find_gpu(request.param)


def test_the_catalog_holds_the_types_that_people_train_on() -> None:
    names = [gpu.name for gpu in gpus()]
    assert len(names) >= 45
    assert set(REQUIRED) <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("H100 SXM", "H100-SXM5-80GB"),
        ("h100_80gb", "H100-SXM5-80GB"),
        ("a100", "A100-SXM4-80GB"),
        ("a100-80g", "A100-SXM4-80GB"),
        ("A100-80GiB", "A100-SXM4-80GB"),
        ("a100-40g", "A100-SXM4-40GB"),
        ("v100", "V100-SXM2-32GB"),
        ("v100-16g", "V100-SXM2-16GB"),
        ("l40s", "L40S-48GB"),
        ("b200", "B200-SXM6-180GB"),
        ("b300", "B300-SXM6-288GB"),
        ("gb200", "GB200-NVL72-186GB"),
        ("gb300", "GB300-NVL72-288GB"),
        ("h200", "H200-SXM5-141GB"),
        ("mi300x", "MI300X-192GB"),
        ("t4", "T4-16GB"),
        ("l4", "L4-24GB"),
        ("a10g", "A10G-24GB"),
        ("4090", "RTX-4090-24GB"),
        ("rtx4090", "RTX-4090-24GB"),
        ("3090", "RTX-3090-24GB"),
    ],
)
def test_aliases_mean_what_the_design_says(alias: str, name: str) -> None:
    assert find_gpu(alias).name == name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla T4", "T4-16GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada-48GB"),
        ("Quadro RTX 6000", "Quadro-RTX-6000-24GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
    ],
)
def test_names_that_drivers_report_are_understood(reported: str, name: str) -> None:
    assert find_gpu(reported).name == name


def test_no_label_has_two_meanings() -> None:
    meanings = Counter(
        (key, gpu.name) for gpu in gpus() for key in {gpu_key(n) for n in (gpu.name, *gpu.aliases)}
    )
    owners = Counter(key for key, _ in meanings)
    assert [key for key, count in owners.items() if count > 1] == []


def test_aliases_are_lower_case_and_say_something_new() -> None:
    for gpu in gpus():
        keys = [gpu_key(label) for label in (gpu.name, *gpu.aliases)]
        assert all(alias == alias.lower() for alias in gpu.aliases), gpu.name
        assert len(set(keys)) == len(keys), f"{gpu.name}: two aliases read the same"


@pytest.mark.parametrize("ambiguous", ["rtx6000", "rtx-6000"])
def test_a_name_that_vendors_use_for_several_cards_is_refused(ambiguous: str) -> None:
    with pytest.raises(InputError, match="unknown GPU type"):
        find_gpu(ambiguous)


def test_an_unknown_type_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"'h1000' \(did you mean 'h100'\?\).*catalog gpus"):
        find_gpu("h1000")
    with pytest.raises(InputError, match="unknown GPU type ''"):
        find_gpu("")


LABELS = [label for record in to_records(BUILT_IN).values() for label in record.labels]


@given(st.sampled_from(LABELS), st.data())
def test_spelling_makes_no_difference(label: str, data: st.DataObject) -> None:
    separators = st.sampled_from(["-", "_", " ", "", "--"])
    spelt = "".join(data.draw(separators) if char == "-" else char for char in label)
    spelt = data.draw(st.sampled_from([spelt, spelt.upper(), spelt.lower(), f" {spelt} "]))
    assert find_gpu(spelt) == find_gpu(label)


@each_gpu
def test_figures_are_positive(gpu: Gpu) -> None:
    figures = [
        gpu.memory_bytes,
        gpu.memory_bandwidth,
        gpu.tdp_watts,
        gpu.link_bandwidth,
        gpu.link_bandwidth_to_peer,
        gpu.pcie_bandwidth,
        gpu.gpus_per_node,
        gpu.nvlink_domain,
        gpu.inter_node_bandwidth,
        *gpu.peak_flops.values(),
        *gpu.measured_matmul_flops.values(),
        *(p for p in (gpu.usd_per_gpu_hour, gpu.spot_usd_per_gpu_hour) if p is not None),
    ]
    assert gpu.peak_flops
    assert all(figure > 0 for figure in figures)


@each_gpu
def test_every_figure_has_a_source_with_a_date(gpu: Gpu) -> None:
    figures = describe_gpu(gpu)
    assert {"memory_gib", "inter_node_gbits_per_s", "gpus_per_node"} <= {f.name for f in figures}
    for figure in figures:
        assert figure.sources, figure.name
        assert set(figure.sources) <= set(sources()), figure.name
        assert DATE.match(figure.date), figure.name
    if gpu.usd_per_gpu_hour is not None:
        assert gpu.price_dates is not None
        assert gpu.price_dates[0] <= gpu.price_dates[1]


@each_gpu
def test_figures_agree_with_physics(gpu: Gpu) -> None:
    peaks = gpu.peak_flops
    narrower = [peaks[dtype] for dtype in Dtype if dtype in peaks and dtype is not Dtype.FP16]
    assert narrower == sorted(narrower), "a narrower format is never slower"
    if Dtype.BF16 in peaks:
        assert peaks[Dtype.FP16] == peaks[Dtype.BF16]
    if Dtype.FP8 in peaks:
        assert peaks[Dtype.FP8] == pytest.approx(2 * peaks[Dtype.BF16], rel=0.02)
    for dtype, reached in gpu.measured_matmul_flops.items():
        assert 0.4 * peaks[dtype] < reached < peaks[dtype]
    assert gpu.link_bandwidth_to_peer <= gpu.link_bandwidth
    assert gpu.link_bandwidth >= gpu.pcie_bandwidth
    assert (gpu.nvlink_domain > 1) == (gpu.link_bandwidth > gpu.pcie_bandwidth)
    marketed_gb = float(re.findall(r"(\d+)GB", gpu.name)[-1])
    assert 0.85 * marketed_gb < gpu.memory_bytes / 2**30 <= marketed_gb


@each_gpu
def test_nodes_and_link_domains_nest(gpu: Gpu) -> None:
    small, large = sorted((gpu.gpus_per_node, gpu.nvlink_domain))
    assert large % small == 0


@each_gpu
def test_spot_is_cheaper_than_on_demand(gpu: Gpu) -> None:
    if gpu.spot_usd_per_gpu_hour is not None:
        assert gpu.usd_per_gpu_hour is not None
        assert gpu.spot_usd_per_gpu_hour < gpu.usd_per_gpu_hour


@each_gpu
def test_the_default_network_is_that_of_the_named_instance_or_marked_assumed(gpu: Gpu) -> None:
    if gpu.inter_node_instance:
        instance = find_instance(gpu.inter_node_instance)
        assert instance.gpu == gpu.name
        assert instance.gpus_per_node == gpu.gpus_per_node
        assert instance.inter_node_bandwidth == gpu.inter_node_bandwidth
    else:
        assert gpu.sources["inter_node_gbits_per_s"] == ("assumed",)
        assert gpu.doubts_by_figure["inter_node_gbits_per_s"].startswith("assumed")


def test_files_have_units_and_records_are_si() -> None:
    h100 = find_gpu("h100")
    assert h100.memory_bytes == round(79.2 * 2**30)
    assert h100.memory_bandwidth == 3350e9
    assert h100.peak_flops["bf16"] == pytest.approx(989.4e12)
    assert h100.measured_matmul_flops["bf16"] == pytest.approx(794.5e12)
    assert h100.link_bandwidth == 450e9
    assert h100.inter_node_bandwidth == 400e9  # 3200 Gb/s per node
    assert h100.usd_per_gpu_hour == 3.99
    assert (h100.gpus_per_node, h100.nvlink_domain) == (8, 8)


def test_a_rack_is_one_link_domain() -> None:
    for name in ("gb200", "gb300"):
        gpu = find_gpu(name)
        assert (gpu.gpus_per_node, gpu.nvlink_domain) == (4, 72)


def test_formats_that_a_type_lacks_are_absent() -> None:
    assert set(find_gpu("v100").peak_flops) == {"fp32", "fp16"}
    assert "fp8" not in find_gpu("a100").peak_flops
    assert set(find_gpu("b200").peak_flops) == set(Dtype)


def test_doubtful_figures_keep_their_mark() -> None:
    a10g = find_gpu("a10g")
    shown = {figure.name: figure for figure in describe_gpu(a10g)}
    assert "125" in shown["bf16_tflops"].doubt
    assert shown["memory_gib"].doubt == ""
    assert "bf16_tflops: " in a10g.doubts
    assert find_gpu("t4g").doubts == "assumed equal to T4"


def test_a_figure_is_shown_as_it_stands_in_the_file() -> None:
    shown = {figure.name: figure for figure in describe_gpu(find_gpu("b300"))}
    assert (shown["memory_gib"].value_text, shown["memory_gib"].unit) == ("267.69", "GiB")
    assert (shown["fp4_tflops"].value_text, shown["fp4_tflops"].unit) == ("13125", "TFLOP/s")
    assert (shown["inter_node_gbits_per_s"].value_text) == "6400"
    assert shown["measured_bf16_matmul_tflops"].sources == ("ml-engineering",)
    assert shown["usd_per_gpu_hour"].date == "2026-07-22 to 2026-08-26"
    assert (shown["release_year"].value_text, shown["release_year"].unit) == ("2025", "")


def test_unknown_figures_are_not_shown() -> None:
    assert find_gpu("h800").usd_per_gpu_hour is None
    names = {figure.name for figure in describe_gpu(find_gpu("h800"))}
    assert not names & {"usd_per_gpu_hour", "inter_node_instance", "measured_bf16_matmul_tflops"}


def test_records_can_be_keys_and_travel_between_processes() -> None:
    gpu = find_gpu("a100")
    assert {gpu: 1}[find_gpu("A100-80GB")] == 1
    assert pickle.loads(pickle.dumps(gpu)) == gpu


def test_a_core_is_found_but_not_listed() -> None:
    core, half = find_gpu("cpu"), find_gpu("CPU-core@50%")
    assert core.is_processor
    assert core.name not in {gpu.name for gpu in gpus()}
    assert (half.share, half.whole_name) == (0.5, core.name)
    assert half.link_bandwidth == core.link_bandwidth / 2
    assert find_gpu(half.name) == half


@pytest.mark.parametrize("share", ["0", "101", "1.2.3"])
def test_a_share_is_a_part(share: str) -> None:
    with pytest.raises(InputError, match="above 0 and at most 100"):
        find_gpu(f"cpu@{share}%")


def test_a_module_of_two_devices_is_two_devices() -> None:
    mi250x, mi210 = find_gpu("mi250x"), find_gpu("mi210")
    assert mi250x.gpus_per_node == 8
    assert mi250x.memory_bytes == pytest.approx(64 * 2**30, rel=0.001)
    assert mi250x.peak_flops["bf16"] == pytest.approx(mi210.peak_flops["bf16"], rel=0.06)
    assert mi250x.memory_bandwidth == pytest.approx(mi210.memory_bandwidth, rel=0.01)


@each_gpu
def test_compute_capability_belongs_to_nvidia(gpu: Gpu) -> None:
    assert (gpu.compute_capability > 0) == (gpu.vendor == "NVIDIA")
