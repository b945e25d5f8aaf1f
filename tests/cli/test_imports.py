"""Launch scripts and configurations wherever a strategy is taken, and judged by `explain`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from astrarium.plans.document import load_document
from astrarium.plans.job import job_of

Run = Callable[..., Result]

EXAMPLES = Path(__file__).parents[1] / "configs" / "examples"
SMALL = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
  --ffn-hidden-size 8192 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000 \\
  --max-position-embeddings 2048 --swiglu --normalization RMSNorm --disable-bias-linear \\
  --position-embedding-type rope --untie-embeddings-and-output-weights \\
  --hidden-dropout 0.0 --attention-dropout 0.0 --bf16 --train-iters 1000 \\
  --micro-batch-size 2 --global-batch-size 64 --tensor-model-parallel-size 4 \\
  --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --lr 1e-4
"""


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def script(project: Path) -> Path:
    path = project / "train.sh"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_explain_answers_everything(run: Run, script: Path) -> None:
    result = run("explain", "train.sh", "--gpus", "h100", "--out", "better")
    assert result.exit_code == 0
    shown = words(result.stdout)
    for part in (
        "train.sh, read for Megatron-LM 0.19.2",
        "change nothing --lr",
        "FITS: stage 0 has",
        "tp 4, dp 2, micro-batch 2 x 16, ZeRO 1",
        "times as fast",
        "plan 1 saves",
    ):
        assert part in shown
    assert run("explain", "better/plan.json").exit_code == 0
    job = job_of(load_document(Path("better")))
    assert job.config["model_type"] == "llama"


@pytest.mark.parametrize(
    ("layers", "verdict", "code"),
    [
        (22, "FITS with the least that these options save", 0),
        (25, "DOES NOT FIT even with the most that these options can save", 1),
    ],
)
def test_savings_count_before_a_verdict(
    run: Run, project: Path, layers: int, verdict: str, code: int
) -> None:
    options = (
        f"--num-layers {layers} --hidden-size 4096 --num-attention-heads 32 --seq-length 1024"
        " --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16"
        " --vocab-size 50257 --grad-reduce-in-bf16 --recompute-granularity full"
        " --recompute-method uniform --recompute-num-layers 1"
    )
    text = f"torchrun --nproc_per_node 1 pretrain_gpt.py {options}\n"
    (project / "t.sh").write_text(text, encoding="utf-8")
    result = run("explain", "t.sh", "--gpus", "h100")
    assert verdict in words(result.stdout)
    assert result.exit_code == code


def test_explain_as_json(run: Run, script: Path) -> None:
    result = run("explain", "train.sh", "--gpus", "h100:8", "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "astrarium.import/1"
    assert document["runs"]
    assert document["program"] == "Megatron-LM 0.19.2"
    assert document["fit"]["plan"]["strategy"]["tp"] == 4
    assert document["workload"]["tokens"] == 1000 * 64 * 2048
    own, best = document["fit"]["plan"], document["answer"]["plans"][0]
    assert document["faster"] == pytest.approx(own["iteration_seconds"] / best["iteration_seconds"])
    saved = document["answer"]["compare"]["saved_usd"]
    assert saved == pytest.approx(own["usd_total"] - best["usd_total"])
    assert "--lr" in document["options"]["neutral"]
    assert {"option": "--tensor-model-parallel-size", "value": "4", "sets": "tp"} in (
        document["options"]["used"]
    )


def test_what_would_not_start(run: Run, script: Path) -> None:
    broken = SMALL.replace("--sequence-parallel", "--overlap-param-gather --tp-comm-overlap")
    script.write_text(broken.replace("--overlap-grad-reduce", ""), encoding="utf-8")
    result = run("explain", "train.sh", "--gpus", "h100:8")
    assert result.exit_code == 1
    shown = words(result.stdout)
    assert "WOULD NOT START: Megatron-LM would refuse it" in shown
    assert "overlap_param_gather needs overlap_grad_reduce" in shown
    assert "overlap_tp needs sequence parallelism" in shown
    assert shown.count("overlap_tp needs sequence parallelism") == 1
    for command in (("predict",), ("fit",)):
        refused = run(*command, "--gpus", "h100:8", "--strategy", "train.sh")
        assert refused.exit_code == 2
        assert "overlap_param_gather needs overlap_grad_reduce" in refused.stderr


def test_a_small_mistake_hides_nothing(run: Run, script: Path) -> None:
    script.write_text(SMALL.replace("--lr 1e-4", "--save out"), encoding="utf-8")
    result = run("explain", "train.sh", "--gpus", "h100")
    assert result.exit_code == 1
    shown = words(result.stdout)
    for part in (
        "WOULD NOT START: Megatron-LM would refuse it - --save needs --save-interval",
        "If that were fixed FITS",
        "predicted as if its conflicts were corrected",
        "times as fast",
    ):
        assert part in shown
    document = json.loads(run("explain", "train.sh", "--gpus", "h100", "--json").stdout)
    assert (document["runs"], document["fit"]["fits"]) == (False, True)
    compare = document["answer"]["compare"]
    assert compare["refused"] == document["conflicts"][0]
    assert compare["plan"]["strategy"]["tp"] == 4


def test_the_best_plan_stands_beside_what_cannot_start(run: Run, script: Path) -> None:
    wrong = SMALL.replace("parallel-size 4", "parallel-size 16")
    script.write_text(wrong, encoding="utf-8")
    result = run("explain", "train.sh", "--gpus", "h100")
    assert result.exit_code == 1
    shown = words(result.stdout)
    assert "world size 8 is not divisible by tp 16" in shown
    assert "an iteration" in shown.partition("The best plan on the same GPUs")[2]


def test_what_the_program_stops_at(run: Run, script: Path, project: Path) -> None:
    script.write_text(SMALL.replace("--lr 1e-4", "--lrr 1e-4"), encoding="utf-8")
    result = run("explain", "train.sh", "--gpus", "h100")
    assert result.exit_code == 0  # a fork may have it
    assert "would not run with Megatron-LM 0.19.2 as it is: --lrr" in words(result.stdout)
    text = (EXAMPLES / "torchtitan.toml").read_text(encoding="utf-8")
    changed = text.replace("[training]\n", "[training]\nlocal_batch = 1\n")
    (project / "titan.toml").write_text(changed, encoding="utf-8")
    result = run("explain", "titan.toml", "--gpus", "h100:64")
    assert result.exit_code == 1
    shown = words(result.stdout)
    assert "WOULD NOT START: torchtitan would refuse it - training.local_batch:" in shown
    assert "If that were fixed FITS" in shown


def test_degrees_that_do_not_divide(run: Run, script: Path) -> None:
    script.write_text(SMALL.replace("parallel-size 4", "parallel-size 3"), encoding="utf-8")
    document = json.loads(run("explain", "train.sh", "--gpus", "h100", "--json").stdout)
    assert document["conflicts"] == ["world size 8 is not divisible by tp 3 x pp 1 x cp 1 = 3"]
    script.write_text(
        SMALL.replace("--micro-batch-size 2", "--micro-batch-size 3"), encoding="utf-8"
    )
    document = json.loads(run("explain", "train.sh", "--gpus", "h100", "--json").stdout)
    assert "does not divide the global batch of 64" in document["conflicts"][0]
    assert document["fit"] is None
    assert document["answer"]["compare"]["refused"] == document["conflicts"][0]


def test_what_does_not_fit(run: Run, script: Path) -> None:
    script.write_text(
        SMALL.replace("--micro-batch-size 2", "--micro-batch-size 32"), encoding="utf-8"
    )
    result = run("explain", "train.sh", "--gpus", "v100:8", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["fit"]["excess_bytes"] > 0
    assert document["fit"]["changes"]
    assert document["faster"] is None
    shown = run("explain", "train.sh", "--gpus", "v100:8").stdout
    assert "DOES NOT FIT" in shown
    assert "Single changes that make it fit" in shown


def test_predict_and_fit_need_no_flag_twice(run: Run, script: Path) -> None:
    plain = run("predict", "--gpus", "h100", "--strategy", "train.sh", "--json")
    assert plain.exit_code == 0
    dashed = run("predict", "-", "--gpus", "h100:8", "--strategy", "train.sh", "--json")
    assert json.loads(dashed.stdout)["plans"] == json.loads(plain.stdout)["plans"]
    document = json.loads(plain.stdout)
    assert document["workload"]["model_as_given"] == "train.sh"
    assert any("read for Megatron-LM 0.19.2" in note for note in document["notes"])
    assert run("fit", "--gpus", "h100:8", "--strategy", "train.sh").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpus", "h100:16"), "train.sh has 8 GPUs, but --gpus or --cluster says 16"),
        (("--gpus", "h100:8", "--seq-length", "4096"), "a sequence length of 2,048"),
        (("--gpus", "h100:8", "--global-batch", "32"), "a global batch of 64"),
        (("--gpus", "h100:8", "--precision", "fp8"), "train.sh has bf16, but --precision says fp8"),
        (("llama-2-7b", "--gpus", "h100:8"), "train.sh has 16 layers, Llama-2-7B has 32"),
    ],
)
def test_flags_must_agree(run: Run, script: Path, flags: tuple[str, ...], message: str) -> None:
    result = run("predict", *flags, "--strategy", "train.sh")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("gpus", ["h100", "h100:16"])
def test_nodes_have_the_size_that_the_script_says(run: Run, project: Path, gpus: str) -> None:
    text = SMALL.replace("torchrun", "torchrun --nnodes 4").replace("_node 8", "_node 4")
    (project / "nodes.sh").write_text(text, encoding="utf-8")
    document = json.loads(run("explain", "nodes.sh", "--gpus", gpus, "--json").stdout)
    (pool,) = document["cluster"]["pools"]
    assert (pool["nodes"], pool["gpus_per_node"]) == (4, 4)


def test_without_a_configuration_flags_are_needed(run: Run, script: Path) -> None:
    result = run("predict", "--gpus", "h100:8", "--global-batch", "8", "--strategy", "tp=2")
    assert (result.exit_code, "MODEL" in result.stderr) == (2, True)
    result = run("predict", "llama-2-7b", "--gpus", "h100:8", "--strategy", "tp=2")
    assert (result.exit_code, "--global-batch" in result.stderr) == (2, True)
    result = run("explain", "train.sh")
    assert (result.exit_code, "--gpus TYPE:8" in result.stderr) == (2, True)


def test_plan_beside_a_script(run: Run, script: Path) -> None:
    (script.parent / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    common = ("plan", "config.json", "--gpus", "h100:8", "--seq-length", "2048")
    flags = (*common, "--compare", "train.sh", "--json")
    result = run(*flags, "--global-batch", "64")
    assert result.exit_code == 0
    compare = json.loads(result.stdout)["compare"]
    assert compare["plan"]["strategy"]["tp"] == 4
    assert compare["saved_seconds"] > 0
    assert any("read for Megatron-LM" in note for note in compare["notes"])
    result = run(*flags, "--global-batch", "128")
    assert (result.exit_code, "a global batch of 64" in result.stderr) == (2, True)


def test_a_script_says_what_both_sides_train_on(run: Run, script: Path) -> None:
    longer = {**CONFIG, "max_position_embeddings": 8192}
    (script.parent / "config.json").write_text(json.dumps(longer), encoding="utf-8")
    text = script.read_text(encoding="utf-8").replace("--bf16", "--fp16")
    script.write_text(text, encoding="utf-8")
    common = ("plan", "config.json", "--gpus", "h100:8", "--global-batch", "64", "--top", "1")
    result = run(*common, "--compare", "train.sh", "--compare-gpus", "a100", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["workload"]["seq_length"] == 2048
    assert document["workload"]["tokens"] == 1000 * 64 * 2048
    assert any("2,048 taken, as train.sh has it" in note for note in document["notes"])
    compare = document["compare"]
    assert compare["plan"]["gpus"] == {"A100-SXM4-80GB": 8}
    assert "train.sh trains in fp16, the plan in bf16" in compare["notes"]
    result = run(*common, "--compare", "train.sh", "--seq-length", "4096")
    assert (result.exit_code, "--seq-length says 4,096" in result.stderr) == (2, True)
    result = run(*common, "--compare", "train.sh", "--compare-gpus", "a100:16")
    assert (result.exit_code, "--compare-gpus says 16" in result.stderr) == (2, True)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_hidden_layers": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


def test_other_programs(run: Run, project: Path) -> None:
    for name in ("deepspeed.json", "torchtitan.toml", "accelerate.yaml"):
        shutil.copy(EXAMPLES / name, project / name)
    (project / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    common = ("--model", "config.json", "--seq-length", "2048", "--json")
    ds = json.loads(run("explain", "deepspeed.json", "--gpus", "a100:8", *common).stdout)
    assert (ds["runtime"], ds["workload"]["global_batch"]) == ("deepspeed", 64)
    assert ds["fit"]["plan"]["strategy"]["zero_stage"] == 3
    flags = ("--gpus", "a100", "--global-batch", "64", *common)
    shared = json.loads(run("explain", "accelerate.yaml", *flags).stdout)
    assert shared["fit"]["plan"]["strategy"]["dp"] == 8
    titan = run("predict", "--gpus", "h100", "--strategy", "torchtitan.toml", "--json")
    document = json.loads(titan.stdout)
    assert document["workload"]["model"] == "Llama-3.1-70B"
    assert any("predicted under torchtitan" in note for note in document["notes"])


def test_an_argument_string(run: Run) -> None:
    flags = ("--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64", "--json")
    text = "--tensor-model-parallel-size 2 --micro-batch-size 1 --bf16 --sequence-parallell"
    result = run("predict", "llama-2-7b", *flags, "--strategy", text)
    document = json.loads(result.stdout)
    assert document["plans"][0]["strategy"]["tp"] == 2
    assert any("1 unknown: --sequence-parallell" in note for note in document["notes"])


def test_plans_and_configurations_have_their_own_flags(run: Run, script: Path) -> None:
    flags = ("--gpus", "h100:8", "--seq-length", "2048", "--global-batch", "8")
    assert run("plan", "llama-2-7b", *flags, "--out", "a").exit_code == 0
    result = run("explain", "a/plan.json", "--gpus", "h100:8", "--tokens", "1T")
    assert (result.exit_code, "drop --gpus, --tokens" in result.stderr) == (2, True)
    result = run("explain", "train.sh", "--gpus", "h100", "--rank", "2")
    assert (result.exit_code, "--rank is for plans" in result.stderr) == (2, True)
