"""Writes what the page has of the package: the types of its documents, and its form.

    python tools/page_types.py [--write]

Without `--write` it only checks that both files are what the schemas and the form make.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astrarium.plans.document import PlanDocument, schemas
from astrarium.report.plan.imported import ImportDocument
from astrarium.report.sweep import SweepDocument
from astrarium.report.timeline import TimelineDocument
from astrarium.web.form import described

SOURCES = Path(__file__).parents[1] / "web/src"
FILE = SOURCES / "schema.ts"
FORM = SOURCES / "page/form.json"
TYPES = (PlanDocument, ImportDocument, SweepDocument, TimelineDocument)
WORDS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}
HEAD = "// Made by tools/page_types.py of the schemas of the documents; not to be edited.\n"
WIDEST = 100  # columns, as biome formats


def name_of(reference: str) -> str:
    """A type as the page calls it: without what says that it is part of a document."""
    return reference.rpartition("/")[2].removesuffix("Part")


def type_of(schema: Mapping[str, Any]) -> str:
    """The type of a value."""
    if "$ref" in schema:
        return name_of(schema["$ref"])
    if "anyOf" in schema:
        return " | ".join(type_of(one) for one in schema["anyOf"])
    kind = schema.get("type")
    if kind == "null":
        return "null"
    if kind == "array":
        return list_type(schema)
    if kind == "object":
        return f"Readonly<Record<string, {type_of(schema.get('additionalProperties') or {})}>>"
    return WORDS.get(str(kind), "unknown")


def list_type(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"readonly [{', '.join(type_of(one) for one in schema['prefixItems'])}]"
    inner = type_of(schema["items"])
    is_one = " " not in inner or inner.startswith("Readonly<")
    return f"readonly {inner if is_one else f'({inner})'}[]"


def declared(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one type."""
    if "enum" in schema:
        words = [f'"{word}"' for word in schema["enum"]]
        line = f"export type {name_of(name)} = {' | '.join(words)};"
        if len(line) <= WIDEST:
            yield line
        else:
            yield f"export type {name_of(name)} ="
            yield from (f"  | {word}{';' if word == words[-1] else ''}" for word in words)
        return
    yield f"export interface {name_of(name)} {{"
    for key, value in schema["properties"].items():
        mark = "" if key in schema.get("required", ()) else "?"
        line = f"  readonly {key}{mark}: {type_of(value)};"
        assert len(line) <= WIDEST, line
        yield line
    yield "}"


def source() -> str:
    """The whole file."""
    made = schemas(TYPES, "#/{name}")
    blocks = ["\n".join(declared(name, schema)) for name, schema in sorted(made.items())]
    assert len({name_of(name) for name in made}) == len(made), "two types would be called alike"
    return "\n\n".join([HEAD, *blocks]).replace("\n\n\n", "\n\n") + "\n"


def form() -> str:
    """The fields of the form."""
    return json.dumps(described(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__ or "")[0])
    parser.add_argument("--write", action="store_true", help="write the files")
    is_written = parser.parse_args().write
    for path, made in ((FILE, source()), (FORM, form())):
        if is_written:
            path.write_text(made, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != made:
            sys.exit(f"Error: {path} is not up to date; `python tools/page_types.py --write`")


if __name__ == "__main__":
    main()
