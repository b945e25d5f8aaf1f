"""From a file to plain data, or to an error that names the file and the line.

Refused are files that are missing, not text, empty, larger than `LARGEST_FILE_BYTES`, nested deeper
than `DEEPEST_NESTING`, that expand (through YAML aliases) to more than `MOST_NODES` values, repeat
a key, or hold a number that is not finite. Lines are looked up only for a message; in TOML, a value
inside an inline table is reported at the line where its statement starts.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import os
import re
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from astrarium.errors import InputError, did_you_mean

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
    """Add the indices of arrays of tables to the keys of a header; `counts` has the latest."""
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


LARGEST_FILE_BYTES = 10 * 10**6
LARGEST_TABLE_BYTES = 64 * 10**6
DEEPEST_NESTING = 64
MOST_NODES = 10**6
MOST_YAML_VALUES = 250_000  # keys included; they take seconds to read
_MOST_SEARCHED = 10**6  # letters in which the line of a mistake is looked up


class Format(StrEnum):
    """The languages a document may be written in."""

    YAML = "YAML"
    TOML = "TOML"
    JSON = "JSON"


_SUFFIXES = {".yaml": Format.YAML, ".yml": Format.YAML, ".toml": Format.TOML, ".json": Format.JSON}


def format_of(path: Path) -> Format:
    """Return the language that the name of a file promises."""
    language = _SUFFIXES.get(path.suffix.lower())
    if language is None:
        known = ", ".join(_SUFFIXES)
        raise failure(path, f"unknown kind of file '{path.suffix}'; expected one of {known}")
    return language


def parse(path: Path) -> tuple[str, object]:
    """Return the text of a document and the data in it."""
    if path.suffix.lower() not in _SUFFIXES and not os.path.exists(path):
        raise failure(path, f"no such file{_neighbour(path)}")
    language = format_of(path)
    text = read_text(path)
    return text, parse_text(path, text, language)


def parse_text(path: Path, text: str, language: Format, *, repeated_keys: bool = False) -> object:
    """The data of a text in one of three languages; of `repeated_keys` the last one counts."""
    parsers: dict[Format, Callable[[Path, str], object]] = {
        Format.YAML: partial(_parse_yaml, repeated_keys=repeated_keys),
        Format.TOML: _parse_toml,
        Format.JSON: _parse_json,
    }
    try:
        data = parsers[language](path, text)
    except RecursionError:
        raise _too_deep(path) from None
    _check_values(path, text, data, language)
    return data


def has_known_suffix(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES


def line_of(path: Path, text: str, key: KeyPath, language: Format | None = None) -> int | None:
    """Return the line of a key, or of the closest parent found; None for the whole document."""
    if len(text) > _MOST_SEARCHED:
        return None
    if (language or format_of(path)) is Format.TOML:
        return line_in_toml(text, key)
    import yaml

    try:
        # Tabs are white space in JSON, but not in YAML; lines stay as they are.
        return line_in_nodes(yaml.compose(text.replace("\t", " "), Loader=_yaml_loader()), key)
    except yaml.YAMLError:
        return None  # JSON that YAML cannot read, such as escaped surrogate pairs


def read_bytes(path: Path, largest: int = LARGEST_FILE_BYTES) -> bytes:
    """Read a regular file of sensible size."""
    try:
        if path.is_dir():
            raise failure(path, "is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise failure(path, "is not a regular file")
        with path.open("rb") as file:
            raw = file.read(largest + 1)
    except FileNotFoundError:
        raise failure(path, f"no such file{_neighbour(path)}") from None
    except OSError as error:
        raise failure(path, f"cannot be read: {error.strerror}") from None
    if len(raw) > largest:
        what = f"larger than the limit of {largest / 10**6:g} MB; keep the part that counts"
        raise failure(path, what)
    return raw


def read_text(path: Path, largest: int = LARGEST_FILE_BYTES) -> str:
    """Read a file of sensible size that holds text."""
    raw = read_bytes(path, largest)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise failure(path, "is not UTF-8 text; save it as UTF-8", line) from None
    if "\0" in text:
        raise failure(path, "is a binary file; expected text")
    if not text.strip():
        raise failure(path, "is empty; name a file with content")
    return text


def _neighbour(path: Path) -> str:
    """Suggest a file of a similar name in the same folder."""
    try:
        return did_you_mean(path.name, sorted(os.listdir(path.parent))) or "; check the path"
    except (OSError, ValueError):  # the latter for a name with a null byte
        return "; check the path"


def _check_values(path: Path, text: str, data: object, language: Format) -> None:
    """Refuse numbers that are not finite, and nesting too deep for those who read the data."""
    for key, value in unbounded(path, data):
        line = line_of(path, text, key, language)
        raise failure(path, f"expected a finite number, got {value}", line, key)


def unbounded(path: Path, data: object) -> list[tuple[KeyPath, float]]:
    """The numbers that are not finite; what readers of the data cannot hold is refused.

    That is nesting too deep, and text with half of a surrogate pair, which is no character.
    """
    infinite: list[tuple[KeyPath, float]] = []
    pending: list[tuple[KeyPath, object]] = [((), data)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict | list) and len(key) >= DEEPEST_NESTING:
            raise _too_deep(path)
        if isinstance(value, dict):
            pending.extend(((*key, name), child) for name, child in value.items())
            pending.extend((key, name) for name in value if isinstance(name, str))
        elif isinstance(value, list):
            pending.extend(((*key, index), child) for index, child in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            infinite.append((key, value))
        elif isinstance(value, str) and not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise failure(path, "expected text, got half of a surrogate pair (\\ud800 to \\udfff)")
    return infinite


def _too_deep(path: Path, line: int | None = None) -> InputError:
    what = f"nested deeper than the limit of {DEEPEST_NESTING} levels; put values further up"
    return failure(path, what, line)


def _parse_json(path: Path, text: str) -> object:
    import json

    def build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in mapping if names.count(name) > 1)
            raise failure(path, f"the key '{twice}' appears twice in one object")
        return mapping

    try:
        return json.loads(text, object_pairs_hook=build)
    except json.JSONDecodeError as error:
        raise failure(path, f"malformed JSON: {error.msg}", error.lineno) from None
    except InputError:
        raise
    except ValueError as error:  # a number with more digits than Python reads
        raise failure(path, f"malformed JSON: {_first(error)}") from None


def _parse_toml(path: Path, text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:  # malformed, or a number with more digits than Python reads
        message, _, place = _first(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        last = text.count("\n", 0, len(text.rstrip())) + 1 if place else None
        number = int(line[1]) if line else last
        raise failure(path, f"malformed TOML: {message}", number) from None


def _parse_yaml(path: Path, text: str, *, repeated_keys: bool = False) -> object:
    import yaml

    try:
        root = _compose(path, text)
        if root is None:
            raise failure(path, "is empty")
        _inspect(path, root, {}, repeated_keys=repeated_keys)
        return _yaml_loader()("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        problem = f"{error.problem or error.context}"
        tag = re.search(r"for the tag '(!\w+)'", problem)
        if tag:
            what = f"{tag[1]} is not standard YAML; replace it with the content that it stands for"
            raise failure(path, what, line) from None
        raise failure(path, f"malformed YAML: {problem}", line) from None
    except yaml.YAMLError as error:
        raise failure(path, f"malformed YAML: {str(error).splitlines()[0]}") from None
    except InputError:
        raise
    except ValueError as error:  # a date that does not exist
        raise failure(path, f"malformed YAML: {_first(error)}") from None


def _first(error: ValueError) -> str:
    """Python's words about a number, without its advice to programmers."""
    return str(error).partition(";")[0]


@functools.cache
def _yaml_loader() -> type[yaml.SafeLoader]:
    """Return a safe loader that also reads 1e12 as a number, as YAML 1.2 and JSON do."""
    import yaml

    base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: type[yaml.SafeLoader] = type("Loader", (base,), {})
    exponent = re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return loader


def _compose(path: Path, text: str) -> yaml.Node | None:
    """Turn YAML into nodes; depth is counted first, as the C composer recurses without limit."""
    import yaml

    depth = values = 0
    for event in yaml.parse(text, Loader=_yaml_loader()):
        values += isinstance(event, yaml.NodeEvent)
        if values > MOST_YAML_VALUES:
            what = f"more than {MOST_YAML_VALUES:,} values; write it as JSON, which is read faster"
            raise failure(path, what)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_NESTING:
            assert event.start_mark is not None  # events of a text know where they are
            raise _too_deep(path, event.start_mark.line + 1)
    root: yaml.Node | None = yaml.compose(text, Loader=_yaml_loader())
    return root


def _inspect(path: Path, node: yaml.Node, sizes: dict[int, int], *, repeated_keys: bool) -> int:
    """The number of values in a node, by `sizes`; refuse repeated keys, bombs and cycles."""
    import yaml

    line = node.start_mark.line + 1
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise failure(path, "a YAML alias contains itself", line)
        return sizes[id(node)]
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_inspect(path, item, sizes, repeated_keys=repeated_keys) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        if not repeated_keys:
            _refuse_repeated_keys(path, node)
        size += sum(
            _inspect(path, value, sizes, repeated_keys=repeated_keys) for _, value in node.value
        )
    if size > MOST_NODES:
        what = f"YAML aliases expand to more than {MOST_NODES:,} values; write out those needed"
        raise failure(path, what, line)
    sizes[id(node)] = size
    return size


def _refuse_repeated_keys(path: Path, node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        name = (key.tag, str(key.value))
        if name in seen:
            what = f"the key '{key.value}' appears twice in one mapping"
            raise failure(path, what, key.start_mark.line + 1)
        seen.add(name)


MOST_ROWS: Final = 500_000


def csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, with their line numbers; InputError names the line."""
    reader = csv.reader(io.StringIO(read_text(path, LARGEST_TABLE_BYTES), newline=""), strict=True)
    rows = ((reader.line_num, row) for row in reader if any(map(str.strip, row)))
    try:
        found = list(islice(rows, MOST_ROWS + 1))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not CSV: {error}") from None
    if len(found) > MOST_ROWS:
        raise InputError(f"{path}: more than {MOST_ROWS:,} rows; keep the rows that count")
    return found
