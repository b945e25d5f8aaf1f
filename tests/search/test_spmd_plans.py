"""Programs beside pipelines: whichever is better, in one list with the same figures."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost.memory import MEMORY_CAUSES
from astrarium.cost.step import SECONDS_CAUSES
from astrarium.cost.training_run import Ramp, RunTerms
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model import load_model
from astrarium.model.load import model_of_config
from astrarium.model.workload import Workload
from astrarium.plans.parts import plan_part
from astrarium.search.outcome import Limits, Objective, Rejection
from astrarium.search.plan import Plan
from astrarium.search.planner import Mode, Planned, plan, predict
from astrarium.search.rules import user_rules
from astrarium.search.spmd_plans import plan_with_programs, rejects
from astrarium.strategy.document import strategy_from_dict, strategy_to_dict
from astrarium.strategy.types import Schedule
from astrarium.strategy.validity import megatron_lacks

TOKENS = 10**9


def gpt(hidden: int, layers: int) -> Any:
    config = {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": 8}
    return model_of_config(config | {"vocab_size": 8192, "n_positions": 1024}, "gpt", "gpt")


SMALL = Workload(gpt(512, 2), 512, 16, tokens=TOKENS)
MIXED = parse_gpus("v100:2,t4:2")


@cache
def small(mode: Mode = Mode.EXACT) -> Planned:
    return plan_with_programs(SMALL, MIXED, mode=mode)


def programs(planned: Planned) -> list[Plan]:
    return [one for one in planned.plans if one.strategy.program]


def test_a_small_mixed_cluster_gets_a_program() -> None:
    best = small().plans[0]
    assert best.strategy.schedule is Schedule.SPMD
    assert best.iteration_seconds < plan(SMALL, MIXED).plans[0].iteration_seconds
    assert any(one.strategy.program is None for one in small().plans)


def test_a_large_batch_of_a_large_model_gets_a_pipeline() -> None:
    workload = Workload(gpt(2048, 8), 1024, 256)
    cluster = parse_gpus("h100:4,a100:4")
    best = plan_with_programs(workload, cluster).plans[0]
    assert best.strategy.program is None
    assert best == plan(workload, cluster).plans[0]


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.COST])
def test_never_worse_than_pipelines_alone(objective: Objective) -> None:
    def figure(planned: Planned) -> float:
        best = planned.plans[0]
        return best.iteration_seconds * (best.usd_per_hour or 1.0 if objective == "cost" else 1.0)

    alone = plan(SMALL, MIXED, mode=Mode.UP_TO, objective=objective)
    both = plan_with_programs(SMALL, MIXED, mode=Mode.UP_TO, objective=objective)
    assert figure(both) <= figure(alone)


def test_the_figures_of_a_program_agree() -> None:
    best = programs(small())[0]
    assert best.fits
    assert sum(best.breakdown_seconds.values()) == pytest.approx(best.iteration_seconds)
    assert set(best.breakdown_seconds) == set(SECONDS_CAUSES)
    low, high = best.interval_seconds
    assert low < best.iteration_seconds < high
    assert best.tokens_per_second == pytest.approx(16 * 512 / best.iteration_seconds)
    assert [stage.gpu for stage in best.memory] == [pool.gpu.name for pool in MIXED.pools]
    for stage in best.memory:
        assert set(stage.by_cause) == set(MEMORY_CAUSES)
        assert all(size >= 0 for size in stage.by_cause.values())
    # Nobody holds less than a part of 16 bytes a parameter, nor all of them more than 18 each.
    held = sum(
        2 * sum(stage.by_cause[cause] for cause in ("weights", "gradients", "optimizer"))
        for stage in best.memory
    )
    assert 16 * SMALL.model.parameters <= held <= 4 * 18.01 * SMALL.model.parameters
    assert 0 < best.ideal_seconds < best.iteration_seconds
    assert all(0 < best.busy_share(stage) <= 1 for stage in best.stages)


def test_money_is_that_of_all_gpus() -> None:
    best = programs(small())[0]
    hourly = sum(pool.num_gpus * (pool.usd_per_gpu_hour or 0.0) for pool in MIXED.pools)
    assert best.usd_per_hour == pytest.approx(hourly)
    assert best.run is not None
    assert best.usd_total == pytest.approx(hourly * best.run.train_seconds / 3600)


def test_the_pieces_are_those_of_all_gpus() -> None:
    program = programs(small())[0].strategy.program
    assert program is not None
    batch = program.axes[0]
    assert batch.name == "batch"
    assert sum(batch.pieces) == batch.granules
    assert len(batch.pieces) == MIXED.num_gpus
    assert min(batch.pieces[:2]) > max(batch.pieces[2:])  # a V100 does more than a T4
    assert sum(one.seconds for one in program.messages) > 0


def test_exact_mode_uses_all_and_up_to_may_use_fewer() -> None:
    assert all(sum(one.gpus.values()) == 4 for one in small().plans)
    freely = small(Mode.UP_TO)
    assert freely.plans[0].iteration_seconds <= small().plans[0].iteration_seconds


def test_only_the_programs_own_runtime_runs_it() -> None:
    best = programs(small())[0]
    assert best.runtimes == ("spmd",)
    assert best.megatron_lacks == megatron_lacks(best.strategy) != ()
    with pytest.raises(InputError, match="astrarium synthesize"):
        predict(SMALL, MIXED, best.strategy)


def test_strategies_of_programs_survive_writing_and_reading() -> None:
    strategy = programs(small())[0].strategy
    written = json.loads(json.dumps(strategy_to_dict(strategy)))
    assert written["schedule"] == "spmd"
    read = strategy_from_dict(written, where="x", gpus=4, global_batch=16, layers=2)
    assert read == strategy
    part = plan_part(programs(small())[0], 1)
    assert part.strategy.program == strategy.program
    broken = {**written, "program": {"instructions": "many"}}
    with pytest.raises(InputError, match="program"):
        strategy_from_dict(broken, where="x", gpus=4, global_batch=16, layers=2)


def test_rules_drop_programs() -> None:
    found = plan_with_programs(SMALL, MIXED, rules=user_rules(["$schedule == 'spmd'"]))
    assert not programs(found)
    assert found.rejected[Rejection.RULE] > 0
    kept = programs(small())[0].strategy
    assert rejects(user_rules(["$gpus == 4 && $nodes == 2"])[0], SMALL, MIXED, kept)
    assert not rejects(user_rules(["$gpus < 4 || $tp > 1"])[0], SMALL, MIXED, kept)


def test_models_that_cannot_be_expressed_get_pipelines_and_a_note() -> None:
    workload = Workload(load_model("T5-small"), 512, 16)
    found = plan_with_programs(workload, parse_gpus("h100:2"))
    assert found.plans[0].strategy.program is None
    assert "encoder-decoder" in found.notes[0]


def test_a_growing_batch_gets_pipelines_and_a_note() -> None:
    terms = RunTerms(ramp=Ramp(start=4, increment=4, samples=1000))
    found = plan_with_programs(SMALL, parse_gpus("h100:2"), terms=terms)
    assert not programs(found)
    assert "--rampup-batch" in found.notes[0]


def test_many_gpus_get_pipelines_and_a_note() -> None:
    found = plan_with_programs(Workload(gpt(512, 2), 512, 256), parse_gpus("h100:64,a100:64"))
    assert not programs(found)
    assert "up to 64 GPUs" in found.notes[0]


def test_more_micro_batches_where_one_does_not_fit() -> None:
    pools = [replace(p, gpu=replace(p.gpu, memory_bytes=int(2.4e9))) for p in MIXED.pools]
    tight = Cluster(tuple(pools), MIXED.links)
    found = programs(plan_with_programs(SMALL, tight, top=40))
    assert found
    assert all(one.fits for one in found)
    assert max(one.strategy.num_micro_batches for one in found) > 1


def test_nothing_fits_is_said_as_without_programs() -> None:
    pools = [replace(p, gpu=replace(p.gpu, memory_bytes=int(1.3e9))) for p in MIXED.pools]
    none = Cluster(tuple(pools), MIXED.links)
    with pytest.raises(NoFeasiblePlanError) as alone:
        plan(SMALL, none)
    with pytest.raises(NoFeasiblePlanError) as both:
        plan_with_programs(SMALL, none)
    assert str(both.value) == str(alone.value)


def test_limits_hold_for_programs() -> None:
    best = small().plans[0]
    late = Limits(deadline_seconds=(best.train_seconds or 0.0) * 1.01)
    found = plan_with_programs(SMALL, MIXED, limits=late)
    assert [one.strategy.schedule for one in found.plans] == [Schedule.SPMD]


def test_planning_without_programs_imports_none_of_it() -> None:
    code = (
        "import sys, astrarium.search.planner, astrarium.api.planning, astrarium.report.build;"
        "print([n for n in sys.modules if n.startswith(('scipy', 'torch', 'astrarium.spmd'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
