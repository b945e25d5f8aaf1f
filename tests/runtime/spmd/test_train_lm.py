"""examples/train_lm.py by torchrun, on four unequal ranks, against torch in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model
from spmd_examples import EXAMPLES
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import astrarium
from astrarium.runtime.launch import PACKAGES
from astrarium.runtime.spmd.alone import drawn_by_position
from astrarium.runtime.spmd.positions import key_of
from astrarium.spmd.factory import load_factory

TEXT = EXAMPLES.parent / "LICENSE"
SIZES = {"width": 16, "layers": 1, "heads": 2, "length": 16}
BATCH, STEPS, SECONDS = 24, 12, 120.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    factory = f"{EXAMPLES / 'language_model.py'}:make"
    found = astrarium.synthesize(factory, batch=BATCH, gpus="v100:2,t4:2", sizes=SIZES)
    assert len(set(found.pieces("batch"))) > 1
    return found.save(tmp_path_factory.mktemp("program") / "program.json")


def _started(script: Path, *words: object, ranks: int = 4) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", str(ranks), str(script), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", said, re.MULTILINE)]


def _alone() -> tuple[list[float], nn.Module]:
    """The loop that everybody knows."""
    rows_of = load_factory_function("rows_of")
    torch.manual_seed(0)
    module, inputs = load_factory(f"{EXAMPLES / 'language_model.py'}:make")(batch=BATCH, **SIZES)
    rows = rows_of(TEXT.read_bytes(), inputs["text"].shape[1])
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


def load_factory_function(name: str) -> object:
    raise NotImplementedError


def test_the_loss_falls_as_on_one_device(program: Path, tmp_path: Path) -> None:
    """In two parts, the second from a checkpoint of the first."""
