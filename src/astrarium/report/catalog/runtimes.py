"""Training programs as documents and tables: constants with the data they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from astrarium.catalog.runtimes import Constant, describe_runtime, find_runtime
from astrarium.report.catalog.entries import SCHEMA as SCHEMA
from astrarium.report.tables import new_table, title


def runtime_to_dict(name: str) -> dict[str, Any]:
    """A runtime with all its constants, own and inherited."""
    constants = {
        constant.name: {"value": constant.value, "source": constant.source}
        for constant in describe_runtime(name)
    }
    return {"name": name, "title": find_runtime(name).title, "constants": constants}


def runtimes_table(names: Sequence[str]) -> Iterator[RenderableType]:
    """One line for each runtime."""
    table = new_table()
    table.add_column("runtime", no_wrap=True)
    table.add_column("what")
    for name in names:
        table.add_row(name, find_runtime(name).title)
    yield table
    yield Text("\n`astrarium catalog runtimes NAME` shows the constants of one.", "dim")


def runtime_report(name: str) -> Iterator[RenderableType]:
    """The constants of a runtime; units are in their names."""
    runtime = find_runtime(name)
    yield Text(f"{runtime.name} ({runtime.title})", "bold")
    yield title("Constants")
    table = new_table()
    for column in ("constant", "value", "from"):
        table.add_column(column, no_wrap=column == "constant")
    for constant in describe_runtime(name):
        table.add_row(constant.name, _value(constant), constant.source)
    yield table


def _value(constant: Constant) -> str:
    value = constant.value
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)
