"""`astrarium plan --compare` and `--sensitivity`: the answer beside what the user has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]

TOKENS = ("--tokens", "10B")
SOME = ("--mode", "up-to", "--objective", "cost")


def document_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def compared(plan: Run, *arguments: str, **asked: str) -> dict[str, Any]:
    document = document_of(plan("--top", "1", "--json", *arguments, **asked))
    part: dict[str, Any] = document["compare"]
    best = document["plans"][0]
    if part["saved_seconds"] is not None and part["plan"]["train_seconds"] is not None:
        own = part["plan"]
        assert part["saved_seconds"] == own["train_seconds"] - best["train_seconds"]
        assert part["saved_usd"] == pytest.approx(own["usd_total"] - best["usd_total"])
        assert part["saved_kwh"] == own["run"]["kwh"] - best["run"]["kwh"]
    return part


def test_without_the_flags_a_document_has_neither_part(plan: Run) -> None:
    document = document_of(plan("--json", "--top", "1"))
    assert "compare" not in document
    assert "sensitivity" not in document


def test_yours_is_what_predict_says_of_it(plan: Run, run: Run) -> None:
    part = compared(plan, *TOKENS, "--compare", "tp=2,pp=2", "--compare-gpus", "a100:16")
    common = ("--gpus", "a100:16", "--seq-length", "4096", "--global-batch", "64")
    predicted = document_of(
        run("predict", "llama-2-7b", *common, "--strategy", "tp=2,pp=2", *TOKENS, "--json")
    )
    same = ("iteration_seconds", "usd_per_hour", "usd_total", "train_seconds", "gpus", "strategy")
    assert {key: part["plan"][key] for key in same} == {
        key: predicted["plans"][0][key] for key in same
    }
    assert part["cluster"] == predicted["cluster"]
    assert part["refused"] == ""


def test_the_text_says_what_is_saved(plan: Run) -> None:
    flags = ("--compare", "tp=8", "--compare-gpus", "a100:16")
    text = plan(*TOKENS, *flags).stdout
    assert "Compared with yours" in text
    assert "16 x A100" in text
    assert "plan 1 saves " in text
    assert " kWh (" in text


def test_without_tokens_iterations_are_compared(plan: Run) -> None:
    part = compared(plan, "--compare", "tp=8")
    assert part["saved_seconds"] > 0
    assert part["saved_kwh"] is None
    assert "an iteration of plan 1 saves " in plan("--compare", "tp=8").stdout


def test_the_best_plan_saves_nothing_against_itself(plan: Run, project: Path) -> None:
    plan(*TOKENS, "--top", "1", "--out", "mine")
    mine = str(project / "mine" / "plan.json")
    part = compared(plan, *TOKENS, "--compare", mine)
    assert part["saved_seconds"] == pytest.approx(0, abs=1e-6)
    assert part["saved_usd"] == pytest.approx(0, abs=1e-6)
    assert "plan 1 saves nothing: yours is as good" in plan(*TOKENS, "--compare", mine).stdout


def test_a_plan_file_brings_its_own_cluster(plan: Run, run: Run) -> None:
    plan(*TOKENS, *SOME, "--top", "1", "--out", "mine", gpus="a100:32")
    used = json.loads(Path("mine/plan.json").read_text(encoding="utf-8"))["plans"][0]["gpus"]
    market = ("--market", "aws", "--max-gpus", "16", "--seq-length", "4096")
    flags = (*market, "--global-batch", "64", *TOKENS, "--compare", "mine/plan.json", "--json")
    part = document_of(run("plan", "llama-2-7b", *flags))["compare"]
    assert part["plan"]["gpus"] == used
    (pool,) = part["cluster"]["pools"]
    assert (pool["gpu"], pool["cloud"]) == ("A100-SXM4-80GB", "aws")  # at the terms of the answer


def test_a_written_comparison_can_be_read_again(plan: Run, run: Run) -> None:
    flags = ("--compare", "tp=1,dp=8,micro_batch=1,zero=1,recompute=full", "--sensitivity", *SOME)
    assert plan(*TOKENS, *flags, "--out", "kept").exit_code == 0
    assert run("explain", "kept/plan.json").exit_code == 0


def test_prices_are_the_same_on_both_sides(plan: Run) -> None:
    prices = ("--price", "h100=2", "--price", "a100=1")
    flags = (*TOKENS, "--compare", "tp=2", "--compare-gpus")
    assert compared(plan, *prices, *flags, "a100:8")["plan"]["usd_per_hour"] == 8
    assert compared(plan, "--price", "h100=2", *flags, "h100:8")["plan"]["usd_per_hour"] == 16
    spot = compared(plan, "--spot", "always", *flags, "h100:16")
    assert spot["plan"]["run"]["spot_gpus"] == {"H100-SXM5-80GB": 16}


def test_what_does_not_fit_is_said_and_stops_nothing(plan: Run) -> None:
    flags = (*TOKENS, "--compare", "tp=1,pp=1,micro_batch=8,zero=0", "--compare-gpus", "v100:8")
    part = compared(plan, *flags)
    assert part["plan"]["fits"] is False
    assert part["saved_seconds"] is part["saved_usd"] is part["saved_kwh"] is None
    text = " ".join(plan(*flags).stdout.split())
    assert "yours does not fit: stage 0 needs " in text
    assert "too much" in text


def test_what_megatron_refuses_is_said_and_stops_nothing(plan: Run) -> None:
    flags = (*TOKENS, "--compare", "tp=1,sp=true")
    part = compared(plan, *flags)
    assert part["plan"] is None
    assert part["refused"].startswith("Megatron would refuse this strategy: ")
    assert "yours does not run: Megatron would refuse" in " ".join(plan(*flags).stdout.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--compare-gpus", "h100:8"), "--compare-gpus 'h100:8' goes with --compare"),
        (("--compare", "tpp=8"), "--compare: unknown key 'tpp'"),
        (
            ("--compare", "tp=3"),
            "does not divide 8 GPUs (2 and 4 do); --compare-gpus TYPE:N gives the number of GPUs",
        ),
        (
            ("--compare", "dp=16"),
            "leave out dp, which then follows; --compare-gpus TYPE:N gives the number of GPUs",
        ),
        (("--compare", "gone.json"), "gone.json"),
        (("--compare", "tp=8", "--compare-gpus", "h1000:8"), "--compare-gpus 'h1000:8': unknown"),
        (("--sensitivity",), "--sensitivity asks what would change the GPUs of the answer"),
    ],
)
def test_bad_input_is_refused(plan: Run, flags: tuple[str, ...], message: str) -> None:
    result = plan(*flags)
    assert result.exit_code == 2
    assert message in result.stderr


def test_cores_and_gpus_do_not_mix(plan: Run) -> None:
    result = plan(gpus="h100:8,cpu:2")
    assert result.exit_code == 2
    assert "processor cores and GPUs do not mix" in result.stderr


def test_a_whole_market_needs_your_gpus(run: Run) -> None:
    flags = ("--market", "aws", "--global-batch", "64", "--compare", "tp=8")
    result = run("plan", "llama-2-7b", *flags)
    assert result.exit_code == 2
    assert "on which GPUs?" in result.stderr


def test_prices_that_would_change_the_answer(plan: Run) -> None:
    flags = (*TOKENS, *SOME, "--mix", "1", "--top", "1")
    document = document_of(plan("--json", "--sensitivity", *flags, gpus="h100:8,a100:8"))
    parts = [part for part in document["sensitivity"] if part["what"] == "price"]
    used = list(document["plans"][0]["gpus"])
    assert {part["pool"] for part in parts} == {"H100-SXM5-80GB", "A100-SXM4-80GB"}
    for part in parts:
        assert part["value_then"] == pytest.approx(part["factor"] * part["value_now"])
        assert (part["factor"] > 1) == (part["pool"] in used)
        price = f"{part['pool']}={1.001 * part['value_then']}"
        less = f"{part['pool']}={0.999 * part['value_then']}"
        dear, cheap = (
            document_of(plan("--json", *flags, "--price", p, gpus="h100:8,a100:8"))["plans"][0]
            for p in (price, less)
        )
        assert (dear["gpus"] == part["gpus_then"]) == (part["factor"] > 1)
        assert (cheap["gpus"] == part["gpus_then"]) == (part["factor"] < 1)


def test_the_text_says_what_would_change_the_answer(plan: Run) -> None:
    flags = (*TOKENS, *SOME, "--mix", "1", "--sensitivity")
    text = plan(*flags, gpus="h100:16,a100:16").stdout
    assert "What would change the answer" in text
    assert "price of A100" in text
    assert "unchanged with a network up to 16 times today's" in " ".join(text.split())
    assert " more buys " in text


def test_a_type_without_a_price_has_no_distance(plan: Run) -> None:
    result = plan("--mode", "up-to", "--sensitivity", gpus="h100:8,a30:8")
    assert result.exit_code == 2
    assert "none is known for A30-24GB; --price a30=USD sets one" in result.stderr
