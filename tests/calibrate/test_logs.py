"""Logs of training programs: what is read from them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from training_logs import MEGATRON_ARGUMENTS, megatron_log, nanotron_log, torchtitan_log

from astrarium.calibrate.learn.logs import (
    LogFormat,
    StatedSettings,
    measurement_of,
    pace_of,
    read_logs,
)
from astrarium.calibrate.learn.measurement import Measurement
from astrarium.catalog.runtimes import ReportedMemory
from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.workload import Precision
from astrarium.strategy.types import Granularity, Method, Recompute

MIB = 2**20


def run_of(tmp_path: Path, text: str, gpus: str = "h100:64", **given: object) -> Measurement:
    path = tmp_path / "run.log"
    path.write_text(text, encoding="utf-8")
    pool = parse_gpus(gpus).pools[0]
    return measurement_of(read_logs(path)[0], StatedSettings(pool, **given))[0]  # type: ignore[arg-type]


def test_megatron(tmp_path: Path) -> None:
    run = run_of(tmp_path, megatron_log())
    assert run.seconds == pytest.approx(2.0, rel=0.01)
    assert run.runtime.name == "megatron"
    assert (run.workload.seq_length, run.workload.global_batch) == (4096, 128)
    assert run.workload.precision is Precision.BF16
    model = run.workload.model
    assert (model.num_layers, model.hidden) == (32, 4096)
    assert model.parameters == pytest.approx(load_model("llama-2-7b").parameters, rel=1e-3)
    s = run.strategy
    assert (s.tp, s.pp, s.dp, s.virtual_stages, s.micro_batch) == (2, 4, 2, 2, 1)
    assert s.gpus == 16
    assert s.zero_stage == 1
    assert s.sequence_parallel
    assert s.overlap.grad_reduce
    assert not s.overlap.tp
    assert s.recompute.granularity is Granularity.SELECTIVE
    # Ranks of the first and the last stage reported; the fullest of them is of the first.
    assert run.peak_bytes == pytest.approx(40000 * MIB)
    assert run.reported is ReportedMemory.ALLOCATED
    assert run.stage == 0


def test_old_megatron(tmp_path: Path) -> None:
    without = ("transformer_impl", "recompute", "position", "swiglu", "normalization", "overlap")
    kept = [line for line in MEGATRON_ARGUMENTS if not line.strip().startswith(without)]
    text = megatron_log([*kept, "  checkpoint_activations .......................... True"])
    run = run_of(tmp_path, text)
    assert run.runtime.name == "megatron-2021"
    assert run.strategy.recompute.granularity is Granularity.FULL
    assert not run.strategy.overlap.grad_reduce


@pytest.mark.parametrize(
    "line",
    [
        "[default0]: [2025-05-27 15:23:07] iteration        {n}/    24000 | consumed samples:  1 |"
        " elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 40.4 |"
        " global batch size:   128 | lm loss: 1.19E+01 |",
        " iteration  {n}/50000 | consumed samples: 56 | elapsed time per iteration (ms): {ms} |"
        " learning rate: 1.499E-05 | global batch size:  128 |",
        "[INFO][training_log:661] -  iteration=    {n}/  635782 | consumed_samples=    768 |"
        " elapsed_time_per_iteration_ms={ms} | global_batch_size=128 | lm loss=11.167250 |",
        " iteration {n}/ 50 | consumed samples: 1 | elapsed time per iteration (ms): {ms}/2011.0 |"
        " global batch size: 128 |",
    ],
    ids=["launcher", "fork", "deepspeed", "mean"],
)
def test_dialects_of_megatron(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.log"
    lines = [line.format(n=n, ms=9000.0 if n < 3 else 2000.0 + n) for n in range(1, 15)]
    path.write_text("\n".join(["\x1b[32mstarting\x1b[0m", *lines, "done"]), encoding="utf-8")
    log = read_logs(path)[0]
    assert log.program is LogFormat.MEGATRON
    pace = pace_of(log)
    assert pace.median == pytest.approx(2.010)
    assert (pace.used, pace.left_out, pace.global_batch) == (9, 5, 128)
    assert pace.spread < 0.01


def test_a_ramp_of_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = [
        f" iteration {n}/ 50 | elapsed time per iteration (ms): {10.0 * size} |"
        f" global batch size: {size} |"
        for n, size in enumerate([32] * 10 + [64] * 10, start=1)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    pace = pace_of(read_logs(path)[0])
    assert (pace.median, pace.global_batch, pace.used) == (0.64, 64, 9)


def test_torchtitan(tmp_path: Path) -> None:
    run = run_of(tmp_path, torchtitan_log())
    assert run.runtime.name == "torchtitan"
    # 7,000 tokens a second on each of 8 GPUs, 8 sequences of 8,192 tokens.
    assert run.seconds == pytest.approx(8 * 8192 / (8 * 7000), rel=0.01)
    assert (run.strategy.dp, run.strategy.zero_stage, run.strategy.micro_batch) == (8, 3, 1)
    assert run.strategy.recompute == Recompute(Granularity.FULL, Method.BLOCK, 18)
    model = run.workload.model
    assert model.parameters == pytest.approx(load_model("llama-3-8b").parameters, rel=1e-3)
    assert run.peak_bytes == pytest.approx(30.99 * 2**30)
    assert run.reported is ReportedMemory.RESERVED


def test_torchtitan_of_2026(tmp_path: Path) -> None:
    mesh = (
        "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2, ep=1"
    )
    text = torchtitan_log(mesh=mesh, model="Building llama3 8B")
    with pytest.raises(InputError, match="does not print the model's sizes; give --model"):
        run_of(tmp_path, text)
    run = run_of(tmp_path, text, model=load_model("llama-3-8b"))
    assert (run.strategy.tp, run.strategy.dp, run.strategy.gpus) == (2, 4, 8)


def test_nanotron(tmp_path: Path) -> None:
    run = run_of(tmp_path, nanotron_log())
    assert run.runtime.name == "nanotron"
    assert run.seconds == pytest.approx(0.215)
    s = run.strategy
    assert (s.tp, s.pp, s.dp, s.micro_batch, s.num_micro_batches) == (2, 2, 4, 2, 4)
    assert run.workload.global_batch == 32
    assert s.zero_stage == 1
    assert s.sequence_parallel
    assert s.recompute.granularity is Granularity.NONE
    assert run.workload.model.hidden == 2048
    assert run.peak_bytes == pytest.approx(20000 * MIB)
    assert run.stage == 0


def test_flags_stand_in_for_settings(tmp_path: Path) -> None:
    text = megatron_log(arguments=())
    with pytest.raises(InputError, match="does not state the sequence length; give --seq-length"):
        run_of(tmp_path, text)
    with pytest.raises(InputError, match=r"hidden_size.*give --model"):
        run_of(tmp_path, text, seq_length=4096)
    model = load_model("llama-2-7b")
    with pytest.raises(InputError, match="does not state the strategy; give --strategy"):
        run_of(tmp_path, text, seq_length=4096, model=model)
    run = run_of(
        tmp_path, text, "h100:16", seq_length=4096, model=model, strategy={"tp": 4}, runtime="fsdp"
    )
    assert (run.strategy.tp, run.strategy.dp) == (4, 4)
    assert run.runtime.name == "fsdp"


def test_more_gpus_than_given(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the run used 16 GPUs, --gpus or --cluster gives 8"):
        run_of(tmp_path, megatron_log(), "h100:8")


def test_latent_attention_needs_the_model(tmp_path: Path) -> None:
    changed = megatron_log().replace(
        "multi_latent_attention .......................... False",
        "multi_latent_attention .......................... True",
    )
    with pytest.raises(InputError, match=r"latent attention .* give --model"):
        run_of(tmp_path, changed)


def _iterations(*times: str) -> Sequence[str]:
    return [
        f" iteration {n}/ 50 | elapsed time per iteration (ms): {ms} | global batch size: 8 |"
        for n, ms in enumerate(times, start=1)
    ]


BROKEN = {
    "nothing known": (["hello", "world"], "no iteration of Megatron-LM, torchtitan or nanotron"),
    "only arguments": (MEGATRON_ARGUMENTS, "no iteration of"),
    "not a number": (_iterations("100", "nan"), r"run.log:2: elapsed time .* is nan"),
    "negative": (_iterations("100", "-3"), r"run.log:2: elapsed time per iteration is -3"),
    "words": (_iterations("fast"), "is 'fast'; expected a number"),
    "disturbed": (
        _iterations(*(["10"] * 6 + ["100", "900"] * 10)),
        "iterations differ by more than",
    ),
    "binary": (["iteration \0"], "a binary file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_logs(name: str, tmp_path: Path) -> None:
    lines, message = BROKEN[name]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        pace_of(read_logs(path)[0])


def test_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    run = run_of(tmp_path, megatron_log() + "\n iteration 31/ 500 | consumed samp")
    assert run.seconds == pytest.approx(2.0, rel=0.01)


def test_missing_logs(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match=r"did you mean 'run\.log'"):
        read_logs(tmp_path / "rum.log")
    with pytest.raises(InputError, match="is a folder"):
        read_logs(tmp_path)


def test_appended_runs_are_runs_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    other = megatron_log(milliseconds=3000).replace(
        "micro_batch_size ................................ 1",
        "micro_batch_size ................................ 2",
    )
    path.write_text(megatron_log() + other, encoding="utf-8")
    first, second = read_logs(path)
    assert (first.path, second.path) == (f"{path} (run 1)", f"{path} (run 2)")
    assert first.settings["micro_batch_size"] == "1"
    assert second.settings["micro_batch_size"] == "2"
    assert pace_of(first).median == pytest.approx(2.0, rel=0.01)
    assert pace_of(second).median == pytest.approx(3.0, rel=0.01)


def test_a_run_that_ended_at_once_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    begin = megatron_log().partition(" [2026")[0].replace(" 4096\n", " 1024\n")
    path.write_text(begin + megatron_log(), encoding="utf-8")
    (run,) = read_logs(path)
    assert run.settings["hidden_size"] == "4096"


@pytest.mark.parametrize("text", [nanotron_log, torchtitan_log])
def test_appended_runs_of_others(tmp_path: Path, text: Callable[[], str]) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{text()}\n{text()}\n", encoding="utf-8")
    assert [len(run.samples) for run in read_logs(path)] == [len(read_logs(path)[0].samples)] * 2


def test_an_appended_run_without_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("\n".join([*_iterations("9", "9"), *_iterations("8")]), encoding="utf-8")
    with pytest.raises(InputError, match=r"run.log:3: iteration 1 follows 2: .* one file per run"):
        read_logs(path)
