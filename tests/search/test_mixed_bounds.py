"""Bounds of pipelines over several pools never exceed what the schedules take."""

from __future__ import annotations

import numpy as np
import pytest

from astrarium.cost.schedule import pipeline_seconds, ragged_stages
from astrarium.search.mixed_bounds import interleaved_bound, pipeline_bound


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_takes_less_than_its_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        pp, virtual = int(rng.integers(2, 10)), int(rng.integers(1, 5))
        batches = pp * int(rng.integers(1, 6)) if virtual > 1 else int(rng.integers(1, 50))
        speed = rng.uniform(0.2, 1.0, 3)
        of_stage = np.sort(rng.integers(0, 3, pp))
        share = rng.dirichlet(np.ones(pp) * rng.choice((1.0, 30.0)))
        times = share / speed[of_stage]
        forward = times * rng.uniform(0.25, 0.4, pp)
        hop = np.full(pp, rng.uniform(0, 0.05) * times.max())
        k, v = np.array([batches]), np.array([virtual])
        seconds = pipeline_seconds(
            ragged_stages(forward, times - forward, hop, np.array([0, pp])),
            k,
            v,
            np.array([virtual > 1]),
        )
        if virtual > 1:
            bound = interleaved_bound(speed[of_stage][None], k, v)
        else:
            counts = np.bincount(of_stage, minlength=3)[None].astype(float)
            bound = pipeline_bound(np.array([times.max()]), speed[None], counts, k, hop[0])
        assert bound[0] <= seconds[0] * (1 + 1e-9)
