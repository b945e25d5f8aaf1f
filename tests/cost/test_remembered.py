"""What searches remember of each other is what they would compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest

from astrarium.cluster import parse_gpus
from astrarium.cost import replay, shard_memory
from astrarium.cost.layouts import CostModel, ShardCosts
from astrarium.cost.simulator import simulated_seconds
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.strategy.columns import Degrees, degrees_of
from astrarium.strategy.types import Strategy


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = list(shard_memory._memory)
    shard_memory._memory.clear()
    replay._executed.clear()
    yield
    shard_memory._memory[:] = before


def degrees(*micro_batches: int) -> Degrees:
    every = [(tp, n) for n in micro_batches for tp in (1, 2, 4)]
    return degrees_of([Strategy(tp=tp, micro_batch=n, sequence_parallel=tp > 1) for tp, n in every])


def model(name: str = "mixtral-8x7b", batch: int = 64, seq_length: int = 4096) -> CostModel:
    return CostModel(Workload(load_model(name), seq_length, batch), parse_gpus("h100:8").pools[0])


def assert_same(first: ShardCosts, second: ShardCosts) -> None:
    assert (first.shard_of == second.shard_of).all()
    for one, other in ((first.layers, second.layers), (first.ends, second.ends)):
        for field in fields(one):
            assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


def test_shards_of_another_batch_are_those_that_would_be_computed() -> None:
    asked = degrees(1, 2, 4, 8)
    alone = model(batch=128).shard_costs(asked)
    shard_memory._memory.clear()
    model(batch=64).shard_costs(degrees(4, 2))
    assert_same(model(batch=128).shard_costs(asked), alone)
    assert_same(model(batch=128).shard_costs(asked), alone)
    assert len(shard_memory._memory) == 1


def test_what_changes_costs_is_told_apart() -> None:
    asked = degrees(1, 2)
    for one in (model(), model(seq_length=2048), model("llama-2-7b")):
        known = one.shard_costs(asked)
        kept = list(shard_memory._memory)
        shard_memory._memory.clear()
        assert_same(known, one.shard_costs(asked))
        shard_memory._memory[:] = kept
    assert len(shard_memory._memory) == 3


def test_shards_that_are_handed_out_can_be_changed() -> None:
    asked = degrees(1)
    model().shard_costs(asked).layers.forward[:] = -1.0
    assert (model().shard_costs(asked).layers.forward > 0).all()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_memory, "MOST_MODELS", 2)
    monkeypatch.setattr(shard_memory, "MOST_ROWS", 4)
    for seq_length in (1024, 2048, 4096):
        for micro_batch in (1, 2, 4):
            model(seq_length=seq_length).shard_costs(degrees(micro_batch))
    assert [len(known.place) for known in shard_memory._memory] == [3, 3]
    model().shard_costs(degrees(1, 2, 4))
    assert all(len(known.place) <= 4 for known in shard_memory._memory)


@pytest.mark.parametrize("overlap", [True, False])
def test_executions_together_or_remembered_are_those_of_each_alone(overlap: bool) -> None:
    rng = np.random.default_rng(3)
    forward, backward = (rng.uniform(1.0, 1.5, (4, 3, 2)) for _ in range(2))
    links, batches = rng.uniform(0.0, 0.1, (4, 3)), np.array([51, 54, 96, 51])  # all of them settle
    alone = []
    for row, number in enumerate(batches.tolist()):
        replay._executed.clear()
        one = (forward[[row]], backward[[row]], links[[row]])
        alone += replay.executed_seconds(*one, number, overlap_p2p=overlap).tolist()
    for _ in range(2):
        every = replay.executed_seconds(forward, backward, links, batches, overlap_p2p=overlap)
        assert every.tolist() == alone
    few = replay.executed_seconds(forward, backward, links, 6, overlap_p2p=overlap)
    assert (few < np.array(alone)).all()


@pytest.mark.parametrize("overlap", [True, False])
def test_what_settles_is_executed_no_further(overlap: bool) -> None:
    """Chunks of two to four layers: from six groups of micro-batches, nearly those of thirty."""
    rng, missed = np.random.default_rng(0), []
    for pp, virtual in ((2, 2), (4, 2), (4, 4), (8, 3)):
        layers = rng.integers(2, 5, (25, pp, virtual)).astype(float)
        passes = layers, 2 * layers, rng.uniform(0.0, 0.1, (25, pp))
        whole = simulated_seconds(*passes, 30 * pp, overlap_p2p=overlap)
        found = replay.executed_seconds(*passes, 30 * pp, overlap_p2p=overlap)
        missed.append(np.abs(found / whole - 1))
        few = replay.executed_seconds(*passes, 4 * pp, overlap_p2p=overlap)
        assert few.tolist() == simulated_seconds(*passes, 4 * pp, overlap_p2p=overlap).tolist()
    assert np.mean(missed) <= 0.0002
    assert np.max(missed) <= 0.016


def test_executions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_EXECUTED", 2)
    forward = np.arange(1.0, 25.0).reshape(4, 3, 2)
    replay.executed_seconds(forward, forward, np.zeros((4, 3)), 6, overlap_p2p=True)
    assert len(replay._executed) == 2
