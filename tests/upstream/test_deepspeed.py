"""DeepSpeed's own configuration class takes what is exported, and reads the plan."""

from __future__ import annotations

from typing import Any

import pytest
from exported_others import CASES, expressible, job
from hypothesis import HealthCheck, given, settings
from upstream.client import Driver

from astrarium.export.software import deepspeed as exporter
from astrarium.plans.job import Job

MODELS = ("llama-3-8b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b")
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def check(driver: Driver, one: Job) -> Any:
    s = one.strategy
    read = driver.ask(config=exporter.settings(one), world_size=one.world_size)
    assert read["zero_optimization_stage"] == s.zero_stage
    assert read["train_micro_batch_size_per_gpu"] == s.micro_batch
    assert read["gradient_accumulation_steps"] == s.num_micro_batches
    # Its own count is one of ranks; those of tensor parallelism share their sequences.
    assert read["train_batch_size"] == one.workload.global_batch * s.tp
    assert read["tensor_parallel_config"]["autotp_size"] == (s.tp if s.tp > 1 else 0)
    experts = read["expert_parallel_config"]
    assert (experts["autoep_size"] if experts else 1) == s.ep
    assert read["gradient_clipping"] == 1.0
    return read


@pytest.mark.parametrize("case", CASES["deepspeed"])
def test_exported_cases_are_taken(deepspeed: Driver, case: str) -> None:
    one = job("deepspeed", case)
    read = check(deepspeed, one)
    offloaded = read["zero_config"]["offload_optimizer"]
    assert (offloaded is not None) == one.strategy.offload_optimizer


@settings(max_examples=20, suppress_health_check=SHARED)
@given(one=expressible(exporter.TARGET, MODELS))
def test_configurations_are_taken(deepspeed: Driver, one: Job) -> None:
    check(deepspeed, one)
