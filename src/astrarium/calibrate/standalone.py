"""Measures a device where only torch is installed: `python -m astrarium.calibrate.standalone`.

Writes the journal alone. `astrarium calibrate --from-journal FILE.jsonl --out FILE.parquet` makes
the profile from it elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.run import Outcome
from astrarium.calibrate.measure.sections import SECTIONS
from astrarium.errors import AstrariumError

EVERY_SECONDS = 15.0  # between two lines of progress


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        outcome = measure(options)
    except AstrariumError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; run it again to go on with {options.out}\n")
        return 130
    sys.stderr.write(
        f"{outcome.measured} cases measured, {outcome.failed} failed, {outcome.left} left\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the journal, FILE.jsonl")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--ranks", type=int)
    return parser


def measure(options: argparse.Namespace) -> Outcome:
    from astrarium.calibrate.measure.device import MeasureRequest, calibrate

    asked = MeasureRequest(
        journal=options.out,
        device=options.device,
        sections=options.sections,
        quick=options.quick,
        seconds=options.seconds,
        ranks=options.ranks,
    )
    return calibrate(asked, _Lines())[1]


class _Lines:
    """A line of progress now and then."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()

    def __call__(self, case: Case, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last > EVERY_SECONDS:
            self.last = now
            spent = now - self.began
            sys.stderr.write(f"{done} of {total} cases after {spent:.0f} s ({case.operator})\n")


if __name__ == "__main__":
    sys.exit(main())
