"""Feeds the readers of `tests/fuzzed_readers.py` with damaged texts, and keeps what crashes them.

    python tools/fuzz.py [READER ...] [--seconds 3600] [--keep DIR]
    python tools/fuzz.py --counts [--keep DIR]

A text is a seed that was changed in up to eight places: values of YAML and JSON are replaced,
removed, repeated or nested, pieces of text cut, doubled or put in. A reader has to return, or to
raise an `AstrariumError`, within `LONGEST_SECONDS` of CPU. Some texts that are
accepted become seeds, as do those with a message that no text had before. If atheris is installed,
each `GUIDED_EVERY`th turn changes bytes under the guidance of coverage instead.

Readers take turns of some seconds, each in a process of its own, until all have had as many
seconds; requests and rules have twice as many. DIR
keeps the seeds that were found, a line for each turn (`turns.jsonl`), and a file for each place in
the code that failed, `READER-xxxxxxxx.txt`; tests/test_fuzzed.py runs those that are kept in
tests/fuzzed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

LONGEST_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 60.0  # of seeds: imports take their time
MOST_LETTERS: Final = 1 << 16
MOST_SEEDS: Final = 400
TURN_SECONDS: Final = 20.0
GUIDED_EVERY: Final = 10
TURNS: Final = "turns.jsonl"
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


def _changed_value(draw: random.Random, data: Any) -> Any:  # noqa: ANN401
    """The data with one value or key changed, somewhere; what is not changed is shared."""
    if isinstance(data, dict) and data and draw.random() < 0.85:
        key = draw.choice(list(data))
        what = draw.random()
        out = dict(data)
        if what < 0.12:
            del out[key]
        elif what < 0.2:
            out[draw.choice([*map(str, VALUES[:24]), *data])] = out[key]
        else:
            out[key] = _changed_value(draw, data[key])
        return out
    if isinstance(data, list) and data and draw.random() < 0.85:
        at, what = draw.randrange(len(data)), draw.random()
        if what < 0.1:
            return data[:at] + data[at + 1 :]
        if what < 0.2:
            times = draw.choice((2, 3, 50)) if len(data) < 50 else 2
            return data[:at] + data[at : at + 1] * times + data[at + 1 :]
        return [*data[:at], _changed_value(draw, data[at]), *data[at + 1 :]]
    what = draw.random()
    if what < 0.1:
        for _ in range(draw.choice((1, 5, 80))):
            data = [data]
        return data
    if what < 0.25 and isinstance(data, str) and data:
        return _changed_text(draw, data)
    if what < 0.35 and isinstance(data, int | float):
        return data * draw.choice((-1, 0, 2, 3, 1000, 10**9, 0.5)) if abs(data) < 1e30 else -data
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


@lru_cache(MOST_SEEDS)
def _parsed(text: str) -> Any:  # noqa: ANN401
    """The data of JSON, or of YAML that is more than a text."""
    import yaml

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        json.dumps(data, default=str)  # aliases may make it endless
    except Exception:  # any text is a seed
        return None
    return data if isinstance(data, dict | list) else None


def mutated(draw: random.Random, text: str) -> str:
    """The text with one to eight changes."""
    changes = draw.choice((1, 1, 1, 2, 3, 8))
    data = _parsed(text) if draw.random() < 0.7 else None
    if data is not None:
        for _ in range(changes):
            data = _changed_value(draw, data)
        text = json.dumps(data, default=str)
        changes = draw.choice((0, 0, 0, 1))
    for _ in range(changes):
        text = _changed_text(draw, text)
    return text[:MOST_LETTERS]


def too_long(_: int, __: FrameType | None) -> None:
    raise TookTooLongError


def tell(
    keep: Path, name: str, seconds: float, texts: int = 0, accepted: int = 0, *, guided: bool
) -> None:
    """Write what a turn did."""
    said = {"reader": name, "guided": guided, "texts": texts, "accepted": accepted}
    with (keep / TURNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**said, "seconds": round(seconds, 2)}) + "\n")


class Watched:
    """A reader that counts the texts it was given, and keeps those that crash it."""

    def __init__(self, name: str, keep: Path) -> None:
        from fuzzed_readers import READERS

        from astrarium.errors import AstrariumError

        self.name, self.read, self.keep = name, READERS[name].read, keep
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.runs = self.accepted = 0
        self.failures: Counter[str] = Counter()
        self.refusals = AstrariumError
        signal.signal(signal.SIGPROF, too_long)
        for text in READERS[name].seeds():
            self(text, FIRST_SECONDS)

    def __call__(self, text: str, longest: float = LONGEST_SECONDS) -> str:
        """What became of a text: "", or the message without what it quotes."""
        self.runs += 1
        signal.setitimer(signal.ITIMER_PROF, longest)
        try:
            self.read(text, self.folder)
            self.accepted += 1
        except self.refusals as error:
            return re.sub(r"'[^']*'|\d+|got .*", "", str(error)[:200])
        except Exception as error:
            self._keep(text, error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return ""

    def _keep(self, text: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [one for one in frames if "astrarium" in one.filename] or frames
        place = f"{type(error).__name__} {ours[-1].filename}:{ours[-1].lineno}"
        if isinstance(error, TookTooLongError):  # stopped anywhere: the reader is the place
            place = f"{type(error).__name__} {self.name}"
        digest = hashlib.sha256(place.encode()).hexdigest()[:8]
        path = self.keep / f"{self.name}-{digest}.txt"
        self.failures[place] += 1
        if not path.exists() or len(text) < path.stat().st_size:
            path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        if self.failures[place] == 1:
            trace = "".join(traceback.format_exception(error)[-3:])
            said = f"{self.name}: {place}: {str(error)[:200]}"
            print(f"{said}\n  kept as {path}\n{trace}", flush=True)

    def tell(self, begin: float, *, guided: bool) -> None:
        seconds = time.process_time() - begin
        tell(self.keep, self.name, seconds, self.runs, self.accepted, guided=guided)


def drawn(name: str, keep: Path, seconds: float, draw: random.Random) -> None:
    """One turn of a reader with texts that are drawn."""
    from fuzzed_readers import READERS

    begin, found = time.process_time(), keep / f"{name}.seeds.json"
    seeds = list(READERS[name].seeds())
    first = len(seeds)
    good, odd = json.loads(found.read_text()) if found.exists() else (seeds, [])
    watched = Watched(name, keep)
    longest, known = 2 * len(max(good, key=len)), {watched(text) for text in odd}
    while time.process_time() < begin + seconds:
        for _ in range(20):
            text = mutated(draw, draw.choice(odd if odd and draw.random() < 0.3 else good))
            outcome = watched(text)
            if outcome == "" and draw.random() < 0.01 and len(text) < longest:
                good.append(text)
            elif outcome not in known and len(text) < longest:
                known.add(outcome)
                odd.append(text)
    kept = good[:first] + good[first:][-MOST_SEEDS:], odd[-MOST_SEEDS:]
    found.write_text(json.dumps(kept), encoding="utf-8")
    watched.tell(begin, guided=False)


def guided(name: str, keep: Path, seconds: float, draw: random.Random) -> None:
    """The same with bytes that atheris changes; ends the process."""
    import atheris

    begin = time.process_time()
    with atheris.instrument_imports(include=["astrarium"]):
        watched = Watched(name, keep)
    from fuzzed_readers import READERS

    seeds = list(READERS[name].seeds())

    def mutate(data: bytes, size: int, _: int) -> bytes:
        if len(data) < 2 or draw.random() < 0.3:
            data = draw.choice(seeds).encode("utf-8", errors="replace")
        return bytes(atheris.Mutate(data[:size], size))

    def test(data: bytes) -> None:
        watched(data.decode("utf-8", errors="replace"))
        if time.process_time() > begin + seconds:
            watched.tell(begin, guided=True)
            os._exit(0)

    options = [f"-seed={draw.randrange(1, 2**31)}", f"-max_len={MOST_LETTERS}", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=0"], test, custom_mutator=mutate)
    atheris.Fuzz()


def apart(name: str, given: argparse.Namespace, turn: int) -> None:
    """A turn in a process of its own: a reader that runs out of memory, say, stops no other."""
    draw = random.Random(f"{given.seed} {name} {turn}")
    if turn % GUIDED_EVERY == GUIDED_EVERY - 1 and find_spec("atheris"):
        options = ["--guided", "--seed", str(draw.random()), "--keep", str(given.keep)]
        code = subprocess.run([sys.executable, __file__, name, *options], check=False).returncode
    elif child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        ended = 1
        try:
            drawn(name, given.keep, TURN_SECONDS, draw)
            ended = 0
        finally:
            sys.stdout.flush()
            os._exit(ended)
    if code:
        print(f"{name}: turn {turn} ended with {code}", flush=True)
        tell(given.keep, name, TURN_SECONDS, guided=False)  # the next turn is that of another


def share(name: str) -> float:
    """Of the time, beside other readers."""
    return 2.0 if name.startswith(("request", "rule")) else 1.0


def sums(keep: Path) -> dict[str, Counter[str]]:
    """What all turns did, by reader."""
    found = defaultdict[str, Counter[str]](Counter)
    path = keep / TURNS
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        turn = json.loads(line)
        sort = "guided" if turn["guided"] else "texts"
        done = {name: turn[name] for name in ("accepted", "seconds")}
        done |= {sort: turn["texts"], "turns": 1}
        found[turn["reader"]].update(done)
    return found


def counts(keep: Path) -> str:
    """The same as a table."""
    done = sums(keep)
    rows = [f"{'reader':<17}{'texts':>11}{'guided':>9}{'accepted':>10}{'CPU s':>8}"]
    done["all"] = sum(done.values(), Counter())
    for name, one in done.items():
        texts, of_all = one["texts"] + one["guided"], f"{one['guided']:>9,}{one['accepted']:>10,}"
        rows.append(f"{name:<17}{texts:>11,}{of_all}{one['seconds']:>8,.0f}")
    return "\n".join(rows)


def main() -> int:
    warnings.simplefilter("ignore")  # of Python, about code that a configuration holds
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--seconds", type=float, default=3600.0, help="in all")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzzed")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--counts", action="store_true", help="say what was done so far")
    parser.add_argument("--guided", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    if given.guided:
        guided(given.readers[0], given.keep, TURN_SECONDS, random.Random(given.seed))
    if not given.counts:
        from fuzzed_readers import READERS

        names, end = given.readers or list(READERS), time.monotonic() + given.seconds
        gc.freeze()
        while time.monotonic() < end:
            spent = sums(given.keep)
            turn = sum(one["turns"] for one in spent.values())
            apart(min(names, key=lambda name: spent[name]["seconds"] / share(name)), given, turn)
    print(counts(given.keep))
    return min(1, len(list(given.keep.glob("*.txt"))))


if __name__ == "__main__":
    sys.exit(main())
