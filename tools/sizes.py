"""Print the largest files and functions; fail when one is over its budget.

Usage: python tools/sizes.py [FOLDER ...]   (default: src)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_LINES = 600
FUNCTION_LINES = 60
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Size:
    """The lines of a file or function, and the lines it may have."""

    lines: int
    limit: int
    name: str


def measure(path: Path) -> Iterator[Size]:
    """Yield the size of a file, then those of its functions, decorators included."""
    text = path.read_text(encoding="utf-8")
    yield Size(len(text.splitlines()), FILE_LINES, str(path))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or node.lineno) - first + 1
            yield Size(lines, FUNCTION_LINES, f"{path}:{node.lineno} {node.name}")


def main(folders: list[str]) -> int:
    """Print the report and return the exit code."""
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    sizes = sorted((size for path in paths for size in measure(path)), key=lambda s: -s.lines)
    for title, limit in (("file", FILE_LINES), ("function", FUNCTION_LINES)):
        ranked = [size for size in sizes if size.limit == limit]
        total = f"{len(ranked)} in all, at most {limit} lines each"
        print(f"{'lines':>6}  {title} ({total})")
        over = sum(size.lines > limit for size in ranked)
        for size in ranked[: max(SHOWN, over)]:
            print(f"{size.lines:6}  {size.name}{'  TOO LONG' if size.lines > limit else ''}")
    return int(any(size.lines > size.limit for size in sizes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src"]))
