"""Launch scripts and argument strings of Megatron-LM: strategy, workload, options, conflicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.configs.detect import read_config
from astrarium.configs.imported import Imported
from astrarium.errors import InputError
from astrarium.model import load_model

EXAMPLES = Path(__file__).parent / "examples"
QUIET = "--micro-batch-size 1 --bf16 --hidden-dropout 0.0 --attention-dropout 0.0"


def example(name: str) -> Imported:
    found = read_config(str(EXAMPLES / name))
    assert found is not None
    return found


def arguments(text: str) -> Imported:
    found = read_config(f"{QUIET} {text}")
    assert found is not None
    return found


def strategy(text: str, layers: int = 32) -> dict[str, Any]:
    found = arguments(text)
    assert not found.conflicts
    return found.strategy_of(layers)


def test_arrays_and_arithmetic() -> None:
    read = example("llama3_70b.sh")
    said = read.described
    assert (said.gpus, said.seq_length, said.global_batch) == (64, 8192, 256)
    assert said.tokens == 10_000 * 256 * 8192
    assert read.model().parameters == load_model("llama-3-70b").parameters
    assert read.model_disagreements(load_model("llama-3-70b")) == []
    keys = read.strategy_of(80)
    assert (keys["tp"], keys["pp"], keys["virtual_stages"], keys["zero_stage"]) == (8, 4, 4, 1)
    assert keys["overlap"] == {"grad_reduce": True, "param_gather": True, "p2p": True, "tp": False}
    assert [*read.conflicts, *read.unknown, *read.as_if, *read.notes] == []
    assert {"--lr", "--save", "--tokenizer-type"} <= set(read.neutral)


def test_strings_cases_and_a_quoted_command() -> None:
    read = example("mixtral_strings.sh")
    assert read.described.gpus == 32
    assert read.model().parameters == load_model("mixtral-8x7b").parameters
    keys = read.strategy_of(32)
    assert (keys["tp"], keys["pp"], keys["ep"], keys["etp"]) == (2, 2, 8, 1)
    assert keys["recompute"] == {"granularity": "selective", "modules": ["core_attn", "moe_act"]}
    assert "--no-masked-softmax-fusion" in [one.option for one in read.as_if]
    assert read.described.tokens == 1_000_000 * 4096


def test_a_messy_script() -> None:
    read = example("messy.sh")
    assert read.described.gpus == 16
    assert read.described.precision == "fp16"
    keys = read.strategy_of(48)
    assert (keys["tp"], keys["pp"]) == (1, 4)
    cuts = [stage["layers"] for stage in keys["stages"]]
    assert cuts == [[0, 11], [11, 24], [24, 37], [37, 48]]
    assert any("$EXTRA_ARGS is never set" in note for note in read.notes)
    assert read.model().parameters == load_model("gpt2-xl").parameters


def test_latent_attention_and_a_short_first_stage() -> None:
    read = example("deepseek_uneven.sh")
    assert read.described.gpus == 128
    assert read.model().parameters == load_model("deepseek-v2-lite").parameters
    keys = read.strategy_of(27)
    assert [b - a for a, b in (stage["layers"] for stage in keys["stages"])] == [6, 7, 7, 7]
    assert keys["recompute"] == {"granularity": "full", "method": "uniform", "layers": 1}


def test_sharding_by_fsdp() -> None:
    read = example("fsdp.sh")
    assert read.described.gpus == 16
    keys = read.strategy_of(32)
    assert keys["zero_stage"] == 3
    assert keys["overlap"]["grad_reduce"]
    assert keys["overlap"]["param_gather"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--context-parallel-size 4", {"cp": 4}),
        ("--use-tp-pp-dp-mapping", {"pipeline_inside": True}),
        (
            "--recompute-activations",
            {"recompute": {"granularity": "selective", "modules": ["core_attn"]}},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            {"recompute": {"granularity": "full", "method": "block", "layers": 3}},
        ),
        (
            "--use-distributed-optimizer --optimizer-cpu-offload --use-precision-aware-optimizer",
            {"offload_optimizer": True, "zero_stage": 1},
        ),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"
            " --ckpt-format fsdp_dtensor",
            {"zero_stage": 2},
        ),
        (
            "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2",
            {"virtual_stages": 2, "split": "even"},
        ),
        (
            "--num-experts 8 --tensor-model-parallel-size 4",
            {"etp": 4},
        ),
    ],
)
def test_options(text: str, expected: dict[str, Any]) -> None:
    keys = strategy(text)
    assert {name: keys[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("--pipeline-model-parallel-layout Et*7|t*9|t*9|t*7,L", [7, 9, 9, 7]),
        ("--pipeline-model-parallel-layout 'Et|(t*5|)*6tL'", [1, 5, 5, 5, 5, 5, 5, 1]),
        ("--pipeline-model-parallel-layout 'E|t*16|t*16|L'", [0, 16, 16, 0]),
        ("--pipeline-model-parallel-layout 'E|t*3|(t|)*4,t*25|L'", [0, 3, 1, 1, 1, 1, 25, 0]),
        ("--pipeline-model-parallel-layout 'E|t*16||t*16|(|)*3L'", [0, 16, 0, 16, 0, 0, 0, 0]),
        ("--decoder-last-pipeline-num-layers 5", [9, 9, 9, 5]),
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6",
            [6, 10, 10, 6],
        ),
        (
            "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 4"
            " --num-virtual-stages-per-pipeline-rank 2",
            [2, 6, 6, 2] * 2,
        ),
    ],
)
def test_uneven_stages(text: str, layers: list[int]) -> None:
    keys = strategy(f"--pipeline-model-parallel-size 4 {text}")
    assert keys["split"] == "free"
    assert [b - a for a, b in (stage["layers"] for stage in keys["stages"])] == layers
    assert keys["virtual_stages"] == len(layers) // 4


def test_embedding_and_loss_as_layers() -> None:
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    keys = strategy(f"--pipeline-model-parallel-size 4 {flags}", layers=30)
    assert [b - a for a, b in (stage["layers"] for stage in keys["stages"])] == [7, 8, 8, 7]
    alone = strategy(f"--pipeline-model-parallel-size 4 {flags}", layers=2)
    assert [b - a for a, b in (stage["layers"] for stage in alone["stages"])] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "--pipeline-model-parallel-size 4 --num-layers 32"
            " --num-layers-per-virtual-pipeline-stage 2"
            " --pipeline-model-parallel-layout Et*8|t*8|t*8|t*8L",
            "no more than one of",
        ),
        (
            "--num-layers 30 --pipeline-model-parallel-size 2"
            " --pipeline-model-parallel-layout Et*15|t*16L",
            "31 layers, --num-layers is 30",
        ),
        (
            "--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout Et*15|t*16L",
            "no multiple",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout t*15|t*16L",
            "exactly one E",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*15|t*16",
            "exactly one L",
        ),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ex|L", "has 'x'"),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*99999999999|tL",
            "more than 100,000",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et |tL'",
            "has ' '",
        ),
        (
            "--pipeline-model-parallel-size 3 --num-layers 32"
            " --decoder-first-pipeline-num-layers 32",
            "leave each stage at least one",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 32"
            " --decoder-first-pipeline-num-layers 0",
            "must be larger than 0",
        ),
        ("--fp16", "--fp16 and --bf16"),
        ("--recompute-granularity full", "needs --recompute-method"),
        ("--use-megatron-fsdp", "fsdp_dtensor"),
        ("--use-torch-fsdp2 --use-distributed-optimizer", "not supported with the distributed"),
        ("--use-torch-fsdp2", "needs --no-gradient-accumulation-fusion"),
        ("--save here", "--save needs --save-interval"),
        ("--optimizer-cpu-offload", "--use-precision-aware-optimizer"),
        ("--train-iters 5 --train-samples 5", "both given"),
        ("--seq-length 8192 --max-position-embeddings 4096", "is below --seq-length"),
        ("--hidden-size 100 --num-attention-heads 3", "no multiple of --num-attention-heads"),
        ("--model-parallel-size 2", "no longer valid, use --tensor-model-parallel-size"),
        ("--tensor-model-parallel-size eight", "invalid int value: 'eight'"),
        (
            "--num-layers 32 --pipeline-model-parallel-size 4 "
            "--decoder-first-pipeline-num-layers 3",
            "cannot share evenly",
        ),
        (
            "--num-layers 32 --pipeline-model-parallel-size 4"
            " --num-layers-per-virtual-pipeline-stage 3",
            "32 layers cannot be dealt to 4 stages in chunks of 3",
        ),
        (
            "--recompute-granularity selective --recompute-num-layers 2",
            "selective recomputation takes no --recompute-num-layers",
        ),
        (
            "--recompute-activations --recompute-granularity full --recompute-method uniform",
            "selective recomputation takes no --recompute-method",
        ),
        ("--hybrid-context-parallel", "needs --calculate-per-token-loss"),
        (
            "--hybrid-context-parallel --pipeline-model-parallel-size 2",
            "--hybrid-context-parallel is not supported with pipeline parallelism",
        ),
        ("--num-layers 4 --num-experts 8 --moe-layer-freq [1]*3", "is of 3 layers"),
        ("--num-layers 4 --num-experts 8 --moe-layer-freq all", "cannot be read"),
    ],
)
def test_conflicts_are_named(text: str, reason: str) -> None:
    assert reason in "; ".join(arguments(text).conflicts)


def test_layers_that_the_model_brings_are_checked_too() -> None:
    options = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
    assert arguments(options).strategy_of(24)["virtual_stages"] == 2
    with pytest.raises(InputError, match="32 layers cannot be dealt to 4 stages"):
        arguments(options).strategy_of(32)


def test_recompute_activations_overrules_the_granularity() -> None:
    read = arguments("--recompute-activations --recompute-granularity full")
    assert read.conflicts == ()
    assert read.strategy_of(32)["recompute"]["granularity"] == "selective"
    assert any("makes the granularity selective" in note for note in read.notes)


def test_the_micro_batch_is_needed() -> None:
    found = read_config("--num-layers 32 --bf16")
    assert found is not None
    assert found.conflicts == ("--micro-batch-size is missing; Megatron needs it",)


def test_processes_that_make_no_whole_replicas(tmp_path: Path) -> None:
    text = (EXAMPLES / "llama3_70b.sh").read_text(encoding="utf-8")
    script = tmp_path / "train.sh"
    script.write_text(text.replace("--nodes=8", "--nodes=3"), encoding="utf-8")
    found = read_config(str(script))
    assert found is not None
    assert "world size 24 is not divisible by tp 8 x pp 4 x cp 1 = 32" in found.conflicts


def test_sequence_parallel_without_tp_is_switched_off() -> None:
    read = arguments("--sequence-parallel")
    assert not read.strategy_of(32)["sequence_parallel"]
    assert any("switches it off" in note for note in read.notes)


def test_what_is_not_modelled_is_predicted_as_if() -> None:
    read = read_config(
        "--micro-batch-size 1 --optimizer soap --cp-comm-type a2a --context-parallel-size 2"
    )
    assert read is not None
    as_if = {one.option: (one.given, one.assumed) for one in read.as_if}
    assert as_if["--hidden-dropout"] == ("0.1 by default", "0.0")
    assert as_if["--optimizer"] == ("soap", "adam")
    assert as_if["--bf16"] == ("not given", "bf16")
    assert as_if["--cp-comm-type"] == ("a2a", "p2p")


def test_what_means_nothing_alone_is_not_mentioned() -> None:
    assert arguments("--cp-comm-type a2a --moe-token-dispatcher-type flex").as_if == ()


def test_environment() -> None:
    text = (EXAMPLES / "llama3_70b.sh").read_text(encoding="utf-8")
    from astrarium.configs.megatron.importing import read_launch_script

    bare = text.replace("export CUDA_DEVICE_MAX_CONNECTIONS=1", "")
    assert any(
        "CUDA_DEVICE_MAX_CONNECTIONS=1" in note for note in read_launch_script(bare, "x").notes
    )
    sharded = (EXAMPLES / "fsdp.sh").read_text(encoding="utf-8")
    assert read_launch_script(sharded, "x").notes == ()
    limited = f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{sharded}"
    assert any("unset or above 1" in note for note in read_launch_script(limited, "x").notes)


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("torchrun --nproc_per_node=8 --nnodes=4", 32),
        ("torchrun --nproc-per-node 8", 8),
        ("torchrun --nproc-per-node 8 --nnodes 1:4", 32),
        ("torchrun --nproc-per-node 8 --nnodes $NNODES", None),
        ("torchrun --nproc-per-node gpu --nnodes 2", None),
        ("python -m torch.distributed.run --nproc_per_node 4 --nnodes 2", 8),
        ("python3 -m torch.distributed.launch --nproc_per_node 4", 4),
        ("srun -N 2 --ntasks-per-node 8 python", 16),
        ("srun -n 24 python -u", 24),
        ("srun --nodes 4 --gres=gpu:8 torchrun --nnodes 4 --nproc_per_node 8", 32),
        ("mpirun -np 16 python", 16),
        ("deepspeed --num_nodes 2 --num_gpus 8", 16),
        ("deepspeed --num_gpus 8", 8),
        ("deepspeed --hostfile nodes.txt --num_gpus 8", None),
        ("accelerate launch --num_processes 12 --num_machines 3", 12),
        ("WORLD_SIZE=64 python", 64),
        ("python", 1),
    ],
)
def test_how_many_processes(launcher: str, gpus: int | None) -> None:
    from astrarium.configs.megatron.importing import read_launch_script

    found = read_launch_script(f"{launcher} pretrain_gpt.py {QUIET}", "train.sh")
    assert found.described.gpus == gpus


def test_an_unset_variable_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        f"torchrun pretrain_gpt.py {QUIET} --num-layers $LAYERS --data-path $DATA", encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"--num-layers needs \$LAYERS, which is never set"):
        read_config(str(script))


def test_an_argument_string_is_read_by_no_shell() -> None:
    with pytest.raises(InputError, match=r"--num-layers needs \$N, which is never set"):
        arguments("--num-layers ${N}")
    with pytest.raises(InputError, match="no closing quotation in the arguments"):
        arguments("--save 'here")
    assert arguments("--num-layers \\\n 4").used[-1].value == "4"


def test_a_comment_in_the_middle_ends_the_command(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    lines = (f"torchrun pretrain_gpt.py {QUIET}", "# --fp16", "--num-layers 4 --hidden-size 8")
    script.write_text(" \\\n".join(lines), encoding="utf-8")
    found = read_config(str(script))
    assert found is not None
    assert found.described.shape is None
    assert any("'--num-layers' begins a command of its own" in note for note in found.notes)


def test_two_commands_and_loose_variables() -> None:
    from astrarium.configs.megatron.importing import read_launch_script

    both = [f"python pretrain_gpt.py {QUIET} {more}" for more in ("", "--num-layers 4")]
    found = read_launch_script("\n".join(both), "x.sh")
    assert found.notes[0] == "x.sh: 1 more commands train (line 1); the one of line 2 is read"
    loose = read_launch_script(
        f'GPT_ARGS="{QUIET} --num-layers 6"\nNNODES=2\nGPUS_PER_NODE=8', "x.sh"
    )
    assert loose.described.gpus == 16
    assert [one.value for one in loose.used if one.option == "--num-layers"] == ["6"]
    with pytest.raises(InputError, match="no training is started here"):
        read_launch_script("#!/bin/bash\necho --num-layers\nls --all", "x.sh")


def test_models_that_options_do_not_state() -> None:
    sizes = "--num-layers 2 --hidden-size 8 --num-attention-heads 2"
    further = arguments(f"{sizes} --mtp-num-layers 1")
    assert further.described.mtp_layers == 1
    assert any(one.option == "--mtp-num-layers" for one in further.used)
    bounded = arguments("--num-layers 2 --hidden-size 8 --num-attention-heads 2")
    assert bounded.model().vocab == 262_144
    assert "an upper bound" in bounded.as_if[-1].why
    told = arguments(
        "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --vocab-file x/gpt2-vocab.json"
    )
    assert told.model().vocab == 50_257
    with pytest.raises(InputError, match="does not state the model"):
        arguments("--num-layers 2").model()


def test_disagreements() -> None:
    read = example("llama3_70b.sh")
    stated = {"gpus": (32, "--gpus"), "seq_length": (8192, "--seq-length")}
    assert len(read.disagreements(stated)) == 1
    assert "64 GPUs, but --gpus says 32" in read.disagreements(stated)[0]
    against = read.model_disagreements(load_model("llama-2-7b"))
    assert [text.split(" has ")[1] for text in against] == [
        "80 layers, Llama-2-7B",
        "8,192 hidden size, Llama-2-7B",
        "64 attention heads, Llama-2-7B",
        "8 key/value heads, Llama-2-7B",
        "28,672 feed-forward size, Llama-2-7B",
        "128,256 entries of the vocabulary, Llama-2-7B",
    ]
