"""What a frozen tower spares in time and memory, and searches with one against brute force."""

from __future__ import annotations

from typing import Any

import pytest
from small import brute_force, pool_of

import astrarium
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster, parse_gpus
from astrarium.model import load_model
from astrarium.model.frozen import with_frozen_front
from astrarium.model.huggingface import from_config
from astrarium.model.workload import Workload
from astrarium.plans.job import job_of
from astrarium.search.outcome import Objective
from astrarium.search.planner import plan, predict
from astrarium.strategy.types import Strategy

SMALL = {
    "model_type": "llava",
    "text_config": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 32064,
        "max_position_embeddings": 4096,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "image_size": 336,
        "patch_size": 14,
        "num_attention_heads": 16,
        "num_hidden_layers": 6,
    },
}


def test_it_spares_states_gradients_and_the_backward_pass() -> None:
    model = load_model("llava-1.5-7b")
    strategy = Strategy(
        tp=1, pp=1, dp=8, cp=1, micro_batch=4, num_micro_batches=4, zero_stage=3
    )  # fmt: skip
    whole, frozen = (
        predict(
            Workload(one, 2048, 128), parse_gpus("h100:8"), strategy, runtime=find_runtime("fsdp")
        )
        for one in (model, with_frozen_front(model, "vision"))
    )
    seconds = [one.breakdown_seconds for one in (whole, frozen)]
    assert seconds[0]["forward"] == pytest.approx(seconds[1]["forward"], rel=1e-3)
    assert seconds[1]["backward"] < seconds[0]["backward"]
    front = 303_507_456  # of its tower, as transformers counts
    assert seconds[1]["optimizer"] < seconds[0]["optimizer"]
    states = [one.memory[0].by_cause["optimizer"] for one in (whole, frozen)]
    assert states[0] - states[1] == pytest.approx(12 * front / 8)
    weights = [one.memory[0].by_cause["weights"] for one in (whole, frozen)]
    assert weights[1] - weights[0] == pytest.approx(2 * front / 8)
    assert frozen.peak_bytes < whole.peak_bytes


@pytest.mark.parametrize(
    ("runtime", "gpus", "memory_gb"),
    [("fsdp", "h100:8", 80), ("fsdp", "h100:8", 6), ("deepspeed", "h100:4", 6)],
)
def test_plans_equal_brute_force(runtime: str, gpus: str, memory_gb: float) -> None:
    model = with_frozen_front(from_config(SMALL, "small", "test"), "vision")
    workload, pool = Workload(model, 2048, 16), pool_of(gpus, memory_gb * 1e9)
    best, _ = brute_force(
        workload,
        pool,
        exact=True,
        rules=(),
        objective=Objective.THROUGHPUT,
        runtime=runtime,
    )
    found = plan(workload, Cluster((pool,)), runtime=find_runtime(runtime), top=1)
    assert found.bound_gap == 0.0
    assert found.plans[0].iteration_seconds == pytest.approx(min(best.values()), rel=1e-9)


def test_a_plan_keeps_what_is_frozen() -> None:
    asked: dict[str, Any] = {
        "gpus": "h100:8",
        "global_batch": 64,
        "seq_length": 2048,
        "runtime": "fsdp",
    }
    found = astrarium.plan("llava-1.5-7b", freeze="vision", **asked)
    assert found.document.workload.freeze == "vision"
    assert "303.5M parameters (vision) do not train" in found.document.notes
    job = job_of(found.document)
    again = predict(job.workload, job.cluster, job.strategy, runtime=job.runtime)
    assert again.iteration_seconds == found.best.iteration_seconds
