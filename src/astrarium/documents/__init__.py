"""Reading and writing of the user's documents: YAML, TOML and JSON files.

`load` gives typed data (a `msgspec.Struct` checks it), `read` plain data. A mistake in a file is
one `InputError` of the form "file:line: key: expected X, got Y".

`parsing` turns text into data and finds the line of a key, `schema` explains what a schema refuses.
The parsers are imported only when a document is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from astrarium.documents import parsing
from astrarium.errors import InputError

__all__ = [
    "check_values",
    "checked",
    "line_of",
    "load",
    "make_folder",
    "read",
    "write_atomic",
    "write_atomic_bytes",
]

T = TypeVar("T")


def load(path: Path, schema: type[T]) -> T:
    """Read a document and check it against `schema`, a `msgspec.Struct` or a container of them."""
    import msgspec

    from astrarium.documents.schema import explain

    text, data = parsing.parse(path)
    try:
        # Only YAML has keys that are not text; elsewhere the key "8" may stand for the number.
        str_keys = parsing.format_of(path) is not parsing.Format.YAML
        return msgspec.convert(data, schema, str_keys=str_keys)
    except msgspec.ValidationError as error:
        key, what = explain(str(error), data, schema)
        # Checks across keys put the place into their text.
        line = parsing.line_of(path, text, key or parsing.key_named_in(what))
        raise parsing.failure(path, what, line, key) from None


def checked(data: object, schema: type[T], name: str) -> T:
    """The same for data that is no file; complaints call it `name`, and have no lines."""
    import msgspec

    from astrarium.documents.schema import explain

    check_values(data, name)
    try:
        return msgspec.convert(data, schema, str_keys=True)
    except msgspec.ValidationError as error:
        key, what = explain(str(error), data, schema)
        raise parsing.failure(Path(name), what, None, key) from None


def check_values(data: object, name: str) -> None:
    """Refuse what no file may hold: nesting too deep, numbers that are not finite."""
    for key, value in parsing.unbounded(Path(name), data):
        raise parsing.failure(Path(name), f"expected a finite number, got {value}", None, key)


def read(path: Path) -> object:
    """Read a document as plain dictionaries, lists and scalars."""
    return parsing.parse(path)[1]


def line_of(path: Path, *key: str | int) -> int | None:
    """The line of a key in a document that has been read; for complaints beyond a schema."""
    return parsing.line_of(path, path.read_text(encoding="utf-8"), key)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if path.is_file() else error.strerror
        raise InputError(f"cannot write {path}: {why}; choose another place") from None


def write_atomic(path: Path, text: str) -> None:
    """Write `text` under a temporary name and rename it, so that nothing half-written stays."""
    write_atomic_bytes(path, text.encode("utf-8"))


def write_atomic_bytes(path: Path, content: bytes) -> None:
    """The same for a file that is no text."""
    target = path.resolve()  # a symbolic link stays, and what it points to is replaced
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "not a regular file"
        raise InputError(f"cannot write {path}: it is {kind}; name a file")
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        try:
            temporary.write_bytes(content)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except FileNotFoundError:
        raise InputError(f"cannot write {path}: there is no folder {path.parent}") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from None
