"""Accelerate: the YAML, the environment and the script say what the plan says, or it is refused."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from exported_others import expressible, job, kept, written
from exported_plans import document, jobs
from hypothesis import given, settings

from astrarium.export.features import Feature
from astrarium.export.software import accelerate
from astrarium.export.target import refusals
from astrarium.plans.job import Job, job_of
from astrarium.strategy.types import Granularity

KEEPING = ("resumed", "save")
MODELS = ("llama-3-8b", "qwen2.5-7b", "mistral-7b-v0.1", "gpt2-xl")


def test_files_are_as_they_should_be() -> None:
    found = written("accelerate")
    assert found == kept("accelerate"), "run `python tests/exported_others.py` if it is meant"


@settings(max_examples=40)
@given(expressible(accelerate.TARGET, MODELS))
def test_the_file_says_what_the_plan_says(one: Job) -> None:
    s = one.strategy
    found = yaml.safe_load(accelerate.text(one))
    assert found == accelerate.settings(one)
    assert found["num_processes"] == one.world_size
    assert found["num_machines"] == one.num_nodes
    assert found["mixed_precision"] == "bf16"
    assert s.tp == s.pp == s.ep == 1
    if one.world_size == 1 or s.zero_stage == 0:
        assert found["distributed_type"] == ("NO" if one.world_size == 1 else "MULTI_GPU")
        assert "fsdp_config" not in found
        return
    assert found["distributed_type"] == "FSDP"
    degrees, sharding = found["parallelism_config"], found["fsdp_config"]
    assert degrees["parallelism_config_dp_replicate_size"] == s.shard_groups
    assert degrees["parallelism_config_dp_shard_size"] == s.dp // s.shard_groups
    assert degrees["parallelism_config_cp_size"] == s.cp
    assert sharding["fsdp_reshard_after_forward"] == (s.zero_stage == 3)
    assert sharding["fsdp_offload_params"] == s.offload_optimizer
    full = s.recompute.granularity is Granularity.FULL
    assert sharding["fsdp_activation_checkpointing"] == full


def constants(one: Job) -> dict[str, Any]:
    """What the training script states at its top."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(accelerate.program(one).files["train.py"]).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@pytest.mark.parametrize(
    ("case", "recompute", "sync"),
    [("weights", False, True), ("context", False, True), ("replicas", False, False)],
)
def test_the_script_trains_as_planned(case: str, recompute: bool, sync: bool) -> None:
    """Under FSDP the wrapper recomputes, and gradients are sharded after every micro-batch."""
    one = job("accelerate", case)
    stated = constants(one)
    assert stated["MICRO_BATCH"] == one.strategy.micro_batch
    assert stated["MICRO_BATCHES"] == one.strategy.num_micro_batches
    assert stated["SPLIT"] == one.strategy.cp
    assert (stated["RECOMPUTE"], stated["SYNC_EACH_BATCH"]) == (recompute, sync)
    notes = " ".join(accelerate.program(one).notes)
    assert f"reduces gradients after {'each' if sync else 'the last'} one" in notes
    assert "with random weights" in notes


class Recorder:
    """Stands for an Accelerator; keeps what it is asked to save and load."""

    is_main_process = True

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.loaded: list[str] = []

    def save_state(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)
        self.saved.append(Path(path).name)

    def load_state(self, path: str) -> None:
        self.loaded.append(Path(path).name)

    def wait_for_everyone(self) -> None:
        """Nobody else is there."""


def test_the_script_goes_on_from_the_last_of_two_checkpoints(tmp_path: Path) -> None:
    tree = ast.parse(accelerate.program(job("accelerate", "weights")).files["train.py"])
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    kept: list[ast.stmt] = [one for one in functions if one.name in KEEPING]
    space: dict[str, Any] = {"os": os, "SAVE_EVERY": 10, "Accelerator": Recorder}
    exec(compile(ast.Module(kept, []), "train.py", "exec"), space)
    recorder = Recorder()
    assert space["resumed"](recorder, "") == 0
    assert space["resumed"](recorder, str(tmp_path)) == 0
    for steps in (10, 20, 30):
        space["save"](recorder, str(tmp_path), steps)
    assert recorder.saved == ["turn-1", "turn-0", "turn-1"]
    assert space["resumed"](recorder, str(tmp_path)) == 30
    assert recorder.loaded == ["turn-1"]


def test_plain_replicas_are_recomputed_by_the_model() -> None:
    one = planned("llama-3-8b", zero_stage=0, recompute="full", recompute_layers=1)
    assert constants(one)["RECOMPUTE"] is True


@settings(max_examples=40)
@given(jobs())
def test_whatever_is_not_refused_is_written(one: Job) -> None:
    found = refusals(one, accelerate.TARGET)
    assert all(refusal.why and refusal.asked for refusal in found)
    if not found:
        assert accelerate.text(one)


def planned(model: str, **strategy: Any) -> Job:
    return job_of(document(model, "h100:8", strategy))


def features(one: Job) -> set[Feature | None]:
    return {refusal.feature for refusal in refusals(one, accelerate.TARGET)}


def test_what_it_cannot_express_is_refused() -> None:
    assert features(planned("llama-3-8b")) == {Feature.ZERO_1}
    assert features(planned("llama-3-8b", tp=8)) == {Feature.TENSOR_PARALLEL}
    assert features(planned("llama-3-8b", pp=8)) == {Feature.PIPELINE}
    assert features(planned("llama-3-8b", cp=2, zero_stage=0)) == {Feature.ZERO_0_SPLIT}
    experts = planned("mixtral-8x7b", ep=8, etp=1, zero_stage=2)
    assert features(experts) == {Feature.EXPERT_PARALLEL}
    assert features(planned("gpt3-1.3b", zero_stage=2)) == {None}


def test_overlap_cannot_be_switched_off() -> None:
    one = planned("llama-3-8b", zero_stage=0, overlap_grad_reduce=False)
    assert features(one) == {Feature.REDUCE_APART}


def test_one_node_needs_no_numbers() -> None:
    one = job("accelerate", "weights")
    launch = accelerate.launch(one, accelerate.program(one))
    assert launch.command == "./launch.sh"
    assert "NODE_RANK" not in launch.files["launch.sh"]
    several = job("accelerate", "context")
    launch = accelerate.launch(several, accelerate.program(several))
    assert '--machine_rank "$NODE_RANK"' in launch.files["launch.sh"]
    assert launch.where == "on every node, numbered from 0 to 1"
