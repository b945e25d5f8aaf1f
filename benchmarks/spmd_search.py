"""How fast programs are found: Transformer-like problems of any depth, on one or two mesh levels.

Usage: python benchmarks/spmd_search.py [--memory]

The problems are made up here (operators, layouts and prices like those of a real model), so that
nothing but the search is measured. Prints states looked at, seconds, and growth with depth.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

import numpy as np

from astrarium.spmd.solve import Conversions, NodeWay, SearchProblem, Solution, solve

LAYOUTS: Final = ("replicate", "copied", "partial", "shard0", "shard1", "shard2")
R, C, P, S0, S1, S2 = range(6)
# Forward and backward messages of a conversion, in bytes of the whole tensor that move: an
# all-reduce moves it twice; 0 is local work.
MESSAGES: Final = {
    (P, R): 2, (P, C): 4, (R, C): 2, (C, R): 0, (R, P): 0, (C, P): 0,
    **{(P, s): 2 for s in (S0, S1, S2)}, **{(s, R): 1 for s in (S0, S1, S2)},
    **{(s, C): 2 for s in (S0, S1, S2)}, **{(R, s): 1 for s in (S0, S1, S2)},
    **{(C, s): 0 for s in (S0, S1, S2)}, **{(s, P): 0 for s in (S0, S1, S2)},
    **{(a, b): 0.25 for a in (S0, S1, S2) for b in (S0, S1, S2) if a != b},
}  # fmt: skip
EACH: Final = ((R,), (C,), (S0,), (S1,), (S2,), (P,))
# Of every operator: (what its inputs need, what it gives, is the work divided?)
RULES: Final[dict[str, tuple[tuple[tuple[int, ...], int, bool], ...]]] = {
    "source": (((), R, False), ((), S0, True), ((), S1, True)),
    "input": (((), R, False), ((), S0, True)),
    "linear": (
        ((R, R, R), R, False), ((S0, C, C), S0, True), ((S1, C, C), S1, True),
        ((C, S0, S0), S2, True), ((S2, S1, P), P, True), ((P, C, P), P, False),
        ((S0, R, R), S0, True),
    ),
    "norm": (((R, R, R), R, False), ((S0, C, C), S0, True), ((S1, C, C), S1, True)),
    "attention": (
        ((R, R, R, R), R, False), ((S0, S0, S0, S0), S0, True), ((S2, S2, S2, R), S2, True),
    ),
    "unary": (((R,), R, False), ((S0,), S0, True), ((S1,), S1, True), ((S2,), S2, True)),
    "view": tuple((needs, needs[0], needs[0] >= S0) for needs in EACH),
    "add": tuple((needs * 2, needs[0], needs[0] >= S0) for needs in EACH),
    "loss": (((R,), R, False), ((S0,), P, True), ((S1,), P, True)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model and the machine."""

    devices: tuple[int, ...] = (8,)  # by mesh level, the outermost first
    bandwidth: tuple[float, ...] = (2e9,)  # bytes/s
    latency: float = 2e-5
    flops: float = 1e13
    tokens: int = 4096
    hidden: int = 1024


@dataclass
class Maker:
    """Collects nodes."""

    sizes: Sizes
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    choices: list[tuple[NodeWay[None], ...]] = field(default_factory=list)
    conversions: list[Conversions[None]] = field(default_factory=list)
    signatures: list[int] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    kinds: dict[tuple[str, float, float, bool], int] = field(default_factory=dict)
    made: dict[int, tuple[tuple[NodeWay[None], ...], Conversions[None]]] = field(
        default_factory=dict
    )

    def add(
        self, rule: str, inputs: tuple[int, ...], size: float, flops: float, once: bool = False
    ) -> int:
        kind = self.kinds.setdefault((rule, size, flops, once), len(self.kinds))
        if kind not in self.made:
            choices = _choices(self.sizes, rule, size, flops, once)
            self.made[kind] = (choices, _conversions(self.sizes, size, once))
        self.inputs.append(inputs)
        self.choices.append(self.made[kind][0])
        self.conversions.append(self.made[kind][1])
        self.signatures.append(kind)
        return len(self.inputs) - 1

    def linear(self, x: int, rows: float, columns: float) -> int:
        weight = self.add("source", (), 4 * rows * columns, 0, once=True)
        bias = self.add("source", (), 4 * columns, 0, once=True)
        size = self.sizes.tokens * columns
        return self.add("linear", (x, weight, bias), 4 * size, 6 * size * rows)

    def norm(self, x: int) -> int:
        weight = self.add("source", (), 4 * self.sizes.hidden, 0, once=True)
        bias = self.add("source", (), 4 * self.sizes.hidden, 0, once=True)
        size = self.sizes.tokens * self.sizes.hidden
        return self.add("norm", (x, weight, bias), 4 * size, 50 * size)


def transformer(layers: int, sizes: Sizes | None = None) -> SearchProblem[None]:
    """A stack of equal layers with a mask that all of them read."""
    sizes = sizes or Sizes()
    maker = Maker(sizes)
    hidden, size = sizes.hidden, 4.0 * sizes.tokens * sizes.hidden
    mask = maker.add("input", (), sizes.tokens * 4.0, 0)
    x = maker.linear(maker.add("input", (), size, 0), hidden, hidden)
    for _ in range(layers):
        first = len(maker.inputs)
        normed = maker.norm(x)
        qkv = (maker.add("view", (maker.linear(normed, hidden, hidden),), size, 0) for _ in "qkv")
        mixed = maker.add("attention", (*qkv, mask), size, size * 256)
        x = maker.add("add", (x, maker.linear(mixed, hidden, hidden)), size, size)
        inner = maker.linear(maker.norm(x), hidden, 4 * hidden)
        inner = maker.add("unary", (inner,), 4 * size, 8 * size)
        x = maker.add("add", (x, maker.linear(inner, 4 * hidden, hidden)), size, size)
        maker.blocks.append((first, len(maker.inputs)))
    maker.add("loss", (maker.linear(maker.norm(x), hidden, 1000),), 4, sizes.tokens * 4000)
    return SearchProblem(
        tuple(maker.inputs), tuple(maker.choices), tuple(maker.conversions),
        (np.inf,), tuple(maker.signatures), tuple(maker.blocks),
    )  # fmt: skip


def _choices(
    sizes: Sizes, rule: str, size: float, flops: float, once: bool
) -> tuple[NodeWay[None], ...]:
    levels = len(sizes.devices)
    found = []
    for rules in product(RULES[rule], repeat=levels):
        share = 1.0
        for (_, _, divided), devices in zip(rules, sizes.devices, strict=True):
            share /= devices if divided else 1
        kept = size * share * (4 if once else 1)
        seconds = flops * share / sizes.flops + kept / 1e12
        needs = tuple(_number(layouts) for layouts in zip(*(r[0] for r in rules), strict=True))
        found.append(NodeWay(needs, _number(tuple(r[1] for r in rules)), seconds, (kept,), None))
    return tuple(found)


def _number(layouts: tuple[int, ...]) -> int:
    number = 0
    for layout in layouts:
        number = number * len(LAYOUTS) + layout
    return number


def _conversions(sizes: Sizes, size: float, once: bool) -> Conversions[None]:
    levels = len(sizes.devices)
    every = list(product(range(len(LAYOUTS)), repeat=levels))
    seconds = np.full((len(every), len(every)), np.inf)
    np.fill_diagonal(seconds, 0)
    kept = np.zeros((*seconds.shape, 1))
    for layouts, level in product(every, range(levels)):
        share = 1.0
        for other, devices in enumerate(sizes.devices):
            share /= devices if other != level and layouts[other] >= S0 else 1
        for (before, after), moved in MESSAGES.items():
            if layouts[level] == before:
                goal = (*layouts[:level], after, *layouts[level + 1 :])
                price = moved * size * share / sizes.bandwidth[level]
                price += (sizes.latency if moved else 1e-6) + size * share / 1e12
                seconds[_number(layouts), _number(goal)] = price
                part = share / (sizes.devices[level] if after >= S0 else 1)
                kept[_number(layouts), _number(goal), 0] = size * part
    return Conversions(seconds, kept, {})


def timed(problem: SearchProblem[None]) -> tuple[Solution, float]:
    """A solution and the seconds it took."""
    start = time.perf_counter()
    solution = solve(problem)
    return solution, time.perf_counter() - start


TWO_LEVELS: Final = Sizes(devices=(4, 8), bandwidth=(1e9, 5e10))


def main(arguments: list[str]) -> None:
    """Print the tables."""
    print("levels layers nodes  states  seconds  step ms")
    for sizes, depths in ((Sizes(), (1, 12, 24, 64, 256)), (TWO_LEVELS, (1, 12, 24, 64))):
        for layers in depths:
            problem = transformer(layers, sizes)
            solution, seconds = timed(problem)
            print(
                f"{len(sizes.devices):6} {layers:6} {len(problem.inputs):5} {solution.expanded:7}"
                f" {seconds:8.3f} {1e3 * solution.seconds:8.2f}"
            )
    if "--memory" not in arguments:
        return
    print("\nroom (of what the fastest needs)  states  seconds  step ms  bound ms")
    problem = transformer(24)
    fastest = solve(problem)
    for share in (0.9, 0.8, 0.7, 0.5):
        tight = replace(problem, room=tuple(share * kept for kept in fastest.bytes))
        solution, seconds = timed(tight)
        print(
            f"{share:33} {solution.expanded:7} {seconds:8.3f}"
            f" {1e3 * solution.seconds:8.2f} {1e3 * solution.bound:8.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
