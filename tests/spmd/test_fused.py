"""Fused projections taken apart: the same loss and gradients, and heads that can be divided."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spmd_simulated import devices_of
from torch import Tensor, nn

from astrarium.runtime.spmd.operators import run_local
from astrarium.spmd.capture import capture, taken_apart
from astrarium.spmd.graph import INPUT, PARAMETER, Graph
from astrarium.spmd.rules import REPLICATE, Division, find_axes, rules_of
from astrarium.spmd.rules.layout import ShardRule


class Fused(nn.Module):  # type: ignore[misc]  # torch is not analysed
    """Attention whose projections are one product, as `linear` or as GPT-2 writes it."""

    def __init__(self, linear: bool, bias: bool) -> None:
        super().__init__()
        self.linear = linear
        self.weight = nn.Parameter(torch.randn(24, 8) if linear else torch.randn(8, 24))
        self.bias = nn.Parameter(torch.randn(24)) if bias else None
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.linear:
            joined = nn.functional.linear(x, self.weight, self.bias)
        else:
            assert self.bias is not None
            flat = torch.addmm(self.bias, x.view(-1, 8), self.weight)
            joined = flat.view(*x.shape[:-1], 24)
        heads = [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in joined.split(8, dim=-1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        return self.out(mixed.transpose(1, 2).flatten(-2)).square().mean()


def loss_and_gradients(graph: Graph, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    axes = find_axes(graph, [rules_of(graph, node) for node in graph.nodes])
    (device,) = devices_of(graph, axes, (Division(np.array(axes.granules)[:, None]),))
    values: list[Tensor] = []
    trained = {key: value.clone().requires_grad_() for key, value in state.items() if key != "x"}
    for node in graph.nodes:
        if node.is_source:
            source = state["x"] if node.op == INPUT else trained[node.target]
            values.append(source.reshape(node.shape))
        else:
            rule = ShardRule("replicate", (REPLICATE,) * len(node.inputs), REPLICATE)
            inputs = [values[index] for index in node.inputs]
            values.append(run_local(node, (rule,), inputs, node.shape, device))
    values[-1].backward()
    return values[-1].detach(), {key: value.grad for key, value in trained.items()}


CASES = [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize(("linear", "bias"), CASES)
def test_loss_and_gradients_stay(linear: bool, bias: bool) -> None:
    torch.manual_seed(0)
    module, x = Fused(linear, bias), torch.randn(3, 5, 8)
    graph = capture(module, {"x": x})
    state = {"x": x, **{key: value.detach() for key, value in module.named_parameters()}}
    loss, gradients = loss_and_gradients(graph, state)
    again, found = loss_and_gradients(taken_apart(graph), state)
    torch.testing.assert_close(again, loss)
    torch.testing.assert_close(loss, module(x).detach())
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize(("linear", "bias"), CASES)
def test_heads_can_be_divided(linear: bool, bias: bool) -> None:
    module, x = Fused(linear, bias), torch.randn(3, 5, 8)
    graph = taken_apart(capture(module, {"x": x}))
    assert all(node.op != "aten.split.Tensor" for node in graph.nodes)
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    axes = find_axes(graph, [rules_of(graph, node) for node in graph.nodes])
    (heads,) = [axis for axis, name in enumerate(axes.names) if "heads" in name]
    assert axes.granules[heads] == 2
    weight = next(i for i, n in enumerate(graph.nodes) if n.target == "weight")
    assert graph.nodes[weight].op == PARAMETER
    assert graph.nodes[weight].args == (list(module.weight.shape),)
    assert heads in axes.of[weight]
    out = next(i for i, n in enumerate(graph.nodes) if n.target == "out.weight")
    assert axes.of[out][1] == heads


class Shared(nn.Module):  # type: ignore[misc]  # as above
    """A fused projection whose whole result something else reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.joined(x)
        one, two = y.chunk(2, dim=-1)
        return (one * two).sum() + y.sum()


def test_what_is_read_whole_stays_as_it_is() -> None:
    graph = capture(Shared(), {"x": torch.randn(3, 4)})
    assert taken_apart(graph) is graph
