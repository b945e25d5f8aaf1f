"""Where output cannot go, the command says so and fails like any other bad input."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

QUESTION = [sys.executable, "-m", "astrarium", "catalog", "gpus"]


@pytest.mark.parametrize("more", [[], ["--json"], ["h100"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_no_traceback(more: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*QUESTION, *more], stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: cannot write to standard output: No space left")
    assert "Traceback" not in done.stderr
