"""Folders are written whole or not at all, and what lies there is not touched unasked."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from exported_plans import document, job

from astrarium.errors import InputError
from astrarium.export.features import Feature
from astrarium.export.folder import folder_of, reduced, write_folder
from astrarium.export.target import find_target, refusals, target_names, too_large
from astrarium.plans.document import load_document
from astrarium.plans.job import Job, job_of

FILES = {"launch.sh": "#!/bin/sh\n", "config/model.json": "{}\n"}


def test_a_new_folder_holds_the_files(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "folder"
    write_folder(str(out), FILES)
    assert {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} == set(FILES)
    assert os.access(out / "launch.sh", os.X_OK)
    assert [p.name for p in out.parent.iterdir()] == ["folder"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    write_folder(str(tmp_path), FILES)
    assert (tmp_path / "config" / "model.json").read_text() == "{}\n"


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).write_text(name)
    with pytest.raises(InputError, match=r"it holds a, b, c, d and 1 more.*--force"):
        write_folder(str(tmp_path), FILES)
    assert len(list(tmp_path.iterdir())) == 5


def test_force_replaces_files_of_the_same_names_only(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("old")
    (tmp_path / "mine").write_text("kept")
    write_folder(str(tmp_path), FILES, force=True)
    assert (tmp_path / "launch.sh").read_text() == FILES["launch.sh"]
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_folder(str(tmp_path / "file"), FILES, force=True)
    with pytest.raises(InputError, match="cannot be written"):
        write_folder(str(tmp_path / "file" / "inside"), FILES)


def test_nothing_stays_of_a_folder_that_could_not_be_filled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_folder(str(tmp_path / "new"), {"first": "written", "x" * 1000: ""})
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_a_folder_is_a_plan_again(tmp_path: Path) -> None:
    target = find_target("megatron")
    folder = folder_of(job("even"), target, target)
    assert {"launch.sh", "plan.json", "README.md"} <= set(folder.files)
    write_folder(str(tmp_path / "out"), folder.files)
    again = job_of(load_document(tmp_path / "out"))
    assert again.strategy == job("even").strategy
    assert again.plan.rank == 1
    assert folder.launch.command in folder.files["README.md"]


def test_a_document_is_reduced_to_its_plan() -> None:
    from dataclasses import replace

    one = job("even")
    plans = tuple(replace(one.plan, rank=rank) for rank in (1, 2, 3))
    third = replace(one, document=replace(one.document, plans=plans), plan=plans[2])
    document = reduced(third)
    assert [plan.rank for plan in document.plans] == [1]
    assert "This was plan 3 of 3." in document.notes
    json.dumps(document.notes)


def test_a_launcher_is_no_program() -> None:
    launcher = find_target("torchrun")
    with pytest.raises(InputError, match="starts programs and is none"):
        folder_of(job("even"), launcher, launcher)


def test_unknown_targets_are_refused_with_a_guess() -> None:
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        find_target("megatrn")
    assert not refusals(job("even"), find_target("MEGATRON"))
    assert "megatron" in target_names()


def test_program_and_launcher_do_not_write_the_same_file() -> None:
    from astrarium.export.program import LaunchFiles, RankProgram
    from astrarium.export.target import Target

    software = Target(
        "one", "One", "1", program=lambda job: RankProgram("One 1", "x.py", files=FILES)
    )
    launcher = Target("two", "Two", "1", launch=lambda job, made: LaunchFiles(FILES, "./launch.sh"))
    with pytest.raises(InputError, match=r"two and one both write config/model.json, launch.sh"):
        folder_of(job("even"), launcher, software)


def test_what_does_not_fit_is_refused() -> None:
    one, megatron = job("even"), find_target("megatron")
    full = replace(one, plan=replace(one.plan, fits=False))
    assert [reason.feature for reason in too_large(full, megatron)] == [Feature.MEMORY]
    assert too_large(one, megatron) == ()


def test_layers_that_predict_further_tokens_are_said() -> None:
    one, megatron = job("even"), find_target("megatron")
    config = {**one.config, "num_nextn_predict_layers": 1}
    both = (
        one,
        replace(one, workload=replace(one.workload, model=replace(one.model, config=config))),
    )
    said = [
        any("(MTP" in note for note in folder_of(each, megatron, megatron).launch.notes)
        for each in both
    ]
    assert said == [False, True]


def on(gpus: str) -> Job:
    strategy = {"tp": 2, "dp": 8, "zero_stage": 3, "overlap_tp": False}
    return job_of(document("llama-3.1-8b", gpus, strategy))


@pytest.mark.parametrize("name", ["megatron", "bridge", "torchtitan"])
def test_exports_for_amd_name_rocm_builds_and_leave_out_what_they_lack(name: str) -> None:
    target = find_target(name)
    plain, amd = (folder_of(on(gpus), target, target) for gpus in ("h100:16", "mi300x:16"))
    assert "ROCm" not in plain.files["README.md"]
    assert "PyTorch for ROCm" in amd.files["README.md"]
    assert "github.com/ROCm/TransformerEngine" in amd.files["README.md"]
    script = amd.files["launch.sh"]
    assert "PYTORCH_CUDA_ALLOC_CONF" not in script
    assert "tp-comm-overlap" not in script
    if name == "megatron":
        assert "--no-gradient-accumulation-fusion" in script
    if name == "bridge":
        assert "model.tp_comm_overlap=false" in script
        assert "model.gradient_accumulation_fusion=false" in script


def test_nodes_of_amd_are_chosen_by_the_name_of_their_labeller() -> None:
    folder = folder_of(on("mi300x:16"), find_target("kubernetes"), find_target("megatron"))
    assert "amd.com/gpu.product-name: AMD_Instinct_MI300X_OAM" in folder.files["jobset.yaml"]
