"""Pipelines whose layers are to be dealt, and all ways to deal them."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from astrarium.arrays import Ints
from astrarium.search.split.dealing import Ring

LARGE = 10**6


def all_dealings(num_layers: int, pp: int, virtual: int) -> Ints:
    """Every way to deal layers; only the outer ranks may hold none: (ways, virtual, pp)."""
    chunks = pp * virtual
    bars = np.array(list(combinations(range(num_layers + chunks - 1), chunks - 1)))
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=(-1, num_layers + chunks - 1))
    sizes = (np.diff(edges, axis=1) - 1).reshape(-1, virtual, pp)
    return sizes[sizes.sum(axis=1)[:, 1:-1].min(axis=1, initial=1) >= 1]


def ring(pp: int, virtual: int, groups: int = 2, *, most: int = LARGE, head: float = 0.0) -> Ring:
    """Layers of a second forward and two backward, everywhere alike."""
    ones = np.ones(pp)
    return Ring(
        forward=ones,
        backward=2 * ones,
        ends=(0.0, 0.0, head, 2 * head),
        links=0 * ones,
        after=0 * ones,
        fixed=0 * ones,
        most=np.full(pp, most),
        batches=groups * pp,
        virtual=virtual,
        overlap_p2p=True,
    )


def drawn(rng: np.random.Generator, pp: int, virtual: int, num_layers: int) -> Ring:
    """Ranks of unlike speed, with ends, links and work after the passes or without."""
    forward = rng.uniform(0.5, 2.0, pp) if rng.random() < 0.5 else np.ones(pp)
    most = np.full(pp, LARGE)
    if rng.random() < 0.5:
        most = rng.integers(num_layers // pp, num_layers + 1, pp)
    embedding, head = rng.choice([0.0, 0.3, 1.0, 4.0], 2)
    return Ring(
        forward=forward,
        backward=forward * rng.uniform(1.0, 3.0),
        ends=(0.3 * embedding, 0.7 * embedding, 0.4 * head, 0.6 * head),
        links=rng.uniform(0.0, rng.choice([0.0, 0.1, 1.0]), pp),
        after=rng.uniform(0.0, 3.0, pp) * rng.integers(2),
        fixed=rng.uniform(0.0, 3.0, pp) * rng.integers(2),
        most=most,
        batches=int(rng.choice([1, 2, 3, 8])) * pp,
        virtual=virtual,
        overlap_p2p=bool(rng.integers(2)),
    )
