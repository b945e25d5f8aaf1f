"""Buffers that a step changes are those of the module on one device, also after a checkpoint."""

from __future__ import annotations

from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from spmd_programs import drawn_program
from spmd_ranks import Ranks
from spmd_training import stepped
from torch import Tensor, nn

from astrarium.runtime.spmd.alone import ModuleAlone
from astrarium.runtime.spmd.model import MadeModule
from astrarium.runtime.spmd.train import Recipe
from astrarium.runtime.spmd.train.checkpoint import reassemble
from astrarium.spmd.capture import capture

RECIPE = Recipe("sgd", 0.1)


class Averages(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Statistics, an average that the loss depends on, one that is assigned, a part written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Conv1d(2, 6, 3, padding=1), nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Parameter(torch.full((6,), 2.0), requires_grad=False)
        self.level: Tensor
        self.register_buffer("level", torch.ones(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("newest", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        hidden: Any = self.first(x)
        if "norm" in self.kind:
            hidden = self.norm(hidden)
        if self.kind == "norm twice":
            hidden = self.norm(hidden * hidden)
        hidden = hidden.mean(-1) * self.frozen * torch.tensor(2.0)
        if self.kind == "average":
            with torch.no_grad():
                self.level.mul_(0.9).add_(hidden.abs().mean(0), alpha=0.1)
                self.calls += 1
            hidden = hidden / self.level
        elif self.kind == "assigned":
            self.level = 0.9 * self.level + 0.1 * hidden.detach().abs().mean(0)
            self.newest = hidden.detach().mean(0)
            hidden = hidden / self.level
        elif self.kind == "part":
            self.level[2:4] = hidden.detach().abs().mean(0)[2:4]
            hidden = hidden / self.level
        elif self.kind == "part, never read":
            with torch.no_grad():
                self.level[2:4] = x.abs().mean((0, 2))
        return nn.functional.cross_entropy(self.last(hidden), labels)


CHANGED = {
    "norm": {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"},
    "norm twice": {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"},
    "average": {"level", "calls"},
    "assigned": {"level", "newest"},
    "part": {"level"},
    "part, never read": {"level"},
}


@pytest.mark.parametrize(("micro_batches", "mesh"), [(1, (2, 2)), (2, (3,))])
@pytest.mark.parametrize("kind", CHANGED)
def test_buffers_are_carried_through_steps(
    ranks: Ranks, tmp_path: Path, kind: str, micro_batches: int, mesh: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(8, 2, 3).double(), "labels": torch.randint(5, (8,))}
    model = MadeModule(Averages(kind).double().train(), inputs)
    part = {name: tensor[: 8 // micro_batches] for name, tensor in inputs.items()}
    graph = capture(model.module, part)
    assert set(graph.state) == CHANGED[kind]
    batches, copied = model.batches(graph, micro_batches), model.copied()
    alone = ModuleAlone(copied, RECIPE, torch.device("cpu")).train(batches, 3)
    program = drawn_program(graph, mesh, Random(kind), micro_batches)
    arguments = (program, model.state(graph), batches, RECIPE, tmp_path / "two", model.rest(graph))
    for losses, buffers in ranks.run(stepped, [arguments] * prod(mesh)):
        assert losses == pytest.approx(alone.losses, rel=1e-11)
        for name in CHANGED[kind]:
            assert not torch.equal(alone.buffers[name], dict(model.module.named_buffers())[name])
            torch.testing.assert_close(buffers[name], alone.buffers[name], rtol=1e-11, atol=1e-13)
    state = torch.load(reassemble(tmp_path / "two"), weights_only=True)
    assert state.keys() == model.module.state_dict().keys()
    twice = model.copied()
    ModuleAlone(twice, RECIPE, torch.device("cpu")).train(batches, 2)
    for name, tensor in twice.module.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-11, atol=1e-13)
