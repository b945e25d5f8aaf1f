"""Stages that each recompute what their memory asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small import small_model

from astrarium.cluster import parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import InputError
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import predict
from astrarium.search.refusals import why_refused
from astrarium.strategy.document import read_strategy, strategy_to_dict
from astrarium.strategy.types import (
    Granularity,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)

NONE = Recompute()
ATTENTION = Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,))
ONE = Recompute(Granularity.FULL, Method.BLOCK, 1)
ALL = Recompute(Granularity.FULL, Method.UNIFORM, 1)
PAIRS = Recompute(Granularity.FULL, Method.UNIFORM, 2)
POLICIES = (NONE, ATTENTION, ONE, ALL, PAIRS)

WORKLOAD = Workload(small_model(8), seq_length=1024, global_batch=16)
CLUSTER = parse_gpus("h100:8")
PLAIN = Overlap(p2p=False, tp=False)


def pipeline(pp: int, virtual: int = 1, **choices: int) -> Strategy:
    """Even stages on all GPUs, nothing recomputed."""
    chunks = pp * virtual
    layers = 8 // chunks
    stages = tuple(
        Stage("", n * layers, (n + 1) * layers, 8 // pp, n % pp, n // pp) for n in range(chunks)
    )
    chosen = {"tp": 8 // pp, "pp": pp, "virtual_stages": virtual, "num_micro_batches": 16}
    overlap = replace(PLAIN, p2p=virtual > 1)
    return Strategy(**{**chosen, **choices}, stages=stages, overlap=overlap)  # type: ignore[arg-type]


def with_own(strategy: Strategy, *policies: Recompute) -> Strategy:
    """Rank by rank; a rank that recomputes what the strategy does says nothing."""
    own = [None if policy == strategy.recompute else policy for policy in policies]
    stages = tuple(replace(stage, recompute=own[stage.rank]) for stage in strategy.stages)
    return replace(strategy, stages=stages)


def estimated(*strategies: Strategy) -> tuple[Plan, ...]:
    return estimate(ClusterModel(WORKLOAD, CLUSTER), strategies)


@pytest.mark.parametrize("virtual", [1, 2])
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_stages_that_all_state_the_same_are_the_common_strategy(
    policy: Recompute, virtual: int
) -> None:
    given = pipeline(4, virtual)
    common, own = estimated(replace(given, recompute=policy), with_own(given, *[policy] * 4))
    assert own.iteration_seconds == common.iteration_seconds
    assert own.breakdown_seconds == common.breakdown_seconds
    assert [m.by_cause for m in own.memory] == [m.by_cause for m in common.memory]


@pytest.mark.parametrize("virtual", [1, 2])
@pytest.mark.parametrize("policies", [(ALL, ONE, ATTENTION, NONE), (NONE, PAIRS, PAIRS, ALL)])
def test_every_stage_is_that_of_a_pipeline_that_recomputes_as_it_does(
    policies: tuple[Recompute, ...], virtual: int
) -> None:
    given = pipeline(4, virtual)
    own, *common = estimated(
        with_own(given, *policies), *(replace(given, recompute=policy) for policy in policies)
    )
    for rank, uniform in enumerate(common):
        assert own.memory[rank].by_cause == pytest.approx(uniform.memory[rank].by_cause)
        for name in ("forward_seconds", "backward_seconds", "after_seconds"):
            mine, other = (getattr(plan.stages[rank], name) for plan in (own, uniform))
            assert mine == pytest.approx(other, rel=1e-12)
    slowest, fastest = (f(p.iteration_seconds for p in common) for f in (max, min))
    assert fastest < own.iteration_seconds < slowest


def test_pipelines_of_unequal_length_are_priced_together() -> None:
    """Ranks of a short pipeline are not the first columns of the table."""
    short, long = with_own(pipeline(2), NONE, ALL), with_own(pipeline(4), ONE, ALL, NONE, NONE)
    together = estimated(short, long)
    for plan, strategy in zip(together, (short, long), strict=True):
        (alone,) = estimated(strategy)
        assert plan.iteration_seconds == alone.iteration_seconds
        assert [m.by_cause for m in plan.memory] == [m.by_cause for m in alone.memory]


def test_megatron_cannot_run_it() -> None:
    plain, own = estimated(pipeline(4), with_own(pipeline(4), ALL, NONE, NONE, NONE))
    assert plain.runtimes == ("megatron",)
    assert own.runtimes == ()
    assert own.megatron_lacks == ("recomputation differs between stages",)


def test_document_round_trip(tmp_path: Path) -> None:
    (plan,) = estimated(with_own(pipeline(4, 2), ALL, ATTENTION, ONE, NONE))
    written = strategy_to_dict(plan.strategy)
    assert [stage.get("recompute", {}).get("granularity") for stage in written["stages"][:4]] == [
        "full",
        "selective",
        "full",
        None,
    ]
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    given = read_strategy(str(path), gpus=8, global_batch=16, layers=8).strategy
    assert given == plan.strategy
    assert predict(WORKLOAD, CLUSTER, given).iteration_seconds == plan.iteration_seconds


def test_a_word_stands_for_a_policy_in_a_stage(tmp_path: Path) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_text(
        "tp: 4\npp: 2\nstages:\n"
        "  - {layers: [0, 4], recompute: full}\n  - {layers: [4, 8], recompute: none}\n",
        encoding="utf-8",
    )
    given = read_strategy(str(path), gpus=8, global_batch=16, layers=8).strategy
    assert [stage.recompute for stage in given.stages] == [ALL, None]


def test_bad_recomputation_of_a_stage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_text("pp: 1\nstages: [{layers: [0, 8], recompute: {granularity: some}}]", "utf-8")
    with pytest.raises(InputError, match="granularity is 'some'"):
        read_strategy(str(path), gpus=8, global_batch=16, layers=8)


def test_rules_hold_for_every_stage() -> None:
    wrong = Recompute(Granularity.FULL, Method.NONE, 1)
    given = with_own(pipeline(4), NONE, NONE, wrong, NONE)
    assert "needs recompute_method" in " ".join(why_refused(WORKLOAD, CLUSTER.pools, given))


def test_chunks_of_a_rank_recompute_the_same() -> None:
    given = pipeline(4, 2)
    stages = (replace(given.stages[0], recompute=ALL), *given.stages[1:])
    with pytest.raises(InputError, match="chunks of pipeline rank 0"):
        estimated(replace(given, stages=stages))
