"""One quick calibration of this processor with two ranks, shared by all tests that read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.calibrate.measure.journal import JournalContents, read_journal


@pytest.fixture(scope="session")
def measured_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from astrarium.calibrate.measure.device import MeasureRequest, calibrate

    path = tmp_path_factory.mktemp("calibration") / "cpu.jsonl"
    asked = MeasureRequest(path, device="cpu", quick=True, ranks=2)
    contents, outcome = calibrate(asked, lambda case, done, total: None)
    assert outcome.left == 0
    assert len(contents.rows) == outcome.measured
    return path


@pytest.fixture
def measured(measured_journal: Path) -> JournalContents:
    return read_journal(measured_journal)
