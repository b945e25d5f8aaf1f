"""Measures a device where only torch is installed: `python -m astrarium.calibrate.standalone`.

Writes the journal alone. `astrarium calibrate --from-journal FILE.jsonl --out FILE.parquet` makes
the profile from it elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from astrarium.calibrate.cases import Case, Scale
from astrarium.calibrate.journal import Journal
from astrarium.calibrate.run import Outcome, header, run
from astrarium.calibrate.sections import SECTIONS, check_sections, list_cases
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
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sections", nargs="*", default=list(SECTIONS))
    return parser


def measure(options: argparse.Namespace) -> Outcome:
    from astrarium.calibrate.bench import Bench
    from astrarium.calibrate.measure import describe, find_device, measurer, versions

    device = find_device(options.device)
    scale = Scale.QUICK if options.quick else Scale.FULL
    scale = scale if device.type == "cuda" else Scale.SMALL
    cases = list_cases(check_sections(options.sections), scale, device.type)
    bench = Bench(device)
    bench.warm_up()
    begin = header(describe(device), versions(device), scale)
    with Journal(options.out, begin) as journal:
        return run(
            cases, journal, bench, measurer(bench), seconds=options.seconds, progress=_Lines()
        )


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
