"""What the page is checked with: found, installed where that may be, and loudly missed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_front
import install_browser
import page_types
import pytest
from install_browser import CHROMIUM, NODE

ROOT = Path(__file__).parents[1]
LOCK = json.loads((ROOT / "web/package-lock.json").read_text(encoding="utf-8"))
REGISTRY = "https://registry.npmjs.org/"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has only the programs of this folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in (install_browser.CHOSEN, install_browser.REQUIRED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(install_browser, "BROWSER_OF_MACOS", folder / "Chrome")
    return folder


def program(path: Path, prints: str = "") -> str:
    path.write_text(f"#!/bin/sh\necho '{prints}'\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_browser_that_was_chosen_is_used_before_any_other(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_browser.chromium() is None
    macos = program(programs / "Chrome")
    assert install_browser.chromium() == macos
    chrome = program(programs / "google-chrome")
    assert install_browser.chromium() == chrome
    debian = program(programs / "chromium")
    assert install_browser.chromium() == debian
    own = program(programs / "own")
    monkeypatch.setenv("ASTRARIUM_CHROMIUM", own)
    assert install_browser.chromium() == own
    monkeypatch.setenv("ASTRARIUM_CHROMIUM", f"{own}-not")
    with pytest.raises(ValueError, match=r"own-not: no such program; give its path, or unset it"):
        install_browser.chromium()


def test_a_node_that_is_too_old_is_none(programs: Path) -> None:
    npm = program(programs / "npm")
    assert install_browser.node() is None
    for version, found in (("v18.19.0", None), ("v20.19.2", npm), ("v24.1.0", npm)):
        program(programs / "node", version)
        assert install_browser.node() == found


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [
        ("v18.20.4", False),
        ("v20.18.3", False),
        ("v20.19.0", True),
        ("v21.7.1", False),
        ("v22.11.0", False),
        ("v22.12.0", True),
        ("v25.0.0", True),
    ],
)
def test_ranges_of_versions(version: str, is_taken: bool) -> None:
    assert install_browser.takes("^20.19.0 || >=22.12.0", version) is is_taken


def test_root_installs_what_is_missing(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(programs / "apt-get")
    called: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        called.append(command)
        if "install" in command:
            program(programs / "chromium")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert install_browser.ensured(CHROMIUM) == str(programs / "chromium")
    assert [command[-1] for command in called] == ["update", "chromium"]
    assert "--no-install-recommends" in called[1]
    # What is there is not installed again.
    assert install_browser.ensured(CHROMIUM) == str(programs / "chromium")
    assert len(called) == 2
    assert "installing chromium for tests in a browser" in capsys.readouterr().out


def test_who_may_not_install_is_told_so(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_browser.install(NODE) == "apt-get is not there"
    program(programs / "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert install_browser.install(NODE) == "only root may install packages"


def test_what_cannot_be_had_is_skipped_loudly_or_fails(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install_browser.ensured(CHROMIUM) is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == lines[-1] == "*" * 79
    assert lines[2].startswith("SKIPPED tests in a browser: no Chromium; install it (Debian: apt-")
    assert lines[2].endswith("(not installed here: apt-get is not there)")
    monkeypatch.setenv("ASTRARIUM_REQUIRE_BROWSER", "1")
    with pytest.raises(SystemExit, match=r"ASTRARIUM_REQUIRE_BROWSER=1, but checks of the page"):
        install_browser.ensured(NODE)


@pytest.mark.parametrize(("required", "code", "word"), [("0", 0, "SKIPPED"), ("1", 1, "ERROR")])
def test_tests_without_a_browser_are_skipped_loudly_or_fail(
    programs: Path, required: str, code: int, word: str
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rsE", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/browser/test_why_not.py"],
        cwd=ROOT,
        env={**os.environ, install_browser.REQUIRED: required},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout
    summary = done.stdout.partition("short test summary info")[2]
    assert word in summary
    assert "no Chromium; install it (Debian: apt-get install chromium) or set" in done.stdout


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "assets").mkdir(parents=True)
        (folder / "assets/same.js").write_text("same", encoding="utf-8")
    assert check_front.differences(first, second) == []
    (first / "assets/index-1.js").write_text("new", encoding="utf-8")
    (second / "assets/index-2.js").write_text("old", encoding="utf-8")
    (second / "assets/same.js").write_text("other", encoding="utf-8")
    assert check_front.differences(first, second) == [
        "assets/index-1.js",
        "assets/index-2.js",
        "assets/same.js",
    ]


def test_npm_is_asked_again_after_the_lock_file_changed(tmp_path: Path) -> None:
    lock = tmp_path / "package-lock.json"
    stamp = tmp_path / "node_modules/.package-lock.json"
    lock.touch()
    assert not check_front.installed(tmp_path)
    stamp.parent.mkdir()
    stamp.touch()
    assert check_front.installed(tmp_path)
    os.utime(lock, (2**31, 2**31))
    assert not check_front.installed(tmp_path)


def test_the_lock_file_names_the_common_registry_alone() -> None:
    """Every package has a checksum; whoever has a mirror finds it there."""
    packages = {name: entry for name, entry in LOCK["packages"].items() if name}
    assert packages
    assert [name for name, entry in packages.items() if "integrity" not in entry] == []
    addresses = [entry["resolved"] for entry in packages.values() if "resolved" in entry]
    assert [address for address in addresses if not address.startswith(REGISTRY)] == []


def test_the_lock_file_has_the_builds_for_common_systems() -> None:
    names = " ".join(LOCK["packages"])
    for system in ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64", "win32-x64"):
        for package in ("@biomejs/cli-", "@rolldown/binding-", "@typescript/typescript-"):
            assert f"{package}{system}" in names


def test_without_a_way_to_npms_packages_the_rest_is_tested(
    programs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = programs / "npm"
    npm.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    npm.chmod(0o755)
    monkeypatch.setattr(check_front, "PAGE", programs)
    assert not check_front.fetched(str(npm))
    assert "SKIPPED checks of the page's sources" in capfd.readouterr().out
    monkeypatch.setenv(install_browser.REQUIRED, "1")
    with pytest.raises(SystemExit, match=r"`npm ci` in web/ ended with code 7"):
        check_front.fetched(str(npm))


def test_the_types_of_the_page_are_those_of_the_documents() -> None:
    written = page_types.FILE.read_text(encoding="utf-8")
    assert written == page_types.source(), "run `python tools/page_types.py --write`"
    form = page_types.FORM.read_text(encoding="utf-8")
    assert form == page_types.form(), "run `python tools/page_types.py --write`"
    assert "  readonly pipeline_inside?: boolean;" in written.splitlines()
    assert "  readonly strategy: Strategy;" in written.splitlines()


def test_a_type_of_every_kind_of_value() -> None:
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    pair = {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]}
    assert page_types.type_of(counts) == "Readonly<Record<string, number>>"
    assert page_types.type_of({"type": "array", "items": pair}) == (
        "readonly (readonly [number, string])[]"
    )
    either = {"anyOf": [{"$ref": "#/Run"}, {"type": "null"}]}
    assert page_types.type_of(either) == "Run | null"
    assert page_types.type_of({}) == "unknown"
