"""What `torch.export` would drop without a word is refused by name, or captured."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from astrarium.errors import InputError
from astrarium.spmd.capture import capture
from astrarium.spmd.graph import KEEP, PARAMETER


class Reversal(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


reverse = Reversal.apply  # as most modules call it


class Given(NamedTuple):
    scores: Tensor
    loss: Tensor


class Module(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Every kind gives another result, or changes another thing on the way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.steps = kind, 0
        self.linear = nn.Linear(4, 4)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))
        if kind == "hooked parameter":
            self.linear.weight.register_hook(lambda gradient: -gradient)
        if kind == "hooked module":
            self.linear.register_full_backward_hook(lambda *_: None)
        self.norm = nn.InstanceNorm1d(4, track_running_stats=True)

    def forward(self, x: Tensor) -> Any:  # noqa: C901, PLR0911, PLR0912  a result each
        hidden = self.linear(x)
        loss = hidden.square().mean()
        match self.kind:
            case "function":
                return reverse(hidden).square().mean()
            case "reentrant":
                return checkpoint(self.linear, hidden, use_reentrant=True).mean()
            case "hook":
                hidden.register_hook(lambda gradient: -gradient)
                return hidden.square().mean()
            case "two losses":
                return loss, hidden.abs().mean()
            case "loss and metric":
                return loss, hidden.abs().mean().detach(), hidden
            case "named":
                return Given(hidden, loss)
            case "normal":
                return (hidden + torch.normal(0.0, 1.0, (3, 4))).square().mean()
            case "alpha":
                return nn.functional.alpha_dropout(hidden, 0.5, training=True).mean()
            case "drawn alone":
                return (hidden * torch.rand(())).mean()
            case "layer drop" | "no layer drop":
                layerdrop = 0.5 if self.kind == "layer drop" else 0.0
                if torch.rand([]) < layerdrop:
                    return loss
                return self.linear(hidden).square().mean()
            case "dice":
                return loss * random.random()
            case "dice of numpy":
                return loss * np.random.rand()  # noqa: NPY002  as modules do
            case "clamped":
                with torch.no_grad():
                    self.linear.weight.clamp_(-1, 1)
                return self.linear(x).mean()
            case "counted":
                self.steps += 1
                return loss * min(1.0, self.steps / 10)
            case "grown":
                self.seen = torch.cat([self.seen, hidden.detach().mean(0)])
            case "instance norm":
                return self.norm(hidden.t()[None]).square().mean()
        return loss


REFUSED = {
    "function": ("Module applies Reversal (test_outputs.py:", "backward pass", "detach()"),
    "reentrant": ("CheckpointFunction (checkpoint.py:", "use_reentrant=False"),
    "hook": ("hook on the gradient of a tensor of shape [3, 4]", "detach()"),
    "hooked parameter": ("parameter 'linear.weight' has a hook",),
    "hooked module": ("BackwardHookFunction",),
    "two losses": ("2 losses, at places 0, 1 of a tuple", "return their sum", "detach()"),
    "normal": ("random numbers with aten.normal.float_float (test_outputs.py:", "as inputs"),
    "layer drop": ("random number", "probability 0.5", "layerdrop = 0"),
    "dice": ("Module draws numbers with random,", "as inputs"),
    "dice of numpy": ("draws numbers with numpy.random,",),
    "alpha": ("aten.alpha_dropout.default",),
    "drawn alone": ("aten.rand.default",),
    "clamped": ("parameter 'linear.weight' is changed in every step (test_outputs.py:",),
    "counted": ("attribute 'steps' goes from 0 to 1 in a step", "keep it in a buffer"),
    "grown": ("buffer 'seen' becomes torch.float32 of shape [8]", "was torch.float32 of shape [4]"),
    "instance norm": ("aten.instance_norm.default", "track_running_stats=False"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_captured_is_named(kind: str) -> None:
    with pytest.raises(InputError) as refusal:
        capture(Module(kind), {"x": torch.randn(3, 4)})
    for part in REFUSED[kind]:
        assert part in str(refusal.value)


def test_layers_that_are_never_left_out_are_there() -> None:
    graph = capture(Module("no layer drop"), {"x": torch.randn(3, 4)})
    assert [node.op for node in graph.nodes].count("aten.linear.default") == 2
    assert not any("rand" in node.op for node in graph.nodes)


def test_hooks_can_be_registered_again_afterwards() -> None:
    with pytest.raises(InputError):
        capture(Module("hook"), {"x": torch.randn(3, 4)})
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: 2 * gradient)
    x.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["loss and metric", "named"])
def test_other_results_are_left_aside(kind: str) -> None:
    plain = capture(Module(""), {"x": torch.randn(3, 4)})
    assert capture(Module(kind), {"x": torch.randn(3, 4)}).nodes[-1].op == plain.nodes[-1].op
    assert plain.nodes[-1].op == "aten.mean.default"


def test_new_values_of_buffers_have_no_gradient() -> None:
    """They are read by the last node, which hands the loss on."""

    class Averages(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("level", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.norm(self.linear(x))
            with torch.no_grad():
                self.level.mul_(0.9).add_(hidden.abs().mean(), alpha=0.1)
            return (hidden / self.level).square().mean()

    graph = capture(Averages(), {"x": torch.randn(3, 4)})
    last = graph.nodes[-1]
    assert last.op == KEEP
    statistics = ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert graph.state == (*statistics, "level")
    loss, *kept = last.inputs
    assert graph.nodes[loss].op == "aten.mean.default"
    assert not any(graph.nodes[index].needs_gradient for index in kept)
    assert graph.nodes[kept[-1]].op == "aten.detach.default"
    trained = {node.target for node in graph.nodes if node.op == PARAMETER and node.needs_gradient}
    assert trained == {"linear.weight", "linear.bias", "norm.weight", "norm.bias"}
