"""Dropout by place: as many elements as asked for, others in every step, node and seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spmd_simulated import devices_of

from astrarium.runtime.spmd.operators import dropped, key_of, numbers_of
from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.runtime.spmd.operators.positions import kept, normal_of, places, uniform_of
from astrarium.spmd.graph import INPUT, Graph, Node, Ref
from astrarium.spmd.rules import Axes, Division


def drawn(
    chance: float, seed: int = 0, step: int = 0, shape: tuple[int, ...] = (200, 500)
) -> torch.Tensor:
    node = Node("d", "aten.dropout.default", shape, "float32", (Ref(0), chance, True))
    graph = Graph((Node("x", INPUT, shape, "float32"), node))
    axes = Axes(((0, 1), (0, 1)), shape)
    (device,) = devices_of(graph, axes, (Division(np.array(shape)[:, None]),), seed=seed, step=step)
    run = OperatorRun(node, (), (), shape, device)
    mask = kept(run, shape, [(0, length) for length in shape], chance)
    return dropped(torch.ones(shape), mask, chance)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for(chance: float) -> None:
    mask = drawn(chance)
    share = (mask == 0).double().mean().item()
    assert abs(share - chance) < 5 * (chance * (1 - chance) / mask.numel()) ** 0.5
    assert mask.max().item() == pytest.approx(1 / (1 - chance))


def correlation(one: torch.Tensor, two: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one.flatten(), two.flatten())))[0, 1])


def test_neighbours_steps_and_seeds_do_not_know_of_each_other() -> None:
    mask = drawn(0.3)
    limit = 5 / mask.numel() ** 0.5
    assert abs(correlation(mask[:, 1:], mask[:, :-1])) < limit
    assert abs(correlation(mask[1:], mask[:-1])) < limit
    assert abs(correlation(mask, drawn(0.3, step=1))) < limit
    assert abs(correlation(mask, drawn(0.3, seed=1))) < limit


def test_rows_and_columns_lose_alike_many() -> None:
    mask = (drawn(0.3) == 0).double()
    for dim in (0, 1):
        means = mask.mean(dim=dim)
        expected = (0.21 / mask.shape[dim]) ** 0.5
        assert means.std().item() == pytest.approx(expected, rel=0.25)


def test_a_piece_knows_its_places() -> None:
    whole = places((4, 5, 6), [(0, 4), (0, 5), (0, 6)], torch.device("cpu"))
    assert (whole.flatten() == torch.arange(120)).all()
    piece = places((4, 5, 6), [(1, 3), (5, 5), (2, 4)], torch.device("cpu"))
    assert piece.shape == (2, 0, 2)
    piece = places((4, 5, 6), [(1, 3), (0, 5), (2, 4)], torch.device("cpu"))
    assert (piece == whole[1:3, :, 2:4]).all()


def test_numbers_are_spread_as_asked_for() -> None:
    shape, cpu = (300, 400), torch.device("cpu")
    pieces = [(0, length) for length in shape]
    even, bell = (draw(key_of(1, 2), shape, pieces, cpu) for draw in (uniform_of, normal_of))
    assert 0.0 <= even.min().item() < 1e-3
    assert 1.0 - 1e-3 < even.max().item() < 1.0
    counts = torch.histc(even, 10, 0.0, 1.0)
    assert (counts - 12_000).abs().max().item() < 5 * 12_000**0.5
    assert abs(bell.mean().item()) < 5 / bell.numel() ** 0.5
    assert bell.std().item() == pytest.approx(1.0, rel=0.01)
    assert (bell.abs() > 1.96).double().mean().item() == pytest.approx(0.05, rel=0.1)
    assert abs(correlation(bell[:, 1:], bell[:, :-1])) < 5 / bell.numel() ** 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_uniform_number_is_rounded_up_to_one(dtype: torch.dtype) -> None:
    shape, cpu = (400, 500), torch.device("cpu")
    pieces = [(0, length) for length in shape]
    found = numbers_of("rand", key_of(1, 2), shape, pieces, cpu, dtype)
    assert found.dtype is dtype
    assert 0.98 < found.max().item() < 1.0
    assert found.float().mean().item() == pytest.approx(0.5, abs=0.01)


def test_keys_differ() -> None:
    keys = {key_of(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(keys) == 1000


@pytest.mark.parametrize("step", range(20))
def test_every_key_mixes_well(step: int) -> None:
    """The key is a factor of the places, too: none may leave a pattern."""
    mask = (drawn(0.5, step=step, shape=(256, 256)) == 0).double()
    assert abs(mask.mean().item() - 0.5) < 5 * 0.5 / 256
    spectrum = torch.fft.fft2(mask - mask.mean()).abs() / 256 / 0.5
    assert spectrum.max().item() < 5.5  # of noise: about the root of the log of all frequencies
    bits = mask.flatten()
    for apart in (1, 2, 3, 64, 256, 257):
        assert abs(correlation(bits[apart:], bits[:-apart])) < 5 / 256
