"""How tokens travel to experts, where nobody says."""

from __future__ import annotations

import pytest

import astrarium
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.tuning import NEUTRAL
from astrarium.model import load_model
from astrarium.model.workload import ExpertMessages, Workload
from astrarium.search.expert_messages import chosen_messages
from astrarium.search.outcome import DEFAULT_FIT_CHANCE, KeptFree
from astrarium.search.rules import user_rules


def chosen(
    model: str, gpus: str, batch: int, runtime: str = "megatron", rules: tuple[str, ...] = ()
) -> tuple[ExpertMessages, tuple[str, ...]]:
    return chosen_messages(
        Workload(load_model(model), seq_length=4096, global_batch=batch),
        parse_gpus(gpus),
        rules=user_rules(rules),
        tuning=NEUTRAL,
        kept_free=KeptFree(DEFAULT_FIT_CHANCE),
        runtime=find_runtime(runtime),
    )


def test_messages_between_nodes_run_beside_computation() -> None:
    messages, notes = chosen("qwen3-235b-a22b", "h100:256", 2048)
    assert messages is ExpertMessages.OVERLAPPED
    assert "--overlap-moe-expert-parallel-comm" in notes[0]
    assert "--expert-messages alltoall" in notes[0]


def test_what_would_have_to_be_installed_is_said_only() -> None:
    messages, notes = chosen("deepseek-v3", "h800:2048", 15360)
    assert messages is ExpertMessages.OVERLAPPED
    assert "DeepEP on every node" in notes[1]


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
    assert chosen(model, gpus, batch, runtime) == (ExpertMessages.ALLTOALL, ())


def test_rules_of_the_user_hold() -> None:
    messages, _ = chosen("qwen3-235b-a22b", "h100:256", 2048, rules=("$virtual_stages > 1",))
    assert messages is ExpertMessages.ALLTOALL


def test_a_plan_says_how_tokens_travel() -> None:
    asked = {"gpus": "h100:256", "global_batch": 2048, "seq_length": 4096, "top": 1}
    left_open = astrarium.plan("qwen3-235b-a22b", **asked).document  # type: ignore[arg-type]
    assert left_open.workload.expert_messages is ExpertMessages.OVERLAPPED
    assert any("beside another micro-batch" in note for note in left_open.notes)
    asked["expert_messages"] = "alltoall"
    stated = astrarium.plan("qwen3-235b-a22b", **asked).document  # type: ignore[arg-type]
    assert stated.workload.expert_messages is ExpertMessages.ALLTOALL
    assert not any("micro-batch" in note for note in stated.notes)
    # The search is the same that decided, so its recommended plan is faster, too.
    assert left_open.plans[0].iteration_seconds < stated.plans[0].iteration_seconds
