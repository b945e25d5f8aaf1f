"""What pipelines with several chunks per rank take at least: writes `catalog/data/ramps.json`.

    python benchmarks/fit_ramps.py [--most-chunks 96]

For every shape (ranks, chunks of each, groups of micro-batches) a linear program finds the seconds
of all passes, forward and backward, that sum to as much as there are ranks and make the iteration
shortest. Its rows are chains of passes (`cost.chains`): it proposes seconds, and the longest chain
of that pipeline is the next row. It says at any moment what no pipeline goes below, so it may end
early. The file holds its answer over that of ranks which never wait, rounded down.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import highspy
import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.chains import Chain, longest_chains, plain_chains
from astrarium.cost.ramps import DATA

ROUNDS, CLOSE = 150, 2e-3  # of new chains at most, and when the answer is near enough
STEPS = (1.0, 0.4, 0.1)  # from the best seconds tried so far towards those that are proposed
DIGITS = 1e5


def least(pp: int, virtual: int, groups: int) -> float:
    """Seconds of a micro-batch group over those of ranks that never wait."""
    passes, batches = 2 * pp * virtual, groups * pp
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("presolve", "off")
    solver.addVars(passes + 1, np.zeros(passes + 1), np.full(passes + 1, np.inf))
    solver.changeColCost(passes, 1.0)
    every = np.arange(passes, dtype=np.int32)
    solver.addRow(pp, pp, passes, every, np.ones(passes))

    def cut(chains: list[Chain]) -> None:
        for chain in chains:
            counts = np.concatenate([chain.forward.reshape(-1), chain.backward.reshape(-1), [-1.0]])
            used = np.flatnonzero(counts).astype(np.int32)
            solver.addRow(-np.inf, 0.0, len(used), used, counts[used])

    cut(plain_chains(pp, virtual, batches))
    center = np.repeat([1 / 3, 2 / 3], passes // 2) / virtual
    found, shortest = 0.0, np.inf
    for _ in range(ROUNDS):
        solver.run()
        found = solver.getInfo().objective_function_value
        proposed = np.array(solver.getSolution().col_value)[:passes]
        tried = np.maximum(center + np.array(STEPS)[:, None] * (proposed - center), 0.0)
        seconds, chains = _executed(tried.reshape(len(STEPS), 2, pp, virtual), batches)
        cut(chains)
        if seconds.min() < shortest:
            shortest, center = float(seconds.min()), tried[int(seconds.argmin())]
        if found >= shortest * (1 - CLOSE):
            break
    return found / batches


def _executed(passes: Floats, batches: int) -> tuple[Floats, list[Chain]]:
    links = np.zeros((len(passes), passes.shape[2]))
    forward, backward = passes[:, 0], passes[:, 1]
    chains = list(longest_chains(forward, backward, links, batches))
    each = zip(chains, forward, backward, links, strict=True)
    return np.array([chain.seconds(goes, comes, link) for chain, goes, comes, link in each]), chains


def rows(most_chunks: int) -> Iterator[tuple[int, int, list[float]]]:
    """Fewer groups where there are many chunks: those are long programs, and gain little."""
    for pp, virtual in product(range(2, most_chunks // 2 + 1), range(2, most_chunks // 2 + 1)):
        if pp * virtual <= most_chunks:
            groups = 8 if 3 * pp * virtual <= most_chunks else 4 if pp * virtual <= 64 else 2
            every = (least(pp, virtual, number) for number in range(1, groups + 1))
            yield pp, virtual, [np.floor(one * DIGITS - 1) / DIGITS for one in every]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most-chunks", type=int, default=96)
    lines = [json.dumps(row) for row in rows(parser.parse_args().most_chunks)]
    DATA.write_text('{"least": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
