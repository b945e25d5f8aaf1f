"""Talks to the real parsers: one process for each, started when it is first asked.

A driver (`drivers/NAME.py`) reads requests as lines of JSON and answers each with one line. What
the parser refuses is raised here as `RefusedError`, with the parser's own words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parents[1]
ROOT: Final = Path(os.environ.get("ASTRARIUM_UPSTREAM", Path(sys.prefix) / "upstream"))
REQUIRED: Final = os.environ.get("ASTRARIUM_REQUIRE_UPSTREAM") == "1"
SECONDS: Final = 120.0  # longer than any start on a busy machine

# Which folder of `packages.toml` holds what a driver imports.
FOLDERS: Final[Mapping[str, str]] = {
    "megatron": "megatron",
    "torchtitan_python": "torchtitan-0.3.0",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "torchtune": "torchtune",
    "skypilot": "skypilot",
    "kubernetes": "kubernetes",
    "ray": "ray",
}


class RefusedError(Exception):
    """What the real parser says about a configuration it does not take."""


class Driver:
    """A process that runs one parser."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (until `close`)
        self._home = tempfile.TemporaryDirectory()  # some keep state there, or read settings
        # PYTHONPATH comes before the main environment, so what a folder brings wins there.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}{os.pathsep}{TESTS}",
            "HOME": self._home.name,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        # Answers have a pipe of their own, because libraries print what they like.
        answers, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", f"upstream.drivers.{name}", str(writing)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            env=environment,
            pass_fds=[writing],
        )
        os.close(writing)
        self._answers = os.fdopen(answers, encoding="utf-8")

    def ask(self, **request: Any) -> Any:
        """The parser's answer; `RefusedError` if it does not take what is asked."""
        process = self._process
        assert process.stdin
        alarm = threading.Timer(SECONDS, process.kill)
        alarm.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
        if not line:
            raise RuntimeError(f"the {self.name} driver ended or hung:\n{self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise RefusedError(reply["error"])
        return reply["result"]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()
        self._home.cleanup()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]


class Drivers:
    """All drivers of a test session, each started when it is first wanted."""

    def __init__(self) -> None:
        self._started: dict[str, Driver] = {}

    def __getitem__(self, name: str) -> Driver:
        if name not in self._started:
            self._started[name] = Driver(name, ROOT / FOLDERS[name])
        return self._started[name]

    def close(self) -> None:
        for driver in self._started.values():
            driver.close()


def why_absent(name: str) -> str | None:
    """Why a driver cannot be started; nothing if it can."""
    folder = ROOT / FOLDERS[name]
    if folder.is_dir():
        return None
    return f"{folder} is absent: run `python tools/install_upstream.py {ROOT}`"
