"""Closed forms against the execution, and what must hold of any pipeline.

1F1B: the closed form is the longest chain. With virtual stages it is a lower bound of the
execution, whatever the chunks; what it misses is stated as well, or it would prune nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from astrarium.arrays import Floats
from astrarium.cost.schedule import (
    Stages,
    in_flight_at_peak,
    in_flight_if_alike,
    pipeline_seconds,
    ragged_stages,
)
from astrarium.cost.simulator import simulate, simulated_seconds

ROUNDING = 1e-9
AGREEMENT = 0.02
AGREEMENT_AT_RANDOM = 0.015


@dataclass(frozen=True)
class Pipelines:
    """Pipelines of one shape, by position: seconds of layers and links, arrays of (n, pp).

    `shares`, (n, pp, virtual), is what part of a stage's layers each of its chunks holds; embedding
    and head, forward and backward, (2, n), are in the first and in the last chunk.
    """

    forward: Floats
    backward: Floats
    p2p: Floats
    shares: Floats
    num_micro_batches: int
    embedding: Floats
    head: Floats

    @property
    def virtual(self) -> int:
        return self.shares.shape[2]

    def stages(self) -> Stages:
        forward, backward = whole = np.array([self.forward, self.backward])
        whole[:, :, 0] += self.embedding
        whole[:, :, -1] += self.head
        count = np.ones(self.p2p.shape, np.int64)
        outer = self.shares[:, :, 0], self.shares[:, :, -1]
        further = (*self.embedding, *self.head, *outer)
        return Stages(count, forward, backward, self.p2p, *further)

    def seconds(self, *, overlap_p2p: bool) -> Floats:
        return seconds_of(self.stages(), self.num_micro_batches, self.virtual, overlap_p2p)

    def executed(self, *, overlap_p2p: bool) -> Floats:
        chunks = np.array([self.forward, self.backward])[..., None] * self.shares
        chunks[:, :, 0, 0] += self.embedding
        chunks[:, :, -1, -1] += self.head
        forward, backward = chunks
        return simulated_seconds(
            forward, backward, self.p2p, self.num_micro_batches, overlap_p2p=overlap_p2p
        )

    def missed(self, *, overlap_p2p: bool) -> Floats:
        """What part of the execution the closed form does not see."""
        executed = self.executed(overlap_p2p=overlap_p2p)
        return 1 - self.seconds(overlap_p2p=overlap_p2p) / executed


def seconds_of(stages: Stages, batches: int, virtual: int, overlap_p2p: bool) -> Floats:
    number = len(stages.count)
    columns = (np.full(number, value) for value in (batches, virtual, overlap_p2p))
    return pipeline_seconds(stages, *columns)


def pipelines_of(
    forward: Floats, backward: Floats, p2p: Floats, batches: int, virtual: int = 1
) -> Pipelines:
    """Chunks alike, without embedding and head; arrays of (pp,) are one pipeline."""
    goes, comes, links = (np.atleast_2d(values) for values in (forward, backward, p2p))
    shares, none = np.full((*goes.shape, virtual), 1 / virtual), np.zeros((2, len(goes)))
    return Pipelines(goes, comes, links, shares, batches, none, none)


def floats(low: float, high: float, size: int) -> st.SearchStrategy[Floats]:
    return npst.arrays(np.float64, size, elements=st.floats(low, high))


@st.composite
def pipelines(draw: st.DrawFn, *, virtual: st.SearchStrategy[int]) -> Pipelines:
    """One pipeline: stages up to 3x apart, p2p up to a fifth of a chunk."""
    pp, chunks = draw(st.integers(2, 12)), draw(virtual)
    batches = draw(st.integers(1, 48 if chunks == 1 else 48 // pp))
    forward = draw(floats(1.0, 3.0, pp))
    backward = forward * draw(st.one_of(st.just(np.array([2.0])), floats(0.7, 3.0, pp)))
    p2p = draw(floats(0.0, 0.2, pp)) * (forward + backward).mean() / chunks
    batches = batches if chunks == 1 else pp * batches
    return pipelines_of(forward, backward, p2p, batches, chunks)


plain = st.just(1)
interleaved = st.integers(2, 4)

# --- 1F1B -------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(pipelines(virtual=plain))
def test_one_forward_one_backward_is_exact(pipeline: Pipelines) -> None:
    expected = pipeline.executed(overlap_p2p=False)
    assert pipeline.seconds(overlap_p2p=False) == pytest.approx(expected, rel=ROUNDING)


@settings(max_examples=50)
@given(pipelines(virtual=plain))
def test_overlapped_without_transfers_is_exact(pipeline: Pipelines) -> None:
    still = replace(pipeline, p2p=0 * pipeline.p2p)
    expected = still.executed(overlap_p2p=True)
    assert still.seconds(overlap_p2p=True) == pytest.approx(expected, rel=ROUNDING)


@given(pipelines(virtual=plain))
def test_overlapped_is_never_above_and_hardly_below(pipeline: Pipelines) -> None:
    """Each chain of the closed form is one of the schedule: it never takes longer than that."""
    missed = pipeline.missed(overlap_p2p=True)
    assert -ROUNDING <= missed[0] <= AGREEMENT


@given(st.integers(2, 12), st.integers(2, 48), st.floats(0.0, 1.0))
def test_overlapped_even_stages(pp: int, batches: int, link: float) -> None:
    """What whole rounds do not fill, a shorter one does: nothing is missed."""
    even = pipelines_of(np.ones(pp), 2 * np.ones(pp), np.full(pp, link), batches)
    expected = even.executed(overlap_p2p=True)
    assert even.seconds(overlap_p2p=True) == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize("overlap_p2p", [False, True])
def test_uneven_stages_and_links(overlap_p2p: bool) -> None:
    """Thousands of pipelines: stages up to 3x apart, links from none to a fifth of a stage."""
    rng = np.random.default_rng(0)
    for _ in range(90):
        size, batches = (100, int(rng.integers(2, 13))), int(rng.integers(1, 49))
        forward = rng.uniform(1.0, 3.0, size)
        backward = forward * rng.uniform(0.7, 3.0, size)
        links = rng.uniform(0.0, 0.2, size) * (forward + backward).mean(axis=1, keepdims=True)
        some = pipelines_of(forward, backward, links, batches)
        missed = some.missed(overlap_p2p=overlap_p2p)
        assert missed.min() >= -ROUNDING
        assert missed.max() <= (AGREEMENT_AT_RANDOM if overlap_p2p else ROUNDING)


def test_textbook_formula_holds_for_the_last_stage_only() -> None:
    """sum(t) + (K - 1) max(t), for a stage of 3 among stages of 1; 8 stages, 8 micro-batches."""
    half = np.array([0.5] * 7 + [1.5])
    long_last = pipelines_of(half, half, np.zeros(8), 8)
    long_first = pipelines_of(half[::-1], half[::-1], np.zeros(8), 8)
    assert long_last.seconds(overlap_p2p=False) == pytest.approx([10 + 7 * 3])
    assert long_first.seconds(overlap_p2p=False) == pytest.approx([8 * 3])


# --- Virtual stages ---------------------------------------------------------------------------

# Chunks, and what the bound misses of them on average: if transfers overlap, if they do not.
CHUNKS = {
    "any size": (0.15, 0.22),
    "few layers or none": (0.17, 0.24),
    "alike on a stage": (0.1, 0.18),
    "alike": (0.09, 0.2),
}
# The longest embedding and head, in chunks.
ENDS = {"none": (0.0, 0.0), "head": (0.0, 3.0), "usual": (0.3, 3.0), "large": (6.0, 12.0)}
LINKS = (0.0, 0.2, 3.0)  # the longest, in chunks


def work_of_chunks(rng: np.random.Generator, size: tuple[int, int, int], chunks: str) -> Floats:
    if chunks == "any size":
        return rng.uniform(0.2, 3.0, size)
    if chunks == "few layers or none":
        return rng.integers(0, 4, size).astype(float)
    of_stage = rng.uniform(1.0, 3.0, (*size[:2], 1)) if chunks == "alike on a stage" else 1.0
    return np.ones(size) * of_stage


def drawn(
    chunks: str, ends: str, *, longest_links: tuple[float, ...] = LINKS, equal_links: bool = False
) -> Iterator[Pipelines]:
    """Up to 12 stages of 4 chunks, from a single group of micro-batches to 20."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        pp, virtual = int(rng.integers(2, 13)), int(rng.integers(2, 5))
        groups = int(rng.choice([1, 1, 2, 3, 6, 20 if pp < 5 else 8]))
        size = 60, pp, virtual
        work = work_of_chunks(rng, size, chunks)
        work[:, 0, 0] = np.where(work.any(axis=(1, 2)), work[:, 0, 0], 1.0)
        whole = work.sum(axis=2)
        ratio = rng.uniform(0.7, 3.0, (60, 1) if chunks == "alike" else (60, pp))
        links = rng.uniform(0.0, rng.choice(longest_links), (60, 1) if equal_links else (60, pp))
        embedding, head = (rng.uniform(0.0, most, (2, 60)) for most in ENDS[ends])
        yield Pipelines(
            forward=whole,
            backward=whole * ratio,
            p2p=links * np.ones((1, pp)),
            shares=np.divide(work, whole[..., None], out=0 * work, where=whole[..., None] > 0),
            num_micro_batches=groups * pp,
            embedding=embedding,
            head=head,
        )


@pytest.mark.parametrize("overlap_p2p", [False, True])
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_virtual_stages_take_no_less(chunks: str, ends: str, overlap_p2p: bool) -> None:
    """Of 720 pipelines of every sort none is executed in less than the bound, few in far more."""
    some = drawn(chunks, ends)
    missed = np.concatenate([one.missed(overlap_p2p=overlap_p2p) for one in some])
    assert missed.min() >= -ROUNDING
    hidden, met = CHUNKS[chunks]
    assert missed.mean() <= (hidden if overlap_p2p else met)


def integers(low: int, high: int, shape: tuple[int, ...]) -> st.SearchStrategy[Floats]:
    """Seconds that a counterexample is read easily with."""
    return npst.arrays(np.int64, shape, elements=st.integers(low, high)).map(
        lambda values: values.astype(float)
    )


@given(st.integers(2, 5), interleaved, st.integers(1, 4), st.booleans(), st.data())
def test_virtual_stages_take_no_less_whatever_the_seconds(
    pp: int, virtual: int, groups: int, overlap_p2p: bool, data: st.DataObject
) -> None:
    work = data.draw(integers(0, 5, (1, pp, virtual)))
    whole = work.sum(axis=2)
    some = Pipelines(
        forward=whole,
        backward=whole * data.draw(integers(0, 3, (1, pp))),
        p2p=data.draw(integers(0, 5, (1, pp))),
        shares=work / np.maximum(whole[..., None], 1.0),
        num_micro_batches=groups * pp,
        embedding=data.draw(integers(0, 5, (2, 1))),
        head=data.draw(integers(0, 9, (2, 1))),
    )
    executed = some.executed(overlap_p2p=overlap_p2p)
    assert some.seconds(overlap_p2p=overlap_p2p) <= executed * (1 + ROUNDING)


@pytest.mark.parametrize("overlap_p2p", [False, True])
@pytest.mark.parametrize("ends", ["none", "head"])
def test_equal_chunks_without_transfers_take_just_that(ends: str, overlap_p2p: bool) -> None:
    """What most models are: everywhere the same layers, and a head at the end."""
    for some in drawn("alike", ends, longest_links=(0.0,)):
        assert np.abs(some.missed(overlap_p2p=overlap_p2p)).max() <= ROUNDING


def test_equal_chunks_and_links_that_overlap_take_just_that() -> None:
    """Up to half a chunk: longer ones delay passes in the middle of the pipeline."""
    for some in drawn("alike", "none", longest_links=(0.1, 0.5), equal_links=True):
        assert np.abs(some.missed(overlap_p2p=True)).max() <= ROUNDING


@pytest.mark.parametrize("overlap_p2p", [True, False])
@pytest.mark.parametrize(("pp", "virtual", "batches"), [(4, 1, 8), (8, 1, 3), (4, 2, 8), (3, 4, 3)])
def test_bubble_of_even_stages(pp: int, virtual: int, batches: int, overlap_p2p: bool) -> None:
    even = pipelines_of(np.ones(pp), 2 * np.ones(pp), np.zeros(pp), batches, virtual)
    work = 3.0 * batches
    bubble = even.seconds(overlap_p2p=overlap_p2p) - work
    assert bubble / work == pytest.approx([(pp - 1) / (batches * virtual)])


# --- Both -------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    pipelines(virtual=st.one_of(plain, interleaved)),
    st.booleans(),
    st.data(),
    st.floats(0.0, 2.0),
)
def test_longer_passes_and_transfers_never_help(
    pipeline: Pipelines, overlap_p2p: bool, data: st.DataObject, more: float
) -> None:
    name = data.draw(st.sampled_from(["forward", "backward", "p2p"]))
    longer = getattr(pipeline, name).copy()
    longer[0, data.draw(st.integers(0, longer.shape[1] - 1))] += more
    before = pipeline.seconds(overlap_p2p=overlap_p2p)
    after = replace(pipeline, **{name: longer}).seconds(overlap_p2p=overlap_p2p)
    assert after >= before * (1 - ROUNDING)


@settings(max_examples=50)
@given(pipelines(virtual=st.one_of(plain, interleaved)))
def test_overlap_never_hurts(pipeline: Pipelines) -> None:
    hidden, met = (pipeline.seconds(overlap_p2p=overlap) for overlap in (True, False))
    assert hidden <= met * (1 + ROUNDING)


@settings(max_examples=50)
@given(pipelines(virtual=st.one_of(plain, interleaved)), st.booleans(), st.data())
def test_runs_stand_for_their_stages(
    pipeline: Pipelines, overlap_p2p: bool, data: st.DataObject
) -> None:
    """A row of runs, one of them empty, gives what the stages one by one give."""
    pp, virtual = pipeline.shares.shape[1:]
    runs = min(pp, 3)
    cuts = data.draw(st.sets(st.integers(1, pp - 1), min_size=runs - 1, max_size=runs - 1))
    count = np.diff([0, *sorted(cuts), pp])
    outer = data.draw(npst.arrays(np.float64, (2, runs), elements=st.floats(0.0, 0.5)))
    short = [x[0, :runs] for x in (pipeline.forward, pipeline.backward, pipeline.p2p)]
    short += list(outer if virtual > 1 else np.ones((2, runs)))
    one_by_one = [np.repeat(values, count)[None] for values in short]
    padded = [np.insert(values, 1, 0)[None] for values in short]
    none = np.zeros((4, 1))
    by_run = Stages(np.insert(count, 1, 0)[None], *padded[:3], *none, *padded[3:])
    by_stage = Stages(np.ones((1, pp), np.int64), *one_by_one[:3], *none, *one_by_one[3:])
    found, expected = (
        seconds_of(stages, pipeline.num_micro_batches, virtual, overlap_p2p)
        for stages in (by_run, by_stage)
    )
    # Only the round trips of 1F1B whose transfers overlap begin where a run does.
    exact = virtual > 1 or not overlap_p2p
    assert found == pytest.approx(expected, rel=ROUNDING if exact else AGREEMENT)


@settings(max_examples=30)
@given(
    st.lists(pipelines(virtual=st.one_of(plain, interleaved)), min_size=1, max_size=5), st.data()
)
def test_many_pipelines_at_once(several: list[Pipelines], data: st.DataObject) -> None:
    size = len(several)
    overlap = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    offsets = np.cumsum([0, *(p.p2p.size for p in several)])
    forward = np.concatenate([p.forward[0] for p in several])
    backward = np.concatenate([p.backward[0] for p in several])
    p2p = np.concatenate([p.p2p[0] for p in several])
    virtual = np.array([p.virtual for p in several])
    found = pipeline_seconds(
        ragged_stages(forward, backward, p2p, offsets, virtual),
        np.array([p.num_micro_batches for p in several]),
        virtual,
        overlap,
    )
    alone = [p.seconds(overlap_p2p=bool(o))[0] for p, o in zip(several, overlap, strict=True)]
    assert found == pytest.approx(alone, rel=ROUNDING)


def test_one_stage_has_no_bubble() -> None:
    single = ragged_stages(np.array([1.0]), np.array([2.0]), np.array([9.0]), np.array([0, 1]))
    assert seconds_of(single, 5, 1, overlap_p2p=False) == [15.0]


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 5), st.data())
def test_chunks_held_at_the_peak(pp: int, virtual: int, groups: int, data: st.DataObject) -> None:
    virtual = virtual if pp > 1 else 1
    batches = groups * pp if virtual > 1 else groups
    weight = data.draw(npst.arrays(np.int64, (virtual, pp), elements=st.integers(0, 5)))
    passes = np.ones((pp, virtual))
    timeline = simulate(passes, passes, np.zeros(pp), batches, overlap_p2p=True)
    held = in_flight_at_peak(weight, batches)
    peak = timeline.peak_weight(weight.T.astype(float))
    assert (held * weight).sum(axis=0).tolist() == peak.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_stages_that_are_alike_are_looked_at_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pp, virtual = int(rng.integers(2, 7)), int(rng.integers(2, 6))
    batches = pp * int(rng.integers(1, 4))
    weights = rng.integers(0, 4, (8, virtual))
    weights[0] = 2  # all chunks weigh the same
    found = in_flight_if_alike(pp, weights, batches)
    for way, held in zip(weights, found, strict=True):
        assert held.tolist() == in_flight_at_peak(np.repeat(way[:, None], pp, 1), batches).tolist()
