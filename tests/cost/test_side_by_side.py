"""Two lengths of a pipeline, executed side by side, take what each takes alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cost.simulator import ChunkPasses, seconds_together, simulated_seconds


@settings(max_examples=60, deadline=None)
@given(
    pp=st.integers(2, 6),
    virtual=st.integers(2, 4),
    groups=st.integers(2, 4),
    less=st.integers(1, 2),
    overlap=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_take_what_each_takes(
    pp: int, virtual: int, groups: int, less: int, overlap: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    forward, backward = (random.uniform(0.1, 2.0, (3, pp, virtual)) for _ in range(2))
    links = random.uniform(0.0, 1.0, (3, pp))
    most, fewer = (groups + less) * pp, groups * pp
    asked = [ChunkPasses(forward, backward, links, count) for count in (most, fewer)]
    both = np.concatenate(seconds_together(asked, overlap_p2p=overlap))
    alone = [
        simulated_seconds(forward, backward, links, count, overlap_p2p=overlap)
        for count in (most, fewer)
    ]
    assert both.tolist() == np.concatenate(alone).tolist()
