"""Fine-tuning and optimizers as users ask for them, and files of the plans."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

import astrarium
from astrarium.errors import InputError
from astrarium.plans.document import Plan, WorkloadPart
from astrarium.report.explain.terms import explain
from astrarium.report.explain.text import explanation_report
from astrarium.report.plan.text import facts

EIGHT: Final[dict[str, Any]] = {"gpus": "h100:8", "global_batch": 64, "seq_length": 4096}


def test_ways_to_fine_tune_stand_side_by_side() -> None:
    found = astrarium.plan("llama-3.1-8b", finetune="all", **EIGHT)
    plans = found.document.plans
    assert {one.finetune for one in plans} == {None, "lora", "qlora"}
    assert [one.runtimes for one in plans] == [("fsdp",)] * 3
    seconds = [one.iteration_seconds for one in plans]
    assert seconds == sorted(seconds)
    assert found.document.workload.lora_rank == 16
    search = found.document.search
    assert search is not None
    assert search.space == sum(search.rejected.values()) + len(plans)
    by_kind = {str(one.finetune): one for one in plans}
    alone = astrarium.plan("llama-3.1-8b", finetune="qlora", **EIGHT)
    assert alone.best.strategy == by_kind["qlora"].strategy


def test_what_does_not_fit_whole_fits_with_adapters() -> None:
    found = astrarium.plan("llama-3.1-70b", finetune="all", **EIGHT)
    by_kind = {one.finetune: one.strategy for one in found.document.plans}
    on_host = {kind: one.offload_optimizer for kind, one in by_kind.items()}
    assert on_host == {"lora": False, "qlora": False, None: True}


def test_a_plan_with_adapters_is_written_for_peft(tmp_path: Path) -> None:
    found = astrarium.plan(
        "llama-3.1-8b", finetune="dora", lora_rank=8, lora_modules="attention", **EIGHT
    )
    folder = found.best.export("accelerate", tmp_path / "out")
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["r"] == 8
    assert settings["use_dora"]
    assert settings["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    script = (folder / "train.py").read_text()
    compile(script, "train.py", "exec")
    assert "model = with_adapters(config)" in script
    assert "if one.requires_grad" in script
    for target in ("megatron", "deepspeed"):
        with pytest.raises(InputError, match=r"dora: it is written for training of all weights"):
            found.best.export(target, tmp_path / target)
    with pytest.raises(InputError, match=r"written for lora, dora, on modules that it divides"):
        found.best.export("bridge", tmp_path / "bridge")


def test_weights_of_4_bits_are_made_of_given_ones(tmp_path: Path) -> None:
    found = astrarium.plan("llama-3.1-8b", finetune="qlora", **EIGHT)
    script = (found.best.export("accelerate", tmp_path / "out") / "train.py").read_text()
    compile(script, "train.py", "exec")
    assert 'bnb_4bit_quant_type="nf4"' in script


@pytest.mark.parametrize(
    ("gpus", "number_format"), [("v100:8", "torch.float16"), ("h100:8", "torch.bfloat16")]
)
@pytest.mark.parametrize("finetune", ["lora", "qlora"])
def test_frozen_weights_have_the_number_format_of_the_plan(
    gpus: str, number_format: str, finetune: str, tmp_path: Path
) -> None:
    """And adapters fp32, since gradients in fp16 cannot be unscaled."""
    asked = {**EIGHT, "gpus": gpus}
    found = astrarium.plan("llama-2-7b", finetune=finetune, **asked)
    folder = found.best.export("accelerate", tmp_path / "out")
    tree = ast.parse((folder / "train.py").read_text())
    function = next(
        one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "with_adapters"
    )
    text = ast.unparse(function)
    said = re.findall(r"torch\.\w*float\w*", text)
    assert said == [number_format] * (3 if finetune == "qlora" else 1)
    assert "autocast_adapter_dtype" not in text  # PEFT makes adapters fp32 by itself
    readme = " ".join((folder / "README.md").read_text().split())
    assert "They are kept in fp32" in readme
    assert "FSDP shards tensors" not in readme
    assert "with random weights" not in readme
    without = "which must be set" if finetune == "qlora" else "or random ones without it"
    assert f"with the weights of MODEL_PATH, {without}" in readme
    assert ("host memory of every process" in readme) == (finetune == "lora")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"lora_rank": 8}, r"lora_rank is about adapters; add finetune lora, qlora or dora"),
        ({"finetune": "lorra"}, r"finetune 'lorra': expected one of full, lora, qlora, dora, all"),
        (
            {"finetune": "qlora", "runtime": "deepspeed"},
            r"runtime deepspeed: plans with adapters \(qlora\) are made for fsdp, torchtune alone",
        ),
        ({"finetune": "all", "runtime": "all"}, r"ask for one of them"),
        (
            {"expert_messages": "deepep"},
            r"expert_messages deepep: Llama-3\.1-8B has no experts; leave it out",
        ),
        ({"expert_messages": "overlapped"}, r"expert_messages overlapped: .* has no experts"),
        ({"expert_imbalance": 1.5}, r"expert_imbalance 1.5: .* has no experts; leave it out"),
        (
            {"finetune": "all", "sensitivity": True, "mode": "up-to"},
            r"sensitivity is about one way to fine-tune, and finetune all asks for several",
        ),
        (
            {"precision": "best", "sensitivity": True, "mode": "up-to"},
            r"sensitivity is about one number format, and precision best asks for several",
        ),
        ({"finetune": "LoRA"}, r"finetune 'LoRA': .* \(did you mean 'lora'\?\)"),
        ({"finetune": "lora", "lora_modules": ""}, r"lora_modules '': a name is empty"),
        ({"finetune": "lora", "lora_modules": "q_proj,"}, r"'q_proj,': a name is empty"),
        (
            {"finetune": "lora", "lora_modules": "q_prj"},
            r"lora_modules 'q_prj': Llama-3.1-8B has no such module \(did you mean 'q_proj'\?\); it"
            r" has all-linear, attention, mlp, down_proj",
        ),
        (
            {"finetune": "lora", "precision": "fp8"},
            r"precision fp8: with adapters, fsdp trains in bf16 or fp16; choose one, or runtime",
        ),
        (
            {"finetune": "qlora", "numerics": "reduced"},
            r"numerics reduced: plans with adapters have strict numerics; leave it out, or",
        ),
        ({"optimizer": "lion", "runtime": "fsdp"}, r"fsdp has no lion"),
        ({"optimizer": "lion", "runtime": "megatron-bridge"}, r"megatron-bridge has no lion"),
        ({"optimizer": "lio"}, r"unknown optimizer 'lio'"),
        ({"optimizer": "soap"}, r"soap is not priced: a Shampoo-like optimizer"),
        ({"optimizer": "sgd", "numerics": "reduced"}, r"leave one of them out"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        astrarium.plan("llama-3.1-8b", **EIGHT, **flags)


@pytest.mark.parametrize(
    ("optimizer", "runtime", "target", "text"),
    [
        ("muon", "megatron", "megatron", "--optimizer muon"),
        ("adamw-8bit", "megatron", "megatron", "--exp-avg-dtype fp8"),
        ("sgd", "fsdp", "accelerate", "torch.optim.SGD(\n"),
        ("adamw-8bit", "fsdp", "accelerate", "import torchao.optim\n"),
        ("lion", "deepspeed", "deepspeed", '"type": "Lion"'),
        ("adamw-bf16", "torchtitan", "torchtitan", "fused_opt_states_bf16"),
    ],
)
def test_exports_say_the_optimizer(
    optimizer: str, runtime: str, target: str, text: str, tmp_path: Path
) -> None:
    found = astrarium.plan("llama-3.1-8b", optimizer=optimizer, runtime=runtime, **EIGHT)
    folder = found.best.export(target, tmp_path / "out")
    written = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert text in written
    assert found.document.workload.optimizer == optimizer


def test_an_optimizer_with_fewer_states_needs_fewer_gpus() -> None:
    peaks = {
        name: astrarium.predict(
            "llama-3.1-8b", "dp=8,zero_stage=0", runtime="fsdp", optimizer=name, **EIGHT
        ).best.peak_bytes
        for name in ("adamw", "adamw-8bit", "adafactor", "sgd")
    }
    assert peaks["adamw"] > peaks["sgd"] > peaks["adamw-8bit"] > peaks["adafactor"]


def test_number_formats_stand_side_by_side() -> None:
    found = astrarium.plan("llama-3.1-8b", precision="best", **EIGHT)
    plans = found.document.plans
    assert [one.precision for one in plans] == ["fp8", "bf16"]
    alone = astrarium.plan("llama-3.1-8b", precision="fp8", **EIGHT)
    assert plans[0].strategy == alone.best.strategy
    assert any(note.startswith("quality: ") for note in found.document.notes)


def test_formats_with_scales_of_few_elements_are_compared_where_tensor_cores_have_them() -> None:
    asked: dict[str, Any] = {"gpus": "b200:8", "global_batch": 64, "seq_length": 8192}
    found = astrarium.plan("llama-3.1-8b", precision="best", **asked)
    assert {one.precision for one in found.document.plans} == {"fp4", "fp8", "mxfp8", "bf16"}
    (quality,) = (note for note in found.document.notes if note.startswith("quality: "))
    assert all(paper in quality for paper in ("2412.19437", "2506.08027", "2509.25149"))
    one = next(plan for plan in found.document.plans if plan.precision == "mxfp8")
    fp8 = next(plan for plan in found.document.plans if plan.precision == "fp8")
    assert fp8.iteration_seconds < one.iteration_seconds < 1.05 * fp8.iteration_seconds
    alone = astrarium.plan("llama-3.1-8b", precision="mxfp8", runtime="megatron-bridge", **asked)
    assert alone.best.iteration_seconds > 0
    with pytest.raises(InputError, match=r"fsdp: mxfp8 there comes from other libraries"):
        astrarium.plan("llama-3.1-8b", precision="mxfp8", runtime="fsdp", **asked)


def test_a_format_that_gpus_lack_is_left_out_with_a_note() -> None:
    found = astrarium.plan("llama-3.1-8b", precision="best", gpus="a100:8", global_batch=64)
    assert [one.precision for one in found.document.plans] == ["bf16"]
    assert any(note.startswith("no plan for fp8: ") for note in found.document.notes)
    assert not any(note.startswith("quality: ") for note in found.document.notes)
    with pytest.raises(InputError, match="ask for one of them"):
        astrarium.plan("llama-3.1-8b", precision="best", finetune="all", **EIGHT)


def test_the_header_names_the_kind_of_adapters() -> None:
    def shown(plans: Sequence[Plan], part: WorkloadPart) -> str:
        trains = {plan.finetune for plan in plans}
        return dict(facts(part, cluster, (), (), trains))["training"]

    both = astrarium.plan("llama-3.1-8b", finetune="all", **EIGHT).document
    cluster = both.cluster
    assert "Adam, adapters of rank 16 on all-linear" in shown(both.plans, both.workload)
    words = {None: "Adam", "lora": "Adam, LoRA adapters of", "qlora": "Adam, QLoRA adapters of"}
    for plan in both.plans:
        alone = shown([plan], both.workload)
        assert words[plan.finetune] in alone
        assert ("adapters" in alone) is (plan.finetune is not None)
    full = next(plan for plan in both.plans if plan.finetune is None)
    parts = explanation_report(both, explain(full, cluster), 100)
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    for part in parts:
        console.print(part)
    assert "adapters" not in stream.getvalue()


def test_modules_are_named_once_and_only_those_that_can_be_had() -> None:
    found = astrarium.plan(
        "llama-3.1-8b", finetune="lora", lora_modules="q_proj, v_proj,q_proj", **EIGHT
    )
    assert found.document.workload.lora_modules == ("q_proj", "v_proj")
    with pytest.raises(InputError, match=r"it has attention, k_proj, o_proj, q_proj, v_proj$"):
        astrarium.plan("mixtral-8x7b", finetune="lora", lora_modules="foo", **EIGHT)


def test_a_strategy_with_adapters_may_be_predicted_in_fp8() -> None:
    found = astrarium.predict(
        "llama-3.1-8b", strategy={"zero_stage": 3}, finetune="lora", precision="fp8", **EIGHT
    )
    assert found.document.workload.precision == "fp8"


@pytest.mark.parametrize(
    ("model", "flags", "why"),
    [
        ("nemotron-h-8b", {"runtime": "torchtitan"}, "no flavor has its sizes"),
        ("gpt3-13b", {"runtime": "megatron-bridge"}, "has no recipe for it"),
        ("qwen3-8b", {"runtime": "torchtune", "finetune": "lora"}, "configuration of adapters"),
        (
            "llama-3.1-8b",
            {"runtime": "torchtune", "finetune": "lora", "lora_modules": "mlp"},
            "on some weights of attention",
        ),
    ],
)
def test_software_that_could_not_be_written_for_is_not_planned_for(
    model: str, flags: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=why) as caught:
        astrarium.plan(model, gpus="h100:8", global_batch=64, seq_length=2048, **flags)
    assert caught.value.part == "runtime"
    assert caught.value.repairs
