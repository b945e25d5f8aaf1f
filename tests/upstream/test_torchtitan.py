"""torchtitan's own parsers and models take what is exported, and read the plan."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from exported_others import CASES, expressible, job
from hypothesis import HealthCheck, given, settings
from upstream.client import Driver, RefusedError

from astrarium.export.software import torchtitan
from astrarium.export.software.model_facts import trained_facts
from astrarium.export.software.torchtitan_models import DATA
from astrarium.model.workload import Precision
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

MODELS = ("llama-3-8b", "llama-2-7b", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite")
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
REGISTRY: Any = json.loads(DATA.read_bytes())
SIZES = ("layers", "hidden", "heads", "kv_heads", "vocab")
FACTS = ("theta", "rope_type", "factor", "epsilon", "score", "normalised", "route_scale", "groups")
COUNTED = 5e9  # parameters; larger models take seconds to build


def check(one: Job, read: Any, head: str) -> None:
    """What torchtitan makes of a configuration, against the plan."""
    s, config, degrees = one.strategy, read["config"], read["degrees"]
    found = {name: degrees[name] for name in ("tp", "cp", "pp", "ep")}
    assert found == {name: getattr(s, name) for name in found}
    replicas, shards = degrees["dp_replicate"], degrees["dp_shard"]
    assert replicas * shards == s.dp
    assert not s.zero_stage or replicas == s.shard_groups
    assert (shards > 1) == (s.dp > 1 and s.zero_stage > 0)
    training, parallelism = config["training"], config["parallelism"]
    assert training["global_batch_size"] == one.workload.global_batch
    assert training["seq_len"] == one.workload.seq_length
    parts = parallelism["module_fqns_per_model_part"]
    if s.pp == 1:
        assert parts is None
        assert training["local_batch_size"] == s.micro_batch
        return
    micro = parallelism["pipeline_parallel_microbatch_size"]
    assert (micro, training["local_batch_size"] // micro) == (s.micro_batch, s.num_micro_batches)
    stages = sorted(s.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
    layers = [[name for name in part if name.startswith("layers.")] for part in parts]
    assert list(map(len, layers)) == [stage.last_layer - stage.first_layer for stage in stages]
    assert [name for part in layers for name in part] == [
        f"layers.{n}" for n in range(one.model.num_layers)
    ]
    assert (parts[0][0], parts[-1][-2:]) == ("tok_embeddings", ["norm", head])


def ask_python(driver: Driver, one: Job, folder: Path, *, build: bool) -> Any:
    path = folder / f"{torchtitan.MODULE}.py"
    path.write_text(torchtitan.module(one), encoding="utf-8")
    return driver.ask(
        path=str(path), function=torchtitan.FUNCTION, world_size=one.world_size, build=build
    )


@pytest.mark.parametrize("case", CASES["torchtitan"])
def test_exported_models_are_those_of_the_plan(
    torchtitan_python: Driver, tmp_path: Path, case: str
) -> None:
    one = job("torchtitan", case)
    read = ask_python(torchtitan_python, one, tmp_path, build=True)
    check(one, read, "lm_head")
    assert read["parameters"] == one.model.parameters
    facts = trained_facts(one.config)
    assert facts
    assert read["epsilon"] == [facts["epsilon"]]


@settings(max_examples=15, suppress_health_check=SHARED)
@given(one=expressible(torchtitan.TARGET, MODELS))
def test_modules_are_taken(torchtitan_python: Driver, tmp_path: Path, one: Job) -> None:
    read = ask_python(torchtitan_python, one, tmp_path, build=False)
    check(one, read, "lm_head")
    recomputed = read["config"]["activation_checkpoint"] is not None
    assert recomputed == (one.strategy.recompute.granularity is Granularity.FULL)
    eight = one.workload.precision is Precision.FP8
    assert bool(read["float8"]) == eight
    assert not any("lm_head" in name for name in read["float8"])


def test_checkpoints_and_a_try_are_options(torchtitan_python: Driver, tmp_path: Path) -> None:
    one = job("torchtitan", "flavor")
    path = tmp_path / f"{torchtitan.MODULE}.py"
    path.write_text(torchtitan.module(one), encoding="utf-8")
    made = torchtitan.program(one)
    more = shlex.split(" ".join(made.checkpoints).replace("$CHECKPOINTS", "/c"))
    for words in (more, made.smoke):
        read = torchtitan_python.ask(
            path=str(path),
            function=torchtitan.FUNCTION,
            world_size=one.world_size,
            more=list(words),
        )["config"]
        if words is more:
            assert read["checkpoint"]["enable"]
            assert read["checkpoint"]["folder"] == "/c"
        else:
            assert not read["checkpoint"]["enable"]
            assert read["training"]["steps"] == 20


def test_a_stage_that_holds_nothing_is_refused_by_the_optimizer(torchtitan_python: Driver) -> None:
    """Why `Feature.EMPTY_STAGES` is lacking; its configuration and its models would take it."""
    assert torchtitan_python.ask(parts=[2, 3]) == [1, 1]
    with pytest.raises(RefusedError, match="matched no parameters"):
        torchtitan_python.ask(parts=[2, 0])


def test_flavors_are_those_of_the_registry(torchtitan_python: Driver) -> None:
    """The table of models against torchtitan's registry."""
    for row in REGISTRY["flavors"]:
        build = row["parameters"] < COUNTED
        found = torchtitan_python.ask(family=row["family"], flavor=row["name"], build=build)
        assert {key: found[key] for key in SIZES} == {key: row[key] for key in SIZES}
        assert found["parameters"] == (row["parameters"] if build else None)
        facts = {**REGISTRY["facts"][row["family"]], **row.get("facts", {})}
        assert {key: found.get(key) for key in FACTS} == {key: facts.get(key) for key in FACTS}
        assert found["longest"] == REGISTRY["longest"][row["family"]]
