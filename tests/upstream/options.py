"""The options of Megatron-LM 0.19.2's parser as recorded: a line each, destination and flags.

Recorded, so that what we say about options can be checked where Megatron is not installed. After
a change of its version: `PYTHONPATH=tests python tests/upstream/options.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from upstream.client import Drivers

RECORDED: Final = Path(__file__).parent / "data" / "megatron_options.txt"


def text_of(options: Iterable[Mapping[str, Any]]) -> str:
    """Options of the parser as they are recorded."""
    return "".join(" ".join([one["dest"], *one["flags"]]) + "\n" for one in options)


def recorded() -> list[tuple[str, tuple[str, ...]]]:
    """Destination and flags of every option, in the order of the parser."""
    lines = [line.split() for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    return [(dest, tuple(flags)) for dest, *flags in lines]


if __name__ == "__main__":
    drivers = Drivers()
    try:
        real = drivers["megatron"].ask(operation="options")
    finally:
        drivers.close()
    RECORDED.write_text(text_of(real), encoding="utf-8")
