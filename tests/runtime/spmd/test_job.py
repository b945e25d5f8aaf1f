from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from spmd_examples import SIZES, factory
from spmd_programs import drawn_program

from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.report.runs import program_verdict
from astrarium.runtime.job import Device
from astrarium.runtime.launch import PACKAGES, RankError
from astrarium.runtime.spmd.job import (
    Difference,
    ProgramRun,
    ProgramSettings,
    RankReport,
    check_ranks,
    compared_with,
    run_program,
    run_programs,
)
from astrarium.runtime.spmd.train.checkpoint import reassemble
from astrarium.spmd.capture import capture, load_factory, taken_apart
from astrarium.spmd.price import devices_of, document_of
from astrarium.spmd.program import ProgramDocument, SourcePart, SynthesisPart, save_program

SECONDS = 240.0


def _document(name: str, gpus: str, micro_batches: int = 1, **changes: float) -> ProgramDocument:
    """A program drawn at random: the best for so small a model would exchange nothing."""
    sizes = {**SIZES[name], **changes}
    source = SourcePart(factory(name), 8, sizes, seed=3)
    module, inputs = load_factory(source.factory)(batch=8 // micro_batches, **sizes)
    devices = devices_of(parse_gpus(gpus))
    graph = taken_apart(capture(module, inputs))
    program = drawn_program(graph, devices.mesh, Random(gpus), micro_batches)
    return document_of(source, devices, program, SynthesisPart(0.0, 0, 0, False, 0.0))


@pytest.fixture(scope="module")
def mlp() -> ProgramDocument:
    """Of a model that is imported quickly: each rank is a process of its own."""
    return _document("mlp", "a100:1,v100:1", micro_batches=2)


@pytest.mark.usefixtures("warm")
def test_a_run_is_that_of_the_module_and_goes_on(mlp: ProgramDocument, tmp_path: Path) -> None:
    """Two micro-batches on two ranks; then the checkpoint on three ranks, with another program."""
    folder = tmp_path / "checkpoint"
    done = run_program(
        mlp, settings=ProgramSettings(steps=2, save=str(folder)), timeout_seconds=SECONDS
    )
    assert isinstance(done, ProgramRun)
    assert done.is_right
    assert done.single_process is not None
    assert done.single_process.reference == "the module on one device"
    assert 0.0 < done.single_process.gradients.largest < 1e-4
    assert done.losses[1] < done.losses[0]
    assert len(done.step_seconds) == 2
    assert [one.pool for one in done.processes] == ["A100-SXM4-80GB", "V100-SXM2-32GB"]
    module, _ = load_factory(factory("mlp"))(batch=8, **SIZES["mlp"])
    module.load_state_dict(torch.load(reassemble(folder), weights_only=True))
    other = _document("mlp", "a100:1,v100:2", micro_batches=2)
    further = run_program(
        other, settings=ProgramSettings(steps=2, load=str(folder)), timeout_seconds=SECONDS
    )
    assert further.is_right
    assert further.losses[0] < done.losses[1]


@pytest.mark.usefixtures("warm")
def test_dropout_is_compared_with_the_module() -> None:
    """Of GPT-2, whose fused projections have another shape in the module."""
    document = _document("gpt2", "a100:1,v100:1", dropout=0.4, layers=1)
    assert any(node.stored_shape != node.shape for node in document.program.graph.nodes)
    done = run_program(document, settings=ProgramSettings(steps=2), timeout_seconds=SECONDS)
    assert done.is_right
    assert done.single_process is not None
    drawn = "the module on one device, its dropout drawn by position"
    assert done.single_process.reference == drawn
    assert 0.0 < done.single_process.gradients.largest < 1e-4


@pytest.mark.usefixtures("warm")
def test_another_mask_than_the_modules_is_noticed() -> None:
    document = _document("gpt2", "a100:1,v100:1", dropout=0.4, layers=1)
    graph = document.program.graph
    nodes = [replace(node, draw=7 if node.draw == 1 else node.draw) for node in graph.nodes]
    wrong = replace(document.program, graph=replace(graph, nodes=tuple(nodes)))
    done = run_program(
        replace(document, program=wrong), settings=ProgramSettings(steps=1), timeout_seconds=SECONDS
    )
    assert done.single_process is not None
    assert not done.is_right
    assert done.single_process.gradients.largest > 1e-2
    assert done.single_process.gradients.rounding < 1e-4
    assert program_verdict(done).startswith(
        "NOT equal to the module on one device, its dropout drawn"
    )


ROUNDED = """
import torch

class Rounded(torch.nn.Module):
    # What is left of large numbers that cancel out is what they were rounded by.
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)
        self.register_buffer("level", torch.zeros(5))

    def forward(self, x):
        large = 3e4 * x[:, :5]
        sums = (self.linear(x) + large).sum(0) - large.sum(0)
        self.level = 0.5 * self.level + sums.detach()
        return sums.square().sum()

def make(batch):
    return Rounded(), {"x": torch.randn(batch, 6)}
"""


@pytest.mark.usefixtures("warm")
def test_differences_are_judged_by_the_rounding_of_the_module(tmp_path: Path) -> None:
    path = tmp_path / "rounded.py"
    path.write_text(ROUNDED)
    source = SourcePart(f"{path}:make", 8, seed=3)
    graph = capture(*load_factory(source.factory)(batch=8))
    devices = devices_of(parse_gpus("a100:1,v100:1"))
    program = drawn_program(graph, devices.mesh, Random(5))
    document = document_of(source, devices, program, SynthesisPart(0.0, 0, 0, False, 0.0))
    done = run_program(document, settings=ProgramSettings(steps=2), timeout_seconds=SECONDS)
    found = done.single_process
    assert found is not None
    assert found.buffers is not None
    assert min(found.largest_loss_difference, found.buffers.largest) > found.tolerance
    assert min(found.loss_rounding, found.buffers.rounding) > found.tolerance
    assert done.is_right
    assert f"(rounding of the module: {found.loss_rounding:.1e})" in program_verdict(done)


def test_rounding_of_later_steps_excuses_no_earlier_one() -> None:
    def compared(losses: tuple[float, ...]) -> bool:
        reports = RankReport(
            0, 0, losses, (1.0,) * 3, (0.1,) * 3, 1, 1, (1.0, 1.0, 1.0), (1.0, 1.0, 1.1),
            Difference(0.0, ""),
        )  # fmt: skip
        found = compared_with(reports, "the module", Device.CPU)
        assert found is not None
        return found.equal

    assert compared((1.0, 1.0, 1.1))
    assert not compared((1.0, 1.1, 1.0))
    assert not compared((1.0, 1.0, float("nan")))


def test_other_numbers_of_ranks_are_refused(mlp: ProgramDocument) -> None:
    with pytest.raises(InputError, match="--ranks 3: the program is for 2 ranks"):
        run_program(mlp, ranks=3)


def test_gpus_that_are_not_there_are_refused(
    mlp: ProgramDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astrarium.runtime.execute.visible_gpus", lambda: 1)
    with pytest.raises(InputError, match="needs 2 GPUs, and this machine has 1"):
        run_program(mlp, device=Device.CUDA)
    check_ranks(mlp, 2, Device.CUDA, share_gpus=True)
    monkeypatch.setattr("astrarium.runtime.execute.visible_gpus", lambda: 0)
    with pytest.raises(InputError, match="needs 1 GPUs, and this machine has 0"):
        check_ranks(mlp, 2, Device.CUDA, share_gpus=True)


@pytest.mark.usefixtures("warm")
def test_ranks_say_what_share_of_a_core_they_had(mlp: ProgramDocument) -> None:
    settings = ProgramSettings(steps=1, rounds=2, compare=False, watch_seconds=0.02)
    (reports,) = run_programs([mlp], Device.CPU, settings, timeout_seconds=SECONDS)
    for report in reports:
        assert len(report.shares) == 2
        assert all(0.0 < share < 1.1 for share in report.shares)


@pytest.mark.usefixtures("warm")
def test_a_rank_that_fails_is_named(mlp: ProgramDocument) -> None:
    settings = ProgramSettings(steps=1, load="nowhere")
    with pytest.raises(RankError, match="nowhere is no checkpoint"):
        run_program(mlp, settings=settings, timeout_seconds=SECONDS)


def test_torchrun_on_two_hosts(mlp: ProgramDocument, tmp_path: Path) -> None:
    """Each host has its own torchrun with one rank; they meet at an address and a port."""
    path = tmp_path / "program.json"
    save_program(mlp, path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hosts = []
    for number in range(2):
        flags = [
            "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1",
            "--master-addr", "127.0.0.1", "--master-port", str(port),
        ]  # fmt: skip
        worker = ["-m", "astrarium.runtime.spmd.worker", str(path), "--steps", "2"]
        hosts.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *flags, *worker],
                env={**os.environ, "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        answers = [host.communicate(timeout=SECONDS) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], answers
    lines = [json.loads(line) for line in answers[0][0].splitlines()]
    result = lines[-1]["result"]
    assert [line["step"]["loss"] for line in lines[:-1]] == result["losses"]
    assert result["losses"] == pytest.approx(result["reference_losses"], rel=1e-5)
    assert 0.0 < result["gradients"]["largest"] < 1e-4
    assert answers[1][0] == ""


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (["--device", "cuda"], {"RANK": "1"}, "Error: rank 1 is number 2 on its host, where torch"),
        ([], {}, "Error: RANK is not set; start this with torchrun"),
        (["--steps", "many"], {"RANK": "1"}, "argument --steps: invalid int value: 'many'"),
    ],
)
def test_workers_say_what_is_wrong_in_a_line(
    mlp: ProgramDocument,
    tmp_path: Path,
    warm_python: str,
    flags: list[str],
    environment: dict[str, str],
    said: str,
) -> None:
    path = tmp_path / "program.json"
    save_program(mlp, path)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "2"}
    known = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK")}
    done = subprocess.run(
        [warm_python, "-P", "-m", "astrarium.runtime.spmd.worker", str(path), *flags],
        env={**known, **hidden, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
