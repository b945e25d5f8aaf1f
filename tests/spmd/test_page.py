"""The page on programs says what the code does: operators, layouts, conversions.

`python tests/spmd/test_page.py` writes the operators down anew, after a change of the rules.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from textwrap import fill

import pytest

from astrarium.spmd.rules import (
    COPIED,
    PARTIAL,
    REPLICATE,
    elements,
    layers,
    losses,
    operations,
    products,
    views,
)
from astrarium.spmd.rules.layout import shard
from astrarium.spmd.rules.table import DESCRIBED, OTHERS

FILE = Path(__file__).parents[2] / "docs/spmd.md"
PAGE = FILE.read_text(encoding="utf-8")
WIDTH = 106  # of the page's lines
KINDS = {
    "products": products,
    "moves": views,
    "element-wise and along one dimension": elements,
    "losses": losses,
    "layers, and along a dimension that is divided": layers,
}


def section(kind: str) -> re.Pattern[str]:
    return re.compile(rf"^- {kind}: (.*?)(?=^- |^$)", flags=re.MULTILINE | re.DOTALL)


def listed(kind: str) -> list[str]:
    match = section(kind).search(PAGE)
    assert match is not None, kind
    return re.findall(r"`(\w+)`", match[1])


def operators(kind: str) -> list[str]:
    module = KINDS[kind]
    return sorted({*module.DESCRIBED, *getattr(module, "OTHERS", ())})


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_are_those_of_the_rules(kind: str) -> None:
    assert listed(kind) == operators(kind)


def test_no_operator_is_left_out() -> None:
    every = {name for kind in KINDS for name in listed(kind)}
    assert every == {*DESCRIBED, *OTHERS}


def test_the_conversions_are_those_of_the_algebra() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:another )?`(\w+)` \| (\S+) \| (\S+) \|$", PAGE, re.M)
    layouts = (REPLICATE, COPIED, PARTIAL, shard(0), shard(1))
    found = set()
    for before, after in product(layouts, layouts):
        if before == after:
            continue
        try:
            forward, backward = operations(before, after, gradient=True)
        except KeyError:
            continue
        found.add((before.spread.value, after.spread.value, forward, backward))
    assert set(rows) == found


def main() -> None:
    text = PAGE
    for kind in KINDS:
        names = ", ".join(f"`{name}`" for name in operators(kind))
        lines = fill(f"- {kind}: {names}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        text = section(kind).sub(lines + "\n", text)
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
