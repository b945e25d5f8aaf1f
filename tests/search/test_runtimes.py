"""Plans for other software than Megatron-LM: what it takes, and files that say just that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from small import small_model

import astrarium
from astrarium.api.planning import COMPARED_RUNTIMES
from astrarium.catalog.runtimes import find_runtime, planned_runtimes
from astrarium.cluster import parse_gpus
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.export.target import find_target, refusals
from astrarium.model import load_model
from astrarium.model.workload import Precision, Workload
from astrarium.plans.job import job_of
from astrarium.report.plan.document import document_of
from astrarium.runtime.execute import CHECKED
from astrarium.runtime.job import Device, Software
from astrarium.runtime.plan_run import _notes as run_notes
from astrarium.runtime.scaled.job import SHARDING, scaled
from astrarium.search.outcome import Mode, Objective, Prefer
from astrarium.search.plan import Plan
from astrarium.search.planner import Planned, plan, predict
from astrarium.search.refusals import why_refused
from astrarium.strategy.types import LayerSplit, Strategy

TARGETS = {"fsdp": "accelerate", "torchtitan": "torchtitan", "deepspeed": "deepspeed"}
QUESTIONS = [
    ("llama-3-8b", "h100:16", 8192, 256),
    ("llama-3.1-70b", "h100:64", 8192, 256),
    ("llama-2-13b", "a100:24", 4096, 96),
    ("qwen3-30b-a3b", "h100:32", 4096, 256),
    ("llama-3.2-1b", "rtx-4090:8", 4096, 64),  # its embeddings are tied
    ("mixtral-8x7b", "h100:64", 4096, 512),
]


def planned(name: str, gpus: str, seq_length: int, batch: int, runtime: str) -> Planned:
    workload = Workload(load_model(name), seq_length, batch)
    return plan(
        workload, parse_gpus(gpus), runtime=find_runtime(runtime), prefer=Prefer.RECOMMENDED
    )


@pytest.mark.parametrize("layers", [6, 8, 24, 64, 128])
@pytest.mark.parametrize("runtime", ["fsdp", "torchtitan"])
def test_gradients_that_come_late_fit_as_well(runtime: str, layers: int) -> None:
    """With one micro-batch of few tokens the update needs the most memory, not the passes."""
    for gpus in (1, 4):
        workload = Workload(small_model(layers), seq_length=128, global_batch=gpus)
        try:
            found = plan(workload, parse_gpus(f"rtx-4090:{gpus}"), runtime=find_runtime(runtime))
        except NoFeasiblePlanError:
            continue
        assert all(one.fits for one in found.plans)


@pytest.mark.parametrize("runtime", TARGETS)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question[0])
def test_a_plan_for_a_runtime_is_exported_as_it_is(
    question: tuple[str, str, int, int], runtime: str
) -> None:
    found = planned(*question, runtime)
    document = document_of(
        found, reference=question[0], objective=Objective.THROUGHPUT, mode=Mode.EXACT
    )
    target = find_target(TARGETS[runtime])
    for one in document.plans:
        assert one.runtimes == (runtime,)
        assert one.fits
        assert one.strategy.etp in {1, one.strategy.tp}
        refused = refusals(job_of(document, one.rank), target)
        # A model that the software does not know is none of the plan's.
        assert [refusal for refusal in refused if refusal.feature is not None] == []


@pytest.mark.parametrize("runtime", TARGETS)
def test_a_run_says_what_executes_it(runtime: str) -> None:
    found = planned("llama-3-8b", "h100:16", 8192, 256, runtime)
    document = document_of(
        found, reference="llama-3-8b", objective=Objective.THROUGHPUT, mode=Mode.EXACT
    )
    job = job_of(document)
    made = scaled(job.workload, job.strategy, 4, 1, job.runtime.rules).job
    versions = {"megatron-core": CHECKED, "deepspeed": "0.19"}
    (note,) = run_notes(job, made.software, Device.CPU, versions)
    if job.strategy.tp * job.strategy.pp > 1:
        assert made.software is Software.MEGATRON
        own = "megatron-core runs the same degrees in its own way"
        assert note == f"planned for {runtime}; {own}"
    else:
        assert made.software is SHARDING[runtime]
        assert made.strategy.zero_stage == job.strategy.zero_stage
        assert note.endswith("train it; megatron-core only builds its layers")


@pytest.mark.parametrize("runtime", planned_runtimes())
def test_plans_are_what_predict_says(runtime: str) -> None:
    workload = Workload(load_model("llama-3-8b"), 4096, 64)
    cluster, program = parse_gpus("h100:8"), find_runtime(runtime)
    best = plan(workload, cluster, runtime=program, top=1).plans[0]
    assert why_refused(workload, cluster.pools, best.strategy, program.rules) == ()
    again = predict(workload, cluster, best.strategy, runtime=program)
    assert again.iteration_seconds == best.iteration_seconds
    assert again.peak_bytes == best.peak_bytes


def test_fsdp_divides_nothing_but_data_and_sequences() -> None:
    for one in planned("llama-3-8b", "h100:16", 8192, 256, "fsdp").plans:
        strategy = one.strategy
        assert (strategy.tp, strategy.pp, strategy.ep) == (1, 1, 1)
        assert strategy.zero_stage in (2, 3)
        assert not strategy.offload_optimizer


@pytest.mark.parametrize(
    ("runtime", "strategy", "says"),
    [
        ("fsdp", "tp=8,dp=1", "no plan for fsdp would say this: tp 8: FSDP divides parameters"),
        ("torchtitan", "dp=8,zero_stage=1", "no plan for torchtitan would say this: FSDP2 shards"),
        ("deepspeed", "dp=8,zero_stage=1", ""),
        ("nanotron", "tp=8,dp=1", ""),
    ],
)
def test_predictions_name_what_no_plan_for_the_software_says(
    runtime: str, strategy: str, says: str
) -> None:
    found = astrarium.predict(
        "llama-3-8b", strategy, gpus="h100:8", global_batch=64, runtime=runtime
    )
    notes = [note for note in found.document.notes if "would say this" in note]
    assert bool(says) == bool(notes)
    assert all(note.startswith(says) for note in notes[:1])


def test_models_that_torchtitan_cannot_train_are_refused_with_a_way_out() -> None:
    with pytest.raises(InputError, match=r"models with scans .* plan for Megatron-LM .* or FSDP"):
        planned("nemotron-h-8b", "h100:16", 4096, 64, "torchtitan")


def test_megatron_takes_what_others_do_not() -> None:
    workload = Workload(load_model("llama-3-8b"), 4096, 64)
    pools = parse_gpus("h100:8").pools
    strategy = Strategy(
        tp=2, pp=2, dp=2, cp=1, ep=1, etp=1, micro_batch=1, num_micro_batches=32, zero_stage=1
    )
    assert strategy.split is LayerSplit.EVEN
    assert any("tp 2" in reason for reason in why_refused(workload, pools, strategy, "fsdp"))
    assert any("pp 2" in reason for reason in why_refused(workload, pools, strategy, "deepspeed"))


def test_a_runtime_without_rules_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"--runtime nanotron can be predicted but not .*torchtitan"
    ):
        planned("llama-3-8b", "h100:8", 4096, 64, "nanotron")


def test_a_number_format_that_no_strategy_changes_is_refused_at_once() -> None:
    workload = Workload(load_model("llama-3-8b"), 4096, 64, precision=Precision.FP8)
    with pytest.raises(InputError, match=r"--runtime fsdp: fp8 .* plan for Megatron-LM"):
        plan(workload, parse_gpus("h100:8"), runtime=find_runtime("fsdp"))


def test_float8_of_torchtitan_is_planned_and_written() -> None:
    cluster, runtime = parse_gpus("h100:16"), find_runtime("torchtitan")
    formats = (Precision.BF16, Precision.FP8)
    work = [Workload(load_model("llama-3-8b"), 8192, 128, precision=one) for one in formats]
    plain, eight = (plan(one, cluster, runtime=runtime, top=1) for one in work)
    # torchao's README has 1.10 for a scale by row on 8 H100, and 1.25 with one a tensor; casts as
    # they were measured on an H200 give 1.03.
    faster = plain.plans[0].iteration_seconds / eight.plans[0].iteration_seconds
    assert 1.0 < faster < 1.2
    document = document_of(
        eight, reference="llama-3-8b", objective=Objective.THROUGHPUT, mode=Mode.EXACT
    )
    assert refusals(job_of(document), find_target("torchtitan")) == ()
    experts = Workload(load_model("qwen3-30b-a3b"), 4096, 128, precision=Precision.FP8)
    with pytest.raises(InputError, match="float8 of experts is a converter of its own"):
        plan(experts, cluster, runtime=runtime)


def test_shards_go_to_the_host_only_if_nothing_else_fits() -> None:
    (few,) = {one.strategy.offload_optimizer for one in fsdp_plans("h100:8")}
    (many,) = {one.strategy.offload_optimizer for one in fsdp_plans("h100:64")}
    assert (few, many) == (True, False)
    asked = fsdp_plans("h100:64", rules=["!$offload_optimizer"])
    assert all(one.strategy.offload_optimizer for one in asked)


@pytest.mark.parametrize("limits", [{"objective": "cost"}, {"tokens": "1B", "budget_usd": 5000}])
def test_where_money_counts_they_go_there_as_well(limits: dict[str, Any]) -> None:
    asked = {"mode": "up-to", **limits}
    assert all(one.strategy.offload_optimizer for one in fsdp_plans("h100:8", **asked))
    freely = {"mode": "up-to", "objective": "cost"}
    assert not any(one.strategy.offload_optimizer for one in fsdp_plans("h100:64", **freely))
    named = {**freely, "rules": ["!$offload_optimizer"]}
    assert all(one.strategy.offload_optimizer for one in fsdp_plans("h100:64", **named))


def fsdp_plans(gpus: str, **asked: Any) -> Sequence[Plan]:
    given: dict[str, Any] = {"seq_length": 4096, "global_batch": 64, "runtime": "fsdp"}
    return astrarium.plan("llama-3.1-70b", gpus=gpus, **given, **asked).document.plans


def test_what_does_not_fit_says_how_many_gpus_would_do() -> None:
    with pytest.raises(NoFeasiblePlanError, match=r"smallest number of them that fits is \d+"):
        planned("llama-3.1-405b", "h100:16", 8192, 64, "fsdp")


def test_all_runtimes_side_by_side() -> None:
    plans = astrarium.plan("llama-3-8b", gpus="h100:16", global_batch=256, runtime="all")
    found = [one.runtimes for one in plans.document.plans]
    assert sorted(found) == sorted((name,) for name in COMPARED_RUNTIMES)
    seconds = [one.iteration_seconds for one in plans.document.plans]
    assert seconds == sorted(seconds)
    alone = astrarium.plan("llama-3-8b", gpus="h100:16", global_batch=256, runtime="fsdp")
    search = plans.document.search
    assert search is not None
    assert search.space == sum(search.rejected.values()) + len(found)
    of_fsdp = next(one for one in plans.document.plans if one.runtimes == ("fsdp",))
    assert of_fsdp.strategy == alone.document.plans[0].strategy


def test_runtimes_without_a_plan_are_named() -> None:
    plans = astrarium.plan("llama-3.1-405b", gpus="h100:32", global_batch=48, runtime="all")
    assert any(note.startswith("no plan for deepspeed: ") for note in plans.document.notes)


def test_questions_about_one_runtime_are_not_asked_of_all() -> None:
    with pytest.raises(InputError, match="sensitivity is about one runtime"):
        astrarium.plan(
            "llama-3-8b", gpus="h100:16", global_batch=256, runtime="all", sensitivity=True
        )
