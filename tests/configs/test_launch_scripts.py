"""Launch scripts as people write them: every construct in a minimal script of our own."""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import shell_oracle

from astrarium.configs.detect import read_config
from astrarium.configs.imported import (
    Imported,
    NotModelledError,
    NotTrainingError,
    OpenQuestionError,
)
from astrarium.configs.shell.expansion import shown
from astrarium.configs.shell.script import read_script
from astrarium.configs.values import Answers
from astrarium.errors import InputError
from astrarium.model import load_model

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048"
    " --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 512"
)
Read = Callable[..., Imported]
PLAIN = f"{SIZES} --vocab-size 50257 --fp16"


@pytest.fixture
def script(tmp_path: Path) -> Read:
    def read(text: str, *arguments: str, name: str = "train.sh", **variables: str) -> Imported:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        found = read_config(str(path), "x", Answers(arguments, variables))
        assert found is not None
        return found

    return read


def degrees(read: Imported) -> tuple[int, int, int | None]:
    strategy = read.described.strategy
    return strategy["tp"], strategy["pp"], read.described.gpus


# Launchers and inner shells


@pytest.mark.parametrize("quote", ["'", '"'])
def test_an_inner_shell_gets_what_is_exported(script: Read, quote: str) -> None:
    escaped = "\\" if quote == '"' else ""
    read = script(
        f"""#SBATCH --nodes=128
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
TP=2; PP=4
export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node 4 --nnodes $SLURM_NNODES"
export CMD=" pretrain_gpt.py --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size $PP {PLAIN} "
srun --jobid $SLURM_JOBID bash -c {quote}$LAUNCHER --node_rank {escaped}$SLURM_PROCID $CMD{quote}
"""
    )
    assert degrees(read) == (2, 4, 512)


def test_what_is_not_exported_does_not_reach_an_inner_shell(script: Read) -> None:
    with pytest.raises(OpenQuestionError, match=r"--tensor-model-parallel-size needs \$TP"):
        script(
            f"TP=2\nbash -c 'torchrun pretrain_gpt.py {PLAIN} --tensor-model-parallel-size $TP'\n"
        )


@pytest.mark.parametrize(
    ("head", "launcher", "gpus"),
    [
        (
            "#SBATCH --nodes=4\n#SBATCH --gres=gpu:4 # of a node\n#SBATCH --ntasks-per-node=1",
            "srun python",
            16,
        ),
        ("", "srun --nodes=4 --gres=gpu:4 --ntasks-per-node=4 python", 16),
        ("", "torchrun", 1),
        ("NNODES=${SLURM_NNODES:-2}", "torchrun --nnodes $NNODES --nproc_per_node 8", 16),
        ("", 'mpirun -np 16 bash -c "python', 16),
    ],
)
def test_gpus(script: Read, head: str, launcher: str, gpus: int) -> None:
    end = '"' if launcher.count('"') else ""
    assert script(f"{head}\n{launcher} pretrain_gpt.py {PLAIN}{end}\n").described.gpus == gpus


@pytest.mark.parametrize(
    ("head", "launcher", "size"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks-per-node=1", "srun python", 4),
        ("", "srun --nodes=4 --ntasks-per-node=4 python", 4),
        ("", "srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc_per_node 8", 8),
        ("GPUS_PER_NODE=2; NNODES=3", "srun --ntasks-per-node=1 run", 2),
        ("", "mpirun -np 16 python", None),
    ],
)
def test_gpus_of_a_node(script: Read, head: str, launcher: str, size: int | None) -> None:
    described = script(f"{head}\n{launcher} pretrain_gpt.py {PLAIN}\n").described
    assert described.gpus_per_node == size


def test_a_default_for_the_machine_contradicts_nobody(script: Read) -> None:
    text = f"torchrun --nnodes ${{SLURM_NNODES:-1}} --nproc_per_node 8 pretrain_gpt.py {PLAIN}"
    read = script(text)
    assert read.described.gpus == 8
    assert read.disagreements({"gpus": (64, "--gpus")}) == []
    assert script(text, SLURM_NNODES="4").described.gpus == 32


def test_scripts_beside_are_followed(script: Read, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "sizes.sh").write_text("TP=4\nPP=${1:-2}\n", encoding="utf-8")
    (tmp_path / "inner.sh").write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} --tensor-model-parallel-size $TP"
        " --pipeline-model-parallel-size $1\n",
        encoding="utf-8",
    )
    read = script(
        'DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n. $DIR/conf/sizes.sh\nexport TP\n'
        "sbatch --nodes 1 ./inner.sh $PP\n"
    )
    assert degrees(read) == (4, 2, 8)


def test_a_heredoc_is_a_script_or_a_file(script: Read) -> None:
    read = script(
        f"""MB=1
cat <<EOT > ./ds.json
{{"train_micro_batch_size_per_gpu": $MB, "zero_optimization": {{"stage": 2,
  "offload_optimizer": {{"device": "cpu"}}}}}}
EOT
sbatch <<EOF
#!/bin/bash
srun torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {PLAIN} --deepspeed \\
    --deepspeed_config ./ds.json
EOF
"""
    )
    assert read.described.gpus == 16
    assert read.described.strategy["zero_stage"] == 2
    assert read.described.strategy["offload_optimizer"]


# Conditions


def test_conditions_that_can_be_decided_are(script: Read) -> None:
    read = script(
        f"""SP=true; TP=4
ARGS="{PLAIN} --tensor-model-parallel-size $TP"
if [ $SP = true ] && [ $TP -gt 1 ]; then ARGS+=" --sequence-parallel"; fi
if [[ -z "$RANKS" || $TP -lt 2 ]]; then ARGS+=" --pipeline-model-parallel-size $((TP>1?2:1))"; fi
torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS
"""
    )
    assert degrees(read) == (4, 2, 8)
    assert read.described.strategy["sequence_parallel"]


def test_what_cannot_be_decided_is_a_question(script: Read) -> None:
    text = f"""if nvidia-smi | grep -q H100; then TP=1; else TP=8; fi
torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} --tensor-model-parallel-size $TP
"""
    with pytest.raises(OpenQuestionError, match=r"depends on line 1.*--set TP=VALUE"):
        script(text)
    assert degrees(script(text, TP="8")) == (8, 1, 8)


def test_what_changes_nothing_needs_no_answer(script: Read) -> None:
    read = script(
        f"""ARGS=({PLAIN})
if [ -d "$CHECKPOINT" ]; then ARGS+=(--load $CHECKPOINT); fi
[ -f vocab.json ] || ARGS+=(--tensorboard-dir x)
torchrun --nproc_per_node 8 pretrain_gpt.py "${{ARGS[@]}}" --tensor-model-parallel-size 2
"""
    )
    assert degrees(read) == (2, 1, 8)


def test_an_option_that_a_condition_adds_is_a_question(script: Read) -> None:
    with pytest.raises(OpenQuestionError, match=r"--sequence-parallel depends on line 2 \(-f x\)"):
        script(
            f"ARGS=({PLAIN} --tensor-model-parallel-size 2)\n"
            "[ -f x ] && ARGS+=(--sequence-parallel)\n"
            'torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}"\n'
        )


def test_checks_of_what_is_given_are_passed(script: Read) -> None:
    read = script(
        f"""if [ -z "$IMAGE" ]; then echo "set IMAGE"; exit 1; fi
[ -d "$DATA" ] || {{ echo "no data"; exit 1; }}
torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN}
"""
    )
    assert read.described.gpus == 8
    assert any("stops here unless" in note for note in read.notes)


def test_arguments_of_the_script(script: Read) -> None:
    text = f"""TP=$1; PP=${{2:-2}}
torchrun --nproc_per_node ${{10:-8}} pretrain_gpt.py {PLAIN} --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size $PP
"""
    with pytest.raises(OpenQuestionError, match=r"needs \$1, an argument of the script"):
        script(text)
    assert degrees(script(text, "4")) == (4, 2, 8)
    assert degrees(script(text, "1", "4")) == (1, 4, 8)


def test_options_by_letters_and_words(script: Read) -> None:
    text = f"""TP=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2 ;;
    --tp=*) TP=${{1#*=}}; shift ;;
    *) echo unknown; exit 1 ;;
  esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} --tensor-model-parallel-size $TP
"""
    assert degrees(script(text))[0] == 1
    assert degrees(script(text, "--tp", "4"))[0] == 4
    assert degrees(script(text, "--tp=8"))[0] == 8


def test_the_first_turn_of_a_sweep_is_read(script: Read) -> None:
    read = script(
        f'for C in "2,4" "4,2"; do\nIFS=, read -r TP PP <<< "$C"\n'
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} --tensor-model-parallel-size $TP"
        " --pipeline-model-parallel-size $PP\ndone\n"
    )
    assert degrees(read) == (2, 4, 8)
    assert any("1 more commands train" in note for note in read.notes)


# Programs


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        ("torchrun pretrain_bert.py", NotModelledError, "BERT"),
        ("torchrun pretrain_t5.py", NotModelledError, "T5"),
        ("python pretrain_ict.py", NotModelledError, "ICT"),
        (
            "torchrun examples/multimodal/train.py --language-model-type x",
            NotModelledError,
            "vision",
        ),
        ("torchrun train_rl.py", NotModelledError, "reinforcement"),
        (
            "ray job submit -- python3 train.py --rollout-batch-size 8",
            NotModelledError,
            "reinforce",
        ),
        ("torchrun tools/run_text_generation_server.py", NotTrainingError, "inference"),
        ("torchrun tools/preprocess_data.py", NotTrainingError, "preparation of data"),
        ("torchrun tasks/main.py --task RACE", NotTrainingError, "evaluation"),
        ("torchrun pretrain_gpt.py --skip-train", NotTrainingError, "evaluation"),
        ("deepspeed my_own.py --x 1", NotModelledError, "starts my_own.py"),
    ],
)
def test_what_is_started_counts(
    script: Read, command: str, kind: type[InputError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        script(f"{command} {PLAIN if 'my_own' not in command else ''}\n")


def test_stray_words_are_refused(script: Read) -> None:
    read = script(f"torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} stray --bf16 True\n")
    assert "unrecognized arguments: stray" in read.conflicts
    assert "unrecognized arguments: True" in read.conflicts


def test_the_parts_of_a_template_are_no_words(script: Read) -> None:
    read = script(
        "VOCAB=<Specify path to file>/gpt2-vocab.json\n"
        f"torchrun pretrain_gpt.py {SIZES} --fp16 --vocab-file $VOCAB --data-path <data>\n"
    )
    assert read.conflicts == ()
    assert read.model().vocab == 50257
    assert any("is a place to fill in" in note for note in read.notes)


# Forks of Megatron


def test_layers_are_dealt_as_deepspeed_does(script: Read) -> None:
    sizes = SIZES.replace("--num-layers 24", "--num-layers 70")
    read = script(
        f"torchrun --nnodes 48 --nproc_per_node 8 pretrain_gpt.py {sizes} --bf16 --zero-stage 0"
        " --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 --deepspeed"
        " --pp-partition-method 'type:transformer|embedding' --position-embedding-type alibi"
        " --tokenizer-type PretrainedFromHF --tokenizer-name-or-path bigscience/tokenizer"
        " --checkpoint-activations --pad-vocab-size-to 250880 --train-samples 220_000_000\n"
    )
    assert read.title == "Megatron-DeepSpeed"
    assert read.conflicts == ()
    assert read.unknown == ()
    keys = read.strategy_of(70)
    assert [b - a for a, b in (stage["layers"] for stage in keys["stages"])] == [5, *[6] * 10, 5]
    assert keys["recompute"]["granularity"] == "full"
    assert keys["zero_stage"] == 1  # of its optimizer for bf16
    assert read.model().vocab == 250880
    assert read.described.tokens == 220_000_000 * 2048


def test_a_recipe_that_is_known_gives_what_no_override_says(script: Read) -> None:
    start = "srun --nodes 2 --ntasks-per-node 8 python run_recipe.py"
    read = script(f"{start} --recipe llama32_1b_pretrain_config train.global_batch_size=64\n")
    assert degrees(read) == (1, 1, 16)
    assert (read.described.seq_length, read.described.global_batch) == (8192, 64)
    assert read.strategy_of(16)["zero_stage"] == 1
    with pytest.raises(NotModelledError, match="several modalities"):
        script(f"{start} --recipe $RECIPE --step_func qwen3_vl_step\n")


def test_a_script_that_names_no_training_is_none_whatever_its_arguments_are(script: Read) -> None:
    with pytest.raises(NotTrainingError, match="names no program"):
        script('case "$1" in\n dev) git checkout dev ;;\n *) $EDITOR notes ;;\nesac\n')
    glue = 'if [ "$1" == z0 ]; then\n deepspeed run_glue.py --model_name_or_path x\nfi\n'
    with pytest.raises(NotModelledError, match="classification"):
        script(glue)
    with pytest.raises(OpenQuestionError, match="depends on \\$1"):
        script(glue.replace("run_glue", "run_clm"))


def test_a_recipe_that_is_not_known_asks_for_its_values(script: Read) -> None:
    start = "srun --nodes 2 --ntasks-per-node 8 python run_recipe.py"
    start += " --recipe llama32_3b_pretrain_config"
    with pytest.raises(OpenQuestionError, match=r"--set model.tensor_model_parallel_size=VALUE"):
        script(f"{start} train.micro_batch_size=1 train.global_batch_size=64\n")
    read = script(
        f"{start} model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=1"
        " train.micro_batch_size=1 train.global_batch_size=64 model.seq_length=4096\n"
    )
    assert degrees(read) == (2, 1, 16)
    assert read.strategy_of(28)["zero_stage"] == 1  # of all recipes for pretraining
    assert read.described.model == "Llama-3.2-3B"
    with pytest.raises(NotModelledError, match="a student with a teacher"):
        script(start.replace("pretrain", "distill"))


def test_a_trainer_names_its_model(script: Read) -> None:
    start = "deepspeed --num_gpus 8 main.py --model_name_or_path facebook/opt-1.3b --zero_stage 3"
    more = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_seq_len 512"
    read = script(f"{start} {more} --gradient_checkpointing --deepspeed\n")
    assert read.described.model == "OPT-1.3B"
    assert (read.described.seq_length, read.batch(8)) == (512, 64)
    assert read.strategy_of(24, 8)["zero_stage"] == 3
    assert read.strategy_of(24, 8)["recompute"] == "full"
    with pytest.raises(NotModelledError, match="adapters"):
        script(f"{start} {more} --lora_dim 128\n")


def test_sizes_of_a_model_that_is_not_rebuilt_are_compared(script: Read) -> None:
    read = script(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN}"
        " --experimental-attention-variant dsa\n"
    )
    assert read.described.shape is None
    against = " ".join(read.model_disagreements(load_model("llama-2-7b")))
    assert "24 layers" in against
    assert "2,048 hidden size" in against


def test_savings_are_named() -> None:
    read = read_config(f"{PLAIN} --grad-reduce-in-bf16".replace("--fp16", "--bf16"))
    assert read is not None
    assert ["--grad-reduce-in-bf16" in text for text in read.savings()] == [True]
    bounded = read_config(f"{SIZES} --bf16")
    assert bounded is not None
    assert "an upper bound" in next(iter(bounded.savings()))


# Files of other programs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {name: mpt_causal_lm}\nmax_duration: 1ba\nfsdp_config: {}\n",
            "--runtime llm-foundry --strategy",
        ),
        ("model: {d_model: 64}\nglobal_train_batch_size: 8\nfsdp: {}\n", "files of OLMo are not"),
    ],
)
def test_files_that_are_not_read_are_not_taken_for_others(
    script: Read, text: str, message: str
) -> None:
    with pytest.raises(NotModelledError, match=message):
        script(text, name="other.yaml")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --deepspeed zero3_offload"
            " --max_length 4096",
            {"gpus": 8, "finetune": "lora", "recompute": "full", "zero_stage": 3, "micro_batch": 1},
        ),
        (
            "swift sft --model Qwen/Qwen2.5-7B --lora_rank 16",
            {"finetune": "lora", "lora_rank": 16, "lora_modules": "all-linear"},
        ),
        (
            "swift sft --model Qwen/Qwen2.5-7B --target_modules q_proj k_proj v_proj",
            {"lora_rank": 8, "lora_modules": "q_proj,k_proj,v_proj"},
        ),
        (
            "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B"
            " --lora_rank 32",
            {"lora_rank": 32, "lora_modules": "all-linear"},
        ),
        (
            "trl sft --model_name_or_path Qwen/Qwen2.5-7B --accelerate_config zero3"
            " --num_processes 4",
            {"gpus": 4, "zero_stage": 3, "runtime": "deepspeed"},
        ),
        (
            "trl sft --model_name_or_path Qwen/Qwen2.5-7B --accelerate_config fsdp2",
            {"gpus": None, "zero_stage": 3, "runtime": "fsdp"},
        ),
        (
            "export ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_RESHARD_AFTER_FORWARD=false"
            " FSDP_ACTIVATION_CHECKPOINTING=true\naccelerate launch --num_processes 16 run_clm.py"
            " --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1",
            {"gpus": 16, "zero_stage": 2, "recompute": "full", "runtime": "fsdp"},
        ),
        (
            "swift sft --model Qwen/Qwen2.5-7B --train_type full --gradient_checkpointing false",
            {"finetune": None, "recompute": "none"},
        ),
        (
            "trl sft --model_name_or_path Qwen/Qwen2.5-7B",
            {"seq_length": 1024, "recompute": "full", "micro_batch": 8},
        ),
        (
            "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B"
            " --train_batch_size 256 --micro_train_batch_size 2",
            {"gpus": 8, "seq_length": 2048, "global_batch": 256, "zero_stage": 2},
        ),
        (
            "torchrun --nproc_per_node 8 t.py --model_name_or_path Qwen/Qwen2.5-7B"
            " --per_device_train_batch_size 1 --fsdp 'shard_grad_op auto_wrap'",
            {"runtime": "fsdp", "zero_stage": 2, "recompute": "none"},
        ),
    ],
)
def test_commands_of_trainers(script: Read, command: str, expected: dict[str, object]) -> None:
    read = script(command)
    described = read.described
    found = {**read.strategy_of(28, 8), "runtime": described.runtime, "gpus": described.gpus}
    known = {name: found.get(name, getattr(described, name, None)) for name in expected}
    assert known == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("megatron sft --load x --tensor_model_parallel_size 2", "ms-swift's Megatron is in a"),
        ("tune run lora_dpo_distributed --config x", "another recipe of torchtune"),
        ("python -m verl.trainer.main_ppo data.x=1", "reinforcement learning"),
        ("deepspeed --module openrlhf.cli.train_dpo --pretrain x", "by preferences"),
    ],
)
def test_commands_that_are_not_read(script: Read, command: str, message: str) -> None:
    with pytest.raises(NotModelledError, match=message):
        script(command)


def test_what_accelerate_may_shard_is_open(script: Read) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\nbf16: true\n"
    assert "sharding" in " ".join(script(text, name="a.yaml").savings())
    command = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2"
    assert script(f"accelerate launch t.py {command}").savings()
    assert not script(f"torchrun --nproc_per_node 8 t.py {command}").savings()


def test_files_are_known_by_their_keys(script: Read) -> None:
    factory = script(
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nfsdp: full_shard\n",
        name="a.yaml",
    )
    assert factory.described.model == "Qwen3-8B"
    assert factory.strategy_of(36, 8)["zero_stage"] == 3
    axolotl = script("base_model: x/y\nadapter: lora\nmicro_batch_size: 1\n", name="b.yaml")
    assert axolotl.described.finetune == "lora"
    with pytest.raises(NotModelledError, match="levanter trains with JAX"):
        script(
            "trainer: {train_batch_size: 8}\nmodel: {type: llama, hidden_dim: 8}\n", name="l.yaml"
        )
    with pytest.raises(NotTrainingError, match="a part of a GPT-NeoX configuration"):
        script('{"data-path": "x", "vocab-file": "y"}', name="c.yml")
    nemo = script(
        "trainer: {num_nodes: 2, devices: 8, precision: bf16, max_steps: 10}\nmodel:\n"
        "  {micro_batch_size: 1, global_batch_size: 64, tensor_model_parallel_size: 2,\n"
        "   num_layers: 4, hidden_size: 512, num_attention_heads: 8, encoder_seq_length: 1024,\n"
        "   ffn_hidden_size: 2048, max_position_embeddings: 1024}\n",
        name="nemo.yaml",
    )
    assert degrees(nemo)[::2] == (2, 16)
    primus = script(
        "modules:\n  pre_trainer:\n    model: llama3.1_8B.yaml\n    overrides:\n"
        "      micro_batch_size: 1\n      global_batch_size: 64\n      seq_length: 8192\n"
        "      tensor_model_parallel_size: ${TP:2}\n",
        name="primus.yaml",
    )
    assert primus.described.model == "Llama-3.1-8B"
    assert primus.described.strategy["tp"] == 2


@pytest.mark.parametrize(
    "experts",
    [
        "moe_num_experts: 8, num_experts_per_tok: 2",
        "moe_config: null, moe_config: {num_experts: 8, top_k: 2}",  # the last of a key counts
    ],
)
def test_experts_of_nanotron_are_experts(script: Read, experts: str) -> None:
    read = script(
        "parallelism: {tp: 1, pp: 1, dp: 8}\ntokens: {micro_batch_size: 1, sequence_length: 1024}\n"
        "model: {model_config: {hidden_size: 512, num_hidden_layers: 4, num_attention_heads: 8,\n"
        f"  intermediate_size: 1024, vocab_size: 1024, {experts}}}}}\n",
        name="x.yaml",
    )
    assert read.model().max_experts == 8


def test_an_experiment_of_flagscale_names_its_training(script: Read, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "7b.yaml").write_text(
        "system: {tensor_model_parallel_size: 2, disable_bias_linear: true,\n"
        "  precision: {bf16: true}}\n"
        "model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 1024,\n"
        "  micro_batch_size: 1, global_batch_size: 64}\n",
        encoding="utf-8",
    )
    read = script(
        "defaults: [{train: 7b}]\nexperiment:\n  task: {type: train, entrypoint: train_gpt.py}\n"
        "  runner: {nnodes: 2, nproc_per_node: 8}\n",
        name="train.yaml",
    )
    assert degrees(read) == (2, 1, 16)
    assert read.described.shape is not None
    assert not read.described.shape.mlp_bias


# What bash says


ORACLE = [
    f'A=({PLAIN})\nA+=(--bf16)\ntorchrun --nnodes 2 x.py "${{A[@]}}" ${{B[@]}} $C end\n',
    "export L='python -u'\nexport C=' x.py --a 1 '\nsrun -N 2 bash -c '$L $C --b 2'\n",
    'f() { local T=$1; torchrun x.py --t $T "$2"; }\nfor i in 1 2; do f $i "a b"; done\n',
    "case ${1:-b} in a) X=1 ;; b|c) X=2 ;; esac\npython x.py --x $X $((X>1?4:8))\n",
    'X=$(echo a b); Y=`echo c`\ncat > f <<EOF\n$X\nEOF\npython x.py --x "$X" $Y "$(cat f)"\n',
    "set -- --a 1; while [ $# -gt 0 ]; do case $1 in --a) A=$2; shift 2 ;; esac; done\n"
    "python x.py --a $A\n",
    "C=\"torchrun x.py --p 'a b' --q $((3*4))\"\necho $C\neval $C\n",
    "X=model/7b.json; python x.py --a ${X##*/} ${X%.json} ${X/7b/8b} ${X^^} ${#X}\n",
    "A=1; [ $A = 1 ] && [ $A -lt 2 ] || A=3\nA=$A python x.py --a $A | tee log\n",
    "T=(a b c); for ((i=0;i<${#T[@]};i++)); do python x.py --i ${T[i]} $i; done\n",
    "python x.py \\\n  --a 1 \\\n  # --b 2 \\\n  --c 3\n",
]


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash to compare with")
@pytest.mark.parametrize("text", ORACLE)
def test_bash_passes_what_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(text, encoding="utf-8")
    _, real = shell_oracle.recorded(path)
    real = [words for words in real if words[0] in ("python", "torchrun")]
    assert real
    read = [list(map(shown, one.words)) for one in read_script(text, str(path)).commands]
    read = [words for words in read if words[0] in ("python", "torchrun", "srun")]
    assert len(read) == len(real)
    for words, passed in zip(read, real, strict=True):
        kept = [word for word in words if word not in ("$C",)]  # unset: bash passes nothing
        assert kept[len(kept) - len(passed) :] == passed


def test_the_oracle_finds_differences(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text("python x.py --a 1\n", encoding="utf-8")
    _, real = shell_oracle.recorded(path)
    assert shell_oracle.agrees(("python", "x.py", "--a", "1"), real[0])
    assert not shell_oracle.agrees(("python", "x.py", "--a", "2"), real[0])
    assert shell_oracle.agrees(("srun", "python", "x.py", "--a", "\0A\0"), real[0])


# Hostile scripts


HOSTILE = {
    "deep blocks": "if true; then " * 5_000 + "a" + "; fi" * 5_000,
    "deep substitutions": "A=" + "$(echo " * 3_000 + ")" * 3_000,
    "deep brackets": "(" * 100_000,
    "deep arithmetic": "A=$((" + "(" * 900 + "1" + ")" * 900 + "))",
    "deep braces": "A=" + "${A:-" * 2_000 + "}" * 2_000,
    "doubling": "A=aaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 12,
    "endless loop": "while true; do A=1; for i in {1..9000}; do B=$i; done; done",
    "endless recursion": "f() { f; f; }; f",
    "many words": "run {1..9999}{1..9999}",
    "power": "A=$((9**9**9**9))",
    "shift": "A=$((1<<99999999999))",
    "nested loops": "".join(f"for {c} in {{1..99}}; do " for c in "abcdef") + "X=1;" + " done;" * 6,
    "open conditions": "".join(
        f"if [ -f {i} ]; then A+=x{i}; else A+=y{i}; fi\n" for i in range(400)
    ),
    "slow pattern": f"[[ {'a' * 190} =~ (a+)+(a+)+b ]] && X=1",
    "slow glob": f"A={'a' * 5000}; B=${{A%%*a*a*a*a*b}}",
    "quotes": "'\"" * 50_000,
    "backquotes": "`" * 99_999,
    "heredocs": "cat <<A\n" * 20_000,
    "sources itself": ". ./train.sh\n./train.sh\n",
    "long line": "A=" + "x" * 900_000 + "; run " + "$A " * 50,
    "ten megabytes": "echo aaaaaaaa\n" * 800_000,
    "many options": "torchrun pretrain_gpt.py " + "--lr 1 " * 60_000,
    "many arguments": "torchrun pretrain_gpt.py --lr 1 " + "x " * 200_000,
    "empty words": "echo " + '"" ' * 100_000,
    "many ways": "case $(hostname) in "
    + " ".join(f"{i}) A+={i};;" for i in range(9_000))
    + " esac",
    "ways inside of ways": "f0() { A+=x; }\n"
    + "".join(f"f{i + 1}() {{ if [ -f a ]; then f{i}; else f{i}; fi; }}\n" for i in range(25))
    + "f25",
    "nested words": "echo " + "{a," * 300 + "b" + "}" * 300,
    "range": "torchrun pretrain_gpt.py --num-layers {1..1000000000}",
    "fifty megabytes": "echo " + "x" * 50_000_000,
    "nul": "A=\0\0x; run $A\0",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scripts_end(name: str, tmp_path: Path) -> None:
    """In a second or two of CPU and little memory, with an answer or a refusal."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "train.sh"
    path.write_text(HOSTILE[name], encoding="utf-8")
    begun = time.process_time()
    try:
        read_config(str(path))
    except InputError as error:
        length = len(str(error))
    else:
        length = 0
    assert length < 2_000
    assert time.process_time() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024  # KiB
    assert sys.getrecursionlimit() < 10_000


def test_nothing_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    made = tmp_path / "made"
    path.write_text(
        f"X=$(touch {made})\n`touch {made}`\ntouch {made}\n: > {made}\n", encoding="utf-8"
    )
    with pytest.raises(InputError):
        read_config(str(path))
    assert not made.exists()


def test_accelerates_own_file_says_who_shards(script: Read, tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_reshard_after_forward: true\n  fsdp_activation_checkpointing: true\n"
    )
    start = "accelerate launch --config_file fsdp.yaml train.py --max_seq_length 512"
    read = script(
        f"{start} --model_name_or_path facebook/opt-1.3b --per_device_train_batch_size 4\n"
    )
    assert (read.described.runtime, read.described.gpus) == ("fsdp", 8)
    assert read.strategy_of(24, 8)["zero_stage"] == 3
    assert read.strategy_of(24, 8)["recompute"] == "full"
