"""`astrarium catalog`: lists and details, with source, date and doubts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


def words(text: str) -> str:
    return " ".join(text.split())


def test_models_as_json(run: Run) -> None:
    models = json.loads(run("catalog", "models", "--json").stdout)["models"]
    by_name = {entry["name"]: entry for entry in models}
    assert len(by_name) >= 140
    assert by_name["Llama-2-70B"]["parameters"] == 68976648192


def test_one_model_is_built(run: Run) -> None:
    result = run("catalog", "models", "deepseek-v3")
    assert "671,026,404,352" in result.stdout
    assert "256" in result.stdout
    entry = json.loads(run("catalog", "models", "llama-2-7b", "--json").stdout)["models"][0]
    assert entry["parameters"] == 6738415616
    assert entry["layers"] == 32
    assert entry["max_seq_length"] == 4096


def test_gpus_as_json(run: Run) -> None:
    gpus = json.loads(run("catalog", "gpus", "--json").stdout)["gpus"]
    assert len(gpus) >= 45
    assert all(gpu["memory_bytes"] > 2**30 for gpu in gpus)


def test_one_gpu_with_its_provenance(run: Run) -> None:
    shown = words(run("catalog", "gpus", "H100").stdout)
    assert "H100-SXM5-80GB (also h100" in shown
    assert "bf16_tflops 989.4 TFLOP/s" in shown
    assert "Doubts (?)" in shown
    assert "Sources" in shown
    assert "p5.48xlarge" in shown
    entry = json.loads(run("catalog", "gpus", "h100", "--json").stdout)["gpus"][0]
    figure = next(f for f in entry["figures"] if f["name"] == "bf16_tflops")
    assert figure["value_text"] == "989.4"
    assert figure["sources"]
    assert figure["date"]


def test_prices(run: Run) -> None:
    prices = json.loads(run("catalog", "prices", "--json").stdout)["prices"]
    h100 = next(price for price in prices if price["gpu"] == "H100-SXM5-80GB")
    assert h100["usd_per_gpu_hour"] > 0
    assert h100["price_date"]
    assert h100["price_sources"]
    shown = words(run("catalog", "prices", "h100").stdout)
    assert "the default is the median over clouds" in shown
    assert "Whole instances" in shown
    one = json.loads(run("catalog", "prices", "h100", "--json").stdout)
    assert len(one["prices"]) == 1
    assert one["instances"]


def test_prices_have_age_and_spread(run: Run) -> None:
    shown = words(run("catalog", "prices", "h100", "--cloud", "aws,vast").stdout)
    assert "aws us p5.48xlarge 8 $6.88 " in shown
    assert "$2.58 86 " in shown  # days before the day of the tests
    assert "385 !" in shown
    assert "! stale: older than 180 days" in shown
    document = json.loads(run("catalog", "prices", "h100", "--json").stdout)
    (spread,) = document["prices"]
    per_gpu = [o["usd_per_gpu_hour"] for o in document["offers"] if o["usd_per_gpu_hour"]]
    assert spread["least_usd_per_gpu_hour"] <= min(per_gpu)
    assert spread["most_usd_per_gpu_hour"] >= max(per_gpu)
    assert (spread["newest"], spread["age_days"], spread["currency"]) == ("2026-11-09", 7, "USD")
    vast = next(o for o in document["offers"] if o["cloud"] == "vast")
    assert vast["stale"]
    assert vast["note"] == ["marketplace", "stale"]


def test_prices_of_a_cloud_and_region(run: Run) -> None:
    chosen = ("--cloud", "aws,Google", "--region", "europe", "--json")
    document = json.loads(run("catalog", "prices", "h100", *chosen).stdout)
    assert {offer["cloud"] for offer in document["offers"]} == {"aws", "gcp"}
    assert {offer["region"] for offer in document["offers"]} == {"europe"}
    none = run("catalog", "prices", "h800", "--cloud", "aws")
    assert none.exit_code == 0
    wrong = run("catalog", "prices", "h100", "--cloud", "amazn")
    assert wrong.exit_code == 2
    assert "did you mean 'amazon'" in wrong.stderr


def test_instances(run: Run) -> None:
    every = json.loads(run("catalog", "instances", "--json").stdout)["instances"]
    with_h100 = json.loads(run("catalog", "instances", "h100", "--json").stdout)["instances"]
    assert 1 < len(with_h100) < len(every)
    assert {instance["gpu"] for instance in with_h100} == {"H100-SXM5-80GB"}
    one = run("catalog", "instances", "p5.48xlarge")
    assert "gpus_per_node" in one.stdout
    assert "Sources" in one.stdout


@pytest.mark.parametrize("what", ["gpus", "models", "prices", "instances"])
@pytest.mark.parametrize("columns", [80, 100, 120])
def test_lists_keep_the_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, what: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("catalog", what)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout
    key = {"prices": "gpu"}.get(what, "name")
    listed = json.loads(run("catalog", what, "--json").stdout)[what]
    lines = result.stdout.splitlines()
    for entry in listed:
        assert any(line.startswith(f"{entry[key]} ") for line in lines)


@pytest.mark.parametrize("command", ["prices", "gpus", "instances"])
@pytest.mark.parametrize("columns", [80, 100, 120])
def test_instances_of_a_type_are_not_broken(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run("catalog", command, "v100-16gb").stdout
    assert max(map(len, shown.splitlines())) <= columns
    assert "p3.16xlarge (1)" in shown
    assert "1 no longer listed" in words(shown)


@pytest.mark.parametrize(
    ("what", "part", "first"), [("models", "llama", "Llama-7B"), ("gpus", "rtx", "RTX-2080Ti-11GB")]
)
def test_a_part_of_names_lists_those_that_have_it(
    run: Run, what: str, part: str, first: str
) -> None:
    result = run("catalog", what, part)
    assert result.exit_code == 2
    assert f"'{part}' is part of several {what}: {first}, " in result.stderr
    assert " more; `astrarium catalog" in result.stderr
    assert "did you mean" not in result.stderr


def test_a_misspelt_name_gets_the_closest(run: Run) -> None:
    assert "did you mean 'Llama-2-70B'" in run("catalog", "models", "lama-2-70b").stderr
    assert "did you mean 'h100'" in run("catalog", "gpus", "h10o").stderr


@pytest.mark.parametrize("what", ["gpus", "models", "prices", "instances"])
def test_the_usage_has_one_pair_of_brackets(run: Run, what: str) -> None:
    usage = run("catalog", what, "--help").stdout
    assert "[OPTIONS] [NAME]" in usage
    assert "[[" not in usage


@pytest.mark.parametrize("what", ["gpus", "models", "prices", "instances"])
def test_unknown_names(run: Run, what: str) -> None:
    result = run("catalog", what, "nothing-like-it")
    assert result.exit_code == 2
    assert "nothing-like-it" in result.stderr
    assert "astrarium catalog" in result.stderr


def test_entries_of_the_user(run: Run, project: Path) -> None:
    text = '[gpus.mine]\nlike = "h100"\nmemory_gib = 141\n'
    (project / "astrarium.toml").write_text(text, encoding="utf-8")
    shown = words(run("catalog", "gpus", "mine").stdout)
    assert "memory_gib 141 GiB" in shown
    assert "astrarium.toml" in shown


def test_runtimes_show_constants_with_sources(run: Run) -> None:
    listed = json.loads(run("catalog", "runtimes", "--json").stdout)["runtimes"]
    assert {"megatron", "nanotron", "fsdp", "deepspeed"} <= {entry["name"] for entry in listed}
    for entry in listed:
        assert all(constant["source"] for constant in entry["constants"].values())
    text = run("catalog", "runtimes", "Nanotron").stdout
    assert "layer_forward_seconds" in text
    refused = run("catalog", "runtimes", "nanotorn")
    assert refused.exit_code == 2
    assert "did you mean 'nanotron'" in refused.stderr
