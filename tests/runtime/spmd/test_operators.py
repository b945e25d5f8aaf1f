"""What rules leave to the runtime: numbers of 16 bits, messages that are sent, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from spmd_simulated import Device, Trial, devices_of, drawn_division, local_shape, on_all
from torch import Tensor

from astrarium.runtime.spmd.operators import run_local
from astrarium.spmd.rules import local_pieces
from astrarium.spmd.rules.layout import ShardRule

ROWS = 4096


def scores(dtype: torch.dtype) -> Tensor:
    """Losses of about 20 each: their sum is beyond the numbers of 16 bits."""
    values = torch.zeros(ROWS, 8, dtype=dtype)
    values[:, 1:] = -20.0
    return values.requires_grad_()


BIG: dict[str, Callable[[torch.dtype], list[Any]]] = {
    "cross_entropy_loss": lambda dtype: [scores(dtype), torch.ones(ROWS, dtype=torch.int64)],
    "mse_loss": lambda dtype: [scores(dtype), torch.zeros(ROWS, 8, dtype=dtype)],
    "mean": lambda dtype: [(scores(dtype).detach() * 2).requires_grad_()],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", BIG)
def test_sums_over_devices_stay_within_16_bits(op: str, dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)
    args = BIG[op](dtype)
    tried = Trial.of(f"aten.{op}.default", args, {}, random)
    # Of torch in 64 bits: in 16 its own sums are infinite on CPUs.
    (expected,) = Trial.of(f"aten.{op}.default", BIG[op](torch.float64), {}, random).outputs
    for rule in tried.rules:
        if not rule.needs[0].is_shard:
            continue
        parts = run(tried, rule)
        assert all(part.dtype == dtype for part in parts)
        values = [part.double() for part in parts]
        total = torch.stack(values).sum() if str(rule.gives) == "partial" else values[0]
        assert total.item() == pytest.approx(expected.item(), rel=0.01)


def run(tried: Trial, rule: ShardRule) -> list[Tensor]:
    """The results of three devices."""
    divisions = (drawn_division(tried.axes, 3, tried.random),)
    devices = devices_of(tried.graph, tried.axes, divisions)
    node = len(tried.graph.nodes) - 1

    def work(device: Device) -> Tensor:
        own = []
        for index, x, layout in zip(
            tried.graph.nodes[node].inputs, tried.inputs, rule.needs, strict=True
        ):
            pieces = local_pieces(x.shape, index, (layout,), tried.axes, divisions, device.rank)
            own.append(x[tuple(slice(*piece) for piece in pieces)])
        shape = local_shape(
            tried.outputs[0].shape, node, (rule.gives,), tried.axes, divisions, device.rank
        )
        result = run_local(tried.graph.nodes[node], (rule,), own, shape, device)
        assert isinstance(result, Tensor)
        return result.detach()

    return list(on_all(devices, work, wait=True))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("cross_entropy_loss", [torch.randn(6, 5).double().requires_grad_(), torch.arange(6) % 5]),
        ("linear", [torch.randn(6, 5).double().requires_grad_(),
                    torch.randn(4, 5).double().requires_grad_()]),
    ],
)  # fmt: skip
def test_messages_are_those_that_the_rules_name(op: str, args: list[Any]) -> None:
    tried = Trial.of(f"aten.{op}.default", args, {}, np.random.default_rng(0))
    for rule in tried.rules:
        devices = tried.check([rule], (drawn_division(tried.axes, 3, tried.random),))
        sent = [[name for name, _ in device.messages] for device in devices]
        wanted = [message.collective.value for message in rule.messages]
        assert sent == [wanted] * 3, rule.name
