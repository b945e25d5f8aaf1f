"""Ranks that are forked from a process with torch, as importing it takes longer than their work.

Real ones are started by `test_ranks_learn_what_one_process_learns`, `test_torchrun_on_two_hosts`
and `test_messages_between_ranks_are_timed`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import warm_server

from astrarium.runtime import launch

SECONDS = 60.0  # longer than the start takes on a busy machine


@contextmanager
def warm_python() -> Iterator[str]:
    """A program that does what Python does for ranks, for as long as the block lasts."""
    with TemporaryDirectory(prefix="warm-") as name:  # the name of a socket must be short
        client = Path(name) / "python"
        client.write_text(warm_server.CLIENT, encoding="utf-8")
        client.chmod(0o700)
        address = Path(f"{client}.socket")
        server = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", warm_server.__file__, str(address)],
            stdin=subprocess.PIPE,  # its end tells that we are gone
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(launch._search_path()),
            },
        )
        assert server.stdin is not None
        try:
            end = time.monotonic() + SECONDS
            while not address.exists():
                assert server.poll() is None, "the warm process ended"
                assert time.monotonic() < end, "the warm process does not start"
                time.sleep(0.01)
            yield str(client)
        finally:
            server.stdin.close()
            server.wait()


def started_by(python: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Start ranks with this program in place of Python."""

    def started(
        number: int, ranks: int, folder: Path, command: Sequence[str], environment: Any
    ) -> Any:
        return real(number, ranks, folder, (python, *command[1:]), environment)

    return started
