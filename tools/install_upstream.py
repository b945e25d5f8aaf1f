"""Installs the programs whose parsers tests use, each into a folder of its own.

`python tools/install_upstream.py FOLDER` puts them under FOLDER; what is listed in
`tests/upstream/packages.toml` is installed as it stands, without dependencies. A folder that
already holds it stays as it is, so a second call ends at once. A folder appears only when it is
complete.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "tests/upstream/packages.toml"
STAMP = ".installed"
AT_ONCE = 3  # pip mostly waits for the network and the disk


@dataclass(frozen=True)
class Folder:
    """Packages that are installed side by side; the first is the one that is wanted."""

    name: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What the stamp of a complete folder says."""
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return "\n".join([python, *self.packages, *self.options]) + "\n"

    def is_complete(self, root: Path) -> bool:
        stamp = root / self.name / STAMP
        return stamp.is_file() and stamp.read_text(encoding="utf-8") == self.content


def listed(path: Path = PACKAGES) -> tuple[Folder, ...]:
    """The folders that tests need."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Folder(
            name,
            tuple(entry["packages"]),
            tuple(entry.get("options", ())),
            entry.get("environment", {}),
        )
        for name, entry in entries.items()
    )


def install(folder: Folder, root: Path) -> str | None:
    """Installs one folder unless it is there; the reason if that failed."""
    if folder.is_complete(root):
        return None
    unfinished = root / f"{folder.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--target", str(unfinished), *folder.options, *folder.packages]
    done = subprocess.run(
        command, env={**os.environ, **folder.environment}, capture_output=True, text=True
    )
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        return f"{folder.name}: pip could not install {folder.packages[0]}\n{done.stderr.strip()}"
    (unfinished / STAMP).write_text(folder.content, encoding="utf-8")
    shutil.rmtree(root / folder.name, ignore_errors=True)
    unfinished.rename(root / folder.name)
    print(f"{folder.name}: {folder.packages[0]} installed")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="install the parsers that tests use")
    parser.add_argument("root", type=Path, help="where the folders are made")
    root: Path = parser.parse_args().root
    root.mkdir(parents=True, exist_ok=True)
    folders = listed()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failures = [why for why in pool.map(lambda f: install(f, root), folders) if why]
    if failures:
        sys.exit("\n\n".join(failures))


if __name__ == "__main__":
    main()
