"""Adapters and optimizers that configurations of other programs state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import astrarium
from astrarium.configs.detect import read_config
from astrarium.configs.huggingface import catalog_model, read_trainer_file
from astrarium.configs.imported import NotModelledError, OpenQuestionError
from astrarium.model.lengths import Packing

FACTORY = {"model_name_or_path": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 1}
AXOLOTL = {"base_model": "NousResearch/Meta-Llama-3.1-8B", "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({**FACTORY, "finetuning_type": "full"}, (None, None, None)),
        ({**FACTORY, "finetuning_type": "lora"}, ("lora", 8, "all-linear")),
        (
            {**FACTORY, "finetuning_type": "lora", "lora_rank": 64, "lora_target": "q_proj,v_proj"},
            ("lora", 64, "q_proj,v_proj"),
        ),
        (
            {**FACTORY, "finetuning_type": "lora", "lora_target": "all", "quantization_bit": 4},
            ("qlora", 8, "all-linear"),
        ),
        ({**FACTORY, "finetuning_type": "lora", "use_dora": True}, ("dora", 8, "all-linear")),
        (
            {**AXOLOTL, "adapter": "qlora", "lora_r": 32, "lora_target_linear": True},
            ("qlora", 32, "all-linear"),
        ),
        (
            {**AXOLOTL, "adapter": "lora", "lora_r": 16, "lora_target_modules": ["q_proj"]},
            ("lora", 16, "q_proj"),
        ),
        ({**FACTORY, "finetuning_type": "full", "lora_rank": 8}, (None, None, None)),
        ({**AXOLOTL, "adapter": None, "lora_r": 8}, (None, None, None)),
        ({**FACTORY, "use_peft": False, "lora_r": 8}, (None, None, None)),
        ({**FACTORY, "use_peft": True, "lora_r": 4}, ("lora", 4, "q_proj,v_proj")),
    ],
)
def test_adapters_of_a_trainer(
    keys: dict[str, object], expected: tuple[str | None, int | None, str | None]
) -> None:
    described = read_trainer_file(keys, "train.yaml").described
    assert (described.finetune, described.lora_rank, described.lora_modules) == expected


def test_several_modules_behind_one_option(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-3.1-8B"
        " --use_peft --lora_target_modules q_proj v_proj --per_device_train_batch_size 1\n"
    )
    read = read_config(str(path))
    assert read is not None
    assert read.described.lora_modules == "q_proj,v_proj"
    assert not read.neutral


@pytest.mark.parametrize("key", [{"load_in_8bit": True}, {"quantization_bit": 8}])
def test_weights_of_8_bits_are_named_as_not_modelled(key: dict[str, object]) -> None:
    read = read_trainer_file({**AXOLOTL, "adapter": "lora", **key}, "train.yaml")
    assert read.described.finetune == "lora"
    assumed = [(one.option, one.assumed) for one in read.as_if]
    assert assumed == [(*key, "16 bits"), ("sharding", "none")]
    assert not read.neutral


def test_other_ways_to_train_a_part_are_refused_by_name() -> None:
    with pytest.raises(NotModelledError, match="fine-tuning by freeze is not modelled"):
        read_trainer_file({**FACTORY, "finetuning_type": "freeze"}, "train.yaml")


@pytest.mark.parametrize(
    ("word", "name"),
    [("adamw_bnb_8bit", "adamw-8bit"), ("adafactor", "adafactor"), ("adamw_torch", "adamw")],
)
def test_the_optimizer_of_a_trainer(word: str, name: str) -> None:
    assert read_trainer_file({**FACTORY, "optim": word}, "x.yaml").described.optimizer == name


def test_a_prediction_trains_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: meta-llama/Llama-3.1-8B\nadapter: qlora\nlora_r: 32\nsequence_len: 4096\n"
        "lora_target_linear: true\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
        "optimizer: adamw_bnb_8bit\ngradient_checkpointing: true\n"
    )
    found = astrarium.predict(None, str(path), gpus="h100:1")
    assert found.best.finetune == "qlora"
    workload = found.document.workload
    assert (workload.lora_rank, workload.lora_modules) == (32, ("all-linear",))
    assert workload.optimizer == "adamw-8bit"
    assert found.best.peak_bytes < 30 * 2**30


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"finetune": "lora"}, ("lora", 16, "all-linear", "adamw")),
        (
            {"finetune": "qlora", "lora_rank": 8, "lora_modules": "attention"},
            ("qlora", 8, "q_proj,k_proj,v_proj,o_proj", "adamw"),
        ),
        ({"finetune": "dora"}, ("dora", 16, "all-linear", "adamw")),
        ({"runtime": "fsdp", "optimizer": "sgd"}, (None, None, None, "sgd")),
        ({"runtime": "fsdp", "optimizer": "adamw-8bit"}, (None, None, None, "adamw-8bit")),
    ],
)
def test_an_export_is_read_back_as_what_it_trains(
    asked: dict[str, Any], expected: tuple[str | None, ...], tmp_path: Path
) -> None:
    found = astrarium.plan("llama-3-8b", gpus="h100:8", global_batch=64, seq_length=4096, **asked)
    folder = found.best.export("accelerate", tmp_path / "out")
    for name in ("launch.sh", "accelerate.yaml"):
        read = read_config(str(folder / name))
        assert read is not None
        one = read.described
        assert (one.finetune, one.lora_rank, one.lora_modules) == expected[:3]
        assert name != "launch.sh" or one.optimizer == expected[3]
        assert any("adapter_config.json" in note for note in read.notes) == bool(one.finetune)
    again = astrarium.predict(None, str(folder / "launch.sh"), gpus="h100:8")
    assert again.best.iteration_seconds == pytest.approx(found.best.iteration_seconds, rel=0.02)
    assert again.best.peak_bytes == pytest.approx(found.best.peak_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("content", "recompute"),
    [
        ({**FACTORY, "finetuning_type": "full"}, "full"),
        ({**FACTORY, "cutoff_len": 2048, "disable_gradient_checkpointing": True}, "none"),
        ({**FACTORY, "cutoff_len": 2048, "enable_activation_checkpointing": False}, "none"),
        ({**FACTORY, "max_length": 2048}, "none"),
        ({**FACTORY, "max_length": 2048, "gradient_checkpointing": True}, "full"),
        ({**FACTORY, "max_length": 2048, "gradient_checkpointing": "offload"}, "full"),
        ({**FACTORY, "max_length": 2048, "gradient_checkpointing": False}, "none"),
    ],
)
def test_llama_factory_recomputes_unless_it_is_denied(
    content: dict[str, Any], recompute: str
) -> None:
    assert read_trainer_file(content, "train.yaml").strategy_of(32)["recompute"] == recompute


def test_names_of_releases_are_names_of_the_model() -> None:
    assert catalog_model("Qwen/Qwen3-30B-A3B-Instruct-2507") == catalog_model("Qwen3-30B-A3B")


TUNE = """model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, v_proj]
  apply_lora_to_mlp: true
  lora_rank: 16
tokenizer: {max_seq_len: 4096}
dataset: {packed: true}
optimizer: {_component_: torch.optim.AdamW}
batch_size: 2
gradient_accumulation_steps: 8
enable_activation_checkpointing: true
compile: true
"""


def test_files_of_torchtune_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TUNE)
    read = read_config(str(tmp_path / "mine.yaml"))
    assert read is not None
    described = read.described
    assert (described.runtime, described.model) == ("torchtune", "Llama-3.1-8B")
    assert (described.finetune, described.lora_rank) == ("lora", 16)
    assert described.lora_modules == "q_proj,v_proj,mlp"
    assert (described.seq_length, read.batch(4), described.packing) == (4096, 64, Packing.ON)
    assert read.strategy_of(32)["zero_stage"] == 3
    assert [one.option for one in read.as_if] == ["compile"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "tune run --nproc_per_node 4 lora_finetune_distributed --config mine.yaml"
            " model.use_dora=True fsdp_reshard_after_forward=False",
            ("Llama-3.1-8B", "dora", 16, 4, 2),
        ),
        (
            "torchrun --nproc_per_node 8 $T/recipes/lora_finetune_distributed.py --config"
            " $T/recipes/configs/llama3_1/405B_qlora.yaml batch_size=1 model.lora_rank=4"
            " gradient_accumulation_steps=1 enable_activation_checkpointing=True",
            ("Llama-3.1-405B", "qlora", 4, 8, 3),
        ),
        (
            "tune run lora_finetune_single_device --config mine.yaml",
            ("Llama-3.1-8B", "lora", 16, 1, 3),
        ),
    ],
)
def test_commands_of_torchtune_are_read(
    tmp_path: Path, command: str, expected: tuple[object, ...]
) -> None:
    (tmp_path / "mine.yaml").write_text(TUNE)
    (tmp_path / "run.sh").write_text(command + "\n")
    read = read_config(str(tmp_path / "run.sh"))
    assert read is not None
    described, stage = read.described, read.strategy_of(32)["zero_stage"]
    found = described.model, described.finetune, described.lora_rank, described.gpus, stage
    assert found == expected


def test_a_configuration_of_torchtune_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("tune run lora_finetune_distributed --config llama3/8B_lora\n")
    with pytest.raises(OpenQuestionError, match=r"batch_size, .* are in llama3/8B_lora, which is"):
        read_config(str(tmp_path / "run.sh"))


@pytest.mark.parametrize("recipe", ["run_recipe.py", "finetune_bridge.py"])
def test_recipes_of_megatron_bridge_with_adapters_are_read(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc_per_node 8 {recipe} --recipe llama31_70b_peft_8gpu_h100_bf16_config"
        " --peft_scheme dora model.tensor_model_parallel_size=8 train.micro_batch_size=1"
        " model.pipeline_model_parallel_size=1 train.global_batch_size=8 peft.dim=16"
        " 'peft.target_modules=[linear_qkv,linear_proj]'\n"
    )
    read = read_config(str(tmp_path / "run.sh"))
    assert read is not None
    described = read.described
    assert (described.runtime, described.model) == ("megatron-bridge", "Llama-3.1-70B")
    assert (described.finetune, described.lora_rank) == ("dora", 16)
    assert described.lora_modules == "linear_qkv,linear_proj"
