"""Whole layers and drawn numbers: programs give what the module gives on one device."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from spmd_programs import drawn_program
from spmd_ranks import Ranks
from spmd_simulated import devices_of
from spmd_training import gradients
from torch import Tensor, nn

from astrarium.runtime.spmd.alone import ModuleAlone
from astrarium.runtime.spmd.model import MadeModule
from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.runtime.spmd.operators.norms import norm
from astrarium.runtime.spmd.train import Recipe
from astrarium.spmd.capture import capture
from astrarium.spmd.graph import INPUT, Graph, Node, Ref
from astrarium.spmd.rules import Axes, Division

BATCH, LENGTH, WIDTH = 6, 5, 4


class Noise(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Numbers of all kinds, between dropout of elements and of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop, self.channels = nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Dropout1d()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.linear(x))
        hidden = hidden + torch.randn_like(hidden) * torch.rand(hidden.shape[0], 1, 1)
        kept = hidden.new_empty(hidden.shape[0], 1, 1).bernoulli_(0.8)
        hidden = self.channels(hidden * kept / 0.8)
        return (hidden * torch.bernoulli(torch.full_like(hidden, 0.5))).square().mean()


class Recurrent(nn.Module):  # type: ignore[misc]
    """Two layers each, with dropout between them, and a loss of states and last states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 3, 2, batch_first=True, dropout=0.4, bidirectional=True)
        self.gru = nn.GRU(6, 3, 2, dropout=0.4)

    def forward(self, x: Tensor) -> Tensor:
        states, (last, cells) = self.lstm(x)
        states, end = self.gru(states.transpose(0, 1))
        return states.square().mean() + last.mean() + cells.square().mean() + end.abs().mean()


class Experts(nn.Module):  # type: ignore[misc]
    """As Hugging Face multiplies rows by the matrices of their experts, both ways round."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.up = nn.Parameter(torch.randn(3, 8, WIDTH))
        self.down = nn.Parameter(torch.randn(3, 8, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        weights, chosen = self.gate(rows).softmax(-1).topk(2, -1)
        places = chosen.reshape(-1)
        rows = rows.repeat_interleave(2, dim=0)
        hidden = torch.bmm(self.up[places], rows.unsqueeze(-1)).squeeze(-1).relu()
        given = torch.bmm(hidden.unsqueeze(1), self.down[places]).squeeze(1)
        return (given * weights.reshape(-1, 1)).view(-1, 2, WIDTH).sum(1).square().mean()


class Bags(nn.Module):  # type: ignore[misc]
    """Bags of words, summed and averaged, and norms by channel and over pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(9, 6, mode="sum")
        self.means = nn.EmbeddingBag(9, 6)
        self.batch, self.layer = nn.BatchNorm1d(6), nn.LayerNorm(6)

    def forward(self, words: Tensor) -> Tensor:
        found = self.batch(self.sums(words)) + self.layer(self.means(words))
        return found.softmax(-1).square().mean()


MODULES: dict[str, tuple[type[nn.Module], set[str]]] = {
    "noise": (Noise, {"aten.bernoulli.p", "aten.feature_dropout.default"}),
    "recurrent": (Recurrent, {"aten.lstm.input", "aten.gru.input"}),
    "experts": (Experts, {"experts"}),
    "bags": (Bags, {"aten.embedding.default", "aten.batch_norm.default"}),
}


@pytest.mark.parametrize("name", MODULES)
def test_programs_give_what_the_module_gives(ranks: Ranks, name: str) -> None:
    torch.manual_seed(1)
    made, expected = MODULES[name]
    inputs = {"x": torch.randn(BATCH, LENGTH, WIDTH).double()}
    if name == "bags":
        inputs = {"words": torch.randint(9, (BATCH, 3))}
    model = MadeModule(made().double().train(), inputs)
    graph = capture(model.module, inputs)
    assert set(expected) <= {node.op for node in graph.nodes}
    batches = model.batches(graph, 1)
    for number in range(4):
        program = drawn_program(graph, (2 + number % 2,), Random(number))
        alone = ModuleAlone(model.copied(), Recipe(), torch.device("cpu"), seed=number)
        wanted = alone.train(batches, 1)
        arguments = (program, model.state(graph), batches, number)
        for loss, found in ranks.run(gradients, [arguments] * program.mesh[0]):
            assert loss == pytest.approx(wanted.losses[0], rel=1e-9)
            for key, gradient in wanted.gradients.items():
                torch.testing.assert_close(found[key], gradient, rtol=1e-8, atol=1e-10)


class Ignoring(nn.Module):  # type: ignore[misc]
    """Takes an input that it does not look at."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, unread: Tensor) -> Tensor:
        loss: Tensor = self.linear(x).square().mean()
        return loss


def test_inputs_that_no_program_reads_still_reach_the_module() -> None:
    inputs = {"x": torch.randn(BATCH, WIDTH), "unread": torch.zeros(BATCH, 3)}
    model = MadeModule(Ignoring().train(), inputs)
    half = {name: tensor[: BATCH // 2] for name, tensor in inputs.items()}
    batches = model.batches(capture(model.module, half), 2)
    assert [batch["unread"].shape for batch in batches] == [(BATCH // 2, 3)] * 2
    ModuleAlone(model.copied(), Recipe(), torch.device("cpu")).train(batches, 1)


def test_norms_of_16_bits_take_the_constant_that_torch_takes() -> None:
    x = 0.01 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    x = x.bfloat16()
    node = Node("n", "aten.rms_norm.default", (4, 64), "bfloat16", (Ref(0), [64]))
    graph = Graph((Node("x", INPUT, (4, 64), "bfloat16"), node))
    axes = Axes(((0, 1), (0, 1)), (4, 64))
    (device,) = devices_of(graph, axes, (Division(np.array([[4], [64]])),))
    found = norm(OperatorRun(node, (), (x,), (4, 64), device))
    expected = torch.nn.functional.rms_norm(x, (64,))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.0)
