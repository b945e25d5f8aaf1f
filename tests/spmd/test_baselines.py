"""Fixed ways to divide the work are priced as people run them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from spmd_priced import cluster
from torch import nn

import astrarium
from astrarium.spmd.capture import capture
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import price_program
from astrarium.spmd.rules import SYNCHRONISED_NORM
from astrarium.spmd.synthesis import as_run, space_of, synthesize
from astrarium.spmd.synthesis.baselines import SPACES

MODULE = """
import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)
        )

    def forward(self, x):
        return self.layers(x).square().mean()


def make(batch):
    return Network(), {"x": torch.randn(batch, 3, 64, 64)}
"""


def normed() -> Graph:
    layers = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(0))

    class Network(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.layers(x).square().mean()
            return loss

    return capture(Network(), {"x": torch.randn(64, 3, 32, 32)})


def test_data_parallel_has_statistics_of_each_device() -> None:
    devices = cluster("v100:2,t4:2")
    space = space_of("data parallel, by speed")
    program = synthesize(normed(), devices, space=space).program
    used = [rule for one in program.instructions for rule in one.rules]
    assert [bool(rule.messages) for rule in used if rule.local == SYNCHRONISED_NORM] == [True]
    run = as_run(space, program)
    assert price_program(run, devices).seconds < program.seconds
    for other in SPACES:
        if not other.own_statistics:
            assert as_run(other, program) is program


@pytest.mark.parametrize("norm", [True, False])
def test_a_document_says_what_data_parallel_does(tmp_path: Path, norm: bool) -> None:
    text = MODULE if norm else MODULE.replace("nn.BatchNorm2d(64), ", "")
    (tmp_path / "network.py").write_text(text)
    found = astrarium.synthesize(f"{tmp_path / 'network.py'}:make", batch=64, gpus="v100:2,t4:2")
    assert any("as DDP does" in note for note in found.document.notes) == norm
