"""Feeds the readers of `tests/fuzzed_readers.py` with damaged texts, and keeps what crashes them.

    pip install atheris
    python tools/fuzz.py [READER ...] [--runs 100000] [--seconds 600] [--jobs 2] [--keep DIR]

A text is a seed that was changed in up to eight places: values of YAML and JSON are replaced,
removed, repeated or nested, and bytes are changed under the guidance of coverage (atheris). A
reader has to return, or to raise an `AstrariumError`, within `LONGEST_SECONDS`. DIR gets one file
per place in the code that fails, `READER-xxxxxxxx.txt`; tests/test_fuzzed.py runs those that are
kept in tests/fuzzed. The last line of a reader says how many texts were tried. A reader ends
after its number of texts or its seconds, whichever comes first; `--jobs` readers run at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

LONGEST_SECONDS: Final = 5
MOST_BYTES: Final = 1 << 16
GUIDED: Final = 0.3  # share of texts whose bytes atheris changes
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.1, -0.0, 1e308,
    1e-308, "", " ", "0", "-1", "1e999", "nan", "inf", "1_000", "h100:8", "8x", "\u0663", "a" * 300,
    "../../etc/passwd", "${X}", "[", "{}", [], {}, [[]], {"": 0}, [None], {"a": {"b": []}},
)  # fmt: skip
PIECES: Final = (
    "0", "-", "9" * 40, "1e400", ".", ",", ":", "=", "{", "}", "[", "]", "(", ")", "\"", "'", "\n",
    "\t", " ", "#", "$", "${", "$(", "`", "&&", "||", ";", "|", "<", ">", "!", "*", "?", "\\", "%",
    "\0", "\ufeff", "\u2028", "null", "true", "nan", "inf", "<<: *a", "&a ", "*a", "!!str",
    "|E", "t*3|", "--", "TiB", "GB/s", "1/0", "**", "not ", " and ", "in ",
)  # fmt: skip


class TookTooLongError(Exception):
    """A reader did not come back in time."""


def _changed_value(draw: random.Random, data: Any, seeds: list[Any]) -> Any:  # noqa: ANN401
    """The data with one value or key changed, somewhere."""
    if isinstance(data, dict) and data and draw.random() < 0.85:
        key = draw.choice(list(data))
        what = draw.random()
        out = dict(data)
        if what < 0.12:
            del out[key]
        elif what < 0.2:
            out[draw.choice([*map(str, VALUES[:24]), *data])] = out[key]
        else:
            out[key] = _changed_value(draw, data[key], seeds)
        return out
    if isinstance(data, list) and data and draw.random() < 0.85:
        at, what = draw.randrange(len(data)), draw.random()
        if what < 0.1:
            return data[:at] + data[at + 1 :]
        if what < 0.2:
            return data[:at] + data[at : at + 1] * draw.choice((2, 3, 50)) + data[at + 1 :]
        return [*data[:at], _changed_value(draw, data[at], seeds), *data[at + 1 :]]
    what = draw.random()
    if what < 0.1:
        for _ in range(draw.choice((1, 5, 80))):
            data = [data]
        return data
    if what < 0.25 and isinstance(data, str) and data:
        return _changed_text(draw, data)
    if what < 0.35 and isinstance(data, int | float):
        return data * draw.choice((-1, 0, 2, 3, 1000, 10**9, 0.5))
    return draw.choice(VALUES)


def _changed_text(draw: random.Random, text: str) -> str:
    at, what = draw.randrange(len(text) + 1), draw.random()
    size = draw.choice((1, 1, 2, 5, 20, 200))
    if what < 0.3:
        return text[:at] + draw.choice(PIECES) + text[at:]
    if what < 0.5:
        return text[:at] + draw.choice(PIECES) + text[at + size :]
    if what < 0.7:
        return text[:at] + text[at + size :]
    if what < 0.9:
        start = draw.randrange(len(text) + 1)
        return text[:at] + text[start : start + size] * draw.choice((1, 1, 2, 100)) + text[at:]
    return text[:at] + chr(draw.choice((*range(128), 0xE9, 0x2028, 0x1F600))) + text[at + 1 :]


def _parsed(text: str) -> Any:  # noqa: ANN401
    """The data of JSON, or of YAML that is more than a text."""
    import yaml

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except Exception:  # any text is a seed
        return None
    return data if isinstance(data, dict | list) else None


def mutated(draw: random.Random, text: str) -> str:
    """The text with one to eight changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        data = _parsed(text) if draw.random() < 0.6 else None
        if data is None:
            text = _changed_text(draw, text)
            continue
        try:
            text = json.dumps(_changed_value(draw, data, []), default=str)
        except (ValueError, OverflowError, RecursionError):
            text = _changed_text(draw, text)
    return text


def too_long(_: int, __: FrameType | None) -> None:
    raise TookTooLongError


class Watched:
    """A reader that counts the texts it was given, and keeps those that crash it."""

    def __init__(self, name: str, read: Callable[[str, Path], object], keep: Path) -> None:
        from astrarium.errors import AstrariumError

        self.name, self.read, self.keep = name, read, keep
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.runs = self.accepted = 0
        self.failures: dict[str, int] = {}
        self.refusals = AstrariumError
        signal.signal(signal.SIGALRM, too_long)

    def __call__(self, text: str, longest: float = LONGEST_SECONDS) -> None:
        self.runs += 1
        signal.setitimer(signal.ITIMER_REAL, longest)
        try:
            self.read(text, self.folder)
            self.accepted += 1
        except self.refusals:
            pass
        except Exception as error:
            self._keep(text, error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _keep(self, text: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [one for one in frames if "astrarium" in one.filename] or frames
        place = f"{type(error).__name__} {ours[-1].filename}:{ours[-1].lineno}"
        if isinstance(error, TookTooLongError):  # stopped anywhere: the reader is the place
            place = f"{type(error).__name__} {self.name}"
        digest = hashlib.sha256(place.encode()).hexdigest()[:8]
        path = self.keep / f"{self.name}-{digest}.txt"
        self.failures[place] = self.failures.get(place, 0) + 1
        if not path.exists() or len(text) < path.stat().st_size:
            path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        if self.failures[place] == 1:
            trace = "".join(traceback.format_exception(error)[-3:])
            print(
                f"{self.name}: {place}: {str(error)[:200]}\n  kept as {path}\n{trace}", flush=True
            )

    def summary(self, seconds: float) -> str:
        return (
            f"{self.name}: {self.runs:,} texts, {self.accepted:,} accepted,"
            f" {len(self.failures)} places failed, {seconds:.0f} s"
        )


def fuzz(name: str, given: argparse.Namespace) -> int:
    """Feed one reader; returns the number of places that failed."""
    import atheris

    with atheris.instrument_imports(include=["astrarium"]):
        from fuzzed_readers import READERS

        reader = READERS[name]
        seeds = list(reader.seeds())
        watched = Watched(name, reader.read, given.keep)
        for text in seeds:  # imports take their time
            watched(text, longest=60)
    draw, begin = random.Random(f"{given.seed} {name}"), time.monotonic()

    def mutate(data: bytes, size: int, _: int) -> bytes:
        if draw.random() < GUIDED:
            return bytes(atheris.Mutate(data, size))
        known = data.decode("utf-8", errors="replace") if len(data) > 2 else ""
        text = draw.choice(seeds) if not known or draw.random() < 0.3 else known
        return mutated(draw, text).encode("utf-8", errors="replace")[:size]

    def test(data: bytes) -> None:
        watched(data.decode("utf-8", errors="replace"))
        seconds = time.monotonic() - begin
        if watched.runs >= given.runs or seconds >= given.seconds:
            print(watched.summary(seconds), flush=True)
            os._exit(min(len(watched.failures), 100))

    arguments = [
        f"-seed={given.seed}",
        f"-max_len={MOST_BYTES}",
        "-print_final_stats=0",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *arguments], test, custom_mutator=mutate)
    atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each reader")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzzed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    if given.here:
        return fuzz(given.readers[0], given)
    from fuzzed_readers import READERS

    def apart(name: str) -> int:
        """A reader that runs out of memory, say, stops no other one."""
        options = [one for one in sys.argv[1:] if one not in given.readers]
        command = [sys.executable, __file__, name, *options, "--here"]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(given.jobs) as pool:
        return min(1, sum(map(bool, pool.map(apart, given.readers or READERS))))


if __name__ == "__main__":
    sys.exit(main())
