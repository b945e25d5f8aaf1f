"""The command line: a thin shell that parses, calls and prints. `astrarium.cli.app` lists it.

Start-up time is a feature: modules of this package import the standard library, click and the
table of flags only; what a command needs is imported when it runs.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


def main() -> None:
    """The entry point of the command `astrarium`."""
    # The matrix products here are small; a thread per core costs start-up time and memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    try:
        from astrarium.cli.app import app

        app(prog_name="astrarium")
    except KeyboardInterrupt:  # before or after the command itself, which exits like this too
        sys.exit(INTERRUPTED)
