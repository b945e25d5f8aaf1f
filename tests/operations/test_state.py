"""Bytes that change place, against sets of pieces that are counted one by one."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cluster import parse_gpus
from astrarium.operations.state import (
    RankLayout,
    StateBytes,
    _common,
    _had,
    _held,
    alive_ranks,
    is_complete,
    layout_of,
    moved,
    state_bytes,
)
from astrarium.plans.job import Job
from astrarium.strategy.types import Stage, Strategy
from astrarium.value import replace

LAYERS, GPUS = 6, 16
CLUSTER = parse_gpus(f"a100:{GPUS}")


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    tp = draw(st.sampled_from((1, 2, 4)))
    pp = draw(st.sampled_from((1, 2, 4)))
    dp = draw(st.sampled_from([n for n in (1, 2, 4) if tp * pp * n <= GPUS]))
    experts = draw(st.sampled_from([n for n in (1, 2, 4) if tp * dp % n == 0]))
    groups = draw(st.sampled_from([n for n in (1, 2) if dp % n == 0]))
    zero = draw(st.sampled_from((0, 1, 3)))
    cuts = sorted(draw(st.lists(st.integers(0, LAYERS), min_size=pp - 1, max_size=pp - 1)))
    bounds = [0, *cuts, LAYERS]
    crew = tp * dp
    stages = tuple(
        Stage("A100-SXM4-80GB", (bounds[i], bounds[i + 1]), crew, i, 0) for i in range(pp)
    )
    return Strategy(
        tp=tp, pp=pp, dp=dp, ep=experts, zero_stage=zero, shard_groups=groups, stages=stages
    )


def cells(layout: RankLayout, rank: int, sort: int, fine: int) -> set[tuple[int, int]]:
    """The pieces (layer, index) of one sort of state that a rank holds."""
    part, of = layout.parts[sort]
    begin, end = (int(part[rank] + side) * fine // of for side in (0, 1))
    runs = [
        (a, b) for stage, a, b in zip(*layout.chunks(), strict=True) if stage == layout.stage[rank]
    ]
    return {(layer, i) for a, b in runs for layer in range(a, b) for i in range(begin, end)}


def fineness(*all_of: Strategy) -> int:
    parts = [s.tp * s.shard_ranks * s.ep * max(s.shard_ranks * s.tp // s.ep, 1) for s in all_of]
    return lcm(*parts)


@given(strategies(), strategies(), st.data())
@settings(max_examples=30, deadline=None)
def test_bytes_are_those_of_pieces_that_were_not_there(
    one: Strategy, other: Strategy, data: st.DataObject
) -> None:
    before, after = layout_of(one, CLUSTER), layout_of(other, CLUSTER)
    fine = fineness(one, other)
    weights = np.array([3.0, *range(1, LAYERS + 1), 5.0])
    size = StateBytes(*(np.concatenate([[0], np.cumsum(f * weights)]) for f in (1.0, 7.0)))
    sizes = (size, StateBytes(2 * size.dense, 11 * size.expert))
    old = np.array(
        data.draw(st.lists(st.integers(-1, one.gpus - 1), min_size=other.gpus, max_size=other.gpus))
    )
    known = _had(before, after, old, _common(before, after, sizes))
    got = _held(after, sizes)[after.stage] - known
    each = [part for one_size in sizes for part in (one_size.dense, one_size.expert)]
    for rank in range(other.gpus):
        expected = Fraction(0)
        for sort, sums in enumerate(each):
            new = cells(after, rank, sort, fine)
            had = cells(before, int(old[rank]), sort, fine) if old[rank] >= 0 else set()
            expected += sum(
                (Fraction(sums[layer + 1] - sums[layer]) / fine for layer, _ in new - had),
                Fraction(0),
            )
        assert got[rank] == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@given(strategies(), st.integers(0, GPUS))
@settings(max_examples=30, deadline=None)
def test_state_is_complete_if_no_piece_is_lost(strategy: Strategy, lost: int) -> None:
    layout, fine = layout_of(strategy, CLUSTER), fineness(strategy)
    alive = np.arange(strategy.gpus) < strategy.gpus - lost
    for sort in range(4):
        of_all = {c for r in range(strategy.gpus) for c in cells(layout, r, sort, fine)}
        left = {c for r in np.flatnonzero(alive) for c in cells(layout, int(r), sort, fine)}
        if of_all != left:
            assert not is_complete(layout, alive)
            return
    empty = [s for s in strategy.stages if s.num_layers == 0]
    assert is_complete(layout, alive) or empty  # a stage without layers still counts its ranks


def test_the_ranks_of_an_inner_pipeline_lie_in_its_pool() -> None:
    cluster = parse_gpus("a100:8,h100:8")
    gpu = cluster.pools[1].gpu.name
    stages = tuple(Stage(gpu, (3 * i, 3 * i + 3), 4, i, 0, {gpu: 4}) for i in range(2))
    layout = layout_of(Strategy(dp=4, pp=2, pipeline_inside=True, stages=stages), cluster)
    assert layout.pool.tolist() == [1] * 8
    assert layout.slot.tolist() == list(range(8))
    assert alive_ranks(layout, cluster, {gpu: 2}).tolist() == [True] * 6 + [False] * 2


def test_nothing_moves_where_nothing_changes(single: Job) -> None:
    layout = layout_of(single.strategy, single.cluster)
    sizes = state_bytes(single.workload, single.runtime, divided=False)
    alive = np.ones(32, bool)
    clusters = single.cluster, single.cluster
    assert moved(layout, layout, alive, clusters, sizes).total == pytest.approx(0.0, abs=1e3)
    gone = moved(layout, layout, ~alive, clusters, sizes)
    assert gone.total == pytest.approx(gone.held)


def test_all_ranks_hold_what_memory_says(single: Job) -> None:
    """Weights and optimizer states agree with the plan's own bytes, but for copied norms."""
    layout = layout_of(single.strategy, single.cluster)
    sizes = state_bytes(single.workload, single.runtime, divided=False)
    clusters = single.cluster, single.cluster
    held = moved(layout, layout, np.ones(32, bool), clusters, sizes).held
    crew = single.strategy.gpus // single.strategy.pp
    planned = sum(crew * (stage.weights + stage.optimizer) for stage in single.plan.memory)
    assert held == pytest.approx(planned, rel=0.01)


def test_shards_of_the_optimizer_are_lost_with_a_node_but_not_copies_of_them(single: Job) -> None:
    layout = layout_of(single.strategy, single.cluster)
    alive = alive_ranks(layout, single.cluster, {single.cluster.pools[0].name: 8})
    assert int(alive.sum()) == 24
    assert not is_complete(layout, alive)
    one_of_two = np.arange(32) % 8 < 4  # one replica of each stage
    assert not is_complete(layout, one_of_two)
    copied = layout_of(replace(single.strategy, zero_stage=0), single.cluster)
    assert is_complete(copied, one_of_two)
