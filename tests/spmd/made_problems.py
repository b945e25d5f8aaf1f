"""Small problems with random prices, for comparison with trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from astrarium.spmd.solve import Conversions, NodeWay, SearchProblem

LAYOUTS = 3
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "chain": ((), (0,), (1,), (2,), (3,)),
    "diamond": ((), (0,), (0,), (1, 2), (3,)),
    "shared weight": ((), (), (0, 1), (2, 1), (3, 1)),
    "residual": ((), (0,), (1,), (0, 2), (3, 1)),
    "read twice": ((), (0, 0), (0, 1), (2, 1, 0)),
    "unread": ((), (0,), (0,), (0, 1)),
    "one": ((),),
}


@dataclass
class Dice:
    """Random nodes; integers, so that sums are exact."""

    random: np.random.Generator
    classes: int

    def node(self, reads: int) -> tuple[tuple[NodeWay[None], ...], Conversions[None]]:
        """Choices of a node that reads so many values, and conversions of its own."""
        roll = self.random.integers
        choices = tuple(
            NodeWay(
                tuple(roll(LAYOUTS, size=reads).tolist()),
                int(roll(LAYOUTS)),
                float(roll(10)),
                tuple(roll(10, size=self.classes).astype(float).tolist()),
                None,
            )
            for _ in range(int(roll(1, 4)))
        )
        seconds = roll(0, 10, (LAYOUTS, LAYOUTS)).astype(np.float64)
        seconds[self.random.random(seconds.shape) < 0.2] = np.inf
        np.fill_diagonal(seconds, 0.0)
        kept = roll(0, 6, (LAYOUTS, LAYOUTS, self.classes)).astype(np.float64)
        kept[np.arange(LAYOUTS), np.arange(LAYOUTS)] = 0.0
        return choices, Conversions(seconds, kept, {})


def made(seed: int, shape: Sequence[tuple[int, ...]], classes: int = 1) -> SearchProblem[None]:
    """A problem of this shape."""
    dice = Dice(np.random.default_rng(seed), classes)
    nodes = [dice.node(len(reads)) for reads in shape]
    return SearchProblem(
        tuple(shape), tuple(n[0] for n in nodes), tuple(n[1] for n in nodes), (np.inf,) * classes
    )


def stack(seed: int, layers: int, classes: int = 1) -> SearchProblem[None]:
    """Equal layers (a weight, a product and a sum with what came in) with a mask read by all."""
    dice = Dice(np.random.default_rng(seed), classes)
    source, product, total = dice.node(0), dice.node(2), dice.node(2)
    inputs: list[tuple[int, ...]] = [(), ()]
    nodes = [source, source]
    signatures = [0, 0]
    blocks = []
    x = 0
    for _ in range(layers):
        first = len(inputs)
        inputs += [(x, 1), (x, first)]
        nodes += [product, total]
        signatures += [1, 2]
        blocks.append((first, first + 2))
        x = first + 1
    return SearchProblem(
        tuple(inputs), tuple(n[0] for n in nodes), tuple(n[1] for n in nodes),
        (np.inf,) * classes, tuple(signatures), tuple(blocks),
    )  # fmt: skip


def with_room(
    problem: SearchProblem[None], kept: Sequence[float], share: float
) -> SearchProblem[None]:
    """The same with room for a share of some bytes."""
    return replace(problem, room=tuple(float(np.floor(share * size)) for size in kept))


@st.composite
def random_problems(draw: st.DrawFn, classes: int = 1) -> SearchProblem[None]:
    """Problems of named shapes and of random ones."""
    seed = draw(st.integers(0, 10**6))
    if draw(st.booleans()):
        return made(seed, SHAPES[draw(st.sampled_from(sorted(SHAPES)))], classes)
    shape: list[tuple[int, ...]] = [()]
    for node in range(1, draw(st.integers(2, 5))):
        reads = draw(st.lists(st.integers(0, node - 1), max_size=2, unique=True))
        shape.append(tuple(reads))
    return made(seed, shape, classes)
