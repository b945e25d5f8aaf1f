"""The nearest expressible plan: valid, fitting, the fastest of those tried, and told as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import pytest
from exported_others import FULL
from exported_plans import document

import astrarium
from astrarium.api.exporting import times_of_targets
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import parse_gpus
from astrarium.export.features import Feature, lacks
from astrarium.export.header import estimate_note
from astrarium.export.nearest import nearest
from astrarium.export.program import RankProgram
from astrarium.export.result import Refused
from astrarium.export.software import accelerate
from astrarium.export.target import (
    Target,
    find_target,
    refusals,
    target_names,
    too_large,
)
from astrarium.model import load_model
from astrarium.model.workload import ExpertMessages, Precision, Workload
from astrarium.plans.job import Job, job_of
from astrarium.report.plan.document import document_of_prediction
from astrarium.search.planner import predict
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Strategy


def lacking(*features: Feature) -> Target:
    return Target(
        name="poor",
        title="Poor",
        version="1",
        program=lambda job: RankProgram("Poor 1", "poor.py"),
        lacks=dict.fromkeys(features, "it cannot"),
    )


def planned(gpus: str = "h100:16", **strategy: Any) -> Job:
    return job_of(document("llama-3-8b", gpus, strategy, seq_length=4096))


def cut(*sizes: int) -> list[dict[str, list[int]]]:
    """Stages of so many layers."""
    ends = list(accumulate(sizes))
    return [{"layers": [end - size, end]} for size, end in zip(sizes, ends, strict=True)]


INTERLEAVED: Mapping[str, Any] = {"tp": 2, "pp": 4, "virtual_stages": 2}


@pytest.mark.parametrize(
    ("features", "strategy", "changed"),
    [
        ([Feature.PIPELINE], INTERLEAVED, "pp 4 -> 1"),
        ([Feature.TENSOR_PARALLEL], INTERLEAVED, "tp 2 -> 1"),
        ([Feature.SEQUENCE_PARALLEL], {"tp": 4}, "sequence_parallel on -> off"),
        ([Feature.ZERO_1], {"tp": 2, "pp": 2}, "zero_stage 1 -> "),
        ([Feature.ZERO_1_ALONE], {"tp": 4, "zero_stage": 1}, "zero_stage 1 -> "),
        ([Feature.ZERO_0_SPLIT], {"tp": 4, "zero_stage": 0}, "zero_stage 0 -> "),
        ([Feature.ZERO_0_GROUPS], {"cp": 2, "tp": 4, "zero_stage": 0}, "zero_stage 0 -> "),
        ([Feature.KV_HEADS_COPIED], {"tp": 16, "overlap_tp": False}, "tp 16 -> "),
        (
            [Feature.FEW_MICRO_BATCHES],
            {"tp": 2, "pp": 4, "micro_batch": 16},
            "micro_batch 16 -> ",
        ),
        (
            [Feature.PIPELINE_INSIDE],
            {"pp": 2, "pipeline_inside": True},
            "pipeline_inside on -> off",
        ),
        ([Feature.OFFLOAD_STATES], {"tp": 2, "offload_optimizer": True}, "offload_optimizer on"),
        ([Feature.RECOMPUTE_MODULES], {"tp": 4, "recompute": "selective"}, "recompute selective"),
        (
            [Feature.RECOMPUTE_GROUPS],
            {"tp": 4, "recompute": "full", "recompute_layers": 4},
            "recompute full uniform 4 -> ",
        ),
        (
            [Feature.RECOMPUTE_SOME],
            {"tp": 4, "recompute": "full", "recompute_method": "block", "recompute_layers": 2},
            "recompute full block 2 -> ",
        ),
        ([Feature.CONTEXT_PARALLEL], {"tp": 2, "cp": 4}, "cp 4 -> 1"),
        (
            [Feature.EMPTY_STAGES],
            {"tp": 4, "pp": 4, "stages": cut(0, 16, 0, 16)},
            "layers of stages 0+16+0+16 -> ",
        ),
        (  # more stages than layers
            [Feature.EMPTY_STAGES],
            {"tp": 4, "pp": 4, "virtual_stages": 10, "stages": cut(*[0, 2, 2, 0] * 8, *[0] * 8)},
            "virtual_stages 10 -> ",
        ),
    ],
)
def test_what_is_lacking_is_given_up(
    features: list[Feature], strategy: dict[str, Any], changed: str
) -> None:
    one, target = planned(**strategy), lacking(*features)
    assert refusals(one, target)
    found = nearest(one, [target])
    assert found is not None
    assert not refusals(found.job, target)
    assert found.job.plan.fits
    assert any(change.startswith(changed) for change in found.changed), found.changed
    assert found.job.strategy.gpus == one.strategy.gpus
    assert found.job.strategy.sequences == one.workload.global_batch
    assert found.rank is None


def test_uneven_stages_stay_where_something_else_is_lacking() -> None:
    stages = [{"layers": [0, 12]}, {"layers": [12, 32]}]
    one = planned(tp=4, pp=2, stages=stages, recompute="selective")
    found = nearest(one, [lacking(Feature.RECOMPUTE_MODULES)])
    assert found is not None
    held = [(s.first_layer, s.last_layer) for s in found.job.strategy.stages]
    assert held == [(0, 12), (12, 32)]


EXPERTS: Mapping[str, Any] = {"tp": 4, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("feature", "strategy", "changed"),
    [
        (Feature.EXPERT_PARALLEL, {"ep": 8, "etp": 1}, "ep 8 -> 1"),
        (Feature.EXPERT_TENSOR_ALONE, {"ep": 1, "etp": 1}, "etp 1 -> 4"),
        (Feature.EXPERT_TENSOR_BESIDE, {"ep": 4, "etp": 4}, "etp 4 -> 1"),
    ],
)
def test_experts_are_split_otherwise(
    feature: Feature, strategy: dict[str, Any], changed: str
) -> None:
    written = document("qwen3-30b-a3b", "h100:64", {**EXPERTS, **strategy}, global_batch=256)
    one, target = job_of(written), lacking(feature)
    assert refusals(one, target)
    found = nearest(one, [target])
    assert found is not None
    assert not refusals(found.job, target)
    assert any(change.startswith(changed) for change in found.changed), found.changed


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.FP8])
def test_another_number_format_is_told(precision: Precision) -> None:
    one = job_of(document("llama-3-8b", "h100:16", {"tp": 4}, precision=precision))
    found = nearest(one, [lacking(Feature[precision.name])])
    assert found is not None
    assert found.job.workload.precision is Precision.BF16
    assert f"precision {precision} -> bf16" in found.changed


@pytest.mark.parametrize("name", target_names())
@pytest.mark.parametrize("precision", [Precision.FP4, Precision.MXFP8])
def test_scales_of_few_elements_are_written_by_megatron_alone(
    name: str, precision: Precision
) -> None:
    one, target = job_of(document("llama-3-8b", "b200:8", {"tp": 4}, precision=precision)), name
    refused = {refusal.feature for refusal in refusals(one, find_target(target))}
    writes = find_target(target).is_launcher or target in ("megatron", "bridge")
    assert (Feature.MICROSCALED in refused) != writes


def on_market(precision: Precision, **strategy: Any) -> Job:
    """A plan on sixteen H100, of a market that also has GPUs with neither bf16 nor fp8."""
    market = parse_gpus("v100:16,h100:16")
    used = market.part([market.pools[1]])
    workload = Workload(load_model("llama-3-8b"), 4096, 64, precision=precision)
    asked = strategy_from_dict(strategy, where="test", gpus=16, global_batch=64, layers=32)
    plan = predict(workload, used, asked)
    return job_of(document_of_prediction(workload, market, plan, "llama-3-8b", ()))


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_pools_that_are_not_in_use_do_not_touch_the_plan(precision: Precision) -> None:
    """Neither its number format nor its time."""
    strategy: dict[str, Any] = {"tp": 4, "pp": 2}
    one = on_market(precision, **strategy)
    work: dict[str, Any] = {"seq_length": 4096, "precision": precision}
    alone = job_of(document("llama-3-8b", "h100:16", strategy, **work))
    assert one.workload.precision is precision
    found = nearest(one, [lacking(Feature.PIPELINE)])
    expected = nearest(alone, [lacking(Feature.PIPELINE)])
    assert found is not None
    assert expected is not None
    assert found.job.workload.precision is precision
    assert found.changed == expected.changed
    assert found.slower == expected.slower
    assert found.job.plan.iteration_seconds == expected.job.plan.iteration_seconds
    noted = [estimate_note(job, "torchtitan", "torchtitan") for job in (one, alone)]
    assert noted[0] == noted[1]


def features_lacked() -> set[Feature]:
    targets = [find_target(name) for name in target_names()]
    declared = {*lacks("all"), *(feature for target in targets for feature in target.lacks)}
    # Of nodes a launcher says more than that it lacks them: `Target.nodes_refused`.
    # What needs too much memory is found by prediction: `too_large`.
    # `Target.optimizers` and `Target.finetunes` say which of these are written.
    of_training = {Feature.OPTIMIZER, Feature.ADAPTERS}
    return {*declared, Feature.NODES, Feature.MEMORY, *of_training}


def test_every_feature_is_lacked_by_some_target() -> None:
    assert features_lacked() == set(Feature)


def test_every_feature_has_a_way_out_or_a_reason_why_not() -> None:
    fixed = {feature for feature in Feature if feature.change is None}
    asked_for = {Feature.RAMP, Feature.EVALUATION, Feature.PROCESSORS, Feature.REDUCED}
    asked_for |= {Feature.EXPERT_MESSAGES, Feature.OPTIMIZER, Feature.ADAPTERS}
    asked_for |= {Feature.MTP, Feature.MTP_APART, Feature.BESIDE}
    assert fixed == asked_for  # by the user, and not found by the search
    known = {field.name for field in fields(Strategy)} | {"precision", "pools"}
    assert all((feature.change or {}).keys() <= known for feature in Feature)


def test_pools_with_unequal_nodes_are_taken_apart() -> None:
    fast, slow = "H100-SXM5-80GB", "A100-SXM4-80GB"
    cuts = ((0, 12, fast), (12, 24, fast), (24, 32, slow))
    stages = [{"layers": [a, b], "pools": {name: 4}} for a, b, name in cuts]
    one = planned("h100:8,a100:4", tp=4, pp=3, stages=stages)
    found = nearest(one, [lacking(Feature.UNEQUAL_NODES)])
    assert found is not None
    assert found.job.plan.gpus == {fast: 8}
    assert f"GPUs 8 x {fast} + 4 x {slow} -> 8 x {fast}" in found.changed


def test_a_plan_of_the_document_is_preferred_if_faster() -> None:
    one, other = planned(**INTERLEAVED), planned(tp=4, pp=1)
    both = (one.plan, replace(other.plan, rank=2))
    one = replace(one, document=replace(one.document, plans=both))
    found = nearest(one, [lacking(Feature.PIPELINE)])
    assert found is not None
    made = nearest(planned(**INTERLEAVED), [lacking(Feature.PIPELINE)])
    assert made is not None
    assert found.slower <= made.slower
    assert found.rank == (2 if found.slower < made.slower else None)


def test_there_may_be_none() -> None:
    """Neither for another model, nor where nothing else is valid."""
    one = job_of(document("llama-3-8b", "h100:16", {"tp": 8}, global_batch=8))
    refusing = replace(lacking(Feature.TENSOR_PARALLEL), model_refused=lambda job: "no")
    assert nearest(one, [refusing]) is None
    poor = lacking(Feature.TENSOR_PARALLEL)
    assert nearest(one, [poor]) is None  # 16 replicas for 8 sequences
    why = refusals(one, poor)
    assert "choose another target" in Refused(poor, why, None).message(1)


def test_the_nearest_fits_as_the_software_itself_runs_it() -> None:
    """Accelerate's kernels keep more than Megatron's: what only fits there is passed over."""
    target = find_target("accelerate")
    asked = job_of(document("llama-3-8b", "h100:16", {"tp": 2, "pp": 2}, seq_length=8192))
    runtime = find_runtime(target.runtime)

    def fits(target: Target) -> bool:
        found = nearest(asked, (target,))
        assert found is not None
        one = found.job
        return predict(one.workload, one.cluster_in_use, one.strategy, runtime=runtime).fits

    assert runtime.name != find_runtime().name
    assert fits(target)
    assert not fits(replace(target, runtime="megatron"))


def test_what_does_not_fit_under_its_own_runtime_is_refused() -> None:
    """It fits as Megatron runs it; torch's own kernels keep more."""
    job = planned("h100:8", tp=1, pp=1, micro_batch=2, zero_stage=2, recompute="none")
    assert job.plan.fits
    for name in ("deepspeed", "accelerate"):
        target = find_target(name)
        assert not refusals(job, target)
        assert [one.feature for one in too_large(job, target)] == [Feature.MEMORY]
        found = nearest(job, [target])
        assert found is not None
        assert not too_large(found.job, target)
        words = Refused(target, too_large(job, target), found).message(1)
        assert "cannot run plan 1" in words
        assert "The nearest that it can" in words
    assert not too_large(job, find_target("megatron"))


def test_the_rules_are_those_of_the_software() -> None:
    """Megatron has moments of 8 bits with ZeRO 1 alone, FSDP2 without it alone."""
    eight: dict[str, Any] = {"seq_length": 4096, "global_batch": 64}
    found = astrarium.plan("llama-3-8b", gpus="h100:8", optimizer="adamw-8bit", **eight)
    asked, target = job_of(found.document), find_target("accelerate")
    near = nearest(asked, [target])
    assert near is not None
    assert "zero_stage 1 -> 2" in near.changed
    assert near.job.runtime.name == target.runtime
    one, runtime = near.job, find_runtime(target.runtime)
    seconds = predict(one.workload, one.cluster_in_use, one.strategy, runtime=runtime)
    assert near.seconds == seconds.iteration_seconds == one.plan.iteration_seconds
    assert near.slower == pytest.approx(near.seconds / asked.plan.iteration_seconds)
    assert "The plan was made for this runtime" in " ".join(accelerate.program(one).notes)


@pytest.mark.parametrize(
    ("planned_for", "name", "runtime"),
    [
        ("fsdp", "deepspeed", "deepspeed"),
        ("megatron-bridge", "megatron", "megatron-bridge"),
        ("torchtitan-eager", "torchtitan", "torchtitan"),
        ("nanotron", "megatron", "megatron"),
    ],
)
def test_a_plan_has_the_time_of_its_own_runtime(planned_for: str, name: str, runtime: str) -> None:
    work = Workload(load_model("llama-3-8b"), 4096, 64)
    cluster = parse_gpus("h100:16")
    given = {"zero_stage": 2, "cp": 2, "tp": 2, "sequence_parallel": True, **FULL}
    strategy = strategy_from_dict(given, where="test", gpus=16, global_batch=64, layers=32)
    plan = predict(work, cluster, strategy, runtime=find_runtime(planned_for))
    asked = job_of(document_of_prediction(work, cluster, plan, "llama-3-8b", ()))
    target = find_target(name)
    target = replace(target, lacks={**target.lacks, Feature.CONTEXT_PARALLEL: "it cannot"})
    near = nearest(asked, [target])
    assert near is not None
    assert near.job.runtime.name == runtime
    assert near.slower == pytest.approx(near.seconds / plan.iteration_seconds)


def test_times_of_software_that_takes_the_plan_are_its_own() -> None:
    """Not 1.0 across runtimes: torchtitan runs the same strategy with other kernels."""
    workload, cluster = Workload(load_model("llama-3-8b"), 8192, 64), parse_gpus("h100:16")
    given = {"zero_stage": 3, "micro_batch": 1, "recompute": "full"}
    strategy = strategy_from_dict(given, where="test", gpus=16, global_batch=64, layers=32)
    seconds = {
        name: predict(workload, cluster, strategy, runtime=find_runtime(name)).iteration_seconds
        for name in ("fsdp", "torchtitan", "megatron")
    }
    plan = predict(workload, cluster, strategy, runtime=find_runtime("fsdp"))
    made = document_of_prediction(workload, cluster, plan, "llama-3-8b", ())
    times = times_of_targets(made, made.plans[0].rank)
    assert times["accelerate"] == 1.0
    assert times["torchtitan"] == pytest.approx(seconds["torchtitan"] / seconds["fsdp"])
    assert times["megatron"] == pytest.approx(seconds["megatron"] / seconds["fsdp"])
    assert times["torchtitan"] != 1.0 != times["megatron"]


@pytest.mark.parametrize("name", ["torchtitan", "accelerate", "deepspeed"])
def test_messages_of_experts_are_refused_with_a_way_out(name: str) -> None:
    """Their software cannot price such a plan, so it is not asked to."""
    strategy = {"pp": 2, "virtual_stages": 2, "ep": 8, "etp": 1}
    work = {"expert_messages": ExpertMessages.OVERLAPPED}
    job = job_of(document("qwen3-30b-a3b", "h100:16", strategy, **work))
    target = find_target(name)
    assert any("alltoall" in one.why for one in refusals(job, target))
    assert nearest(job, [target]) is None
