"""Checks the sources of the page, and that the package holds what is built of them.

`python tools/check_front.py` runs npm's checks and compares a fresh build with the package, byte by
byte; with `--write` it builds into the package instead. Without Node it says so loudly.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from install_browser import NODE, ensured, tell

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "web"
BUILT = ROOT / "src/astrarium/web/static"
CHECKS = ("typecheck", "lint", "test")
BUILDS = (("--emptyOutDir",), ("--config", "vite.report.config.ts", "--emptyOutDir", "false"))


def code_of(npm: str, *arguments: str) -> int:
    """Runs npm in the page's folder."""
    print("web:", " ".join(["npm", *arguments]), flush=True)
    environment = {**os.environ, "CI": "1", "NO_COLOR": "1"}  # for a log
    return subprocess.run([npm, *arguments], cwd=PAGE, env=environment).returncode


def run(npm: str, *arguments: str) -> None:
    """The same; its failure is that of the check."""
    code = code_of(npm, *arguments)
    if code != 0:
        sys.exit(f"Error: `npm {' '.join(arguments)}` in web/ ended with code {code}")


def fetched(npm: str) -> bool:
    """Installs what the lock file says; without a way to npm's packages, loudly, nothing."""
    code = code_of(npm, "ci", "--no-audit", "--no-fund")
    if code != 0:
        tell(NODE, f"`npm ci` in web/ ended with code {code}")
        return False
    (PAGE / "node_modules/.package-lock.json").touch()
    return True


def installed(page: Path = PAGE) -> bool:
    """Whether npm has installed what the lock file says."""
    stamp, lock = page / "node_modules/.package-lock.json", page / "package-lock.json"
    return stamp.is_file() and stamp.stat().st_mtime >= lock.stat().st_mtime


def differences(first: Path, second: Path) -> list[str]:
    """Files that only one of two folders has, or that are not the same."""
    contents = [
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in files(folder)}
        for folder in (first, second)
    ]
    names = sorted(contents[0].keys() | contents[1].keys())
    return [name for name in names if contents[0].get(name) != contents[1].get(name)]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def check_build(npm: str) -> None:
    with tempfile.TemporaryDirectory(prefix="page-") as fresh:
        for options in BUILDS:
            run(
                npm, "exec", "--", "vite", "build", "--logLevel=warn", f"--outDir={fresh}", *options
            )
        found = differences(Path(fresh), BUILT)
    if found:
        sys.exit(
            f"Error: {', '.join(found)} in {BUILT.relative_to(ROOT)}: not what is built of web/; "
            "run `make web` and commit it"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="check the page's sources and its built files")
    parser.add_argument("--write", action="store_true", help="build into the package")
    is_written = parser.parse_args().write
    npm = ensured(NODE)
    if npm is None or not (installed() or fetched(npm)):
        sys.exit(1 if is_written else 0)
    if is_written:
        run(npm, "run", "build")
        return
    for check in CHECKS:
        run(npm, "run", "--silent", check)
    check_build(npm)


if __name__ == "__main__":
    main()
