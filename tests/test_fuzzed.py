"""What tools/fuzz.py once found, and that every reader comes back from texts that it drew."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import fuzz
import pytest
from fuzzed_readers import READERS

from astrarium.errors import AstrariumError

FOUND = sorted((Path(__file__).parent / "fuzzed").glob("*.txt"))
DRAWN = 25


def feed(name: str, text: str, folder: Path) -> None:
    """A reader may refuse a text; any other error fails the test, and so does a slow answer."""
    begin = time.process_time()
    with suppress(AstrariumError):
        READERS[name].read(text, folder)
    assert time.process_time() - begin < fuzz.LONGEST_SECONDS


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_once_crashed_a_reader_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    name = path.stem.rpartition("-")[0]
    feed(name, path.read_bytes().decode("utf-8", errors="replace"), tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_damaged_texts_are_read_or_refused(name: str, tmp_path: Path) -> None:
    draw, seeds = random.Random(name), list(READERS[name].seeds())
    for _ in range(DRAWN):
        feed(name, fuzz.mutated(draw, draw.choice(seeds)), tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_seed_of_every_reader_is_accepted(name: str, tmp_path: Path) -> None:
    """Else the damaged texts would be refused at their first key."""
    READERS[name].read(next(READERS[name].seeds()), tmp_path)
