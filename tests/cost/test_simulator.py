"""The simulator against hand-computed schedules and against ranks that run Megatron's loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.arrays import Floats
from astrarium.cost.simulator import (
    ChunkPasses,
    Timeline,
    seconds_together,
    simulate,
    simulated_seconds,
)
from astrarium.errors import InputError

Tensor = tuple[str, int, int]  # forward or backward, the virtual stage it leaves, micro-batch
Op = tuple[str, int, int] | frozenset[Tensor]  # a pass, or an exchange of tensors


@dataclass(frozen=True)
class Case:
    forward: Floats
    backward: Floats
    p2p: Floats
    num_micro_batches: int

    @property
    def pp(self) -> int:
        return self.forward.shape[0]

    @property
    def virtual(self) -> int:
        return self.forward.shape[1]

    def run(self, *, overlap_p2p: bool) -> Timeline:
        return simulate(
            self.forward, self.backward, self.p2p, self.num_micro_batches, overlap_p2p=overlap_p2p
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pp = draw(st.integers(1, 5))
    virtual = draw(st.integers(1, 3)) if pp > 1 else 1
    batches = pp * draw(st.integers(1, 3)) if virtual > 1 else draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    forward, backward = rng.uniform(0.5, 3.0, (2, pp, virtual))
    held = rng.random((pp, virtual)) >= draw(st.sampled_from([0.0, 0.4]))  # chunks may be empty
    return Case(held * forward, held * backward, rng.uniform(0.0, 1.0, pp), batches)


# --- Ranks that run the loops of Megatron's schedules, one op after another -----------------


def one_forward_one_backward(case: Case, rank: int) -> Iterator[Op]:
    batches, last = case.num_micro_batches, case.pp - 1
    warm_up = min(last - rank, batches)

    def moved(*tensors: tuple[str, int, int]) -> frozenset[Tensor]:
        """Of the tensors named (kind, sender, micro-batch) those that exist."""
        return frozenset(
            t
            for t in tensors
            if t[2] < batches and (0 <= t[1] < last if t[0] == "F" else 0 < t[1] <= last)
        )

    for i in range(warm_up):
        yield moved(("F", rank - 1, i))
        yield ("F", 0, i)
        yield moved(("F", rank, i))
    yield moved(("F", rank - 1, warm_up))
    for i in range(batches - warm_up):
        yield ("F", 0, i + warm_up)
        yield moved(("F", rank, i + warm_up), ("B", rank + 1, i))
        yield ("B", 0, i)
        yield moved(("B", rank, i), ("F", rank - 1, i + warm_up + 1))
    for i in range(batches - warm_up, batches):
        yield moved(("B", rank + 1, i))
        yield ("B", 0, i)
        yield moved(("B", rank, i))


def interleaved(case: Case, rank: int) -> Iterator[Op]:
    pp, virtual = case.pp, case.virtual
    table = [
        (micro_batch, chunk)
        for group in range(0, case.num_micro_batches, pp)
        for chunk in range(virtual)
        for micro_batch in range(group, group + pp)
    ]
    total, end = len(table), pp * virtual - 1
    warm_up = min((pp - rank - 1) * 2 + (virtual - 1) * pp, total)

    def tensors(kind: str, k: int, *, send: bool) -> set[Tensor]:
        """What pass k sends on, or needs."""
        if k >= total:
            return set()
        micro_batch, chunk = table[k]
        if kind == "F":
            sender = chunk * pp + rank - (0 if send else 1)
            return {(kind, sender, micro_batch)} if 0 <= sender < end else set()
        sender = (virtual - 1 - chunk) * pp + rank + (0 if send else 1)
        return {(kind, sender, micro_batch)} if 0 < sender <= end else set()

    def run(kind: str, k: int) -> Op:
        micro_batch, chunk = table[k]
        return (kind, chunk if kind == "F" else virtual - 1 - chunk, micro_batch)

    yield frozenset(tensors("F", 0, send=False))
    for k in range(warm_up):
        yield run("F", k)
        received = tensors("F", k + 1, send=False)
        if k == warm_up - 1 and warm_up < total:
            received |= tensors("B", 0, send=False)
        yield frozenset(tensors("F", k, send=True) | received)
    if warm_up == total:
        yield frozenset(tensors("B", 0, send=False))
    for k in range(total - warm_up):
        yield run("F", k + warm_up)
        yield run("B", k)
        sent = tensors("F", k + warm_up, send=True) | tensors("B", k, send=True)
        received = tensors("F", k + warm_up + 1, send=False) | tensors("B", k + 1, send=False)
        yield frozenset(sent | received)
    for k in range(total - warm_up, total):
        yield run("B", k)
        yield frozenset(tensors("B", k, send=True) | tensors("B", k + 1, send=False))


def execute(case: Case, *, overlap_p2p: bool) -> float:
    """Runs all ranks' ops as soon as they can run; any order that is possible will do."""
    loops = one_forward_one_backward if case.virtual == 1 else interleaved
    programs = [[op for op in loops(case, rank) if op] for rank in range(case.pp)]
    clock, posted = [0.0] * case.pp, [False] * case.pp
    position = [0] * case.pp
    offers: dict[Tensor, dict[int, float]] = {}
    ready: dict[Tensor, float] = {}

    def seconds(tensor: Tensor) -> float:
        low = tensor[1] if tensor[0] == "F" else tensor[1] - 1
        return float(case.p2p[low % case.pp])

    def step(rank: int) -> bool:
        op = programs[rank][position[rank]]
        if isinstance(op, tuple):
            kind, chunk, micro_batch = op
            place = chunk * case.pp + rank
            if overlap_p2p:
                needed = (kind, place - 1 if kind == "F" else place + 1, micro_batch)
                if 0 <= needed[1] < case.pp * case.virtual:
                    if needed not in ready:
                        return False
                    clock[rank] = max(clock[rank], ready[needed])
            work = case.forward if kind == "F" else case.backward
            clock[rank] += float(work[rank, chunk])
            tensor = (kind, place, micro_batch)
            ready[tensor] = clock[rank] + seconds(tensor)
            position[rank] += 1
            return True
        if overlap_p2p:
            position[rank] += 1
            return True
        news = not posted[rank]
        posted[rank] = True
        for tensor in op:
            offers.setdefault(tensor, {})[rank] = clock[rank]
        if any(len(offers[tensor]) < 2 for tensor in op):
            return news
        clock[rank] = max(max(offers[t].values()) + seconds(t) for t in op)
        posted[rank] = False
        position[rank] += 1
        return True

    while any(position[r] < len(programs[r]) for r in range(case.pp)):
        ran = [step(r) for r in range(case.pp) if position[r] < len(programs[r])]
        assert any(ran), "the ranks wait for each other for ever"
    return max(clock)


@given(cases(), st.booleans())
def test_agrees_with_ranks_running_the_loops(case: Case, overlap_p2p: bool) -> None:
    expected = execute(case, overlap_p2p=overlap_p2p)
    assert case.run(overlap_p2p=overlap_p2p).seconds == pytest.approx(expected, rel=1e-12)


@given(cases(), st.booleans())
def test_timeline_respects_stages_and_dependencies(case: Case, overlap_p2p: bool) -> None:
    timeline = case.run(overlap_p2p=overlap_p2p)
    pp, places = case.pp, case.pp * case.virtual
    when: dict[tuple[bool, int, int], tuple[float, float]] = {}
    for event in range(len(timeline.stage)):
        place = int(timeline.chunk[event]) * pp + int(timeline.stage[event])
        key = (bool(timeline.backward[event]), place, int(timeline.micro_batch[event]))
        when[key] = (float(timeline.start[event]), float(timeline.end[event]))
    assert len(when) == len(timeline.stage) == 2 * places * case.num_micro_batches
    for (is_backward, place, micro_batch), (start, _) in when.items():
        source = place + 1 if is_backward else place - 1
        if is_backward and source == places:
            assert when[False, place, micro_batch][1] <= start + 1e-9
        elif source >= 0:
            link = case.p2p[min(place, source) % pp]
            assert when[is_backward, source, micro_batch][1] + link <= start + 1e-9
    for stage in range(pp):
        own = timeline.stage == stage
        assert (timeline.end[own][:-1] <= timeline.start[own][1:] + 1e-9).all()
        spent = (timeline.end - timeline.start)[own].sum()
        assert spent == pytest.approx(timeline.busy[stage])
    assert timeline.bubble == pytest.approx(timeline.seconds - timeline.busy)


def seconds_of(
    forward: list[float], backward: list[float], p2p: list[float], batches: int, overlap: bool
) -> float:
    columns = np.array(forward)[:, None], np.array(backward)[:, None], np.array(p2p)
    return simulate(*columns, batches, overlap_p2p=overlap).seconds


@pytest.mark.parametrize(
    ("forward", "backward", "p2p", "batches", "overlap", "expected"),
    [
        # One stage: nothing to wait for.
        ([1.0], [2.0], [0.0], 3, False, 9.0),
        # One micro-batch: down and up once, 1 + 2 + 4 + 3, and two transfers.
        ([1.0, 2.0], [3.0, 4.0], [0.5, 9.0], 1, True, 11.0),
        ([1.0, 2.0], [3.0, 4.0], [0.5, 9.0], 1, False, 11.0),
        # The last stage is the longest: 1 + 3 * 6 + 1.
        ([1.0, 2.0], [1.0, 4.0], [0.0, 0.0], 3, True, 20.0),
        # The first stage is the longest and never waits: 3 * 6.
        ([2.0, 0.5], [4.0, 0.5], [0.0, 0.0], 3, True, 18.0),
        # Down and up 4 + 2; the second micro-batch a turn of two passes and a transfer later.
        ([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], 2, False, 9.0),
        # The same, overlapped: the second is only a turn of two passes behind.
        ([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], 2, True, 8.0),
    ],
)
def test_hand_computed(
    forward: list[float],
    backward: list[float],
    p2p: list[float],
    batches: int,
    overlap: bool,
    expected: float,
) -> None:
    assert seconds_of(forward, backward, p2p, batches, overlap) == pytest.approx(expected)


def test_hand_computed_interleaved() -> None:
    """Two stages, two chunks, two micro-batches, every pass a second.

    stage 0: F F F F . B . B B B
    stage 1: . F F F B F B B B .
    """
    ones = np.ones((2, 2))
    timeline = simulate(ones, ones, np.zeros(2), 2, overlap_p2p=True)
    assert timeline.seconds == 10.0
    first = timeline.stage == 0
    assert timeline.start[first].tolist() == [0, 1, 2, 3, 5, 7, 8, 9]
    assert timeline.chunk[first].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert timeline.micro_batch[first].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert timeline.backward[~first].tolist() == [*[False] * 3, True, False, True, True, True]
    assert timeline.bubble.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("pp", "virtual", "batches"), [(4, 1, 8), (8, 1, 3), (4, 2, 8), (3, 4, 3)])
@pytest.mark.parametrize("overlap", [True, False])
def test_bubble_of_even_stages(pp: int, virtual: int, batches: int, overlap: bool) -> None:
    chunk = np.ones((pp, virtual))
    timeline = simulate(chunk, 2 * chunk, np.zeros(pp), batches, overlap_p2p=overlap)
    assert timeline.bubble / timeline.busy == pytest.approx((pp - 1) / (batches * virtual))


def test_peak_weight_is_joint_over_chunks() -> None:
    """On the first stage all of chunk 0 is alive when chunk 1 begins: chunks peak apart."""
    ones = np.ones((2, 2))
    timeline = simulate(ones, ones, np.zeros(2), 4, overlap_p2p=True)
    assert timeline.in_flight().tolist() == [[4, 2], [3, 1]]
    assert timeline.peak_weight(ones).tolist() == [5.0, 3.0]
    assert timeline.peak_weight(np.array([[1.0, 0.0], [0.0, 2.0]])).tolist() == [4.0, 2.0]


@given(cases(), st.booleans())
def test_many_pipelines_at_once(case: Case, overlap_p2p: bool) -> None:
    scale = np.array([1.0, 2.0, 0.5])
    seconds = simulated_seconds(
        scale[:, None, None] * case.forward,
        scale[:, None, None] * case.backward,
        scale[:, None] * case.p2p,
        case.num_micro_batches,
        overlap_p2p=overlap_p2p,
    )
    assert seconds == pytest.approx(scale * case.run(overlap_p2p=overlap_p2p).seconds)


@pytest.mark.parametrize("overlap_p2p", [False, True])
def test_pipelines_of_any_shapes_side_by_side_are_those_of_their_own_runs(
    overlap_p2p: bool,
) -> None:
    rng = np.random.default_rng(0)
    several = []
    for pp, virtual, groups, n in ((2, 2, 3, 8), (4, 3, 6, 1), (3, 4, 7, 2), (4, 3, 1, 3)):
        forward, backward = rng.uniform(0.0, 3.0, (2, n, pp, virtual))
        links = rng.uniform(0.0, 1.0, (n, pp))
        several.append(ChunkPasses(forward, backward, links, groups * pp))
    together = seconds_together(several, overlap_p2p=overlap_p2p)
    for found, one in zip(together, several, strict=True):
        each = zip(one.forward, one.backward, one.p2p, strict=True)
        alone = [
            simulate(*given, one.num_micro_batches, overlap_p2p=overlap_p2p).seconds
            for given in each
        ]
        assert found.tolist() == alone


@given(cases())
def test_overlap_never_hurts(case: Case) -> None:
    assert case.run(overlap_p2p=True).seconds <= case.run(overlap_p2p=False).seconds + 1e-9


@pytest.mark.parametrize(
    ("shape", "p2p", "batches", "message"),
    [
        ((2, 1), 2, 0, "at least 1"),
        ((2, 2), 2, 3, "got 2 stages and 3 micro-batches"),
        ((1, 2), 1, 2, "several pipeline stages"),
        ((2, 1), 3, 2, "do not belong together"),
    ],
)
def test_refuses_what_no_schedule_runs(
    shape: tuple[int, int], p2p: int, batches: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        simulate(np.ones(shape), np.ones(shape), np.zeros(p2p), batches, overlap_p2p=True)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_refuses_impossible_seconds(bad: float) -> None:
    with pytest.raises(InputError, match="finite and not negative"):
        simulate(np.full((2, 1), bad), np.ones((2, 1)), np.zeros(2), 2, overlap_p2p=True)
