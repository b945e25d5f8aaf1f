"""What a script or file starts: trainings of other things, parts of trainings, files beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from astrarium.configs.detect import read_config, read_sent
from astrarium.configs.imported import (
    Imported,
    NotModelledError,
    NotTrainingError,
    OpenQuestionError,
)
from astrarium.errors import InputError

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048"
    " --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 512"
    " --vocab-size 50257 --bf16"
)
TRAINER = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2"
NEOX = '"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "model_parallel_size": 1'
FLAGSCALE = f"system: {{tensor_model_parallel_size: 1}}\nmodel: {{{SIZES[2:14]}: 2}}\n"
Write = Callable[[str, str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def read(path: Path) -> Imported:
    found = read_config(str(path))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("dpo.yml", f'{{{NEOX}, "train_impl": "dpo"}}', r"trains by dpo \(train_impl\)"),
        ("step2_dpo/run.sh", f"deepspeed main.py {TRAINER}", "trains by dpo, as its name says"),
        ("rwkv/conf/train/a.yaml", FLAGSCALE, "another model than a decoder of text"),
        ("a.yaml", f"{FLAGSCALE}hetero: {{enable_hetero: true}}", "on unlike devices"),
        ("b.yaml", "model: {teacher: {seq_length: 1}}\ntrain: {}", "a student with a teacher"),
        ("c.sh", f'A="--grpo-prompts-per-step 4 {SIZES}"', "reinforcement learning"),
        (
            "d.sh",
            "python convert_hf.py --hf-model x\ntorchrun pretrain_vlm.py --num-layers 2",
            "vision-language",
        ),
        ("e.sh", "python train.py --config x.yaml", "the model and options of that program"),
    ],
)
def test_trainings_of_something_else_are_refused_by_name(
    written: Write, name: str, text: str, says: str
) -> None:
    with pytest.raises(NotModelledError, match=says):
        read(written(name, text))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("model.sh", f'MODEL_ARGS="{SIZES}"', "holds options for another script"),
        ("run.sh", 'srun sh -c "python pretrain_gpt.py ${PARAMS}"', "come from .PARAMS"),
        ("t.json", '{"train_batch_size": CONFIG_BATCH_SIZE}', "fills in CONFIG_BATCH_SIZE"),
        ("conversion.sh", "python convert_hf.py --hf-model x", "a conversion of checkpoints"),
    ],
)
def test_parts_of_trainings_are_none(written: Write, name: str, text: str, says: str) -> None:
    with pytest.raises(NotTrainingError, match=says):
        read(written(name, text))


def test_a_tag_of_yaml_is_named(written: Write) -> None:
    with pytest.raises(InputError, match=r"a\.yaml:1: !include is not standard YAML"):
        read(written("a.yaml", "base: !include b.yaml\nmodel_name_or_path: x\n"))


def test_adapters_of_a_recipe_are_read(written: Write) -> None:
    found = read(written("lora.yaml", "model: {seq_length: 4096}\ntrain: {}\npeft: {dim: 8}"))
    assert found.described.lora_rank == 8


def test_a_file_of_a_recipe_is_called_after_its_model(written: Write) -> None:
    text = "model: {tensor_model_parallel_size: 1}\ntrain: {micro_batch_size: 1}\n"
    found = read(written("llama32_1b_pretrain.yaml", text))
    assert found.described.model == "Llama-3.2-1B"
    assert "called after" in found.notes[-1]


@pytest.mark.parametrize(
    "started",
    [
        f"command: [bash, -c]\nargs:\n- torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}",
        f"command: [torchrun, --nproc_per_node, '8', pretrain_gpt.py, {SIZES.replace(' ', ', ')}]",
    ],
)
def test_a_command_inside_a_kubernetes_file(written: Write, started: str) -> None:
    path = written("job.yaml", f"apiVersion: batch/v1\nkind: Job\n{started}\n")
    for found in (read(path), read_sent(path.read_text(encoding="utf-8"), "job.yaml")):
        assert found is not None
        assert found.described.gpus == 8
        assert found.described.shape is not None


def test_hosts_beside_a_script_are_counted(written: Write) -> None:
    written("hosts", "a slots=8\n# b slots=8\nc slots=4\n")
    text = f"deepspeed --hostfile=hosts run.py {TRAINER} --zero_stage 2 --max_seq_len 512"
    assert read(written("t.sh", text)).described.gpus == 12


def test_who_shards_a_model_is_told_to_accelerate(written: Write) -> None:
    launch = "accelerate launch --num_processes 8 {} train.py " + TRAINER
    with pytest.raises(OpenQuestionError, match=r"who shards the model is in f\.yaml"):
        read(written("t.sh", launch.format("--config_file f.yaml")))
    written("f.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    stages = {"--config_file f.yaml": 3, "--use_fsdp": 3, "--zero_stage 2": 2, "": 0}
    for flags, stage in stages.items():
        found = read(written("t.sh", launch.format(flags)))
        assert found.described.strategy["zero_stage"] == stage
    assert [one.option for one in found.as_if] == ["sharding"]
    written("f.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\n")
    assert not read(written("t.sh", launch.format("--config_file f.yaml"))).as_if


def test_savings_have_a_least_and_a_most() -> None:
    found = read_config(f"{SIZES} --fp8-param-gather --grad-reduce-in-bf16")
    assert found is not None
    shares = list(found.savings().values())
    assert [0.5, 0.5] in [list(one.get("gradients", ())) for one in shares]
    assert all(least <= most for one in shares for least, most in one.values())
