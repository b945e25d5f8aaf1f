"""`astrarium catalog`: lists and details, with source, date and doubts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

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
    assert "defaults, not offers" in shown
    assert "Whole instances" in shown
    one = json.loads(run("catalog", "prices", "h100", "--json").stdout)
    assert len(one["prices"]) == 1
    assert one["instances"]


def test_instances(run: Run) -> None:
    every = json.loads(run("catalog", "instances", "--json").stdout)["instances"]
    with_h100 = json.loads(run("catalog", "instances", "h100", "--json").stdout)["instances"]
    assert 1 < len(with_h100) < len(every)
    assert {instance["gpu"] for instance in with_h100} == {"H100-SXM5-80GB"}
    one = run("catalog", "instances", "p5.48xlarge")
    assert "gpus_per_node" in one.stdout
    assert "Sources" in one.stdout


@pytest.mark.parametrize("what", ["gpus", "models", "prices", "instances"])
@pytest.mark.parametrize("columns", [80, 120])
def test_lists_keep_the_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, what: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("catalog", what)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout


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
