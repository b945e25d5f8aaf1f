"""The best layer split against all splits, one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.arrays import Floats, Ints
from astrarium.cost.schedule import pipeline_seconds, ragged_stages
from astrarium.search.split import labels as split_labels
from astrarium.search.split.partition import (
    LayerCuts,
    SplitProblem,
    best_split,
    best_splits,
    bottleneck_bound,
)

ROUNDING = 1e-9


def priced(problem: SplitProblem, splits: Ints) -> Floats:
    """What the cost model says of splits, rows of bounds."""
    start, count = splits[:, :-1], np.diff(splits, axis=1)
    key = problem.table_of_stage, start, count
    forward, backward, after = (a[key] for a in (problem.forward, problem.backward, problem.after))
    n, pp = start.shape
    hops = np.broadcast_to(problem.hop.reshape(pp, -1), problem.most_layers.shape)
    hop = hops[np.arange(pp), splits[:, 1:]]
    stages = ragged_stages(forward.ravel(), backward.ravel(), hop.ravel(), np.arange(n + 1) * pp)
    batches, overlap = problem.num_micro_batches, problem.overlap_p2p
    columns = np.full(n, batches), np.ones(n, np.int64), np.full(n, overlap)
    return pipeline_seconds(stages, *columns) + after.max(axis=1)


def all_splits(problem: SplitProblem) -> Ints:
    """Every split that fits."""
    pp, cuts = problem.most_layers.shape
    inner = list(itertools.combinations(range(1, cuts - 1), pp - 1))
    splits = np.array([(0, *cut, cuts - 1) for cut in inner]).reshape(-1, pp + 1)
    count = np.diff(splits, axis=1)
    most = problem.most_layers[np.arange(pp), splits[:, :-1]]
    fits = (count <= most) & (count < problem.forward.shape[2])
    return splits[fits.all(axis=1)]


def assert_best(problem: SplitProblem) -> None:
    found, splits = best_split(problem), all_splits(problem)
    least = priced(problem, splits).min(initial=np.inf)
    if not np.isfinite(least):
        assert found is None
        return
    assert found is not None
    assert found.seconds == pytest.approx(least, rel=ROUNDING)
    assert found.lower_bound == found.seconds
    assert found.bounds in set(map(tuple, splits.tolist()))
    assert found.seconds == pytest.approx(
        priced(problem, np.array([found.bounds]))[0], rel=ROUNDING
    )


def drawn(rng: np.random.Generator, *, overlap_p2p: bool = False) -> SplitProblem:
    """A small problem; what is alike, what dominates and what fits varies."""
    pp = int(rng.integers(1, 7))
    layers = int(rng.integers(pp, 13))
    width = int(rng.integers(-(-layers // pp), layers - pp + 2))
    kinds = int(rng.integers(1, 4))
    sizes = rng.uniform(0.3, 2.0, layers) if rng.random() < 0.6 else np.ones(layers)
    begin, count = np.arange(layers + 1)[:, None], np.arange(width + 1)[None, :]
    exists = (count > 0) & (begin + count <= layers)
    sums = np.concatenate([[0.0], np.cumsum(sizes)])
    work = sums[np.minimum(begin + count, layers)] - sums[begin]
    work = work + rng.uniform(0, 1) * (begin == 0) + rng.uniform(0, 2) * (begin + count == layers)
    share, speed = rng.uniform(0.2, 0.7, (2, kinds, 1, 1))
    pace = speed ** rng.choice([0.1, 1.0, 3.0])
    once = rng.choice([0.0, 1.0, 10.0]) * rng.uniform(0.1, 1.0, (kinds, 1, 1)) * (work + 0.2)
    most = np.full((pp, layers + 1), width)
    if rng.random() < 0.4:
        most = rng.integers(max(1, width - 2), width + 1, most.shape)
    hop = rng.uniform(0, rng.choice([0.0, 0.05, 0.3, 2.0]), pp)
    hop[rng.integers(0, pp)] *= rng.choice([1.0, 10.0])
    if rng.random() < 0.5:  # what is handed over differs from cut to cut
        hop = hop[:, None] * rng.uniform(0.0, 2.0, layers + 1)
    batches = [1, 2, 3, max(1, pp - 1), pp, pp + 1, 2 * pp, 8 * pp, 40]
    return SplitProblem(
        forward=np.where(exists, work / pace * share, np.inf),
        backward=np.where(exists, work / pace * (1 - share), np.inf),
        after=np.where(exists, once, np.inf),
        table_of_stage=np.sort(rng.integers(0, kinds, pp)),
        most_layers=most,
        hop=hop,
        num_micro_batches=int(rng.choice(batches)),
        overlap_p2p=overlap_p2p,
    )


@pytest.mark.parametrize("overlap_p2p", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_split_is_faster(seed: int, overlap_p2p: bool) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(250):
        assert_best(drawn(rng, overlap_p2p=overlap_p2p))


@st.composite
def problems(draw: st.DrawFn) -> SplitProblem:
    """Any seconds at all: no structure between the runs of layers."""
    pp, kinds = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    layers = draw(st.integers(pp, 8))
    few = st.integers(0, 6)

    def table(shape: tuple[int, ...]) -> Ints:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(few, min_size=size, max_size=size))).reshape(shape)

    shape = kinds, layers + 1, layers + 1
    begin, count = np.arange(layers + 1)[:, None], np.arange(layers + 1)[None, :]
    exists = (count > 0) & (begin + count <= layers)
    forward, backward, after = (np.where(exists, table(shape), np.inf) for _ in range(3))
    return SplitProblem(
        forward,
        backward,
        after,
        table((pp,)) % kinds,
        table((pp, layers + 1)) + 1,
        table((pp,)).astype(float),
        draw(st.integers(1, 12)),
        draw(st.booleans()),
    )


@settings(max_examples=150)
@given(problems())
def test_no_split_is_faster_whatever_the_seconds(problem: SplitProblem) -> None:
    assert_best(problem)


def even(pp: int, layers: int, batches: int) -> SplitProblem:
    """Layers of 3 seconds, none of them for transfers, 1 second after the last pass."""
    begin, count = np.arange(layers + 1)[:, None], np.arange(layers + 1)[None, :]
    exists = ((count > 0) & (begin + count <= layers))[None]
    work = np.where(exists, count, np.inf)
    most = np.full((pp, layers + 1), layers)
    once = np.where(exists, 1.0, np.inf)
    none = np.zeros(pp, np.int64)
    return SplitProblem(work, 2 * work, once, none, most, np.zeros(pp), batches, False)


def test_equal_layers_are_spread_evenly() -> None:
    seconds = (16 + 3) * 9.0 + 1.0
    assert best_split(even(4, 12, 16)) == LayerCuts((0, 3, 6, 9, 12), seconds, seconds)


def test_nothing_that_fits() -> None:
    problem = even(3, 8, 4)
    assert best_split(replace(problem, most_layers=np.full((3, 9), 2))) is None
    assert best_split(replace(problem, most_layers=np.zeros((3, 9), np.int64))) is None
    assert best_split(even(5, 4, 4)) is None


def test_upper_is_not_reached() -> None:
    problem = even(4, 12, 16)
    found = best_split(problem)
    assert found is not None
    assert best_split(problem, found.seconds) is None
    assert best_split(problem, found.seconds * 1.001) == found


def test_many_at_once() -> None:
    rng = np.random.default_rng(0)
    several = [drawn(rng, overlap_p2p=bool(rng.random() < 0.3)) for _ in range(60)]
    several += [replace(p, hop=p.hop * 2) for p in several]
    alone = [best_split(problem) for problem in several]
    upper = [np.inf if found is None else found.seconds * 1.01 for found in alone]
    assert best_splits(several, [np.inf] * len(several)) == alone
    together = best_splits(several, upper)
    for found, one in zip(together, alone, strict=True):
        assert (found is None) == (one is None)
        if found is not None and one is not None:
            assert found.seconds == pytest.approx(one.seconds, rel=ROUNDING)


def test_labels_given_up_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly a label kept, the split may not be the best one; its bound still holds."""
    rng = np.random.default_rng(3)
    several = [drawn(rng, overlap_p2p=bool(rng.random() < 0.5)) for _ in range(150)]
    exact = best_splits(several, [np.inf] * len(several))
    monkeypatch.setattr(split_labels, "MOST_LABELS", 1)
    unsure = 0
    for best, found in zip(exact, best_splits(several, [np.inf] * len(several)), strict=True):
        assert (best is None) == (found is None)
        if best is not None and found is not None:
            assert found.lower_bound <= best.seconds * (1 + ROUNDING)
            assert found.seconds >= best.seconds * (1 - ROUNDING)
            unsure += found.lower_bound < found.seconds
    assert unsure > 0


@pytest.mark.parametrize("overlap_p2p", [False, True])
def test_many_stages(overlap_p2p: bool) -> None:
    """Too many splits to try: the best one holds against all moves of a layer."""
    rng = np.random.default_rng(1)
    begin, count = np.arange(81)[:, None], np.arange(21)[None, :]
    exists = ((count > 0) & (begin + count <= 80))[None]
    pace = np.array([1.0, 2.2])[:, None, None]
    work = pace * (count + 0.8 * (begin + count == 80))
    hop = np.full(16, 0.05)
    hop[9] = 0.5
    problem = SplitProblem(
        forward=np.where(exists, work, np.inf),
        backward=np.where(exists, 2 * work, np.inf),
        after=np.where(exists, 0.1 * (count + 2 * (begin == 0)) * pace, np.inf),
        table_of_stage=(np.arange(16) >= 10).astype(np.int64),
        most_layers=np.full((16, 81), 8),
        hop=hop,
        num_micro_batches=48,
        overlap_p2p=overlap_p2p,
    )
    found = best_split(problem)
    assert found is not None
    assert found.lower_bound == found.seconds
    cuts = np.array(found.bounds) + rng.integers(-1, 2, (5000, 17)) * (rng.random((5000, 17)) < 0.3)
    cuts[:, 0], cuts[:, -1] = 0, 80
    counts = np.diff(cuts, axis=1)
    near = cuts[((counts > 0) & (counts <= 8)).all(axis=1)]
    assert len(near) > 1000
    assert priced(problem, near).min() >= found.seconds * (1 - ROUNDING)


def linear(rng: np.random.Generator, *, overlap_p2p: bool) -> tuple[SplitProblem, Floats, Floats]:
    """Equal layers on unequal stages: the problem, seconds of a layer and fixed ones per stage."""
    pp, layers = int(rng.integers(1, 6)), int(rng.integers(6, 12))
    pace = rng.uniform(0.5, 3.0, pp) if rng.random() < 0.7 else np.ones(pp)
    fixed = rng.uniform(0.0, 2.0, pp) * rng.choice([0.0, 1.0])
    share = rng.uniform(0.2, 0.5)
    begin, count = np.arange(layers + 1)[:, None], np.arange(layers + 1)[None, :]
    exists = ((count > 0) & (begin + count <= layers))[None]
    work = np.where(exists, pace[:, None, None] * count + fixed[:, None, None], np.inf)
    most = rng.integers(1, layers + 1, (pp, 1)) * np.ones((1, layers + 1), np.int64)
    return (
        SplitProblem(
            forward=share * work,
            backward=(1 - share) * work,
            after=np.where(exists & (work > 0), 0.0, np.inf),
            table_of_stage=np.arange(pp),
            most_layers=most,
            hop=rng.uniform(0.0, rng.choice([0.0, 0.2, 2.0]), pp),
            num_micro_batches=int(rng.integers(1, 4 * pp + 2)),
            overlap_p2p=overlap_p2p,
        ),
        pace,
        fixed,
    )


def bottleneck(problem: SplitProblem, pace: Floats, fixed: Floats) -> float:
    bound = bottleneck_bound(
        layer=pace[None],
        fixed=fixed[None],
        hop=problem.hop[None],
        most_layers=problem.most_layers[None, :, 0],
        num_layers=problem.most_layers.shape[1] - 1,
        num_micro_batches=np.array([problem.num_micro_batches]),
        overlap_p2p=np.array([problem.overlap_p2p]),
    )
    return float(bound[0])


@pytest.mark.parametrize("overlap_p2p", [False, True])
def test_no_split_is_below_the_bottleneck(overlap_p2p: bool) -> None:
    rng = np.random.default_rng(5)
    shares = []
    for _ in range(300):
        problem, pace, fixed = linear(rng, overlap_p2p=overlap_p2p)
        bound, found = bottleneck(problem, pace, fixed), best_split(problem)
        if found is None:
            assert bound == np.inf
            continue
        assert bound <= found.seconds * (1 + ROUNDING)
        shares.append(bound / found.seconds)
    assert np.mean(shares) > 0.9


def test_bottleneck_of_even_stages_is_reached() -> None:
    bound = bottleneck(even(4, 12, 16), np.full(4, 3.0), np.zeros(4))
    assert bound == pytest.approx((16 + 3) * 9.0, rel=ROUNDING)


def test_stages_that_do_not_decide_hold_as_many_layers_each() -> None:
    """One slow stage decides the time; the layers of the others could lie in many ways."""
    layers, stages = 10, 4
    start, count = np.indices((layers + 1, layers + 1))
    runs = np.where((count > 0) & (start + count <= layers), count, np.inf)
    seconds = np.stack([4.0 * runs, 1.0 * runs])
    problem = SplitProblem(
        forward=seconds,
        backward=2 * seconds,
        after=np.zeros_like(seconds),
        table_of_stage=np.array([1, 1, 1, 0]),
        most_layers=np.full((stages, layers + 1), layers),
        hop=np.zeros(stages),
        num_micro_batches=16,
        overlap_p2p=False,
    )
    found = best_split(problem)
    assert found is not None
    assert np.diff(found.bounds).tolist() == [3, 3, 3, 1]
