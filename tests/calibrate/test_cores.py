"""Cores as devices: one of each that share their arithmetic units."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from astrarium.calibrate.cores import one_core, physical_cores


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
