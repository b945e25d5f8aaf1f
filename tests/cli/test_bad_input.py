"""Bad input: a clear message on stderr, the right exit code, no traceback, nothing written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


def refused(result: Result, *messages: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    for message in messages:
        assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_unknown_model(run: Run) -> None:
    result = run("plan", "lama-2-70b", "--gpus", "h100:8", "--global-batch", "8")
    refused(result, "unknown model 'lama-2-70b'", "did you mean 'llama-2-70b'?")


def test_unknown_gpu(plan: Run) -> None:
    refused(plan(gpus="h10:8"), "unknown GPU type 'h10'", "did you mean 'h100'?")


def test_a_count_that_is_no_multiple_of_a_node(plan: Run) -> None:
    refused(plan(gpus="h100:12"), "nodes of 8; use 8 or 16")


def test_a_batch_that_nothing_divides(plan: Run) -> None:
    result = plan(gpus="h100:296")  # 37 nodes: no tp, pp, cp or dp takes the 37
    refused(result, "no split of 296 GPUs divides a global batch of 64", code=1)


def test_a_model_that_fits_nowhere(run: Run) -> None:
    flags = ("--gpus", "t4:1", "--seq-length", "4096", "--global-batch", "64")
    result = run("plan", "llama-2-70b", *flags)
    refused(result, "does not fit", "GiB too much", "smallest number", code=1)


@pytest.mark.parametrize("value", ["0", "-4", "nan", "inf", "1e40", "999999999999", "1.5", "x", ""])
@pytest.mark.parametrize("flag", ["--seq-length", "--global-batch", "--top"])
def test_counts(run: Run, flag: str, value: str) -> None:
    flags = {"--gpus": "h100:8", "--seq-length": "4096", "--global-batch": "64", flag: value}
    result = run("plan", "llama-2-7b", *(word for pair in flags.items() for word in pair))
    refused(result, f"{flag} '{value}'")


@pytest.mark.parametrize("value", ["0", "-4", "nan", "inf", "1e40", "x", ""])
@pytest.mark.parametrize("flag", ["--tokens", "--budget", "--deadline"])
def test_quantities(plan: Run, flag: str, value: str) -> None:
    refused(plan("--tokens", "1T", flag, value), f"{flag} '{value}'")


@pytest.mark.parametrize(("value", "why"), [("0", "zero"), ("-8", "negative"), ("nan", "number")])
def test_numbers_of_gpus(plan: Run, value: str, why: str) -> None:
    refused(plan(gpus=f"h100:{value}"), f"h100:{value}: number of GPUs", why)


def test_more_gpus_than_there_are(plan: Run) -> None:
    refused(plan(gpus="h100:99999999"), "more than the largest cluster")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--objective", "speed", "expected one of throughput, time, cost"),
        ("--objective", "gpus", "expected one of throughput, time, cost"),
        ("--mode", "upto", "did you mean 'up-to'?"),
        ("--precision", "bf-16", "did you mean 'bf16'?"),
        ("--precision", "fp6", "expected one of bf16, fp16, fp8, mxfp8, fp4, best"),
        ("--rule", "$tpp > 8", "did you mean"),
        ("--rule", "$tp >", "column"),
    ],
)
def test_words(plan: Run, flag: str, value: str, message: str) -> None:
    refused(plan(flag, value), message)


def test_fp8_on_a_gpu_without(plan: Run) -> None:
    refused(plan("--precision", "fp8", gpus="a100:8"), "A100-SXM4-80GB has no fp8")
    # Its tensor cores know the format, and no software that trains in it is known there.
    refused(plan("--precision", "mxfp8", gpus="rtx-5090:8"), "has no mxfp8 arithmetic to train in")


def test_both_or_neither_cluster(run: Run) -> None:
    common = ("plan", "llama-2-7b", "--global-batch", "64")
    both = run(*common, "--gpus", "h100:8", "--cluster", "c.yaml")
    refused(both, "--gpus and --cluster are both given; keep one")
    refused(run(*common), "no GPUs are given; use --gpus TYPE:N")


def test_limits_without_a_length(plan: Run) -> None:
    refused(plan("--budget", "1k"), "needs --tokens")


@pytest.mark.parametrize(
    ("flag", "value", "least"),
    [
        ("--deadline", "0.001", "the fastest run takes "),
        ("--budget", "5", "the cheapest run takes "),
    ],
)
def test_limits_that_nothing_keeps(plan: Run, flag: str, value: str, least: str) -> None:
    result = plan("--tokens", "1T", flag, value)
    refused(result, "no plan keeps the limits", least, f"{flag} ", "would do", code=1)


def test_a_rule_that_drops_everything(plan: Run) -> None:
    refused(plan("--rule", "$tp >= 1"), "ruled out", "$tp >= 1", code=1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cluster.yaml", "pools: [", "cluster.yaml:"),
        ("cluster.yaml", "pools:\n  - {gpu: h100, node: 1}\n", "did you mean 'nodes'?"),
        ("cluster.toml", "pools = 3", "cluster.toml:1: pools: expected list, got 3"),
        ("cluster.json", '{"pools": []}', "cluster.json"),
        ("cluster.txt", "pools", "cluster.txt"),
    ],
)
def test_malformed_cluster_files(
    run: Run, project: Path, name: str, content: str, message: str
) -> None:
    (project / name).write_text(content, encoding="utf-8")
    result = run("plan", "llama-2-7b", "--cluster", name, "--global-batch", "64")
    refused(result, message)


POOLS = "  - {name: fast, gpu: h100, nodes: 1}\n  - {name: slow, gpu: a100, nodes: 2}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "pools:\n  - {gpu: h100, nodes: 0}\n",
            "cluster.yaml:2: pools[0].nodes: expected int >= 1",
        ),
        (
            f"pools:\n{POOLS}links:\n  - {{between: [fast, slwo]}}\n",
            "links[0]: no pool is called 'slwo' (did you mean 'slow'?); pools: fast, slow",
        ),
        (
            f"pools:\n{POOLS}links:\n  - {{between: [fast, fast]}}\n",
            "the link between 'fast' and 'fast' joins a pool with itself; drop it",
        ),
        (f"pools:\n{POOLS}{POOLS}", "two pools are called 'fast'; give each its own name"),
    ],
)
@pytest.mark.parametrize("command", [("plan",), ("predict", "--strategy", "tp=8,pp=3"), ("fit",)])
def test_clusters_that_do_not_hold_together(
    run: Run, project: Path, command: tuple[str, ...], content: str, message: str
) -> None:
    (project / "cluster.yaml").write_text(content, encoding="utf-8")
    name, *more = command
    flags = ("--cluster", "cluster.yaml", "--global-batch", "64")
    refused(run(name, "llama-2-7b", *flags, *more), message)


def test_a_type_without_gpus(plan: Run) -> None:
    refused(plan(gpus="h100:8,a100:0"), "a100:0: number of GPUs: '0': must be greater than zero")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[{layers: [0, 20]}, {layers: [20, 26]}, {layers: [26, 31]}]", "must cover all 32 layers"),
        ("[{layers: [0, 20]}, {layers: [21, 26]}, {layers: [26, 32]}]", "must cover all 32 layers"),
        ("[{layers: [0, 20]}, {layers: [20, 16]}, {layers: [16, 32]}]", "must cover all 32 layers"),
        ("[{layers: [0, 20]}, {layers: [20, 32]}]", "stages has 2 entries; pp 3"),
        (
            "[{layers: [0, 2.5]}, {layers: [2, 20]}, {layers: [20, 32]}]",
            "expected a list of tables",
        ),
        (
            "[{layers: [0, 20], pool: fast}, {layers: [20, 26]}, {layers: [26, 32]}]",
            "strategy.yaml:1: stages: unknown key 'pool'; expected layers, pools, gpu",
        ),
        (
            "[{layers: [0, 20], pools: {fst: 8}}, {layers: [20, 26], pools: {slow: 8}},"
            " {layers: [26, 32], pools: {slow: 8}}]",
            "no pool is called 'fst' (did you mean 'fast'?)",
        ),
        (
            "[{layers: [0, 20], pools: {fast: 8}}, {layers: [20, 26], pools: {fast: 8}},"
            " {layers: [26, 32], pools: {slow: 8}}]",
            "stages ask for 16 GPUs of pool fast, which has 8",
        ),
        (
            "[{layers: [0, 20], pools: {fast: 4}}, {layers: [20, 26], pools: {slow: 8}},"
            " {layers: [26, 32], pools: {slow: 8}}]",
            "pipeline rank 0 lies on 4 GPUs; tp x cp x dp asks for 8",
        ),
        (
            "[{layers: [0, 20], pools: {fast: 12, slow: -4}}, {layers: [20, 26], pools: {slow: 8}},"
            " {layers: [26, 32], pools: {slow: 8}}]",
            "pipeline rank 0 asks for -4 GPUs of pool slow",
        ),
        (
            "[{layers: [0, 20], pools: {fast: 8}}, {layers: [20, 26]}, {layers: [26, 32]}]",
            "but none for pipeline rank 1; add them",
        ),
        (
            "[{layers: [0, 20], gpu: v100}, {layers: [20, 26], gpu: a100},"
            " {layers: [26, 32], gpu: a100}]",
            "pipeline rank 0 asks for 8 x V100-SXM2-32GB; the cluster has none of them",
        ),
    ],
)
def test_stages_that_the_model_or_the_cluster_does_not_have(
    run: Run, project: Path, stages: str, message: str
) -> None:
    (project / "cluster.yaml").write_text(f"pools:\n{POOLS}", encoding="utf-8")
    (project / "strategy.yaml").write_text(f"{{tp: 8, pp: 3, stages: {stages}}}", encoding="utf-8")
    flags = ("llama-2-7b", "--cluster", "cluster.yaml", "--global-batch", "64")
    for command in ("predict", "fit"):
        refused(run(command, *flags, "--strategy", "strategy.yaml"), message)


def test_chunks_of_one_rank_on_different_pools(run: Run, project: Path) -> None:
    (project / "cluster.yaml").write_text(f"pools:\n{POOLS}", encoding="utf-8")
    pools = ("fast", "slow", "slow", "slow", "slow", "slow")
    stages = ", ".join(
        f"{{layers: [{5 * i}, {5 * i + 5 + 2 * (i == 5)}], pools: {{{pool}: 8}}}}"
        for i, pool in enumerate(pools)
    )
    text = f"{{tp: 8, pp: 3, virtual_stages: 2, stages: [{stages}]}}"
    (project / "strategy.yaml").write_text(text, encoding="utf-8")
    flags = ("--cluster", "cluster.yaml", "--global-batch", "48", "--strategy", "strategy.yaml")
    refused(run("predict", "llama-2-7b", *flags), "put pipeline rank 0 on different pools")


def test_more_stages_than_layers(run: Run) -> None:
    flags = ("--gpus", "h100:64,a100:64", "--global-batch", "64", "--strategy", "tp=2,pp=64")
    message = "pp 64 x virtual_stages 1 makes 64 stages of at least one layer; Llama-2-7B has 32"
    for more in (("predict",), ("predict", "--runtime", "nanotron"), ("fit",)):
        refused(run(more[0], "llama-2-7b", *flags, *more[1:]), message)


def test_a_pool_that_no_stage_fits_on_is_left_out(run: Run) -> None:
    flags = ("--gpus", "h100:256,t4:1", "--global-batch", "256", "--mode", "up-to", "--top", "1")
    document = json.loads(run("plan", "llama-3.1-405b", *flags, "--json").stdout)
    (note,) = (note for note in document["notes"] if "leaves out" in note)
    assert note.startswith("plan 1 leaves out 1 x T4-16GB: no stage fits on T4-16GB")
    assert "GiB too much" in note


def test_types_without_a_common_precision(run: Run) -> None:
    common = ("predict", "llama-2-7b", "--gpus", "h100:8,v100:8", "--global-batch", "64")
    asked = (*common, "--strategy", "tp=8,pp=2")
    refused(
        run(*asked, "--precision", "fp8"),
        "V100-SXM2-32GB has no fp8 arithmetic to train in; it has fp16",
    )
    document = json.loads(run(*asked, "--json").stdout)
    assert document["workload"]["precision"] == "fp16"
    assert document["plans"][0]["precision"] == "fp16"
    assert "types used together compute in fp16, which all of them have" in document["notes"]
    assert "an iteration, fp16, Adam" in " ".join(run(*asked).stdout.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json:1"),
        ("[]", "config.json"),
        ('{"model_type": "lama"}', "did you mean 'llama'?"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size"),
    ],
)
def test_malformed_configs(run: Run, project: Path, content: str, message: str) -> None:
    (project / "config.json").write_text(content, encoding="utf-8")
    result = run("plan", "./config.json", "--gpus", "h100:8", "--global-batch", "64")
    refused(result, message)


def test_files_that_are_not_there(run: Run) -> None:
    common = ("--global-batch", "64", "--gpus", "h100:8")
    refused(run("plan", "./nothing.json", *common), "nothing.json")
    refused(run("plan", "llama-2-7b", "--global-batch", "64", "--cluster", "no.yaml"), "no.yaml")
    refused(run("predict", "llama-2-7b", *common, "--strategy", "no.yaml"), "no.yaml")
    refused(run("explain", "no.json"), "no.json")


def test_an_output_folder_that_is_a_file(plan: Run, project: Path) -> None:
    (project / "taken").write_text("mine", encoding="utf-8")
    refused(plan("--out", "taken"), "--out taken", "choose another place")
    refused(plan("--out", "taken/deeper"), "--out taken/deeper")
    assert (project / "taken").read_text(encoding="utf-8") == "mine"


def test_an_output_file_that_is_a_folder(plan: Run, project: Path) -> None:
    (project / "out/plan.json").mkdir(parents=True)
    refused(plan("--out", "out"), "cannot write out/plan.json: it is a folder")
    assert os.listdir(project / "out") == ["plan.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(plan: Run, project: Path) -> None:
    (project / "out").mkdir(mode=0o500)
    refused(plan("--out", "out"), "cannot write out/plan.json: Permission denied")


def test_nothing_is_written_when_nothing_is_found(plan: Run, project: Path) -> None:
    refused(plan("--rule", "$tp >= 1", "--out", "out"), code=1)
    assert os.listdir(project) == []


def test_errors_stay_text_with_json(plan: Run) -> None:
    refused(plan("--json", gpus="h10:8"), "Error: unknown GPU type 'h10'")


def test_usage_errors(run: Run) -> None:
    refused(run("plann"), "No such command 'plann'. Did you mean 'plan'", "astrarium --help")
    refused(run("plan", "llama-2-7b"), "Missing option '--global-batch'")
    refused(run("plan"), "Missing argument 'MODEL'")
    refused(run("plan", "llama-2-7b", "--global-bach", "8"), "No such option '--global-bach'")
    refused(run("plan", "llama-2-7b", "--global-bach", "8"), "--global-batch")
    refused(run("plan", "a", "b", "--global-batch", "8"), "unexpected extra argument")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("tp=3", "tp 3 x pp 1 x cp 1 = 3 does not divide 8 GPUs (2 and 4 do)"),
        ("tp=16", "does not divide 8 GPUs (8 does)"),
        ("tpp=2", "unknown key 'tpp'"),
        ("tp=0", "tp is 0; expected a whole number from 1"),
        ("tp=two", "tp is 'two'"),
        ("tp=2,tp=4", "tp is given twice"),
        ("micro_batch=3", "does not divide the global batch of 64; take a batch of"),
        ("recompute=all", "expected one of none, selective, full"),
        ("zero_stage=3,pp=2", "Megatron would refuse this strategy"),
    ],
)
def test_strategies(run: Run, strategy: str, message: str) -> None:
    common = ("llama-2-7b", "--gpus", "h100:8", "--global-batch", "64", "--strategy", strategy)
    refused(run("predict", *common), message)
    refused(run("fit", *common), message)
