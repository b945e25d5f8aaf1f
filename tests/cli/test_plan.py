"""`astrarium plan`: JSON, text, files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from astrarium.plans.document import from_dict, load_document

Run = Callable[..., Result]


def words(text: str) -> str:
    return " ".join(text.split())


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def test_json_is_one_document_and_nothing_else(plan: Run) -> None:
    result = plan("--json", "--tokens", "2T")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["schema"] == "astrarium.plan/1"
    assert all(math.isfinite(number) for number in numbers(document))
    assert document["workload"]["parameters"] == 6738415616
    assert document["workload"]["tokens"] == 2 * 10**12
    assert document["cluster"]["gpus"] == 8
    assert [entry["rank"] for entry in document["plans"]] == [1, 2, 3, 4, 5]
    from_dict(document)


def test_a_plan_adds_up(plan: Run) -> None:
    document = json.loads(plan("--json", "--tokens", "2T", "--prefer", "fastest").stdout)
    for entry in document["plans"]:
        strategy = entry["strategy"]
        assert strategy["tp"] * strategy["pp"] * strategy["cp"] * strategy["dp"] == 8
        batch = strategy["dp"] * strategy["micro_batch"] * strategy["num_micro_batches"]
        assert batch == 64
        total = entry["iteration_seconds"]
        assert sum(entry["breakdown_seconds"].values()) == pytest.approx(total)
        low, high = entry["interval_seconds"]
        assert low <= total <= high
        assert entry["tokens_per_second"] == pytest.approx(64 * 4096 / total)
        hours = entry["train_seconds"] / 3600
        assert entry["usd_total"] == pytest.approx(hours * entry["usd_per_hour"])
        for stage in entry["memory"]:
            causes = ("weights", "gradients", "optimizer", "activations", "workspace", "reserved")
            assert sum(stage[cause] for cause in causes) == pytest.approx(stage["peak_bytes"])
            assert stage["peak_bytes"] <= stage["capacity_bytes"]
    times = [entry["iteration_seconds"] for entry in document["plans"]]
    assert times == sorted(times)
    assert document["pareto"][0]["plan"] == 0


def test_the_search_accounts_for_the_whole_space(plan: Run) -> None:
    search = json.loads(plan("--json").stdout)["search"]
    assert search["space"] >= sum(search["rejected"].values()) + 5
    assert search["optimal"] is True
    assert search["bound_gap"] == 0
    assert search["evaluated"] > 0
    assert search["objective"] == "throughput"


def test_the_text_has_the_facts(plan: Run) -> None:
    result = plan("--tokens", "2T")
    shown = words(result.stdout)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "6.738B parameters" in shown
    assert '8 x H100-SXM5-80GB ("h100")' in shown
    assert "per GPU and hour (median over clouds;" in shown
    assert "tokens/s" in shown
    assert "days" in shown
    assert "strategies considered" in shown
    command = "plan llama-2-7b --gpus h100:8 --seq-length 4096 --global-batch 64 --tokens 2T"
    assert f"astrarium {command} --out DIR" in words(result.stdout.replace("\\\n", " "))
    assert "astrarium explain DIR/plan.json" in shown
    assert "astrarium export DIR/plan.json --to megatron --out DIR" in shown


@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_overflows_and_nothing_is_coloured(
    plan: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = plan("--tokens", "2T").stdout
    assert max(map(len, shown.splitlines())) <= columns
    assert "\x1b" not in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())


def test_no_color_is_respected(plan: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[36m" in plan().stdout  # cyan bars
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in plan().stdout


def test_the_same_input_gives_the_same_plans(plan: Run) -> None:
    first, second = (json.loads(plan("--json").stdout)["plans"] for _ in range(2))
    assert first == second


def test_out_writes_what_json_prints(plan: Run, project: Path) -> None:
    result = plan("--json", "--out", "deep/folder")
    written = json.loads((project / "deep/folder/plan.json").read_text(encoding="utf-8"))
    assert written == json.loads(result.stdout)
    assert os.listdir(project / "deep/folder") == ["plan.json"]
    load_document(project / "deep/folder/plan.json")


def test_out_is_named_in_the_text(plan: Run) -> None:
    shown = words(plan("--out", "here").stdout)
    assert "here/plan.json is written" in shown
    assert "astrarium export here/plan.json --to megatron --out here" in shown


def test_top_and_rules(plan: Run) -> None:
    document = json.loads(plan("--json", "--top", "2", "--rule", "$tp > 1").stdout)
    assert len(document["plans"]) == 2
    assert {entry["strategy"]["tp"] for entry in document["plans"]} == {1}
    assert document["search"]["rejected"]["rule"] > 0
    assert "$tp > 1" in document["search"]["reasons"]


def test_up_to_may_use_fewer(plan: Run) -> None:
    result = plan("--json", "--mode", "up-to", "--objective", "cost", gpus="h100:64")
    document = json.loads(result.stdout)
    assert sum(document["plans"][0]["gpus"].values()) <= 64
    assert document["search"]["mode"] == "up-to"


def test_the_default_length_is_stated(run: Run) -> None:
    result = run("plan", "llama-2-7b", "--gpus", "h100:8", "--global-batch", "64", "--json")
    document = json.loads(result.stdout)
    assert document["workload"]["seq_length"] == 4096
    assert document["notes"][0] == "--seq-length not given: 4,096 taken, the model's maximum"


def test_a_long_model_is_taken_at_8192(run: Run) -> None:
    result = run("plan", "llama-3.1-8b", "--gpus", "h100:8", "--global-batch", "64", "--json")
    document = json.loads(result.stdout)
    assert document["workload"]["seq_length"] == 8192
    assert "takes up to 131,072" in document["notes"][0]


@pytest.mark.parametrize(
    ("model", "layer"), [("t5-small", 6), ("llava-1.5-7b", 25), ("llama-2-7b", None)]
)
def test_models_of_two_inputs_are_noted(run: Run, model: str, layer: int | None) -> None:
    result = run("fit", model, "--gpus", "h100:8", "--seq-length", "512", "--json")
    notes = " ".join(json.loads(result.stdout)["notes"])
    assert (f"reads another input from layer {layer} on" in notes) == (layer is not None)
    assert ("plans with pp > 1 need another program" in notes) == (layer is not None)


def test_a_fallback_of_the_number_format_is_stated(plan: Run) -> None:
    result = plan("--json", gpus="v100:32")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert "V100-SXM2-32GB has no bf16: it computes in fp16" in document["notes"]
    assert document["workload"]["precision"] == "fp16"
    mixed = json.loads(plan("--json", "--mode", "up-to", gpus="v100:32,h100:8").stdout)
    for found in mixed["plans"]:  # each computes in what all of its own GPUs have
        common = "fp16" if "V100-SXM2-32GB" in found["gpus"] else "bf16"
        assert found["precision"] == common
    assert any("V100-SXM2-32GB" in note and "fp16" in note for note in mixed["notes"])


@pytest.mark.parametrize(("length", "noted"), [("4096", False), ("8192", True)])
def test_sequences_beyond_the_model_are_noted(run: Run, length: str, noted: bool) -> None:
    flags = ("--gpus", "h100:8", "--global-batch", "64", "--seq-length", length, "--json")
    notes = json.loads(run("plan", "llama-2-7b", *flags).stdout)["notes"]
    expected = "--seq-length 8,192 is beyond the 4,096 tokens that Llama-2-7B is made for"
    assert (expected in notes) is noted


def test_a_cluster_file(run: Run, project: Path) -> None:
    pool = "{gpu: a100, nodes: 2, gpus_per_node: 4, inter_node: 100 Gb/s, usd_per_gpu_hour: 1.5}"
    (project / "cluster.yaml").write_text(f"pools:\n  - {pool}\n", encoding="utf-8")
    flags = ("--cluster", "cluster.yaml", "--global-batch", "64", "--seq-length", "2048")
    shown = words(run("plan", "llama-2-7b", *flags).stdout)
    assert "2 nodes of 4" in shown
    assert "$1.50 per GPU and hour (cluster file)" in shown


def test_a_pool_that_forces_a_number_format_is_named(run: Run, project: Path) -> None:
    types = {"new": "h100", "mid": "a100", "old": "v100-32"}
    pools = [f"{{name: {n}, gpu: {g}, nodes: 1, gpus_per_node: 2}}" for n, g in types.items()]
    (project / "three.yaml").write_text(f"pools: [{', '.join(pools)}]\n", encoding="utf-8")
    flags = ["plan", "gpt2", "--cluster", "three.yaml", "--seq-length", "1024", "--json"]
    flags += ["--global-batch", "24", "--top", "1"]
    together = json.loads(run(*flags).stdout)
    assert together["plans"][0]["precision"] == "fp16"
    why = "plan 1 computes in fp16 on all its GPUs: 2 x V100-SXM2-32GB of old have no bf16"
    assert why in together["notes"]
    # Those that have the format use it where the others may stay idle.
    rule = ["--mode", "up-to", "--rule", "$pp < 2"]
    apart = json.loads(run(*flags, *rule).stdout)
    best = apart["plans"][0]
    assert set(best["gpus"]) == {"H100-SXM5-80GB", "A100-SXM4-80GB"}
    assert (best["precision"], apart["workload"]["precision"]) == ("bf16", "bf16")
    assert why not in apart["notes"]


def test_without_a_plan_json_is_a_document_too(run: Run, project: Path) -> None:
    flags = ["plan", "llama-2-70b", "--gpus", "h100:1", "--global-batch", "8", "--out", "out"]
    text = run(*flags)
    assert (text.exit_code, text.stdout) == (1, "")
    result = run(*flags, "--json")
    assert (result.exit_code, result.stderr) == (1, text.stderr)
    document = json.loads(result.stdout)
    assert document["schema"] == "astrarium.plan/1"
    assert (document["plans"], document["pareto"], document["search"]) == ([], [], None)
    assert result.stderr == f"Error: {document['error']}\n"
    assert document["workload"]["model"] == "Llama-2-70B"
    assert document["cluster"]["gpus"] == 1
    assert document["notes"]
    assert not (project / "out").exists()


def test_a_document_with_plans_has_no_error(plan: Run) -> None:
    assert "error" not in json.loads(plan("--json").stdout)


def test_what_plans_need_of_unknown_host_memory_is_said(run: Run) -> None:
    words = ("plan", "llama-3-8b", "--seq-length", "1024", "--global-batch", "8")
    told = "plan 1 keeps 120 GiB in the memory of each node, and the size of that"
    result = run(*words, "--gpus", "rtx-4090:1", "--runtime", "fsdp", "--json")
    assert any(told in note for note in json.loads(result.stdout)["notes"])
    known = run(*words, "--gpus", "h100:8", "--json")
    assert not any("memory of each node" in note for note in json.loads(known.stdout)["notes"])


@pytest.mark.parametrize(("precision", "count"), [("fp8", 1), ("bf16", 0)])
def test_a_narrow_format_has_a_note_on_quality(plan: Run, precision: str, count: int) -> None:
    document = json.loads(plan("--precision", precision, "--json").stdout)
    assert sum(note.startswith("quality: ") for note in document["notes"]) == count


def test_software_that_has_no_file_for_a_model_names_one_that_has(run: Run) -> None:
    flags = ("--gpus", "h100:8", "--global-batch", "64", "--runtime", "torchtitan")
    result = run("plan", "nemotron-h-8b", *flags)
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("--runtime megatron plans for it")
