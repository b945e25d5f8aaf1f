"""Megatron-LM: scripts say what the plan says, in options that Megatron has, or are refused."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from exported_plans import CASES, GOLDEN, golden, job, jobs
from hypothesis import given, settings

from astrarium.catalog.models import model_entries
from astrarium.configs.megatron.importing import read_launch_script
from astrarium.export.launchers.torchrun import script
from astrarium.export.run_length import iterations
from astrarium.export.software.megatron import TARGET, flags, program
from astrarium.export.software.megatron_model import (
    difference,
    flags_of,
    model_refused,
    shape_of,
    words,
)
from astrarium.export.target import refusals
from astrarium.model import load_model, model_of_entry
from astrarium.model.build import Architecture, assemble
from astrarium.model.workload import ExpertMessages, Numerics, Precision
from astrarium.plans.job import Job
from astrarium.strategy.options import Treatment, megatron_options
from astrarium.strategy.types import Granularity

OPTIONS = {flag: option for option in megatron_options() for flag in option.flags}


@pytest.mark.parametrize("target", ["megatron"])
def test_files_are_as_they_should_be(target: str) -> None:
    kept = {
        path.relative_to(GOLDEN).as_posix(): path.read_text(encoding="utf-8")
        for path in (GOLDEN / target).rglob("*")
        if path.is_file()
    }
    assert golden(target) == kept, "run `python tests/exported_plans.py` if the change is meant"


ALLTOALL = ["--moe-token-dispatcher-type", "alltoall"]
OVERLAPPED = "--overlap-moe-expert-parallel-comm"
DEEPEP = ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep"]


def read_back(text: str) -> dict[str, list[str]]:
    """Options of a launch script, as a shell splits them."""
    body = text.split("arguments=(\n", 1)[1].split("\n)\n", 1)[0]
    found: dict[str, list[str]] = {}
    for word in shlex.split(body):
        if word.startswith("--"):
            assert word not in found
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def number(options: dict[str, list[str]], flag: str, default: int = 1) -> int:
    return int(options[flag][0]) if flag in options else default


@settings(max_examples=60)
@given(jobs())
def test_a_script_says_what_the_plan_says(one: Job) -> None:
    strategy = one.strategy
    found = read_back(script(one, program(one)))
    assert found.keys() <= OPTIONS.keys()
    tp = number(found, "--tensor-model-parallel-size")
    pp = number(found, "--pipeline-model-parallel-size")
    cp = number(found, "--context-parallel-size")
    dp = one.world_size // (tp * pp * cp)
    assert (tp, pp, cp, dp) == (strategy.tp, strategy.pp, strategy.cp, strategy.dp)
    assert number(found, "--expert-model-parallel-size") == strategy.ep
    laid_out = strategy.pipeline_inside and cp > 1  # for experts that are not there
    assert number(found, "--expert-tensor-parallel-size") == (tp * cp if laid_out else strategy.etp)
    batch, micro = number(found, "--global-batch-size"), number(found, "--micro-batch-size")
    assert batch // (micro * dp) == strategy.num_micro_batches
    assert stages(found, pp) == [
        stage.last_layer - stage.first_layer
        for stage in sorted(strategy.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
    ]
    assert ("--sequence-parallel" in found) == strategy.sequence_parallel
    assert ("--use-tp-pp-dp-mapping" in found) == strategy.pipeline_inside
    assert ("--use-distributed-optimizer" in found) == (strategy.zero_stage > 0)
    assert ("--use-megatron-fsdp" in found) == (strategy.zero_stage > 1)
    assert ("--optimizer-cpu-offload" in found) == strategy.offload_optimizer
    assert ("--overlap-grad-reduce" in found) == strategy.overlap.grad_reduce
    assert ("--overlap-param-gather" in found) == strategy.overlap.param_gather
    assert ("--tp-comm-overlap" in found) == strategy.overlap.tp
    hidden = strategy.virtual_stages > 1 and "--no-overlap-p2p-communication" not in found
    assert hidden == strategy.overlap.p2p
    check_recompute(one, found)


def stages(found: dict[str, list[str]], pp: int) -> list[int]:
    """Layers of every (virtual) stage, in the order of the model."""
    layers = number(found, "--num-layers")
    if "--pipeline-model-parallel-layout" in found:
        (layout,) = found["--pipeline-model-parallel-layout"]
        assert (layout[0], layout[-1]) == ("E", "L")
        return [int(part[2:] or len(part)) for part in layout[1:-1].split("|")]
    chunks = pp * number(found, "--num-virtual-stages-per-pipeline-rank")
    return [layers // chunks] * chunks


def check_recompute(one: Job, found: dict[str, list[str]]) -> None:
    recompute = one.strategy.recompute
    none = recompute.granularity is Granularity.NONE
    assert found.get("--recompute-granularity") == (None if none else [recompute.granularity.value])
    full = recompute.granularity is Granularity.FULL
    assert found.get("--recompute-method") == ([recompute.method.value] if full else None)
    assert number(found, "--recompute-num-layers", 0) == recompute.layers
    assert found.get("--recompute-modules", []) == [module.value for module in recompute.modules]


@pytest.mark.parametrize("case", CASES)
def test_what_the_cost_model_takes_for_granted_is_said(case: str) -> None:
    """Options that are held fixed at another value than Megatron's default."""
    said = dict(flags(job(case)))
    for option in megatron_options():
        name = option.flags[0].removeprefix("--")
        if option.treatment is Treatment.FIXED and not option.differs_from_default and name in said:
            assert said[name] == option.value, name
    assert said["hidden-dropout"] == said["attention-dropout"] == 0.0
    assert said["accumulate-allreduce-grads-in-fp32"] is True
    experts = "num-experts" in said
    assert ("moe-permute-fusion" in said) == experts
    assert (said.get("moe-token-dispatcher-type") == "alltoall") == experts


def test_every_model_of_the_catalog_is_written_or_refused() -> None:
    """What is written is the same model; the others have a reason."""
    written = refused = 0
    for entry in model_entries():
        model = model_of_entry(entry)
        length = min(model.max_seq_length or 512, 4096)
        lent = job("even")
        work = replace(lent.workload, model=model, seq_length=length)
        why = model_refused(replace(lent, workload=work))
        refused += bool(why)
        if not why:
            written += 1
            built, _ = shape_of(dict(flags_of(model, length)), model.vocab)
            assert built is not None
            assert assemble("", "", Architecture.DECODER, built).parameters == model.parameters
            assert {f"--{name}" for name, _ in flags_of(model, length)} <= OPTIONS.keys()
    assert (written, refused) == (102, 88)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("gemma-2-9b", "norms behind the sublayers"),
        ("pythia-1.4b", "not side by side"),
        ("bloom-7.1b", "ALiBi"),
        ("t5-3b", "has an encoder too"),
        ("llava-1.5-7b", "reads images too"),
        ("opt-1.3b", "no ReLU"),
    ],
)
def test_models_that_megatron_cannot_build_are_refused(model: str, reason: str) -> None:
    lent = job("even")
    one = replace(lent, workload=replace(lent.workload, model=load_model(model)))
    (found,) = refusals(one, TARGET)
    assert found.feature is None
    assert reason in found.why


def with_config(**keys: Any) -> Job:
    from astrarium.model.load import model_of_config

    config = {**load_model("llama-3-8b").config, **keys}  # type: ignore[dict-item]
    lent = job("even")
    return replace(lent, workload=replace(lent.workload, model=model_of_config(config, "own", "")))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "stretches rotary positions"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 2}}, "stretches"),
        ({"attention_bias": True}, "on attention only"),
        ({"hidden_act": "gelu"}, "activation"),
    ],
)
def test_configs_that_megatron_has_no_option_for_are_refused(
    keys: dict[str, Any], reason: str
) -> None:
    assert reason in model_refused(with_config(**keys))


def test_positions_are_stretched_as_the_config_says() -> None:
    llama = dict(flags(with_config(rope_scaling={"rope_type": "llama3", "factor": 8.0})))
    assert (llama["use-rope-scaling"], llama["rope-scaling-factor"]) == (True, 8.0)
    assert llama["rotary-base"] == 500_000
    new = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    yarn = dict(flags(with_config(rope_parameters=new)))
    assert yarn["position-embedding-type"] == "yarn"
    assert (yarn["rotary-scaling-factor"], yarn["rotary-base"]) == (4.0, 1_000_000)


def test_a_changed_option_is_noticed() -> None:
    """The reading back of options is what guards against a model that differs."""
    model = load_model("qwen3-30b-a3b")
    said = dict(flags_of(model, 2048))
    assert difference(model, 2048, said) == ""
    for name, value in (
        ("num-query-groups", 8),
        ("moe-ffn-hidden-size", 512),
        ("moe-router-topk", 4),
        ("kv-channels", 64),
    ):
        assert difference(model, 2048, {**said, name: value}), name
    del said["qk-layernorm"]
    assert "parameters instead of" in difference(model, 2048, said)


def test_windows_longer_than_the_sequence_are_left_out() -> None:
    model = load_model("mistral-7b-v0.1")
    assert "window-size" not in dict(flags_of(model, 4096))
    assert dict(flags_of(model, 8192))["window-size"] == "4095,0"
    sinks = dict(flags_of(load_model("gpt-oss-20b"), 4096))
    assert sinks["window-attn-skip-freq"] == "([1]*1+[0]*1)*12"


def test_the_run_is_as_long_as_the_tokens() -> None:
    one = job("even")
    tokens = one.workload.tokens_per_iteration
    assert iterations(replace(one, workload=replace(one.workload, tokens=3 * tokens))) == 3
    assert iterations(replace(one, workload=replace(one.workload, tokens=3 * tokens + 1))) == 4


def test_queues_are_as_validation_asks() -> None:
    one, name = job("even"), "CUDA_DEVICE_MAX_CONNECTIONS"
    assert program(one).environment == {name: "1"}
    assert program(job("sharded")).environment == {name: "8"}
    assert program(job("sinks")).environment == {}


def test_precision() -> None:
    one = job("even")
    for precision, said in (
        (Precision.BF16, ["--bf16"]),
        (Precision.FP16, ["--fp16"]),
        (Precision.FP8, ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"]),
        (Precision.MXFP8, ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"]),
        (Precision.FP4, ["--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"]),
    ):
        work = replace(one.workload, precision=precision)
        every = words(flags(replace(one, workload=work)))
        first = every.index(said[0])
        assert list(every[first : first + len(said)]) == said


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (ExpertMessages.ALLTOALL, ALLTOALL),
        (ExpertMessages.OVERLAPPED, [*ALLTOALL, OVERLAPPED]),
        (ExpertMessages.DEEPEP, DEEPEP),
        (ExpertMessages.DEEPEP_OVERLAPPED, [*DEEPEP, OVERLAPPED]),
    ],
)
def test_messages_of_experts(messages: ExpertMessages, said: list[str]) -> None:
    one = job("experts")
    chosen = replace(one, workload=replace(one.workload, expert_messages=messages))
    every = words(flags(chosen))
    first = every.index(said[0])
    assert list(every[first : first + len(said)]) == said
    assert (OVERLAPPED in every) == (OVERLAPPED in said)
    described = read_launch_script("pretrain_gpt.py " + " ".join(every), "run.sh").described
    assert described.expert_messages is messages
    alone = replace(chosen, strategy=replace(one.strategy, ep=1))
    assert not {"flex", OVERLAPPED} & set(words(flags(alone)))


def test_reduced_numerics() -> None:
    one = job("even")
    strict = words(flags(one))
    reduced = words(flags(replace(one, workload=replace(one.workload, numerics=Numerics.REDUCED))))
    assert "--accumulate-allreduce-grads-in-fp32" in set(strict) - set(reduced)
    added = {"--grad-reduce-in-bf16", "--use-precision-aware-optimizer", "--main-grads-dtype"}
    assert added | {"--exp-avg-dtype", "--exp-avg-sq-dtype"} == {
        word for word in set(reduced) - set(strict) if word.startswith("--")
    }
