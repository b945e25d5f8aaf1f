"""Ways out of mistakes: what an error offers is taken as it is offered, and it helps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from web_server import LAUNCH

from astrarium.web.answers import answer
from astrarium.web.reply import IN_FORM, OK

ASKED = {
    "model": "tinyllama-1.1b",
    "pools": [{"type": "h100", "count": "8"}],
    "global_batch": "64",
    "seq_length": "2048",
    "tokens": "1B",
    "top": "1",
}
TWO = [{"type": "h100", "count": "8"}, {"type": "a100", "count": "8"}]
MISTAKES: list[dict[str, Any]] = [
    {"model": "tinylama-1.1b"},
    {"pools": [{"type": "h10", "count": "8"}]},
    {"pools": [{"type": "h100", "count": "12"}]},
    {"pools": [{"type": "h100", "count": ""}]},
    {"budget": "1"},
    {"deadline": "0.00001"},
    {"budget": "1", "deadline": "0.00001"},
    {"epochs": "2", "dataset_tokens": "1B"},
    {"market": "aws,gpc"},
    {"market": "aws", "region": "urope"},
    {"rule": ["$tp > 8", "$tpp > 2"]},
    {"pools": [{"type": "a100", "count": "8"}], "precision": "fp8"},
    {"model": "llama-2-70b", "pools": [{"type": "h100", "count": "1"}]},
    {"pools": TWO, "mix": "1"},
    {"runtime": "fsdpp"},
    {"runtime": "megatron-2021"},
    {"runtime": "megatron", "finetune": "lora"},
    {"optimizer": "adam"},
    {"lora_rank": "8"},
    {"fit_chance": "90", "memory_margin": "1GiB"},
    {"tokens": None, "budget": "2k"},
    {"spot": "always", "interruptions": ["1000"]},
    {"objective": "fast"},
]


def asked(kind: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The answer as the form hears it."""
    given = {name: value for name, value in body.items() if value not in (None, "")}
    found = answer(kind, {**given, IN_FORM: True})
    content: dict[str, Any] = json.loads(found.content)
    return found.status, content


def repaired(body: Mapping[str, Any], changes: Mapping[str, str]) -> dict[str, Any]:
    """As the form does it (`web/src/page/repairs.ts`)."""
    after = dict(body)
    for field, value in changes.items():
        if field == "rule":
            after[field] = value.split("\n")
        elif field == "gpus" or field.startswith("pools["):
            kind, _, count = value.partition(":")
            after["pools"] = [{"type": kind, "count": count}]
        else:
            after[field] = value
    return after


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_every_repair_helps_and_flags_are_not_spoken_of(mistake: dict[str, Any]) -> None:
    body = {**ASKED, **mistake}
    status, said = asked("plan", body)
    assert status in (409, 422)
    error = said["error"]
    assert "--" not in error["message"]
    assert "astrarium" not in error["message"]
    assert error["repairs"]
    for repair in error["repairs"]:
        assert "--" not in repair["label"]
        after, said = asked("plan", repaired(body, repair["changes"]))
        assert after == OK, said["error"]


def test_a_launch_script_names_what_it_leaves_open() -> None:
    script = LAUNCH.replace("--num-layers 32", "--num-layers $L").replace("32000", "$V")
    _, said = asked("review", {"text": script, "gpus": "h100"})
    assert said["error"]["asks"] == ["L", "V"]
    assert "--set" not in said["error"]["message"]


def test_a_launch_script_for_other_gpus_is_repaired() -> None:
    body = {"text": LAUNCH, "gpus": "h100:2", "global_batch": "32"}
    _, said = asked("review", body)
    changes = [repair["changes"] for repair in said["error"]["repairs"]]
    assert changes == [{"global_batch": ""}, {"gpus": "h100:16"}]


def test_others_hear_of_flags() -> None:
    found = json.loads(answer("plan", {**ASKED, "budget": "lots"}).content)
    assert found["error"]["message"].startswith("--budget 'lots'")
