"""`astrarium fit`: whether it fits, by how much not, and what would help."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

Run = Callable[..., Result]

LARGE = ("llama-2-70b", "--gpus", "h100:16", "--seq-length", "4096", "--global-batch", "64")


def words(text: str) -> str:
    return " ".join(text.split())


def test_what_fits(run: Run) -> None:
    result = run("fit", "llama-2-7b", "--gpus", "h100:8")
    shown = words(result.stdout)
    assert result.exit_code == 0
    assert "FITS: stage" in shown
    assert "the fastest that fits:" in shown
    assert "the fewest GPUs on which a strategy fits:" in shown
    assert "--global-batch not given: 1024 taken" in shown


def test_what_does_not_fit(run: Run) -> None:
    result = run("fit", *LARGE, "--strategy", "tp=8,pp=1")
    shown = words(result.stdout)
    assert result.exit_code == 1
    assert result.stderr == ""
    assert "DOES NOT FIT: stage 0 needs" in shown
    assert "as asked: tp 8, dp 2" in shown
    assert "Single changes that make it fit, the cheapest first" in shown


def test_the_document(run: Run) -> None:
    result = run("fit", *LARGE, "--strategy", "tp=8,pp=1", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["schema"] == "astrarium.fit/1"
    assert document["fits"] is False
    stage = document["plan"]["memory"][0]
    excess = stage["peak_bytes"] - stage["capacity_bytes"]
    assert document["excess_bytes"] == pytest.approx(excess)
    assert document["smallest_gpus"] > 1
    times = [change["plan"]["iteration_seconds"] for change in document["changes"]]
    assert times
    assert times == sorted(times)
    assert all(change["plan"]["fits"] for change in document["changes"])


def test_when_no_strategy_fits(run: Run) -> None:
    flags = ("llama-2-70b", "--gpus", "t4:1", "--seq-length", "4096", "--global-batch", "64")
    result = run("fit", *flags)
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout
    assert "the fewest GPUs" in words(result.stdout)
    document = json.loads(run("fit", *flags, "--json").stdout)
    assert document["plan"]["fits"] is False
    assert document["excess_bytes"] > 0
    assert "does not fit" in document["why_not"]


def test_every_stage_is_shown(run: Run) -> None:
    flags = ("--gpus", "h100:16", "--global-batch", "64", "--strategy", "pp=16,recompute=full")
    result = run("fit", "llama-2-13b", *flags)
    first = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [word for word in first if word.isdigit()] == [str(stage) for stage in range(16)]


def test_a_strategy_on_several_pools(run: Run) -> None:
    flags = ("llama-2-13b", "--gpus", "h100:8,v100:24", "--global-batch", "64")
    result = run("fit", *flags, "--strategy", "tp=8,pp=4,micro_batch=4")
    shown = words(result.stdout)
    assert result.exit_code == 1
    assert "DOES NOT FIT: stage 1 needs" in shown
    assert "of 31.7 GiB on V100-SXM2-32GB" in shown
    assert "pipeline: 1 stage H100 [0-9], 3 stages V100 [10-39 by 10]" in shown
    assert "1 x H100-SXM5-80GB, or 4 x V100-SXM2-32GB" in shown
    document = json.loads(
        run("fit", *flags, "--strategy", "tp=8,pp=4,micro_batch=4", "--json").stdout
    )
    assert document["smallest_gpus_by_type"] == {"H100-SXM5-80GB": 1, "V100-SXM2-32GB": 4}
    assert document["changes"]
    for change in document["changes"]:
        assert change["plan"]["fits"]
        assert change["plan"]["precision"] == "fp16"


def test_other_software_has_its_own_answer(run: Run) -> None:
    flags = ("fit", "llama-2-13b", "--gpus", "a100:16", "--global-batch", "64", "--runtime")
    result = run(*flags, "fsdp", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["plan"]["runtimes"] == ["fsdp"]
    assert document["plan"]["strategy"]["zero_stage"] in (2, 3)
    refused = run(*flags, "fsdp", "--strategy", "tp=8,zero_stage=3")
    assert refused.exit_code != 0
    assert "fsdp would refuse this strategy: tp 8: FSDP divides" in refused.stderr
    unknown = run(*flags, "nanotron")
    assert "nanotron can be predicted but not planned for" in words(unknown.stderr)


def test_changes_are_what_the_software_takes(run: Run) -> None:
    flags = ("--gpus", "a100:8", "--global-batch", "64", "--runtime", "fsdp", "--json")
    result = run("fit", "llama-2-13b", *flags, "--strategy", "micro_batch=8,zero_stage=2")
    changes = json.loads(result.stdout)["changes"]
    assert changes
    assert all(change["plan"]["strategy"]["tp"] == 1 for change in changes)
    assert not any(change["plan"]["strategy"]["recompute"]["modules"] for change in changes)
