"""`astrarium predict`: one strategy, priced as in the search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]

COMMON = ("llama-2-7b", "--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64")


def test_a_plan_is_predicted_as_it_was_found(run: Run, plan: Run) -> None:
    found = json.loads(plan("--json", "--out", "out", "--tokens", "2T").stdout)
    flags = ("--tokens", "2T", "--strategy", "out/plan.json", "--json")
    document = json.loads(run("predict", *COMMON, *flags).stdout)
    assert document["schema"] == "astrarium.plan/1"
    assert document["search"] is None
    assert document["plans"][0] == found["plans"][0]


def test_the_text_says_that_it_fits(run: Run) -> None:
    result = run("predict", *COMMON, "--strategy", "tp=2,recompute=full")
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "FITS: stage 0 has" in shown
    assert "tp 2, dp 4, micro-batch 1 x 16, ZeRO 1, recompute all layers" in shown
    assert "of an iteration go" in shown


def test_not_fitting_is_an_answer(run: Run) -> None:
    flags = ("--gpus", "h100:8", "--global-batch", "8", "--strategy", "tp=1")
    result = run("predict", "llama-2-70b", *flags)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "DOES NOT FIT: stage 0 needs" in " ".join(result.stdout.split())
    document = json.loads(run("predict", "llama-2-70b", *flags, "--json").stdout)
    assert document["plans"][0]["fits"] is False


def test_a_strategy_file(run: Run, project: Path) -> None:
    (project / "s.yaml").write_text("tp: 2\nrecompute: {granularity: full}\n", encoding="utf-8")
    from_file, from_pairs = (
        json.loads(run("predict", *COMMON, "--json", "--strategy", strategy).stdout)["plans"]
        for strategy in ("s.yaml", "tp=2,recompute=full")
    )
    assert from_file == from_pairs


def test_other_runtimes_take_other_times(run: Run) -> None:
    request = ("predict", "llama-2-7b", "--gpus", "h100:8", "--global-batch", "64")
    strategy = ("--strategy", "tp=2,micro_batch=1", "--json")
    usual, other = (
        json.loads(run(*request, *strategy, "--runtime", name).stdout)
        for name in ("megatron", "nanotron")
    )
    assert other["plans"][0]["iteration_seconds"] > usual["plans"][0]["iteration_seconds"]
    assert any("nanotron" in note for note in other["notes"])
    assert run(*request, *strategy, "--runtime", "megatorn").exit_code == 2


def test_a_prediction_can_be_kept_and_explained(run: Run, project: Path) -> None:
    pools = "  - {name: fast, gpu: h100, nodes: 1}\n  - {name: slow, gpu: a100, nodes: 1}\n"
    (project / "c.yaml").write_text(f"pools:\n{pools}", encoding="utf-8")
    flags = ("--cluster", "c.yaml", "--global-batch", "64", "--strategy", "tp=4,pp=4")
    assert run("predict", "llama-2-7b", *flags, "--out", "kept").exit_code == 0
    shown = " ".join(run("explain", "kept").stdout.split())
    assert "pipeline: 2 stages H100 [0-7, 8-15], 2 stages A100 [16-23, 24-31]" in shown
    assert "Slowest link: between fast and slow" in shown
    explained = json.loads(run("explain", "kept", "--json").stdout)
    assert [pool["name"] for pool in explained["pools"]] == ["fast", "slow"]
    assert explained["slowest_link"]["after_stages"] == [1]
    assert explained["losses"][0]["cause"] == "ideal"
    again = run("predict", "llama-2-7b", *flags[:4], "--strategy", "kept/plan.json", "--json")
    kept = json.loads((project / "kept/plan.json").read_text(encoding="utf-8"))
    assert json.loads(again.stdout)["plans"] == kept["plans"]


def test_a_plan_that_leaves_gpus_over(run: Run, project: Path) -> None:
    pools = "  - {name: fast, gpu: h100, nodes: 1}\n  - {name: slow, gpu: a100, nodes: 2}\n"
    (project / "c.yaml").write_text(f"pools:\n{pools}", encoding="utf-8")
    stages = "[{layers: [0, 22], pools: {fast: 8}}, {layers: [22, 32], pools: {slow: 8}}]"
    (project / "s.yaml").write_text(f"{{tp: 8, pp: 2, dp: 1, stages: {stages}}}", encoding="utf-8")
    flags = ("--cluster", "c.yaml", "--global-batch", "64", "--strategy", "s.yaml", "--json")
    document = json.loads(run("predict", "llama-2-7b", *flags).stdout)
    assert document["cluster"]["gpus"] == 24
    assert list(document["plans"][0]["gpus"].values()) == [8, 8]


MEASURED = """
name: timed
hidden: 64
seq_length: 8
layers:
  - {block: embedding, parameters: 1000}
  - block: custom
    name: known
    count: 4
    parameters: 1000000
    forward_flops: 1e9
    activation_bytes: 1e6
    output_bytes: 1e5
    seconds: {V100-SXM2-16GB: {1: {forward: 1e-3}, 4: {forward: 2e-3}}}
  - block: custom
    name: timed only
    count: 4
    parameters: 1000000
    activation_bytes: 1e6
    output_bytes: 1e5
    seconds: {V100-SXM2-16GB: {1: {forward: 1e-3}, 2: {forward: 1e-3}}}
"""


@pytest.mark.parametrize(
    ("gpus", "tp", "expected"),
    [
        ("v100-16:8", 1, []),
        (
            "v100-16:8",
            2,
            ["some layers are not measured on V100-SXM2-16GB with tp 2: those with tp 1 are taken"],
        ),
        (
            "v100-16:8",
            8,
            ["layers are not measured on V100-SXM2-16GB with tp 8: those with tp 2 or 4 are taken"],
        ),
        (
            "h100:8",
            1,
            [
                "layers are not measured on H100-SXM5-80GB: there they are predicted without a"
                " correction",
                "timed only: neither seconds on H100-SXM5-80GB nor forward_flops are stated; priced"
                " as no work",
            ],
        ),
    ],
)
def test_seconds_that_were_not_measured_are_noted(
    run: Run, project: Path, gpus: str, tp: int, expected: list[str]
) -> None:
    (project / "timed.yaml").write_text(MEASURED, encoding="utf-8")
    flags = ("--gpus", gpus, "--global-batch", "64", "--strategy", f"tp={tp},dp={8 // tp},pp=1")
    result = run("predict", "timed.yaml", *flags, "--json")
    assert result.exit_code == 0, result.output
    notes = [note for note in json.loads(result.stdout)["notes"] if "seconds" in note]
    assert [note.removeprefix("the seconds of ") for note in notes] == expected
    shown = " ".join(run("predict", "timed.yaml", *flags).stdout.split())
    assert all(note in shown for note in notes)


def test_a_plan_notes_what_was_not_measured(run: Run, project: Path) -> None:
    (project / "timed.yaml").write_text(MEASURED, encoding="utf-8")
    flags = ("--global-batch", "64", "--rule", "$tp != 2", "--top", "1", "--json")
    result = run("plan", "timed.yaml", "--gpus", "v100-16:8", *flags)
    document = json.loads(result.stdout)
    assert document["plans"][0]["strategy"]["tp"] == 2
    assert any("with tp 2: those with tp 1 are taken" in note for note in document["notes"])
