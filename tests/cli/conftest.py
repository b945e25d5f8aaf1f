"""Every command runs in this process, in an empty folder with an empty configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from astrarium.cli.app import app

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder of the test."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1794787200")  # 2026-11-16
    for name in ("ASTRARIUM_CATALOG", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def run() -> Run:
    """Run `astrarium` with arguments; an exception that is no exit fails the test."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(
            app, list(arguments), prog_name="astrarium", catch_exceptions=False
        )

    return call


@pytest.fixture
def plan(run: Run) -> Run:
    """Run `astrarium plan` for a small model on one node, or with other GPUs or batch."""

    def call(*arguments: str, gpus: str = "h100:8", batch: str = "64") -> Result:
        common = ("--gpus", gpus, "--seq-length", "4096", "--global-batch", batch)
        return run("plan", "llama-2-7b", *common, *arguments)

    return call
