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
