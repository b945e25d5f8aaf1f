from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from astrarium.catalog import (
    describe_gpu,
    describe_instance,
    find_gpu,
    find_instance,
    gpus,
    instances,
    overrides,
    records,
)
from astrarium.catalog.schema import GpuEntry, InstanceEntry
from astrarium.errors import InputError

NEW_GPU = """
[gpus.X1]
aliases = ["x-one"]
vendor = "Acme"
memory_gib = 64
memory_bandwidth_gbytes_per_s = 2000
fp16_tflops = 400
bf16_tflops = 400
tdp_watts = 500
link_gbytes_per_s = 100
pcie_gbytes_per_s = 31.5
gpus_per_node = 4
inter_node_gbits_per_s = 200
release_year = 2027
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def config(project: Path) -> Path:
    return project.parent / "config" / "astrarium"


def test_without_files_nothing_is_overridden() -> None:
    assert overrides.stamps() == ()
    assert all(overrides.entries(section) == () for section in overrides.Section)


def test_a_new_type_is_added(project: Path) -> None:
    count = len(gpus())
    file = write(project / "astrarium.toml", NEW_GPU)
    gpu = find_gpu("X-One")
    assert len(gpus()) == count + 1
    assert gpu.name == "X1"
    assert gpu.memory_bytes == 64 * 2**30
    assert gpu.inter_node_bandwidth == 25e9
    assert gpu.link_bandwidth_to_peer == gpu.link_bandwidth == 100e9
    assert gpu.nvlink_domain == 4
    assert gpu.peak_flops == {"fp16": 400e12, "bf16": 400e12}
    assert gpu.usd_per_gpu_hour is None
    assert {figure.sources for figure in describe_gpu(gpu)} == {(str(file),)}
    assert {figure.date for figure in describe_gpu(gpu)} == {""}


def test_a_new_type_like_another_copies_the_rest(project: Path) -> None:
    file = write(
        project / "astrarium.yaml",
        "gpus:\n  H100-capped: {like: h100, tdp_watts: 500, aliases: [capped]}\n",
    )
    capped, h100 = find_gpu("capped"), find_gpu("h100")
    assert capped.tdp_watts == 500
    assert capped.peak_flops == h100.peak_flops
    assert capped.aliases == ("capped",)
    shown = {figure.name: figure for figure in describe_gpu(capped)}
    assert shown["tdp_watts"].sources == (str(file),)
    assert shown["memory_gib"].sources == h100.sources["memory_gib"]
    assert h100.tdp_watts == 700


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "h100", "H100 SXM"])
def test_figures_of_a_known_type_are_replaced(project: Path, name: str) -> None:
    file = write(
        project / "astrarium.toml",
        f'[gpus."{name}"]\nusd_per_gpu_hour = 1.5\ninter_node_gbits_per_s = 800\n',
    )
    gpu = find_gpu("h100")
    assert gpu.name == "H100-SXM5-80GB"
    assert gpu.usd_per_gpu_hour == 1.5
    assert gpu.inter_node_bandwidth == 100e9
    assert gpu.memory_bandwidth == 3350e9
    shown = {figure.name: figure for figure in describe_gpu(gpu)}
    assert shown["usd_per_gpu_hour"].sources == (str(file),)
    assert shown["usd_per_gpu_hour"].date == ""
    assert shown["spot_usd_per_gpu_hour"].date.startswith("20")
    assert shown["inter_node_gbits_per_s"].doubt == "", "the doubt was about the old figure"


def test_the_link_domain_of_a_node_follows_its_size(project: Path) -> None:
    write(project / "astrarium.toml", "[gpus.a100]\ngpus_per_node = 4\n[gpus.gb200]\ntdp_watts=1")
    assert find_gpu("a100").nvlink_domain == 4
    assert find_gpu("gb200").nvlink_domain == 72


def test_the_more_binding_file_wins_figure_by_figure(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        config(project) / "catalog.json",
        '{"gpus": {"h100": {"tdp_watts": 1, "usd_per_gpu_hour": 1, "memory_gib": 1}}}',
    )
    write(
        project / "astrarium.toml",
        '[gpus."H100-SXM5-80GB"]\nusd_per_gpu_hour = 2\nmemory_gib = 2\n',
    )
    named = write(project / "other.yaml", "gpus: {h100-sxm: {memory_gib: 3}}")
    monkeypatch.setenv("ASTRARIUM_CATALOG", str(named))
    gpu = find_gpu("h100")
    assert (gpu.tdp_watts, gpu.usd_per_gpu_hour, gpu.memory_bytes) == (1, 2, 3 * 2**30)
    monkeypatch.delenv("ASTRARIUM_CATALOG")
    assert find_gpu("h100").memory_bytes == 2 * 2**30


def test_the_config_folder_defaults_to_home(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / ".config" / "astrarium"
    folder.mkdir(parents=True)
    write(folder / "catalog.toml", "[gpus.t4]\ntdp_watts = 60\n")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(project))
    assert find_gpu("t4").tdp_watts == 60


def test_parent_folders_are_not_searched(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "astrarium.toml", "[gpus.t4]\ntdp_watts = 60\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    assert find_gpu("t4").tdp_watts == 70


def test_a_changed_file_is_read_again(project: Path) -> None:
    file = write(project / "astrarium.toml", "[gpus.t4]\ntdp_watts = 60\n")
    assert find_gpu("t4").tdp_watts == 60
    write(file, "[gpus.t4]\ntdp_watts = 65\n")
    os.utime(file, ns=(1, 1))
    assert find_gpu("t4").tdp_watts == 65
    file.unlink()
    assert find_gpu("t4").tdp_watts == 70


def test_later_entries_may_copy_earlier_ones(project: Path) -> None:
    write(config(project) / "catalog.toml", NEW_GPU)
    write(project / "astrarium.toml", '[gpus.X2]\nlike = "x-one"\nmemory_gib = 128\n')
    assert find_gpu("x2").memory_bytes == 128 * 2**30
    assert find_gpu("x2").vendor == "Acme"


def test_instances_are_added_and_replaced(project: Path) -> None:
    file = write(
        project / "astrarium.toml",
        """
        [instances."p5.48xlarge"]
        usd_per_hour = 40
        [instances.rack-7]
        gpu = "x-one"
        gpus_per_node = 4
        [instances.rack-8]
        like = "DGX-H100"
        inter_node_gbits_per_s = 1600
        """
        + NEW_GPU,
    )
    assert find_instance("p5.48xlarge").usd_per_hour == 40
    rack = find_instance("RACK-7")
    assert (rack.gpu, rack.gpus_per_node, rack.inter_node_bandwidth) == ("X1", 4, None)
    assert instances("x1") == (rack,)
    assert find_instance("rack_8").inter_node_bandwidth == 200e9
    assert find_instance("rack-8").gpu == "H100-SXM5-80GB"
    shown = {f.name: f.sources for f in describe_instance(find_instance("rack-8"))}
    assert shown["inter_node_gbits_per_s"] == (str(file),)
    assert shown["fabric"] == ("ml-engineering", "aiconfigurator")


def test_models_are_handed_on_with_their_file(project: Path) -> None:
    models = overrides.Section.MODELS
    first = write(config(project) / "catalog.yaml", "models: {mine: {layers: 4, hidden: 64}}")
    second = write(project / "astrarium.toml", "[models.mine]\nlayers = 8\n[models.b]\nx = [1]\n")
    assert overrides.entries(models) == (
        overrides.Entry(models, "mine", {"layers": 4, "hidden": 64}, first),
        overrides.Entry(models, "mine", {"layers": 8}, second),
        overrides.Entry(models, "b", {"x": [1]}, second),
    )


REFUSED = [
    ("[gpus.h100]\nmemory_gib = -1\n", r"toml:2: gpus.h100.memory_gib: expected float > 0"),
    ("[gpus.h100]\nmemory_gib = 0\n", r"toml:2: gpus.h100.memory_gib: expected float > 0"),
    ("[gpus.h100]\nmemory_gib = nan\n", r"toml:2: gpus.h100.memory_gib: expected a finite"),
    ("[gpus.h100]\nmemory_gib = inf\n", r"toml:2: gpus.h100.memory_gib: expected a finite"),
    ("[gpus.h100]\nmemory_gib = 1e300\n", r"toml:2: gpus.h100.memory_gib: expected float <="),
    ("[gpus.h100]\nmemory_gib = '80'\n", r"toml:2: gpus.h100.memory_gib: expected float, got '80'"),
    ("[gpus.h100]\nmemory_gib = true\n", r"toml:2: gpus.h100.memory_gib: expected float"),
    ("[gpus.h100]\ngpus_per_node = 0\n", r"toml:2: gpus.h100.gpus_per_node: expected int >= 1"),
    ("[gpus.h100]\ngpus_per_node = 2.5\n", r"toml:2: gpus.h100.gpus_per_node: expected int"),
    ("[gpus.h100]\nmemory_gb = 1\n", r"toml:2: gpus.h100.memory_gb: unknown key.*'memory_gib'"),
    ("[gpu.h100]\nmemory_gib = 1\n", r"gpu: unknown key \(did you mean 'gpus'\?\)"),
    ("[gpus.h100]\nlike = 'a100'\n", r"gpus.h100: 'H100-SXM5-80GB' is in the catalog already"),
    ("[gpus.new]\nlike = 'h1000'\n", r"gpus.new: like: unknown name 'h1000' .*'h100'"),
    ("[gpus.new]\nmemory_gib = 1\n", r"gpus.new: missing memory_bandwidth_gbytes_per_s, .*'like'"),
    ("[gpus.a100]\naliases = ['H-100']\n", r"gpus.a100: 'h100' would mean both A100.* and H100"),
    ("[gpus.h100\n", r"toml:1: malformed TOML"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_mistakes_are_refused_with_their_place(project: Path, text: str, message: str) -> None:
    write(project / "astrarium.toml", text)
    with pytest.raises(InputError, match=message):
        find_gpu("h100")


def test_an_instance_of_an_unknown_type_is_refused(project: Path) -> None:
    write(project / "astrarium.toml", "[instances.mine]\ngpu = 'h1000'\ngpus_per_node = 8\n")
    with pytest.raises(InputError, match=r"toml: instances.mine: gpu: unknown GPU type 'h1000'"):
        instances()
    assert find_gpu("h100"), "GPU types do not depend on instances"


def test_two_files_in_one_place_are_refused(project: Path) -> None:
    write(project / "astrarium.toml", "[gpus.t4]\ntdp_watts = 60\n")
    write(project / "astrarium.yaml", "gpus: {t4: {tdp_watts: 65}}")
    with pytest.raises(InputError, match=r"astrarium.toml and .*astrarium.yaml both exist"):
        gpus()


def test_a_named_file_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRARIUM_CATALOG", "nowhere.toml")
    with pytest.raises(InputError, match=r"ASTRARIUM_CATALOG names 'nowhere.toml'.*unset"):
        gpus()


@pytest.mark.parametrize(
    ("schema", "file"), [(GpuEntry, "gpus.json"), (InstanceEntry, "instances.json")]
)
def test_users_may_give_every_key_of_the_data_files(
    schema: type[msgspec.Struct], file: str
) -> None:
    in_data = {key for entry in records.read_table(file).values() for key in entry}
    about_prices = {"price_dates", "price_clouds", "price_regions"}
    about_prices |= {"price_good_for", "price_offers_left_out"}
    about_data = {"sources", "doubts"} | about_prices
    assert set(schema.__struct_fields__) == in_data - about_data | {"like"}


def test_sources_and_doubts_name_figures_that_are_there() -> None:
    for file in ("gpus.json", "instances.json"):
        for name, record in records.to_records(records.read_table(file)).items():
            named = {*record.sources, *record.doubts} - {records.ALL}
            assert named <= set(record.values), name
            assert records.ALL in record.sources, name
