"""Chains of passes against executions: which they are, and that no pipeline is shorter."""

from __future__ import annotations

import numpy as np
import pytest

from astrarium.arrays import Floats
from astrarium.cost.chains import GROUPS, longest_chains, plain_chains
from astrarium.cost.simulator import simulated_seconds

ROUNDING = 1e-9
NEAR = 0.01  # of many micro-batches a chain is this close to the longest


def drawn(rng: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats, Floats]:
    """Passes of n pipelines, some chunks empty, and links."""
    forward = rng.random(shape) * (rng.random(shape) > 0.2)
    backward = forward * rng.uniform(1.0, 3.0, shape)
    links = rng.random(shape[:2]) * rng.choice([0.0, 0.1, 1.0])
    return forward, backward, links


@pytest.mark.parametrize("seed", range(60))
def test_the_longest_chain_is_the_execution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pp, virtual, groups = (int(rng.integers(*of)) for of in ((2, 8), (2, 5), (1, 10)))
    passes = drawn(rng, (3, pp, virtual))
    executed = simulated_seconds(*passes, groups * pp, overlap_p2p=True)
    chains = longest_chains(*passes, groups * pp)
    every = zip(chains, *passes, strict=True)
    seconds = np.array([chain.seconds(*of) for chain, *of in every])
    assert (seconds <= executed * (1 + ROUNDING)).all()
    near = ROUNDING if groups <= GROUPS else NEAR
    assert (seconds >= executed * (1 - near)).all()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("overlap", [True, False])
def test_chains_hold_for_all_pipelines_of_a_shape(seed: int, overlap: bool) -> None:
    rng = np.random.default_rng(seed)
    pp, virtual = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    batches = int(rng.integers(1, 8)) * pp
    chains = list(longest_chains(*drawn(rng, (2, pp, virtual)), batches))
    chains += plain_chains(pp, virtual, batches)
    others = drawn(rng, (4, pp, virtual))
    executed = simulated_seconds(*others, batches, overlap_p2p=overlap)
    for of, seconds in zip(zip(*others, strict=True), executed, strict=True):
        longest = max(chain.seconds(*of) for chain in chains)
        assert longest <= seconds * (1 + ROUNDING)
