"""Files that train adapters, or with other optimizers, where commands take a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]

FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
lora_rank: 8
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
"""
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
adapter: qlora
lora_r: 32
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
"""
TRAINER = (
    "accelerate launch --num_processes 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B"
    " --per_device_train_batch_size 1 --max_length 2048"
)
MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
  --ffn-hidden-size 8192 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000 \\
  --max-position-embeddings 2048 --swiglu --bf16 --micro-batch-size 2 --global-batch-size 64 \\
  --tensor-model-parallel-size 4 --hidden-dropout 0.0 --attention-dropout 0.0"""
MOMENTS = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
SHARDED = "--use-distributed-optimizer"
REDUCED = f"{MOMENTS} --grad-reduce-in-bf16"


@pytest.fixture
def files(project: Path) -> Path:
    (project / "lf.yaml").write_text(FACTORY)
    (project / "axolotl.yaml").write_text(AXOLOTL)
    (project / "peft.sh").write_text(f"{TRAINER} --use_peft --lora_r 16\n")
    (project / "adafactor.sh").write_text(f"{TRAINER} --optim adafactor\n")
    return project


def explained(run: Run, *words: str) -> dict[str, Any]:
    result = run("explain", *words, "--gpus", "h100:8", "--json")
    assert result.exit_code in (0, 1), result.output  # 1: it does not fit
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def predicted(run: Run, file: str, *flags: str) -> dict[str, Any]:
    result = run("predict", "-", "--strategy", file, "--gpus", "h100:8", *flags, "--json")
    assert result.exit_code in (0, 1), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "words",
    [
        ("lf.yaml",),
        ("lf.yaml", "--runtime", "fsdp"),
        ("axolotl.yaml",),
        ("peft.sh",),
        ("adafactor.sh",),
    ],
)
def test_a_better_plan_is_for_software_that_has_it(run: Run, words: tuple[str, ...]) -> None:
    document = explained(run, *words)
    assert document["answer"]["plans"][0]["runtimes"] == ["fsdp"]


def test_where_no_software_has_it_the_answer_says_so(run: Run, files: Path) -> None:
    (files / "lf.yaml").write_text(f"{FACTORY}optim: lion_32bit\n")
    document = explained(run, "lf.yaml")
    assert document["runs"]
    assert document["answer"] is None
    assert "fsdp has no lion" in document["error"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("file", "flags", "note"),
    [
        ("lf.yaml", (), "lf.yaml trains lora of rank 8 for all-linear, the plan all weights"),
        (
            "full.yaml",
            ("--finetune", "lora"),
            "full.yaml trains all weights, the plan lora of rank 16 for all-linear",
        ),
        ("lf.yaml", ("--finetune", "lora", "--lora-rank", "8"), None),
    ],
)
def test_a_comparison_trains_what_the_file_says(
    run: Run, files: Path, file: str, flags: tuple[str, ...], note: str | None
) -> None:
    (files / "full.yaml").write_text(FACTORY.replace(": lora\nlora_rank: 8", ": full"))
    result = run(
        *("plan", "llama-3.1-8b", "--gpus", "h100:8", "--global-batch", "64", "--compare", file),
        *(*flags, "--json"),
    )
    assert result.exit_code == 0, result.output
    part = json.loads(result.stdout)["compare"]
    assert [one for one in part["notes"] if " trains " in one] == ([note] if note else [])
    # Full training without sharding needs more than a GPU has.
    assert part["plan"]["fits"] == (file == "lf.yaml")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("flags", "trained"),
    [
        (("--lora-rank", "4"), (4, ["all-linear"])),
        (("--lora-modules", "attention"), (8, ["attention"])),
        (("--finetune", "dora"), (8, ["all-linear"])),
        (("--finetune", "full"), (None, [])),
    ],
)
def test_flags_change_adapters_one_by_one(
    run: Run, flags: tuple[str, ...], trained: tuple[int | None, list[str]]
) -> None:
    workload = predicted(run, "lf.yaml", *flags)["workload"]
    assert (workload["lora_rank"], workload["lora_modules"]) == trained


@pytest.mark.parametrize(
    ("options", "flags", "expected"),
    [
        (f"{SHARDED} {REDUCED}", (), ("adamw", "reduced")),
        (REDUCED, ("--optimizer", "sgd"), ("sgd", "strict")),
        (f"{SHARDED} {MOMENTS}", (), ("adamw-bf16", "strict")),
        (f"{SHARDED} {MOMENTS}", ("--numerics", "reduced"), ("adamw", "reduced")),
        (f"{SHARDED} {MOMENTS}", ("--numerics", "strict"), ("adamw-bf16", "strict")),
        (f"{REDUCED} --optimizer muon", (), ("muon", "strict")),
    ],
)
def test_an_optimizer_and_numerics_that_exclude_each_other(
    run: Run, project: Path, options: str, flags: tuple[str, ...], expected: tuple[str, str]
) -> None:
    (project / "train.sh").write_text(f"{MEGATRON} {options}\n")
    document = predicted(run, "train.sh", *flags)
    workload = document["workload"]
    assert (workload["optimizer"], workload["numerics"]) == expected
    as_if = any(note.startswith("--exp-avg-dtype is bf16") for note in document["notes"])
    assert as_if == (expected[0] == "muon")


def test_the_file_of_accelerate_says_the_number_of_gpus(run: Run, project: Path) -> None:
    (project / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
        "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    )
    given = TRAINER.replace("--num_processes 8", "--config_file fsdp.yaml")
    (project / "train.sh").write_text(f"{given}\n")
    result = run("explain", "train.sh", "--gpus", "h100", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["cluster"]["gpus"] == 8
    assert document["fit"]["plan"]["strategy"]["zero_stage"] == 3


def test_a_trainer_called_finetune_is_read(run: Run, project: Path) -> None:
    given = TRAINER.replace("accelerate launch --num_processes 8 train.py", "deepspeed finetune.py")
    (project / "train.sh").write_text(f"{given}\n")
    document = explained(run, "train.sh")
    assert document["workload"]["model"] == "Llama-3.1-8B"


@pytest.mark.parametrize(
    "command", ["FORCE_TORCHRUN=1 llamafactory-cli train x.yaml", "axolotl train x.yaml"]
)
def test_a_command_with_a_file_names_the_file(run: Run, project: Path, command: str) -> None:
    (project / "train.sh").write_text(f"#!/bin/bash\n{command}\n")
    result = run("explain", "train.sh", "--gpus", "h100:8")
    assert result.exit_code == 2
    assert "astrarium explain x.yaml" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("model", "runtime", "flags", "target"),
    [
        ("llama-3.1-8b", "torchtune", ("--finetune", "qlora"), "torchtune"),
        ("llama-3.1-8b", "torchtune", (), "torchtune"),
        ("llama-3.1-70b", "megatron-bridge", ("--finetune", "dora", "--lora-rank", "8"), "bridge"),
        (
            "qwen3-30b-a3b",
            "megatron-bridge",
            ("--finetune", "lora", "--lora-modules", "all-linear"),
            "bridge",
        ),
    ],
)
def test_what_is_exported_is_read_back(
    run: Run, project: Path, model: str, runtime: str, flags: tuple[str, ...], target: str
) -> None:
    asked = ("--gpus", "h100:8", "--global-batch", "64", "--seq-length", "4096")
    made = run("plan", model, "--runtime", runtime, *flags, *asked, "--top", "1", "--out", ".")
    assert made.exit_code == 0, made.output
    done = run("export", "plan.json", "--to", target, "--out", "out")
    assert done.exit_code == 0, done.output
    plan = json.loads((project / "plan.json").read_text())["plans"][0]
    read = predicted(run, "out/launch.sh")["plans"][0]
    for key in ("finetune", "runtimes"):
        assert read[key] == plan[key]
    assert read["iteration_seconds"] == pytest.approx(plan["iteration_seconds"], rel=1e-6)
    assert read["memory"] == plan["memory"]
