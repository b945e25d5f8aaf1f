"""DeepSpeed: the JSON and the script say what the plan says, or it is refused."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from exported_others import expressible, job, kept, written
from exported_plans import document, jobs
from hypothesis import given, settings

from astrarium.export.features import Feature
from astrarium.export.run_length import iterations_between
from astrarium.export.software import deepspeed
from astrarium.export.software.causal_models import DROPOUTS, LAYERS
from astrarium.export.target import refusals
from astrarium.plans.job import Job, job_of
from astrarium.strategy.types import Granularity

MODELS = ("llama-3-8b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b")


def test_files_are_as_they_should_be() -> None:
    found = written("deepspeed")
    assert found == kept("deepspeed"), "run `python tests/exported_others.py` if it is meant"


def constants(script: str) -> dict[str, Any]:
    """What a training script states at its top."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(script).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@settings(max_examples=40)
@given(expressible(deepspeed.TARGET, MODELS))
def test_the_files_say_what_the_plan_says(one: Job) -> None:
    s = one.strategy
    found = json.loads(json.dumps(deepspeed.settings(one)))
    assert s.pp == s.cp == 1
    assert found["zero_optimization"]["stage"] == s.zero_stage
    assert found["zero_optimization"]["overlap_comm"] == s.overlap.grad_reduce
    micro, steps = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    assert (micro, steps) == (s.micro_batch, s.num_micro_batches)
    assert micro * steps * s.dp == one.workload.global_batch
    assert found.get("train_batch_size") == (one.workload.global_batch if s.tp == 1 else None)
    assert found.get("tensor_parallel", {}).get("autotp_size", 1) == s.tp
    assert found.get("expert_parallel", {}).get("autoep_size", 1) == s.ep
    assert found["bf16"]["enabled"]
    assert ("data_types" in found) == (s.zero_stage > 0)  # its engine refuses it without ZeRO
    assert not s.sequence_parallel


@pytest.mark.parametrize("case", ["weights", "tensors", "experts", "offload"])
def test_the_script_trains_as_planned(case: str) -> None:
    one = job("deepspeed", case)
    files = deepspeed.program(one).files
    stated = constants(files["train.py"])
    s = one.strategy
    assert stated == {
        "SEQ_LENGTH": 2048,
        "MICRO_BATCH": s.micro_batch,
        "MICRO_BATCHES": s.num_micro_batches,
        "SPLIT": s.tp * s.cp,
        "STEPS": 100,
        "SMOKE_STEPS": 20,
        "SAVE_EVERY": iterations_between(one),
        "CHECKPOINTS": "",  # of a trial
        "RECOMPUTE": s.recompute.granularity is Granularity.FULL,
    }
    config = json.loads(files["config.json"])
    assert config == {**one.config, **{key: 0.0 for key in config if key in DROPOUTS}}
    written_zero = json.loads(files[deepspeed.FILE])["zero_optimization"]
    assert ("offload_optimizer" in written_zero) == s.offload_optimizer


@settings(max_examples=40)
@given(jobs())
def test_whatever_is_not_refused_is_written(one: Job) -> None:
    found = refusals(one, deepspeed.TARGET)
    assert all(refusal.why and refusal.asked for refusal in found)
    if not found:
        assert deepspeed.settings(one)


def planned(model: str, **strategy: Any) -> Job:
    return job_of(document(model, "h100:8", strategy))


def features(one: Job) -> set[Feature | None]:
    return {refusal.feature for refusal in refusals(one, deepspeed.TARGET)}


def test_what_the_json_has_no_words_for_is_refused() -> None:
    assert features(planned("llama-3-8b", pp=2)) == {Feature.PIPELINE}
    assert features(planned("llama-3-8b", tp=2)) == {Feature.SEQUENCE_PARALLEL}
    assert features(planned("llama-3-8b", cp=2)) == {Feature.CONTEXT_PARALLEL}
    some = {"recompute": "full", "recompute_method": "block", "recompute_layers": 2}
    assert features(planned("llama-3-8b", **some)) == {Feature.RECOMPUTE_SOME}


def test_models_that_cannot_be_built_are_refused() -> None:
    (refusal,) = refusals(planned("gpt3-1.3b"), deepspeed.TARGET)
    assert refusal.feature is None
    assert "no causal language model of type 'megatron_gpt'" in refusal.why
    (refusal,) = refusals(planned("gpt-oss-20b", ep=8, etp=1), deepspeed.TARGET)
    assert refusal.why.startswith("AutoEP finds the experts of mixtral,")
    assert set(deepspeed.EXPERT_TYPES) <= LAYERS.keys()
