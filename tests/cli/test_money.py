"""The flags about money: which prices a plan is made with, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from astrarium.cost.energy import PowerTerms

Run = Callable[..., Result]


def planned(plan: Run, *arguments: str, **asked: str) -> dict[str, Any]:
    result = plan("--tokens", "10B", "--top", "1", "--json", *arguments, **asked)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def only_pool(document: dict[str, Any]) -> dict[str, Any]:
    (pool,) = document["cluster"]["pools"]
    assert isinstance(pool, dict)
    return pool


def test_a_market_names_its_offer(plan: Run) -> None:
    document = planned(plan, "--market", "aws", "--region", "us")
    pool = only_pool(document)
    assert (pool["cloud"], pool["instance"], pool["region"]) == ("aws", "p5.48xlarge", "us")
    assert pool["price_date"] == "2026-08-22"
    assert pool["usd_per_gpu_hour"] == pytest.approx(6.88)
    assert pool["price_source"] == "aws p5.48xlarge, us; SkyPilot catalog, 2026-08-22"
    assert document["plans"][0]["usd_per_hour"] == pytest.approx(8 * 6.88)


def test_whole_instances_are_paid(plan: Run) -> None:
    two = planned(plan, "--market", "azure", gpus="h100:2")
    pool = only_pool(two)
    assert pool["rented_sizes"] == [8]
    assert two["plans"][0]["usd_per_hour"] == pytest.approx(8 * pool["usd_per_gpu_hour"])


def test_smaller_instances_are_no_price_of_nodes(plan: Run) -> None:
    document = planned(plan, "--market", "hyperbolic", gpus="h100:64")
    assert document["plans"][0]["usd_per_hour"] is None
    assert any("instances of at most 3 GPUs" in note for note in document["notes"])


def test_a_type_without_a_price_of_its_nodes_wins_no_front(plan: Run) -> None:
    """GH200 won at $2.29, the price of one GPU, on the network of a supercomputer's nodes."""
    document = planned(plan, "--mode", "up-to", "--objective", "cost", gpus="h100:16,gh200:16")
    assert {name for found in document["plans"] for name in found["gpus"]} == {"H100-SXM5-80GB"}
    assert any("GH200-96GB" in note and "left out" in note for note in document["notes"])


def test_old_prices_are_left_out_of_the_default_and_it_is_said(plan: Run) -> None:
    assert "offers older than 180 days left out" in only_pool(planned(plan))["price_source"]


@pytest.mark.parametrize("how", ["mix", "always"])
@pytest.mark.parametrize("objective", ["cost", "throughput"])
def test_another_cloud_takes_no_spot_price_away(plan: Run, how: str, objective: str) -> None:
    """lambda is cheaper on demand and has no spot price; aws has one."""
    flags = ("--spot", how, "--objective", objective)
    alone = planned(plan, "--market", "aws", *flags)["plans"][0]
    both = planned(plan, "--market", "aws,lambda", *flags)["plans"][0]
    assert both["usd_total"] <= alone["usd_total"]


def test_a_stated_price_wins_over_everything(plan: Run) -> None:
    document = planned(plan, "--market", "aws", "--price", "h100=2.5")
    pool = only_pool(document)
    assert (pool["usd_per_gpu_hour"], pool["price_source"]) == (2.5, "--price")
    assert pool["cloud"] == ""


def test_own_prices_need_no_market(plan: Run, project: Path) -> None:
    (project / "own.csv").write_text("gpu,gpus,usd_per_hour,date\nh100,8,16,2026-10-01\n")
    document = planned(plan, "--prices", "own.csv")
    pool = only_pool(document)
    assert pool["usd_per_gpu_hour"] == 2.0
    assert pool["price_source"] == "own; own.csv, 2026-10-01"
    assert only_pool(planned(plan, "--prices", "own.csv", gpus="a100:8"))["cloud"] == ""


def test_an_own_rate_per_gpu_is_paid_for_the_gpus_in_use(plan: Run, project: Path) -> None:
    (project / "own.csv").write_text("gpu,usd_per_gpu_hour\nh100,2\n")
    document = planned(plan, "--prices", "own.csv", gpus="h100:2")
    assert document["plans"][0]["usd_per_hour"] == pytest.approx(4)


@pytest.mark.parametrize("market", [(), ("--market", "aws", "--region", "us")])
def test_own_spot_prices_leave_the_others(
    plan: Run, project: Path, market: tuple[str, ...]
) -> None:
    (project / "own.csv").write_text("gpu,spot_usd_per_gpu_hour\nh100,1.25\n")
    before = only_pool(planned(plan, *market))
    after = only_pool(planned(plan, *market, "--prices", "own.csv"))
    assert after == before | {"spot_usd_per_gpu_hour": 1.25}


def test_owned_machines_cost_their_power(plan: Run) -> None:
    owned = ("--price", "h100=0", "--power-price", "0.2", "--power-utilisation", "50")
    document = planned(plan, *owned)
    pool, (best,) = only_pool(document), document["plans"]
    drawn = 0.7 * PowerTerms(utilisation=0.5).of_tdp
    assert pool["usd_per_gpu_hour"] == pytest.approx(drawn * 0.2)
    assert best["usd_total"] == pytest.approx(best["run"]["kwh"] * 0.2), "one power for both"
    usual = planned(plan, "--price", "h100=0", "--power-price", "0.2")["plans"][0]
    assert usual["usd_total"] == pytest.approx(usual["run"]["kwh"] * 0.2)
    free = planned(plan, "--price", "h100=0")
    assert free["plans"][0]["usd_total"] == 0


def test_the_cheapest_plan_of_free_machines_is_found(plan: Run) -> None:
    cheapest = ("--mode", "up-to", "--objective", "cost")
    free = planned(plan, *cheapest, "--price", "a100=0", gpus="h100:8,a100:8")
    assert free["plans"][0]["usd_total"] == 0
    assert free["plans"][0]["gpus"] == {"A100-SXM4-80GB": 8}


def test_a_discount_comes_off(plan: Run) -> None:
    full = only_pool(planned(plan))["usd_per_gpu_hour"]
    assert only_pool(planned(plan, "--discount", "30"))["usd_per_gpu_hour"] == 0.7 * full
    less = only_pool(planned(plan, "--market", "aws", "--region", "us", "--discount", "aws=50"))
    assert less["usd_per_gpu_hour"] == pytest.approx(3.44)


@pytest.mark.parametrize("discount", ["50", "mycloud=50", "My Cloud=50"])
def test_a_discount_comes_off_own_prices(plan: Run, project: Path, discount: str) -> None:
    (project / "own.csv").write_text("gpu,cloud,usd_per_gpu_hour\nh100,My Cloud,2\n")
    flags = ("--prices", "own.csv", "--discount", discount)
    assert only_pool(planned(plan, *flags))["usd_per_gpu_hour"] == 1.0
    full = only_pool(planned(plan, gpus="a100:8"))["usd_per_gpu_hour"]
    default = only_pool(planned(plan, *flags, gpus="a100:8"))["usd_per_gpu_hour"]
    assert default == pytest.approx(full / 2 if discount == "50" else full)


def test_stated_prices_are_not_discounted_and_that_is_said(plan: Run) -> None:
    document = planned(plan, "--price", "h100=2", "--discount", "50")
    assert only_pool(document)["usd_per_gpu_hour"] == 2.0
    assert "stated prices are not discounted: H100-SXM5-80GB" in document["notes"]


def test_stale_prices_are_told_with_their_date(plan: Run) -> None:
    notes = planned(plan, "--market", "vast")["notes"]
    assert any("at vast is stale: of 2025-10-27, 385 days old" in note for note in notes)
    assert not any("stale" in note for note in planned(plan)["notes"])


def test_types_without_a_price_are_left_out_where_money_decides(plan: Run) -> None:
    both = ("--mode", "up-to", "--objective", "cost")
    document = planned(plan, *both, gpus="h100:8,h800:8")
    assert only_pool(document)["gpu"] == "H100-SXM5-80GB"
    asked = "no price is known for H800-SXM5-80GB; --price h800=USD sets one: left out"
    assert asked in document["notes"]
    alone = planned(plan, *both, gpus="h800:8")
    assert any("--price h800=USD" in note for note in alone["notes"])
    kept = planned(plan, *both, "--price", "h800=2", gpus="h100:8,h800:8")
    assert len(kept["cluster"]["pools"]) == 2


def test_a_market_alone_offers_all_it_has(run: Run) -> None:
    asked = ("--market", "nebius", "--region", "europe", "--max-gpus", "16", "--objective", "cost")
    common = ("--seq-length", "2048", "--global-batch", "32", "--top", "1", "--json")
    result = run("plan", "gpt2-xl", *asked, *common)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["search"]["mode"] == "up-to"
    assert len(document["cluster"]["pools"]) > 2
    assert all(pool["cloud"] == "nebius" for pool in document["cluster"]["pools"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--market", "azur"), "did you mean 'azure'"),
        (("--market", ","), "no cloud is named"),
        (("--market", "aws", "--region", "eurpe"), "did you mean 'europe'"),
        (("--region", "us"), "--region 'us' goes with --market"),
        (("--max-gpus", "8"), "--max-gpus '8' goes with --market without --gpus"),
        (("--power-utilisation", "8"), "goes with --power-price"),
        (("--price", "h100"), "expected TYPE=USD per GPU and hour"),
        (("--price", "h100=-1"), "'-1': negative"),
        (("--price", "h100=cheap"), "'cheap': not a number"),
        (("--price", "h1000=1"), "did you mean 'h100'"),
        (("--price", "a100=1"), "none of the GPUs asked about"),
        (("--discount", "130"), "expected a percentage"),
        (("--discount", "=30"), "the cloud is missing"),
        (("--market", "aws", "--discount", "gcp=30"), "nothing here is priced by gcp"),
        (("--discount", "aws=30"), "give --market with the cloud"),
        (("--power-price", "0.2"), "--price h100=0 owns them"),
        (("--price", "h100=0", "--power-price", "much"), "--power-price 'much': not a number"),
        (("--prices", "nothing.csv"), "no such file"),
    ],
)
def test_bad_flags_are_refused(plan: Run, flags: tuple[str, ...], message: str) -> None:
    result = plan(*flags)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_predict_and_fit_take_prices_too(run: Run) -> None:
    common = ("llama-2-7b", "--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64")
    priced = ("--market", "aws", "--region", "us", "--json")
    predicted = json.loads(run("predict", *common, "--strategy", "tp=2", *priced).stdout)
    assert only_pool(predicted)["cloud"] == "aws"
    fitted = json.loads(run("fit", *common, *priced).stdout)
    assert only_pool(fitted)["cloud"] == "aws"
    alone = run("fit", "llama-2-7b", "--market", "aws")
    assert alone.exit_code == 2
    assert "no GPUs are given" in alone.stderr


def test_the_day_of_the_environment_is_checked(plan: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    result = plan()
    assert result.exit_code == 2
    assert "SOURCE_DATE_EPOCH is 'soon'" in result.stderr


def test_machines_on_demand_fail_too(plan: Run) -> None:
    run = planned(plan, "--tokens", "1T")["plans"][0]["run"]
    assert run["interruptions_per_hour"] == pytest.approx(1.6e-4)
    assert run["checkpoint_interval_seconds"] > 0
    assert all(run["breakdown_seconds"][cause] > 0 for cause in ("checkpoints", "lost", "restarts"))
    never = planned(plan, "--tokens", "1T", "--failures", "0")["plans"][0]
    assert never["run"]["goodput"] == 1
    assert never["run"]["checkpoint_interval_seconds"] is None


def test_a_strange_failure_rate_is_refused(plan: Run) -> None:
    result = plan("--tokens", "1T", "--failures", "often")
    assert result.exit_code != 0
    assert "--failures" in result.stderr


def test_a_limit_within_what_is_likely_is_answered_with_its_chance(plan: Run) -> None:
    fastest = ("--prefer", "fastest")
    free = planned(plan, *fastest)["plans"][0]
    assert free["run"]["deadline_chance"] is None
    day, usd = free["train_seconds"] / 86_400, free["usd_total"]
    near = planned(plan, *fastest, "--deadline", str(1.02 * day), "--budget", str(1.02 * usd))
    chances = [near["plans"][0]["run"][f"{limit}_chance"] for limit in ("deadline", "budget")]
    assert all(0.2 < chance < 0.9 for chance in chances)
    assert chances[0] == pytest.approx(chances[1], rel=1e-6)
    far = planned(plan, "--deadline", str(3 * day))["plans"][0]["run"]
    assert far["deadline_chance"] > 0.95
    shown = plan("--tokens", "10B", *fastest, "--deadline", str(1.02 * day)).stdout
    assert "the deadline lies within the likely range: the chance to keep it is" in " ".join(
        shown.split()
    )
    refused = plan("--tokens", "10B", *fastest, "--deadline", str(0.99 * day))
    assert "kept with a chance of" in " ".join(refused.stderr.split())


def test_a_cheaper_plan_that_may_keep_the_deadline_is_told(plan: Run) -> None:
    flags = ("--mode", "up-to", "--objective", "cost", "--rule", "$pp > 1")
    free = planned(plan, *flags, "--deadline", "1000")
    points = [free["plans"][point["plan"]] for point in free["pareto"]]
    slower, faster = sorted(points, key=lambda one: one["usd_total"])[:2]
    late = 0.99 * slower["train_seconds"] / 86_400
    near = planned(plan, *flags, "--deadline", str(late))
    assert near["plans"][0]["gpus"] == faster["gpus"]
    (note,) = [note for note in near["notes"] if "may also keep the limits" in note]
    (rank,) = [one["rank"] for one in near["plans"] if one["gpus"] == slower["gpus"]]
    assert note.startswith(f"plan {rank} (")
    assert not any("may also keep the limits" in note for note in free["notes"])
