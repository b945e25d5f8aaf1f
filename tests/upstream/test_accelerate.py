"""accelerate's own loader and launcher take what is exported, and read the plan."""

from __future__ import annotations

import pytest
from exported_others import CASES, expressible, job
from hypothesis import HealthCheck, given, settings
from upstream.client import Driver

from astrarium.export.software import accelerate as exporter
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

MODELS = ("llama-3-8b", "qwen2.5-7b", "mistral-7b-v0.1", "gpt2-xl")
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def check(driver: Driver, one: Job) -> None:
    s = one.strategy
    read = driver.ask(text=exporter.text(one))
    assert read["arguments"]["num_processes"] == one.world_size
    assert read["arguments"]["num_machines"] == one.num_nodes
    # Other launchers set what accelerate's would.
    ours = exporter.environment(one)
    assert {key: read["environment"].get(key) for key in ours} == ours
    if s.dp * s.cp == 1 or s.zero_stage == 0:
        assert read["fsdp"] is None
        return
    groups, shards = s.shard_groups, s.dp // s.shard_groups
    degrees = {"dp_replicate": groups, "dp_shard": shards, "tp": 1, "cp": s.cp, "sp": 1}
    assert read["parallelism"] == {**degrees, "total": one.world_size}
    assert read["fsdp"]["fsdp_version"] == 2
    assert read["fsdp"]["reshard_after_forward"] == (s.zero_stage == 3)
    full = s.recompute.granularity is Granularity.FULL
    assert read["fsdp"]["activation_checkpointing"] == full


@pytest.mark.parametrize("case", CASES["accelerate"])
def test_exported_cases_are_taken(accelerate: Driver, case: str) -> None:
    check(accelerate, job("accelerate", case))


@settings(max_examples=20, suppress_health_check=SHARED)
@given(one=expressible(exporter.TARGET, MODELS))
def test_configurations_are_taken(accelerate: Driver, one: Job) -> None:
    check(accelerate, one)
