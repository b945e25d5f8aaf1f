"""examples/train_lm.py by torchrun, on four unequal ranks, against torch in one process."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_model
from spmd_examples import EXAMPLES
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import astrarium
from astrarium.runtime.spmd.alone import drawn_by_position
from astrarium.runtime.spmd.execute import Interpreter, Peers, RankPlace
from astrarium.runtime.spmd.operators import key_of
from astrarium.runtime.spmd.train import Reader
from astrarium.runtime.spmd.train.rows import RankRows, read_in_pieces
from astrarium.spmd.capture.factory import load_factory

FACTORY = f"{EXAMPLES / 'language_model.py'}:make"
LICENSE = EXAMPLES.parent / "LICENSE"  # a text that does not change
SIZES = {"width": 128, "layers": 1, "heads": 4, "length": 128}
BATCH, STEPS, SAVED_AT, SECONDS = 64, 6, 4, 120.0
CLUSTER = """
pools:
  - {name: fast, gpu: v100, nodes: 1, gpus_per_node: 2, inter_node: 100 Gb/s}
  - {name: slow, gpu: t4, nodes: 1, gpus_per_node: 2, inter_node: 100 Gb/s}
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long enough for all steps; its lines are in another order each time they come again."""
    lines = LICENSE.read_text(encoding="utf-8").splitlines(keepends=True)
    file = tmp_path_factory.mktemp("text") / "text.txt"
    mixed = Random(0)
    file.write_text("".join(line for _ in range(8) for line in mixed.sample(lines, len(lines))))
    return file


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "mixed.yaml").write_text(CLUSTER)
    cluster = folder / "mixed.yaml"
    found = astrarium.synthesize(
        FACTORY, batch=BATCH, cluster=cluster, sizes=SIZES, mesh="flat", all_devices=True
    )
    fast, _, slow, _ = found.pieces("batch")
    assert fast > slow > 0
    return found.save(folder / "program.json")


def _started(
    python: str, script: Path, *words: object, ranks: int = 4
) -> subprocess.CompletedProcess[str]:
    command = [python, "-P", "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", str(ranks), str(script), *map(str, words)],
        env={**os.environ, "PYTHON_EXEC": python, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", said, re.MULTILINE)]


def _alone(text: Path) -> tuple[list[float], nn.Module]:
    """The loop that everybody knows."""
    rows_of = runpy.run_path(str(EXAMPLES / "train_lm.py"))["rows_of"]
    torch.manual_seed(0)
    module, inputs = load_factory(FACTORY)(batch=BATCH, **SIZES)
    rows = rows_of(text.read_bytes(), inputs["text"].shape[1])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    assert len(rows) >= BATCH * STEPS
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    schedule, losses = CosineAnnealingLR(optimizer, STEPS), []
    for step in range(STEPS):
        chosen = [rows[index] for index in order[step * BATCH : (step + 1) * BATCH]]
        batch = {name: torch.stack([row[name] for row in chosen]) for name in inputs}
        with drawn_by_position(key_of(0, step)):
            loss = module(**batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses, module


def test_the_loss_falls_as_on_one_device(
    program: Path,
    text: Path,
    tmp_path: Path,
    warm_python: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And so do the weights, which go back into the module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    expected, module = _alone(text)
    assert expected[-1] < expected[0] - 0.5
    weights = tmp_path / "weights.safetensors"
    checkpoint = tmp_path / "checkpoint"
    flags = ("--steps", STEPS, "--every", SAVED_AT)
    files = ("--checkpoint", checkpoint, "--weights", weights)
    done = _started(warm_python, EXAMPLES / "train_lm.py", program, text, *flags, *files)
    assert done.returncode == 0, done.stderr
    assert _losses(done.stdout) == pytest.approx(expected, abs=2e-5)
    assert Reader(checkpoint).manifest.step == SAVED_AT
    loaded, _ = load_factory(FACTORY)(batch=BATCH, **SIZES)
    load_model(loaded, weights)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_ranks_read_as_many_rows_as_they_compute(program: Path) -> None:
    found = astrarium.load_program(program)
    divided, everyone = read_in_pieces(found.document.program), Peers(0, 4)
    place = RankPlace(0, (0,), (everyone,), everyone)
    assert RankRows(Interpreter(divided, place), BATCH).sizes == found.pieces("batch")
    assert len(divided.instructions) < len(found.document.program.instructions)


FAILING = """
import sys, torch, astrarium
sys.path.insert(0, {examples!r})
from language_model import make
program = astrarium.load_program(sys.argv[1])
source = program.document.source
module, inputs = make(source.batch, **source.sizes)
trainer = program.trainer(module, lambda p: torch.optim.SGD(p, lr=0.1))
batch = trainer.own_rows(inputs)
trainer.step(batch)
if trainer.rank == 1:
    batch["text"] = batch["text"][1:]
trainer.step(batch)
"""


def test_a_rank_that_fails_ends_all_with_its_message(tmp_path: Path, warm_python: str) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(examples=str(EXAMPLES)))
    program = astrarium.synthesize(
        FACTORY, batch=4, gpus="v100:1,t4:1", sizes=SIZES, all_devices=True
    )
    done = _started(warm_python, script, program.save(tmp_path / "program.json"), ranks=2)
    assert done.returncode != 0
    said = re.findall(r"^(?:\[rank\d\]:)? ?(astrarium\.\S+: .*)$", done.stderr, re.MULTILINE)
    assert len(said) >= 1, done.stderr
    for line in said:
        assert "input 'text' is int64 of shape" in line, done.stderr
    assert "Connection closed" not in done.stderr
