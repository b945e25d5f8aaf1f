"""Training programs as documents and tables: constants with the data they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from astrarium.catalog.runtimes import Constant, describe_runtime, find_runtime
from astrarium.report.catalog.entries import SCHEMA as SCHEMA
from astrarium.report.tables import Field, table, title


def runtime_to_dict(name: str) -> dict[str, Any]:
    """A runtime with all its constants, own and inherited."""
    constants = {
        constant.name: {"value": constant.value, "source": constant.source}
        for constant in describe_runtime(name)
    }
    return {"name": name, "title": find_runtime(name).title, "constants": constants}


def runtimes_table(names: Sequence[str]) -> Iterator[RenderableType]:
    """One line for each runtime."""
    found = [find_runtime(name) for name in names]
    titles, planned = [one.title for one in found], ["yes" if one.rules else "" for one in found]
    fields = [Field("runtime", names), Field("plans", planned), Field("what", titles, prose=True)]
    yield table(fields)
    yield Text("\n`astrarium catalog runtimes NAME` shows the constants of one.", "dim")


def runtime_report(name: str) -> Iterator[RenderableType]:
    """The constants of a runtime; units are in their names."""
    runtime = find_runtime(name)
    yield Text(f"{runtime.name} ({runtime.title})", "bold")
    yield title("Constants")
    constants = describe_runtime(name)
    yield table(
        [
            Field("constant", [constant.name for constant in constants]),
            Field("value", [_value(constant) for constant in constants], prose=True),
            Field("from", [constant.source for constant in constants], prose=True),
        ]
    )


def _value(constant: Constant) -> str:
    value = constant.value
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)
