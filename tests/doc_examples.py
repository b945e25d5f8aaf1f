"""The examples of the pages: found, run and, on request, written anew.

What the fenced blocks of a page mean, by their first words:

- `pycon`: Python at the prompt; all such blocks of a page share their names;
- `console`: one command after "$ " and what it prints, at 100 columns and without colour. A
  comment before the block, `<!-- lines 1-9 14 -->`, says which lines are shown; a line "..."
  stands for the others. `$ echo $?` may follow;
- `yaml FILE`, `toml FILE`, `json FILE`: a file that later commands of the page read.

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
ELIDED = "..."

_BLOCK = re.compile(
    r"(?:<!-- lines (?P<lines>[\d\s-]+) -->\n)?"
    r"^```(?P<kind>\w+)(?: (?P<file>[\w./-]+))?\n(?P<body>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
# What differs from run to run and is nobody's claim.
_VOLATILE = re.compile(r'(?<=considered in )[\d.]+ \w+|(?<="seconds": )[\d.e-]+')


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its text between the fences and where that stands in the page."""

    kind: str
    file: str
    lines: str
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
        kind, file, lines = (match[name] or "" for name in ("kind", "file", "lines"))
        yield Block(kind, file, lines, match["body"], match.start("body"))


def steady(text: str) -> str:
    """The text without what differs from run to run."""
    return _VOLATILE.sub("#", text)


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
    code, printed = run_command(shlex.split(command)[1:])
    asked = f"$ echo $?\n{code}\n" if "$ echo $?" in rest else ""
    return f"{command}\n{_shown(printed, block.lines)}{asked}"


def _command(body: str) -> tuple[str, str]:
    """The command with its continuation lines, and what follows it."""
    match = re.match(r"(?P<command>\$ astrarium\b(?:[^\n]*\\\n)*[^\n]*)\n(?P<rest>.*)", body, re.S)
    if match is None:
        raise ValueError(f"a console block starts with '$ astrarium', not with {body[:40]!r}")
    return match["command"], match["rest"]


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every command of a page."""
    for block in blocks(text):
        if block.kind == "console":
            yield shlex.split(_command(block.body)[0])[2:]


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of `astrarium ...`, both streams together, without a new process."""
    from astrarium.cli.app import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            app(args=arguments[1:] if arguments[:1] == ["astrarium"] else arguments)
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def _shown(printed: str, ranges: str) -> str:
    """The lines of the output that the page shows."""
    lines = printed.splitlines()
    if not ranges:
        return printed
    shown: list[str] = []
    last = 0
    for part in ranges.split():
        first, _, end = part.partition("-")
        if int(first) > last + 1:
            shown.append(ELIDED)
        last = int(end or first)
        shown += lines[int(first) - 1 : last]
    if last < len(lines):
        shown.append(ELIDED)
    return "".join(line + "\n" for line in shown)


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
