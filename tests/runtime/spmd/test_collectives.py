from __future__ import annotations

from random import Random

import pytest
import torch
from spmd_exchanges import there_and_back, whole
from spmd_ranks import Ranks
from torch import Tensor

from astrarium.runtime.spmd.execute import Parts, Peers
from astrarium.runtime.spmd.execute.collectives import Route
from astrarium.spmd.program import How
from astrarium.spmd.rules import Holding, TensorLayout

ROUTES = [(a, b) for a in Holding for b in Holding if a != b or a is Holding.SHARD]
# How values and gradients of each layout make up the whole.
VALUES = {"replicate": "same", "copied": "same", "shard": "shard", "partial": "sum"}
GRADIENTS = {"replicate": "same", "copied": "sum", "shard": "shard", "partial": "same"}


def _uneven(random: Random, total: int, count: int) -> tuple[int, ...]:
    """Sizes that add up to a total; some are often 0."""
    cuts = sorted(random.choices(range(total + 1), k=count - 1))
    return tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))


def _dealt(random: Random, x: Tensor, how: str, parts: Parts | None, count: int) -> list[Tensor]:
    """Parts of ranks that together are x."""
    if how == "same":
        return [x] * count
    if how == "shard":
        assert parts is not None
        return [parts.piece(x, rank).clone() for rank in range(count)]
    pieces = [torch.full_like(x, random.randrange(-9, 9)) for _ in range(count - 1)]
    return [*pieces, x - sum(pieces)]


def _case(
    random: Random, count: int, spreads: tuple[Holding, Holding], hows: tuple[How, How]
) -> tuple[Route, Tensor, Tensor]:
    """A route, and a whole value and gradient of small whole numbers: sums are exact."""
    shape = (random.randrange(1, 7), random.randrange(1, 7), random.randrange(1, 5))
    dims = random.sample(range(3), 2)
    layouts, parts = [], []
    for spread, dim in zip(spreads, dims, strict=True):
        is_shard = spread is Holding.SHARD
        layouts.append(TensorLayout(spread, dim if is_shard else -1))
        parts.append(Parts(dim, _uneven(random, shape[dim], count)) if is_shard else None)
    values = [
        torch.tensor([random.randrange(-99, 99) for _ in range(shape[0] * shape[1] * shape[2])])
        .reshape(shape)
        .float()
        for _ in range(2)
    ]
    return Route(layouts[0], layouts[1], Peers(), parts[0], parts[1], *hows), values[0], values[1]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_values_and_gradients_arrive(ranks: Ranks, count: int) -> None:
    """Every pair of layouts, every way to send, uneven and empty pieces, any dimension."""
    random = Random(count)
    cases = [
        _case(random, count, spreads, (forward, backward))
        for spreads in ROUTES
        for forward in How
        for backward in How
        for _ in range(2)
    ]
    orders: list[list[tuple[Route, Tensor, Tensor]]] = [[] for _ in range(count)]
    for route, value, gradient in cases:
        before, after = route.before, route.after
        values = _dealt(random, value, VALUES[before.spread], route.parts_before, count)
        gradients = _dealt(random, gradient, GRADIENTS[after.spread], route.parts_after, count)
        for order, x, y in zip(orders, values, gradients, strict=True):
            order.append((route, x, y))
    answers = ranks.run(there_and_back, [(order,) for order in orders])
    for (route, value, gradient), found in zip(cases, zip(*answers, strict=True), strict=True):
        before, after = route.before, route.after
        assert torch.equal(whole([x for x, _ in found], VALUES[after.spread], after.dim), value), (
            route
        )
        assert torch.equal(
            whole([y for _, y in found], GRADIENTS[before.spread], before.dim), gradient
        ), route
        assert all(x.is_contiguous() and y.is_contiguous() for x, y in found)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.bfloat16])
def test_other_types_of_numbers_are_gathered(ranks: Ranks, dtype: torch.dtype) -> None:
    value = torch.arange(5).remainder(2).to(dtype)
    parts = Parts(0, (2, 0, 3))
    orders = []
    for rank in range(3):
        piece = parts.piece(value, rank).clone()
        routes = [
            Route(
                TensorLayout(Holding.SHARD, 0),
                TensorLayout(Holding.REPLICATE),
                Peers(),
                parts,
                forward_how=how,
            )
            for how in How
        ]
        orders.append(([(route, piece, value) for route in routes],))
    for answer in ranks.run(there_and_back, orders):
        for gathered, _ in answer:
            assert torch.equal(gathered, value)


def test_one_rank_exchanges_nothing() -> None:
    x = torch.ones(2, 3)
    for before, after in ROUTES:
        layouts = [
            TensorLayout(s, i if s is Holding.SHARD else -1) for i, s in enumerate((before, after))
        ]
        route = Route(layouts[0], layouts[1], Peers(), Parts(0, (2,)), Parts(1, (3,)))
        assert torch.equal(route.start(x).wait(), x)
        assert torch.equal(route.start_back(x).wait(), x)
