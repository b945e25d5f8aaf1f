"""Cores as devices: one of each that share their arithmetic units."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from astrarium.calibrate.measure import cores
from astrarium.calibrate.measure.cores import one_core, physical_cores
from astrarium.errors import AstrariumError


def _topology(folder: Path, siblings: dict[int, str]) -> Path:
    for core, text in siblings.items():
        place = folder / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n")
    return folder


def test_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    pairs = _topology(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    assert physical_cores(pairs) == [0, 2]


def test_without_a_topology_every_core_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5}, raising=False)
    assert physical_cores(tmp_path) == [1, 5]


def test_afterwards_all_cores_are_free_again() -> None:
    import torch

    before = os.sched_getaffinity(0), torch.get_num_threads()
    with one_core():
        assert os.sched_getaffinity(0) == {physical_cores()[0]}
        assert torch.get_num_threads() == 1
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


def test_a_neighbour_that_does_not_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cores, "_NEIGHBOUR", "raise SystemExit(3)")
    with pytest.raises(AstrariumError, match="exit code 3"), cores._busy(0):
        pass
    assert capfd.readouterr().err == ""


def test_a_neighbour_hears_no_ctrl_c_and_ends_with_the_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **keys: Any) -> None:
            super().__init__(*given, **keys)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(cores, "_NEIGHBOUR", "print(flush=True); input()")
    with cores._busy(0):
        (neighbour,) = started
        assert os.getsid(neighbour.pid) != os.getsid(0)
        assert neighbour.poll() is None
    assert neighbour.poll() is not None
