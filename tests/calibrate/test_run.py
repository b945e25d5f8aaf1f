"""A run survives what goes wrong in one case, and ends clearly when the device is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astrarium.calibrate.measure.bench import Timing
from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.journal import Journal, read_journal
from astrarium.calibrate.measure.run import DeviceLostError, Outcome, run

CASES = [Case("stream", "stream", {"kernel": "copy", "num_bytes": 4 << i}) for i in range(5)]
GOOD = Timing(2.0, 1.0, 3.0, 1.0, 5)


class Device:
    """A device without torch: it can be lost."""

    lost = False
    released = 0

    def answers(self) -> bool:
        return not self.lost

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "run.jsonl", {"device": {"name": "Test"}}) as journal:
        yield journal


def at(index: int, fault: Callable[[], dict[str, float]]) -> Callable[[Case], dict[str, float]]:
    """Measure well, except for one case."""
    return lambda case: fault() if case == CASES[index] else GOOD.columns()


def raising(error: BaseException) -> Callable[[], dict[str, float]]:
    def fault() -> dict[str, float]:
        raise error

    return fault


def test_all_cases_run_in_order(journal: Journal) -> None:
    seen: list[tuple[str, int, int]] = []
    outcome = run(
        CASES,
        journal,
        Device(),
        at(0, GOOD.columns),
        seconds=60,
        progress=lambda case, done, total: seen.append((case.key, done, total)),
    )
    assert outcome == Outcome(5, 0, 0)
    assert seen == [(case.key, index, 5) for index, case in enumerate(CASES)]
    assert [row["num_bytes"] for row in journal.contents.rows] == [4, 8, 16, 32, 64]
    assert all(row["at_seconds"] >= 0 for row in journal.contents.rows)


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA: tried to allocate 80 GiB"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_running_out_of_memory_costs_one_case(journal: Journal, error: Exception) -> None:
    device = Device()
    assert run(CASES, journal, device, at(2, raising(error)), seconds=60) == Outcome(4, 1, 0)
    assert journal.contents.failed == [{**CASES[2].columns, "failure": "out of memory"}]
    assert device.released == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -3.0])
def test_what_is_no_time_costs_one_case(journal: Journal, value: float) -> None:
    bad = Timing(value, 1.0, 3.0, 1.0, 5)
    assert run(CASES, journal, Device(), at(1, bad.columns), seconds=60) == Outcome(4, 1, 0)
    (failed,) = read_journal(journal.path).failed
    assert "not a positive number" in failed["failure"]


def test_a_lost_device_ends_the_run_and_loses_nothing(journal: Journal) -> None:
    device = Device()

    def fault() -> dict[str, float]:
        device.lost = True
        raise RuntimeError("CUDA error: device-side assert triggered\nmore text")

    with pytest.raises(DeviceLostError, match=r"device-side assert.*2 measurements.*again"):
        run(CASES, journal, device, at(2, fault), seconds=60)
    assert len(read_journal(journal.path).rows) == 2
    device.lost = False
    assert run(CASES, journal, device, at(0, GOOD.columns), seconds=60) == Outcome(3, 0, 0)


def test_an_interrupted_run_goes_on(journal: Journal) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(CASES, journal, Device(), at(3, raising(KeyboardInterrupt())), seconds=60)
    assert len(journal.contents.rows) == 3
    assert run(CASES, journal, Device(), at(0, GOOD.columns), seconds=60) == Outcome(2, 0, 0)
    assert run(CASES, journal, Device(), at(0, GOOD.columns), seconds=60) == Outcome(0, 0, 0)


def test_time_that_is_up_leaves_the_rest(journal: Journal) -> None:
    assert run(CASES, journal, Device(), at(0, GOOD.columns), seconds=-1) == Outcome(0, 0, 5)
