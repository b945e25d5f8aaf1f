"""Where in a text a key stands, and the message that names the place.

Lines are looked up only when there is something to report. In YAML and JSON (which the YAML
scanner reads as well) they are the marks of the nodes. In TOML they come from a scan of headers
and keys: a value inside an inline table is reported at the line where its statement starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from astrarium.errors import InputError

if TYPE_CHECKING:
    import yaml

KeyPath: TypeAlias = tuple[str | int, ...]

_MULTI_LINE_STRING = re.compile(r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'')


def failure(path: Path, what: str, line: int | None = None, key: KeyPath = ()) -> InputError:
    """Build the error "file:line: key: what"."""
    place = f"{path}:{line}" if line else str(path)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return InputError(f"{place}: {name.lstrip('.')}: {what}" if name else f"{place}: {what}")


def key_named_in(complaint: str) -> KeyPath:
    """The key path that a text begins with, as in "layers[2].heads: ..."; empty if none."""
    place = re.match(r"[A-Za-z_]\w*(?:\[\d+\]|\.\w+)*(?=: )", complaint)
    parts = re.findall(r"\w+", place.group()) if place else []
    return tuple(int(part) if part.isdigit() else part for part in parts)


def line_in_nodes(node: yaml.Node | None, key: KeyPath) -> int | None:
    """Return the line of a key, or of the closest parent found, in a tree of YAML nodes."""
    import yaml

    line = None
    for part in key:
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(part)]
            if not found:  # the key came in through a merge (<<)
                return line
            name, node = found[0]
            line = name.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            item = node = node.value[part]
            line = item.start_mark.line + 1
    return line


def line_in_toml(text: str, key: KeyPath) -> int | None:
    """Return the line of the header or key that shares the longest part of the path."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    best, best_line = 0, None
    text = _MULTI_LINE_STRING.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)([^\[\]]+)\]", line):
            here = table = _resolve(_toml_key(header[2]), counts, repeats=header[1] == "[[")
        elif assignment := re.match(r"\s*([^\s=#\[{][^=#\[{]*)=", line):
            here = table + _toml_key(assignment[1])
        else:
            continue
        if len(here) > best and here == key[: len(here)]:
            best, best_line = len(here), number
    return best_line


def _resolve(header: KeyPath, counts: dict[KeyPath, int], *, repeats: bool) -> KeyPath:
    """Add to the keys of a header the index of every array of tables on the way.

    `counts` holds the index of the latest table in each such array.
    """
    where: KeyPath = ()
    for depth, part in enumerate(header, start=1):
        where = (*where, part)
        if repeats and depth == len(header):
            counts[where] = counts.get(where, -1) + 1
        if where in counts:
            where = (*where, counts[where])
    return where


def _toml_key(text: str) -> KeyPath:
    """Read a dotted, possibly quoted key."""
    import tomllib

    try:
        data: object = tomllib.loads(f"{text.strip()} = 0")
    except tomllib.TOMLDecodeError:
        return ()  # the inside of a value that only looks like a key
    key: KeyPath = ()
    while isinstance(data, dict):
        part, data = next(iter(data.items()))
        key = (*key, part)
    return key
