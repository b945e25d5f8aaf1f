"""The closed form against the simulator, and what must hold of any pipeline."""

from __future__ import annotations

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
    pipeline_seconds,
    ragged_stages,
)
from astrarium.cost.simulator import simulate, simulated_seconds

ROUNDING = 1e-9
AGREEMENT = 0.02
AGREEMENT_AT_RANDOM = 0.015
AGREEMENT_WITH_HEAD = 0.04


@dataclass(frozen=True)
class Pipeline:
    """Stage seconds by position; chunks of a stage are alike but for embedding and head."""

    forward: Floats
    backward: Floats
    p2p: Floats
    virtual: int
    num_micro_batches: int
    embedding: tuple[float, float] = (0.0, 0.0)
    head: tuple[float, float] = (0.0, 0.0)

    def stages(self) -> Stages:
        whole = np.array([self.forward, self.backward])
        whole[:, 0] += self.embedding
        whole[:, -1] += self.head
        ends = (np.array([x]) for x in (*self.embedding, *self.head))
        count = np.ones((1, len(self.p2p)), np.int64)
        return Stages(count, whole[:1], whole[1:], self.p2p[None], *ends)

    def seconds(self, *, overlap_p2p: bool) -> float:
        return seconds_of(self.stages(), self.num_micro_batches, self.virtual, overlap_p2p)

    def simulated(self, *, overlap_p2p: bool) -> float:
        chunks = np.array([self.forward, self.backward])[:, :, None] / self.virtual
        chunks = np.repeat(chunks, self.virtual, axis=2)
        chunks[:, 0, 0] += self.embedding
        chunks[:, -1, -1] += self.head
        forward, backward = chunks
        timeline = simulate(
            forward, backward, self.p2p, self.num_micro_batches, overlap_p2p=overlap_p2p
        )
        return timeline.seconds


def seconds_of(stages: Stages, batches: int, virtual: int, overlap_p2p: bool) -> float:
    columns = np.array([batches]), np.array([virtual]), np.array([overlap_p2p])
    return float(pipeline_seconds(stages, *columns)[0])


def floats(low: float, high: float, size: int) -> st.SearchStrategy[Floats]:
    return npst.arrays(np.float64, size, elements=st.floats(low, high))


@st.composite
def pipelines(
    draw: st.DrawFn, *, virtual: st.SearchStrategy[int], equal_links: bool = False
) -> Pipeline:
    """Stages up to 3x apart, p2p up to a fifth of a chunk."""
    pp, chunks = draw(st.integers(2, 12)), draw(virtual)
    batches = draw(st.integers(1, 48 if chunks == 1 else 48 // pp))
    forward = draw(floats(1.0, 3.0, pp))
    backward = forward * draw(st.one_of(st.just(np.array([2.0])), floats(0.7, 3.0, pp)))
    links = draw(floats(0.0, 0.2, 1)) if equal_links else draw(floats(0.0, 0.2, pp))
    p2p = links * np.ones(pp) * (forward + backward).mean() / chunks
    return Pipeline(forward, backward, p2p, chunks, batches if chunks == 1 else pp * batches)


plain = st.just(1)
interleaved = st.integers(2, 4)


@settings(max_examples=50)
@given(pipelines(virtual=plain))
def test_one_forward_one_backward_is_exact(pipeline: Pipeline) -> None:
    expected = pipeline.simulated(overlap_p2p=False)
    assert pipeline.seconds(overlap_p2p=False) == pytest.approx(expected, rel=ROUNDING)


@settings(max_examples=50)
@given(pipelines(virtual=plain))
def test_overlapped_without_transfers_is_exact(pipeline: Pipeline) -> None:
    still = replace(pipeline, p2p=0 * pipeline.p2p)
    expected = still.simulated(overlap_p2p=True)
    assert still.seconds(overlap_p2p=True) == pytest.approx(expected, rel=ROUNDING)


@given(pipelines(virtual=st.one_of(plain, interleaved)))
def test_overlapped_agrees_with_simulator(pipeline: Pipeline) -> None:
    expected = pipeline.simulated(overlap_p2p=True)
    assert pipeline.seconds(overlap_p2p=True) == pytest.approx(expected, rel=AGREEMENT)


@given(pipelines(virtual=plain))
def test_overlapped_chains_can_all_be_run(pipeline: Pipeline) -> None:
    """Each chain of the closed form is one of the schedule: it never takes longer than that."""
    expected = pipeline.simulated(overlap_p2p=True)
    assert pipeline.seconds(overlap_p2p=True) <= expected * (1 + ROUNDING)


@given(st.integers(2, 12), st.integers(2, 48), st.floats(0.0, 1.0))
def test_overlapped_even_stages(pp: int, batches: int, link: float) -> None:
    """What whole rounds do not fill, a shorter one does: nothing is missed."""
    even = Pipeline(np.ones(pp), 2 * np.ones(pp), np.full(pp, link), 1, batches)
    expected = even.simulated(overlap_p2p=True)
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
        simulated = simulated_seconds(
            forward[..., None], backward[..., None], links, batches, overlap_p2p=overlap_p2p
        )
        offsets = np.arange(size[0] + 1) * size[1]
        found = pipeline_seconds(
            ragged_stages(forward.ravel(), backward.ravel(), links.ravel(), offsets),
            np.full(size[0], batches),
            np.ones(size[0], np.int64),
            np.full(size[0], overlap_p2p),
        )
        assert (found <= simulated * (1 + ROUNDING)).all()
        missed = AGREEMENT_AT_RANDOM if overlap_p2p else ROUNDING
        assert (found >= simulated * (1 - missed)).all()


def test_two_slow_ranks_far_apart() -> None:
    """The longest chain leaves the first rank over the link back to the last one."""
    forward = np.array([2.5, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1])
    for ratio in (1.0, 1.5, 2.0, 3.0):
        pipeline = Pipeline(forward, ratio * forward, np.zeros(12), 2, 12)
        for overlap_p2p in (False, True):
            expected = pipeline.simulated(overlap_p2p=overlap_p2p)
            assert pipeline.seconds(overlap_p2p=overlap_p2p) == pytest.approx(
                expected, rel=ROUNDING
            )


def random_stages(rng: np.random.Generator, size: tuple[int, int]) -> Floats:
    """Forward seconds: all at random, a few slow ranks, or three runs of equal ones."""
    sort = rng.integers(3)
    if sort == 0:
        return rng.uniform(1.0, 3.0, size)
    if sort == 1:
        slow = rng.uniform(size=size) < 2 / size[1]
        return np.where(slow, rng.uniform(1.5, 3.0, size), 1.0)
    run = np.sort(rng.integers(0, 3, size), axis=1)
    return np.take_along_axis(rng.uniform(1.0, 3.0, (size[0], 3)), run, axis=1)


def deviations(
    rng: np.random.Generator, longest_link: float, *, equal_links: bool, overlap_p2p: bool
) -> Floats:
    """Of 40 random uneven interleaved pipelines of one shape; links in mean slots of a chunk."""
    pp, virtual, groups = (int(rng.integers(low, high)) for low, high in ((2, 17), (2, 5), (1, 9)))
    size = 40, pp
    forward = random_stages(rng, size)
    backward = forward * rng.uniform(1.5, 3.0, (size[0], 1))
    links = rng.uniform(0.0, longest_link, (size[0], 1) if equal_links else size) * np.ones(size)
    links *= (forward + backward).mean(axis=1, keepdims=True) / virtual
    chunks = [np.repeat(x[..., None] / virtual, virtual, axis=2) for x in (forward, backward)]
    expected = simulated_seconds(chunks[0], chunks[1], links, groups * pp, overlap_p2p=overlap_p2p)
    found = pipeline_seconds(
        ragged_stages(
            forward.ravel(), backward.ravel(), links.ravel(), np.arange(size[0] + 1) * pp
        ),
        np.full(size[0], groups * pp),
        np.full(size[0], virtual),
        np.full(size[0], overlap_p2p),
    )
    return found / expected - 1


@pytest.mark.parametrize("overlap_p2p", [False, True])
@pytest.mark.parametrize("equal_links", [False, True])
def test_uneven_interleaved_pipelines(overlap_p2p: bool, equal_links: bool) -> None:
    """Up to 16 stages and 4 chunks each; links up to a fifth of a slot, equal ones up to 0.8."""
    rng = np.random.default_rng(2)
    for _ in range(25):
        missed = deviations(
            rng, 0.8 if equal_links else 0.2, equal_links=equal_links, overlap_p2p=overlap_p2p
        )
        assert np.abs(missed).max() <= AGREEMENT


@pytest.mark.parametrize("equal_links", [False, True])
def test_slow_links_that_overlap(equal_links: bool) -> None:
    """Links up to three slots: chains of the closed form are chains of the schedule."""
    rng = np.random.default_rng(3)
    missed = np.concatenate(
        [deviations(rng, 3.0, equal_links=equal_links, overlap_p2p=True) for _ in range(25)]
    )
    assert missed.max() <= ROUNDING
    assert -missed.mean() <= (0.01 if equal_links else AGREEMENT)


@given(pipelines(virtual=interleaved, equal_links=True))
def test_interleaved_agrees_with_simulator(pipeline: Pipeline) -> None:
    expected = pipeline.simulated(overlap_p2p=False)
    assert pipeline.seconds(overlap_p2p=False) == pytest.approx(expected, rel=AGREEMENT)


@given(
    pipelines(virtual=interleaved, equal_links=True),
    floats(0.0, 0.3, 2),
    st.floats(0.0, 3.0),
    st.booleans(),
)
def test_embedding_and_head(
    pipeline: Pipeline, embedding: Floats, head: float, overlap_p2p: bool
) -> None:
    """Both in chunks: the embedding a part of one, the head up to three."""
    forward, backward = pipeline.forward.mean(), pipeline.backward.mean()
    scale = np.array([forward, backward]) / pipeline.virtual
    first, last = scale * embedding, scale * head
    ends = replace(pipeline, embedding=(first[0], first[1]), head=(last[0], last[1]))
    expected = ends.simulated(overlap_p2p=overlap_p2p)
    assert ends.seconds(overlap_p2p=overlap_p2p) == pytest.approx(expected, rel=AGREEMENT_WITH_HEAD)


@given(
    st.integers(2, 12),
    st.integers(1, 4),
    st.integers(1, 6),
    st.floats(0.0, 3.0),
    st.floats(0.0, 0.2),
    st.booleans(),
)
def test_equal_layers_with_a_head(
    pp: int, virtual: int, groups: int, head: float, hop: float, overlap_p2p: bool
) -> None:
    """What most models are: everywhere the same layers, and a head at the end."""
    ones = np.full(pp, float(virtual))
    model = Pipeline(ones, 2 * ones, np.full(pp, hop), virtual, pp * groups, head=(head, 2 * head))
    expected = model.simulated(overlap_p2p=overlap_p2p)
    assert model.seconds(overlap_p2p=overlap_p2p) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("overlap_p2p", [True, False])
@pytest.mark.parametrize(("pp", "virtual", "batches"), [(4, 1, 8), (8, 1, 3), (4, 2, 8), (3, 4, 3)])
def test_bubble_of_even_stages(pp: int, virtual: int, batches: int, overlap_p2p: bool) -> None:
    even = Pipeline(np.ones(pp), 2 * np.ones(pp), np.zeros(pp), virtual, batches)
    work = 3.0 * batches
    bubble = even.seconds(overlap_p2p=overlap_p2p) - work
    assert bubble / work == pytest.approx((pp - 1) / (batches * virtual))


def test_textbook_formula_holds_for_the_last_stage_only() -> None:
    """sum(t) + (K - 1) max(t), for a stage of 3 among stages of 1; 8 stages, 8 micro-batches."""
    half = np.array([0.5] * 7 + [1.5])
    long_last = Pipeline(half, half, np.zeros(8), 1, 8)
    long_first = replace(long_last, forward=half[::-1], backward=half[::-1])
    assert long_last.seconds(overlap_p2p=False) == pytest.approx(10 + 7 * 3)
    assert long_first.seconds(overlap_p2p=False) == pytest.approx(8 * 3)


@settings(max_examples=50)
@given(
    pipelines(virtual=st.one_of(plain, interleaved)),
    st.booleans(),
    st.data(),
    st.floats(0.0, 2.0),
)
def test_longer_passes_and_transfers_never_help(
    pipeline: Pipeline, overlap_p2p: bool, data: st.DataObject, more: float
) -> None:
    name = data.draw(st.sampled_from(["forward", "backward", "p2p"]))
    longer = getattr(pipeline, name).copy()
    longer[data.draw(st.integers(0, len(longer) - 1))] += more
    before = pipeline.seconds(overlap_p2p=overlap_p2p)
    after = replace(pipeline, **{name: longer}).seconds(overlap_p2p=overlap_p2p)
    assert after >= before * (1 - ROUNDING)


@settings(max_examples=50)
@given(pipelines(virtual=st.one_of(plain, interleaved)))
def test_overlap_never_hurts(pipeline: Pipeline) -> None:
    hidden, met = (pipeline.seconds(overlap_p2p=overlap) for overlap in (True, False))
    assert hidden <= met * (1 + ROUNDING)


@settings(max_examples=50)
@given(pipelines(virtual=st.one_of(plain, interleaved)), st.booleans(), st.data())
def test_runs_stand_for_their_stages(
    pipeline: Pipeline, overlap_p2p: bool, data: st.DataObject
) -> None:
    """A row of runs, one of them empty, gives what the stages one by one give."""
    pp = len(pipeline.p2p)
    runs = min(pp, 3)
    cuts = data.draw(st.sets(st.integers(1, pp - 1), min_size=runs - 1, max_size=runs - 1))
    count = np.diff([0, *sorted(cuts), pp])
    short = [x[:runs] for x in (pipeline.forward, pipeline.backward, pipeline.p2p)]
    forward, backward, p2p = (np.repeat(x, count) for x in short)
    long = replace(pipeline, forward=forward, backward=backward, p2p=p2p)
    padded = [np.insert(values, 1, 0)[None] for values in (count, *short)]
    stages = Stages(*padded, *np.zeros((4, 1)))
    found = seconds_of(stages, pipeline.num_micro_batches, pipeline.virtual, overlap_p2p)
    assert found == pytest.approx(long.seconds(overlap_p2p=overlap_p2p), rel=AGREEMENT)
    if not overlap_p2p and pipeline.virtual == 1:
        assert found == pytest.approx(long.seconds(overlap_p2p=overlap_p2p), rel=ROUNDING)


@settings(max_examples=30)
@given(
    st.lists(pipelines(virtual=st.one_of(plain, interleaved)), min_size=1, max_size=5), st.data()
)
def test_many_pipelines_at_once(several: list[Pipeline], data: st.DataObject) -> None:
    size = len(several)
    overlap = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    offsets = np.cumsum([0, *(len(p.p2p) for p in several)])
    forward = np.concatenate([p.forward for p in several])
    backward = np.concatenate([p.backward for p in several])
    p2p = np.concatenate([p.p2p for p in several])
    found = pipeline_seconds(
        ragged_stages(forward, backward, p2p, offsets),
        np.array([p.num_micro_batches for p in several]),
        np.array([p.virtual for p in several]),
        overlap,
    )
    alone = [p.seconds(overlap_p2p=bool(o)) for p, o in zip(several, overlap, strict=True)]
    assert found == pytest.approx(alone, rel=ROUNDING)


def test_one_stage_has_no_bubble() -> None:
    single = ragged_stages(np.array([1.0]), np.array([2.0]), np.array([9.0]), np.array([0, 1]))
    assert seconds_of(single, 5, 1, overlap_p2p=False) == 15.0


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 5), st.data())
def test_chunks_held_at_the_peak(pp: int, virtual: int, groups: int, data: st.DataObject) -> None:
    virtual = virtual if pp > 1 else 1
    batches = groups * pp if virtual > 1 else groups
    weight = data.draw(npst.arrays(np.int64, (virtual, pp), elements=st.integers(1, 5)))
    passes = np.ones((pp, virtual))
    timeline = simulate(passes, passes, np.zeros(pp), batches, overlap_p2p=True)
    held = in_flight_at_peak(weight, batches)
    peak = timeline.peak_weight(weight.T.astype(float))
    assert (held * weight).sum(axis=0).tolist() == peak.tolist()
