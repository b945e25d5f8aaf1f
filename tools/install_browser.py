"""Finds what the page is checked with: Chromium, and Node with npm; installs what is missing.

`python tools/install_browser.py chromium node` uses what a machine already has, otherwise Debian's
packages where it may install them. What cannot be had is said loudly and is no failure, unless
ASTRARIUM_REQUIRE_BROWSER is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REQUIRED = "ASTRARIUM_REQUIRE_BROWSER"
CHOSEN = "ASTRARIUM_CHROMIUM"
PAGE = Path(__file__).parents[1] / "web"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_OF_MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
MOST_SECONDS = 900  # a mirror that does not answer is not waited for


@dataclass(frozen=True)
class Tool:
    """What is needed, for what, and what to do where it is missing."""

    name: str
    work: str
    packages: tuple[str, ...]
    way_out: str


CHROMIUM = Tool(
    "chromium",
    "tests in a browser",
    ("chromium",),
    f"no Chromium; install it (Debian: apt-get install chromium) or set {CHOSEN} to its path",
)
NODE = Tool(
    "node",
    "checks of the page's sources",
    ("nodejs", "npm"),
    "they need npm's packages and a Node that web/package.json takes (https://nodejs.org)",
)
TOOLS = {tool.name: tool for tool in (CHROMIUM, NODE)}


def is_required() -> bool:
    """Whether what is missing is a failure."""
    return os.environ.get(REQUIRED) == "1"


def chromium() -> str | None:
    """The path of a Chromium or Chrome; None if there is none."""
    chosen = os.environ.get(CHOSEN)
    if chosen:
        if shutil.which(chosen) is None:
            raise ValueError(f"{CHOSEN}={chosen}: no such program; give its path, or unset it")
        return shutil.which(chosen)
    found = (shutil.which(name) for name in BROWSERS)
    there = str(BROWSER_OF_MACOS) if BROWSER_OF_MACOS.is_file() else None
    return next((path for path in found if path), there)


def node() -> str | None:
    """The path of npm, beside a Node that is new enough; None if there is none."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        return None
    told = subprocess.run([program, "--version"], capture_output=True, text=True)
    wanted = json.loads((PAGE / "package.json").read_text(encoding="utf-8"))["engines"]["node"]
    return npm if takes(wanted, told.stdout) else None


def takes(wanted: str, version: str) -> bool:
    """Whether a range such as `^20.19.0 || >=22.12.0` has a version such as `v22.14.1`."""
    own = numbers(version)
    for part in wanted.split("||"):
        least = numbers(part)
        if own >= least and (own[:1] == least[:1] or part.strip().startswith(">=")):
            return True
    return False


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def found(tool: Tool) -> str | None:
    return chromium() if tool is CHROMIUM else node()


def install(tool: Tool) -> str | None:
    """Installs Debian's packages; the reason if that is not possible."""
    if shutil.which("apt-get") is None:
        return "apt-get is not there"
    as_root: list[str] = []
    if os.geteuid() != 0:
        as_root = ["sudo", "-n"]
        if shutil.which("sudo") is None or subprocess.run([*as_root, "true"]).returncode != 0:
            return "only root may install packages"
    get = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2", "--yes"]
    steps = ([*get, "update"], [*get, "install", "--no-install-recommends", *tool.packages])
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return f"`{' '.join(step)}` took more than {MOST_SECONDS} s"
        if done.returncode != 0:
            return f"`{' '.join(step)}`: {done.stderr.strip()}"
    return None


def ensured(tool: Tool) -> str | None:
    """The path of what is needed, installed if need be; None, loudly, if it cannot be had."""
    path = found(tool)
    if path is None:
        print(f"installing {' '.join(tool.packages)} for {tool.work}", flush=True)
        why = install(tool)
        path = found(tool)
        if path is None:
            tell(tool, why or f"Debian's {tool.packages[0]} is too old")
    return path


def tell(tool: Tool, why: str) -> None:
    """A line that is seen among the others; the end where it must not be missing."""
    line = f"{tool.work}: {tool.way_out} (not installed here: {why})"
    if is_required():
        sys.exit(f"Error: {REQUIRED}=1, but {line}")
    print(f"{'*' * 79}\nSKIPPED {line}\n{'*' * 79}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="install what the page is checked with")
    parser.add_argument("tools", nargs="+", choices=sorted(TOOLS))
    for name in parser.parse_args().tools:
        try:
            path = ensured(TOOLS[name])
        except ValueError as error:
            sys.exit(f"Error: {error}")
        if path is not None:
            print(f"{name}: {path}")


if __name__ == "__main__":
    main()
