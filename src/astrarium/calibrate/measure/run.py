"""Measures all cases of a calibration that its journal lacks.

A case that fails (out of memory, not supported) is noted, and the run goes on. A run ends with its
time, Ctrl-C, or a device that stops answering; the next run continues from the journal.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.journal import Journal
from astrarium.errors import AstrariumError

REASON_LENGTH: Final = 200
OUT_OF_MEMORY: Final = "out of memory"


class DeviceLostError(AstrariumError):
    """The device stopped answering in the middle of a calibration."""


class Timer(Protocol):
    """The part of `bench.Bench` that a run needs."""

    def answers(self) -> bool: ...
    def release(self) -> None: ...


Measure = Callable[[Case], dict[str, float]]
Progress = Callable[[Case, int, int], None]  # the case that begins, the cases done, all cases


@dataclass(frozen=True, slots=True)
class Outcome:
    measured: int = 0
    failed: int = 0
    left: int = 0  # cases that the time did not suffice for

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.measured + other.measured, self.failed + other.failed, self.left + other.left
        )


def run(
    cases: Sequence[Case],
    journal: Journal,
    timer: Timer,
    measure: Measure,
    *,
    seconds: float,
    progress: Progress = lambda case, done, total: None,
) -> Outcome:
    """Measure what is left until the time is up."""
    began = time.monotonic()
    done = journal.contents.done
    waiting = [case for case in cases if case.key not in done]
    measured = failed = 0
    for index, case in enumerate(waiting):
        if time.monotonic() - began > seconds:
            return Outcome(measured, failed, len(waiting) - index)
        progress(case, len(cases) - len(waiting) + index, len(cases))
        journal.begin(case.columns)
        try:
            timing = measure(case)
        except Exception as error:
            failed += 1
            _give_up(case, error, journal, timer)
        else:
            measured += 1
            at = round(time.monotonic() - began, 2)
            journal.row(case.columns, {**timing, "at_seconds": at})
    return Outcome(measured, failed, 0)


def _give_up(case: Case, error: Exception, journal: Journal, timer: Timer) -> None:
    """Note why a case has no row, and check that the device is still there."""
    reason = failure_text(error)
    error.__traceback__ = None  # its frames hold the tensors of the case
    gc.collect()
    timer.release()
    if not timer.answers():
        raise DeviceLostError(
            f"the device does not answer any more ({reason}, at {case.operator}); "
            f"{len(journal.contents.rows)} measurements are kept in {journal.path}: "
            "run the same command again to go on"
        )
    journal.failure(case.columns, reason)


def failure_text(error: Exception) -> str:
    """One line that says what went wrong."""
    text = str(error).strip().splitlines()
    kind = type(error).__name__
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":
        return OUT_OF_MEMORY
    if any("out of memory" in line or "can't allocate memory" in line for line in text[:3]):
        return OUT_OF_MEMORY
    return f"{kind}: {text[0]}"[:REASON_LENGTH] if text else kind
