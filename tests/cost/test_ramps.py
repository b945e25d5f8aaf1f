"""No pipeline with several chunks per rank is faster than the table of ramps allows."""

from __future__ import annotations

import fit_ramps
import numpy as np
import pytest

from astrarium.cost.ramps import least_ramp
from astrarium.cost.simulator import simulated_seconds


@pytest.mark.parametrize("seed", range(60))
def test_no_pipeline_is_faster_than_its_ramp(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pp, virtual, groups = (int(rng.integers(*of)) for of in ((2, 13), (2, 7), (1, 9)))
    shape, batches = (24, pp, virtual), groups * pp
    ramp = float(least_ramp(np.array(pp), np.array(batches), np.array(virtual)))
    even = (pp - 1) / (batches * virtual)
    assert (1 + even) / (1 + even / 2) <= ramp <= 1 + even
    # From very uneven to nearly even chunks, each pass by itself.
    spread = rng.choice((0.1, 1.0, 10.0, 1000.0), 24)[:, None, None]
    forward, backward = rng.gamma(spread, size=shape), 2 * rng.gamma(spread, size=shape)
    links = np.zeros((24, pp))
    for overlap in (True, False):
        seconds = simulated_seconds(forward, backward, links, batches, overlap_p2p=overlap)
        whole = (forward + backward).sum(axis=(1, 2))
        assert (seconds >= ramp * groups * whole * (1 - 1e-9)).all()


def test_the_best_skew_comes_near() -> None:
    """Later ranks do less in their later chunks: even chunks take 1.375, the table says 1.285."""
    sizes = np.array([[[0.52, 0.58], [0.52, 0.58], [0.52, 0.39], [0.52, 0.39]]])
    seconds = simulated_seconds(sizes / 3, sizes * 2 / 3, np.zeros((1, 4)), 4, overlap_p2p=True)
    ramp = float(least_ramp(np.array(4), np.array(4), np.array(2)))
    assert ramp <= seconds[0] / sizes.sum() <= 1.01 * ramp


@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 2, 2), (4, 3, 1), (5, 2, 4)])
def test_the_table_is_what_the_program_says(shape: tuple[int, int, int]) -> None:
    pp, virtual, groups = (np.array(number) for number in shape)
    found = float(least_ramp(pp, groups * pp, virtual))
    assert found == pytest.approx(fit_ramps.least(*shape), rel=fit_ramps.CLOSE)


def test_unknown_shapes_have_the_closed_form() -> None:
    found = least_ramp(np.array([500, 1]), np.array([1000, 4]), np.array([3, 1]))
    even = 499 / 3000
    assert found == pytest.approx([(1 + even) / (1 + even / 2), 1.0])
