"""The examples of the pages: found, run and, on request, written anew.

What the fenced blocks of a page mean, by their first words:

- `pycon`: Python at the prompt; all such blocks of a page share their names;
- `console`: one command after "$ " and what it prints, at 100 columns and without colour. A
  comment before the block, `<!-- lines 1-9 14 -->` or `<!-- parts 1-3 6 -->` (parts are what
  blank lines separate), says what is shown; a line "..." stands for the rest. `$ echo $?` may
  follow;
- `yaml FILE`, `toml FILE`, `json FILE`, `csv FILE`: a file that later commands of the page read.

Other blocks are not run. `python tests/doc_examples.py` runs all pages and writes down what
comes out, after a change that moves predictions.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COLUMNS = 100
TODAY = "1794787200"  # 2026-11-16, against which prices age
ELIDED = "..."

_BLOCK = re.compile(
    r"(?:<!-- (?P<shown>(?:lines|parts) [\d\s-]+) -->\n)?"
    r"^```(?P<kind>\w+)(?: (?P<file>[\w./-]+))?\n(?P<body>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
# What differs from run to run or from machine to machine and is nobody's claim: how long a search
# took and, as ties may be broken by the last digit of a number, how it came to its result.
_SEARCH = re.compile(r'(?<=strategies considered in ).*?(?=\n\n|\Z)|(?<="seconds": )\S+', re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its text between the fences and where that stands in the page."""

    kind: str
    file: str
    shown: str
    body: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.body)


def pages() -> tuple[Path, ...]:
    """All pages that are documentation."""
    return (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def blocks(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        kind, file, shown = (match[name] or "" for name in ("kind", "file", "shown"))
        yield Block(kind, file, shown, match["body"], match.start("body"))


def steady(text: str) -> str:
    """The text without what differs from run to run."""

    def without_numbers(match: re.Match[str]) -> str:
        return " ".join(re.sub(r"[\d.,]+( m?s)?", "#", match[0]).split())

    return _SEARCH.sub(without_numbers, text)


def run_page(text: str) -> Iterator[tuple[Block, str]]:
    """Every block that is an example, and what it should read."""
    names: dict[str, Any] = {}
    with _empty_folder() as folder:
        for block in blocks(text):
            if block.file:
                path = folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.body, encoding="utf-8")
            elif block.kind == "pycon":
                yield block, _prompt(block.body, names)
            elif block.kind == "console":
                yield block, _console(block)


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    """A folder with the project's examples, as the current one; no settings of the user."""
    before, environment = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples")
        os.environ.pop("ASTRARIUM_CATALOG", None)
        os.environ |= {"XDG_CONFIG_HOME": name, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        os.environ["SOURCE_DATE_EPOCH"] = TODAY
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ |= environment


def _prompt(body: str, names: dict[str, Any]) -> str:
    """Run Python examples; returns them with what they print."""
    given = body.splitlines(keepends=True)
    out = []
    for example in doctest.DocTestParser().get_examples(body):
        code = compile(example.source, "<page>", "single")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        count = example.source.count("\n")
        out += given[example.lineno : example.lineno + count]
        out.append(printed.getvalue())
    return "".join(out)


def _console(block: Block) -> str:
    """Run a command; returns the block with what it prints."""
    command, rest = _command(block.body)
    code, printed = run_command(_arguments(command))
    asked = f"$ echo $?\n{code}\n" if "$ echo $?" in rest else ""
    return f"{command}\n{_shown(printed, block.shown)}{asked}"


def _command(body: str) -> tuple[str, str]:
    """The command with its continuation lines, and what follows it."""
    match = re.match(r"(?P<command>\$ astrarium\b(?:[^\n]*\\\n)*[^\n]*)\n(?P<rest>.*)", body, re.S)
    if match is None:
        raise ValueError(f"a console block starts with '$ astrarium', not with {body[:40]!r}")
    return match["command"], match["rest"]


def _arguments(command: str) -> list[str]:
    """What follows "$ astrarium"."""
    return shlex.split(command.replace("\\\n", " "))[2:]


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every command of a page."""
    for block in blocks(text):
        if block.kind == "console":
            yield _arguments(_command(block.body)[0])


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of `astrarium ...`, both streams together, without a new process."""
    from astrarium.cli.app import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            app(args=arguments, prog_name="astrarium")
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def _shown(printed: str, chosen: str) -> str:
    """What the page shows of an output: all, or some of its lines or parts."""
    if not chosen:
        return printed
    unit, *ranges = chosen.split()
    mark = "\n" if unit == "lines" else "\n\n"
    pieces = printed.strip("\n").split(mark)
    shown: list[str] = []
    last = 0
    for part in ranges:
        first, _, end = part.partition("-")
        if int(first) > last + 1:
            shown.append(ELIDED)
        last = int(end or first)
        shown += pieces[int(first) - 1 : last]
    if last < len(pieces):
        shown.append(ELIDED)
    return mark.join(shown) + "\n"


def refreshed(text: str) -> str:
    """The page with its examples as they come out now."""
    parts, position = [], 0
    for block, real in run_page(text):
        if steady(real) != steady(block.body):
            parts += [text[position : block.start], real]
            position = block.end
    return "".join(parts) + text[position:]


def main() -> None:
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)} is new\n")


if __name__ == "__main__":
    main()
