"""How tokens travel to experts, where nobody says."""

from __future__ import annotations

import pytest

import astrarium
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.tuning import NEUTRAL
from astrarium.model import load_model
from astrarium.model.workload import ExpertMessages, Workload
from astrarium.search.expert_messages import WorthALook, worth_a_look
from astrarium.search.outcome import DEFAULT_FIT_CHANCE, KeptFree
from astrarium.search.rules import user_rules


def looked_at(
    model: str, gpus: str, batch: int, runtime: str = "megatron", rules: tuple[str, ...] = ()
) -> WorthALook:
    return worth_a_look(
        Workload(load_model(model), seq_length=4096, global_batch=batch),
        parse_gpus(gpus),
        rules=user_rules(rules),
        tuning=NEUTRAL,
        kept_free=KeptFree(DEFAULT_FIT_CHANCE),
        runtime=find_runtime(runtime),
    )


def test_messages_between_nodes_run_beside_computation() -> None:
    assert looked_at("qwen3-30b-a3b", "h100:64", 1024).beside


def test_what_would_have_to_be_installed_is_said_only() -> None:
    document = astrarium.plan(
        "deepseek-v3", gpus="h800:2048", global_batch=15360, seq_length=4096, top=1
    ).document
    assert document.workload.expert_messages is ExpertMessages.OVERLAPPED
    assert "DeepEP on every node" in document.notes[-1]


def test_deepep_is_not_praised_beside_a_faster_plan() -> None:
    """A plan of ZeRO 3 that sends no tokens is faster than those of DeepEP."""
    deepep = looked_at("qwen3-30b-a3b", "h100:16", 512).deepep
    assert deepep is not None
    document = astrarium.plan(
        "qwen3-30b-a3b", gpus="h100:16", global_batch=512, seq_length=4096
    ).document
    fastest = min(document.plans, key=lambda plan: plan.iteration_seconds)
    assert fastest.strategy.ep == 1
    assert fastest.iteration_seconds < deepep.iteration_seconds
    assert not any("DeepEP" in note for note in document.notes)


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [("qwen3-30b-a3b", "a100:32", 512), ("qwen3-30b-a3b", "h100:32", 512)],
)
def test_the_answers_decide_not_the_measured_plans(model: str, gpus: str, batch: int) -> None:
    """Left open, messages travel in the way whose recommended plan is faster."""
    assert looked_at(model, gpus, batch).beside
    asked = {"gpus": gpus, "global_batch": batch, "seq_length": 4096}
    left_open = astrarium.plan(model, **asked).document  # type: ignore[arg-type]
    stated = {
        way: astrarium.plan(model, expert_messages=way, **asked)[0].iteration_seconds  # type: ignore[arg-type]
        for way in (ExpertMessages.ALLTOALL, ExpertMessages.OVERLAPPED)
    }
    assert left_open.workload.expert_messages is min(stated, key=lambda way: stated[way])
    assert left_open.plans[0].iteration_seconds == pytest.approx(min(stated.values()))


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "runtime"),
    [
        ("mixtral-8x7b", "h100:64", 1024, "megatron"),  # messages inside nodes take little time
        ("llama-2-7b", "h100:64", 1024, "megatron"),  # no experts
        ("qwen3-235b-a22b", "h100:256", 2048, "megatron-bridge"),  # sends as it does
        ("qwen3-235b-a22b", "mi300x:256", 2048, "megatron"),  # not known to work
        ("qwen3-235b-a22b", "h100:128,a100:128", 2048, "megatron"),
    ],
)
def test_elsewhere_they_go_all_to_all(model: str, gpus: str, batch: int, runtime: str) -> None:
    assert looked_at(model, gpus, batch, runtime) == WorthALook()


def test_rules_of_the_user_hold() -> None:
    ways = looked_at("qwen3-30b-a3b", "h100:64", 1024, rules=("$ep > 1",))
    assert not ways.beside


def test_a_plan_says_how_tokens_travel() -> None:
    asked = {"gpus": "h100:64", "global_batch": 1024, "seq_length": 4096, "top": 1}
    left_open = astrarium.plan("qwen3-30b-a3b", **asked).document  # type: ignore[arg-type]
    assert left_open.workload.expert_messages is ExpertMessages.OVERLAPPED
    (note,) = (note for note in left_open.notes if "beside another micro-batch" in note)
    assert "--overlap-moe-expert-parallel-comm" in note
    assert "expert_messages alltoall" in note
    asked["expert_messages"] = "alltoall"
    stated = astrarium.plan("qwen3-30b-a3b", **asked).document  # type: ignore[arg-type]
    assert stated.workload.expert_messages is ExpertMessages.ALLTOALL
    assert not any("micro-batch" in note for note in stated.notes)
    # The search is the same that decided, so its recommended plan is faster, too.
    assert left_open.plans[0].iteration_seconds < stated.plans[0].iteration_seconds
