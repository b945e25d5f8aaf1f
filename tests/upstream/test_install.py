"""The installation of the parsers: complete or not at all, and never twice."""

from __future__ import annotations

from pathlib import Path

import install_upstream
from install_upstream import STAMP, Folder, install
from upstream.client import FOLDERS


def test_every_driver_has_a_folder_of_pinned_packages() -> None:
    folders = {folder.name: folder for folder in install_upstream.listed()}
    assert set(FOLDERS.values()) == set(folders)
    packages = [package for folder in folders.values() for package in folder.packages]
    assert all("==" in package for package in packages)


def test_a_complete_folder_is_left_alone(tmp_path: Path) -> None:
    folder = Folder("one", ("no-such-package==1.0",), ("--no-index",))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / STAMP).write_text(folder.content, encoding="utf-8")
    assert install(folder, tmp_path) is None


def test_a_failure_names_the_package_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Folder("one", ("no-such-package==1.0",), ("--no-index",))
    (tmp_path / "one").mkdir()  # of an older list: not what is wanted now
    reason = install(folder, tmp_path)
    assert reason is not None
    assert "no-such-package==1.0" in reason
    assert not (tmp_path / "one.unfinished").exists()
