"""Every catalog test runs in an empty folder with an empty configuration of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder of the test; the config folder is `config/astrarium` beside it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "config" / "astrarium").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ASTRARIUM_CATALOG", raising=False)
    return folder
