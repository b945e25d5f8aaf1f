"""The answer that is kept from one start to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astrarium.catalog.overrides import CATALOG_VARIABLE
from astrarium.web import example
from astrarium.web.reply import IN_FORM

# As the form sends it: `requestOf(exampleForm())` of web/src/page/request.ts.
SENT: dict[str, Any] = {
    **{name: str(value) for name, value in example.EXAMPLE.items() if name != "gpus"},
    "pools": [{"type": "h100", "count": "64"}],
    IN_FORM: True,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_kept_comes_back_until_the_catalog_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert example.kept() is None
    example.keep(b'{"plans": []}')
    assert example.kept() == b'{"plans": []}'
    own = folder / "own.toml"
    own.write_text("[gpus.H100-SXM5-80GB]\nmemory_gb = 81\n")
    monkeypatch.setenv(CATALOG_VARIABLE, str(own))
    assert example.kept() is None


def test_another_version_of_the_package_finds_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = folder / "package"
    package.mkdir()
    monkeypatch.setattr(example, "PACKAGE", package)
    example.keep(b"{}")
    assert example.kept() == b"{}"
    (package / "search.py").write_text("")
    assert example.kept() is None


def test_half_a_file_and_no_folder_are_no_failure(folder: Path) -> None:
    (folder / "astrarium").mkdir()
    (folder / "astrarium" / "example.json").write_bytes(b"half")
    assert example.kept() is None
    (folder / "astrarium" / "example.json").unlink()
    (folder / "astrarium").rmdir()
    (folder / "astrarium").write_text("a file in the place of the folder")
    example.keep(b"{}")
    assert example.kept() is None


@pytest.mark.parametrize(
    "change",
    [
        {"global_batch": "512"},
        {"budget": "1M"},
        {"pools": [{"type": "h100", "count": "64", "usd_per_gpu_hour": "2"}]},
        {"pools": [{"type": "h100", "count": "32"}]},
    ],
    ids=json.dumps,
)
def test_only_the_example_is_the_example(change: dict[str, Any]) -> None:
    assert example.is_example(SENT)
    assert not example.is_example({**SENT, **change})
