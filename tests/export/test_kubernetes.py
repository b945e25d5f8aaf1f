"""JobSet and TrainJob: pods are nodes in rank order, and start with the numbers they should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched import CASES, PROGRAM, Bench, check_ranks, job, launch_of, written

ADDRESS = "llama-3-8b-{}-0-0.llama-3-8b"


def manifest(case: str, name: str = "jobset.yaml") -> dict[str, Any]:
    data = yaml.safe_load(launch_of("kubernetes", job(case)).files[name])
    assert isinstance(data, dict)
    return data


def pod_of(replicated: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = replicated["template"]["spec"]["template"]["spec"]
    return spec


def filled(container: dict[str, Any], folder: Path) -> list[str]:
    """The command with its folders in a place of the test."""
    *first, text = container["command"]
    copied = text.replace("cp -rL /plan/.", f"cp -rL {folder}/.")
    return [*first, copied.replace("/run/plan", str(folder.with_name("copy")))]


@pytest.mark.parametrize("case", CASES)
def test_there_is_a_job_for_each_sort_of_node(case: str) -> None:
    one, replicated = job(case), manifest(case)["spec"]["replicatedJobs"]
    jobs = [part["template"]["spec"] for part in replicated]
    assert [part["completions"] for part in jobs] == [group.nodes for group in one.nodes]
    assert [part["parallelism"] for part in jobs] == [group.nodes for group in one.nodes]
    limits = [pod_of(part)["containers"][0]["resources"]["limits"] for part in replicated]
    assert limits == [{"nvidia.com/gpu": group.gpus_per_node} for group in one.nodes]
    chosen = [pod_of(part)["nodeSelector"] for part in replicated]
    assert len({str(selector) for selector in chosen}) == len(one.nodes)
    assert all("nvidia.com/gpu.product" in selector for selector in chosen)


def test_pools_of_one_type_are_told_apart_by_labels() -> None:
    replicated = manifest("twins")["spec"]["replicatedJobs"]
    pools = [pod_of(part)["nodeSelector"]["astrarium.pool"] for part in replicated]
    assert pools == ["fast-racks", "slow"]
    (note,) = [n for n in launch_of("kubernetes", job("twins")).notes if "kubectl label" in n]
    assert "`fast-racks` (pool Fast racks), `slow` (pool slow)" in note


def test_names_begin_with_a_letter() -> None:
    """A digit, as in 3B-model, is refused where a name becomes that of a service."""
    one = job("alike")
    model = replace(one.model, name="7B-of-a-long-name-that-is-cut")
    named = replace(one, workload=replace(one.workload, model=model))
    data = yaml.safe_load(launch_of("kubernetes", named).files["jobset.yaml"])
    assert data["metadata"]["name"] == "job-7b-of-a-long-name-th"
    assert data["spec"]["network"]["subdomain"] == "job-7b-of-a-long-name-th"


@pytest.mark.parametrize("case", ["alike", "mixed", "unequal", "twins"])
def test_pods_are_nodes_in_rank_order(case: str, tmp_path: Path) -> None:
    bench, one = Bench(tmp_path), job(case)
    folder = written("kubernetes", one, tmp_path / "out")
    (tmp_path / "copy").mkdir()
    replicated = manifest(case)["spec"]["replicatedJobs"]
    for part in replicated:
        (container,) = pod_of(part)["containers"]
        given = {entry["name"]: entry["value"] for entry in container["env"]}
        for index in range(part["template"]["spec"]["completions"]):
            given["JOB_COMPLETION_INDEX"] = str(index)
            bench.run(*filled(container, folder), cwd=tmp_path, **given)
    check_ranks(one, bench.starts(), ADDRESS.format(replicated[0]["name"]))


def test_a_trainjob_is_written_where_nodes_are_alike(tmp_path: Path) -> None:
    bench, one = Bench(tmp_path), job("alike")
    folder = written("kubernetes", one, tmp_path / "out")
    (tmp_path / "copy").mkdir()
    spec = manifest("alike", "trainjob.yaml")["spec"]
    trainer, patch = spec["trainer"], spec["runtimePatches"][0]["trainingRuntimeSpec"]
    (patched,) = patch["template"]["spec"]["replicatedJobs"]
    assert pod_of(patched)["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    given = {entry["name"]: entry["value"] for entry in trainer["env"]}
    for node in range(2):
        numbers = {"PET_NODE_RANK": str(node), "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "7"}
        bench.run(*filled(trainer, folder), cwd=tmp_path, **given, **numbers)
    check_ranks(one, bench.starts(), "a")
    assert {start.options["master-port"] for start in bench.starts()} == {"7"}
    assert "trainjob.yaml" not in launch_of("kubernetes", job("mixed")).files


def test_the_config_map_holds_what_the_program_reads() -> None:
    made = manifest("mixed", "kustomization.yaml")
    (config,) = made["configMapGenerator"]
    keys = dict(entry.split("=") for entry in config["files"])
    assert sorted(keys.values()) == sorted((*PROGRAM.files, "launch.sh"))
    for part in manifest("mixed")["spec"]["replicatedJobs"]:
        mounted = pod_of(part)["volumes"][0]["configMap"]
        assert mounted["name"] == config["name"]
        assert {item["key"]: item["path"] for item in mounted["items"]} == keys
        assert not any("/" in key for key in keys)


def test_data_tokenizer_and_checkpoints_have_places() -> None:
    from exported_plans import job as planned

    from astrarium.export.launchers import kubernetes
    from astrarium.export.software import megatron

    one = planned("even")
    (replicated,) = kubernetes.jobset(one, megatron.program(one))["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    env = {row["name"]: row["value"] for row in pod["containers"][0]["env"]}
    assert (env["DATA_PATH"], env["TOKENIZER_MODEL"]) == ("", "")
    assert "DATA_SPLIT" not in env  # it has a default
    assert env["CHECKPOINTS"] == "/data/checkpoints"
    claims = [one["persistentVolumeClaim"] for one in pod["volumes"] if one["name"] == "data"]
    assert claims == [{"claimName": "training"}]
