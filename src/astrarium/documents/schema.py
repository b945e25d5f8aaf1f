"""Complaints of a schema, in words for the person who wrote the document.

msgspec reports one message with a path such as "$.pools[0].nodes". Here the path is resolved
against the data, and the message completed with what msgspec leaves out: the value that was
found, the keys that exist, the choices that are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from astrarium.documents.parsing import KeyPath
from astrarium.errors import did_you_mean

_LONGEST_ECHO = 60
_WORDS = {"object": "mapping", "array": "list", "null": "nothing", "str": "text", "bool": "yes/no"}

Kind: TypeAlias = inspect.Type
_type_info = lru_cache(16)(inspect.type_info)  # milliseconds for a large schema


def explain(message: str, data: object, schema: object) -> tuple[KeyPath, str]:
    """Turn msgspec's message into the key to show and the sentence to say about it."""
    match = re.fullmatch(r"(.*) - at `(key` in `)?(\$[^`]*)`", message, flags=re.DOTALL)
    what, in_key, place = match.groups() if match else (message, None, "$")
    key = _resolve(message, place, data, schema)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, flags=re.DOTALL):
        known = _known_keys(schema, data, key)
        hint = did_you_mean(unknown[1], known)
        return (*key, unknown[1]), f"unknown key{hint}; known keys: {', '.join(known)}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return key, f"the required key '{missing[1]}' is missing"
    value = _value_at(data, key)
    if what.startswith("Invalid ") and (choices := _choices(schema, data, key)):
        hint = did_you_mean(str(value), choices)
        return key, f"expected one of {', '.join(choices)}, got {_echo(value)}{hint}"
    if not what.startswith("Expected "):
        return key, what
    expected = what.partition(", got ")[0].replace("`", "").replace("Expected", "expected")
    expected = re.sub(r"\w+", lambda word: _WORDS.get(word[0], word[0]), expected)
    return key, f"{expected} as key" if in_key else f"{expected}, got {_echo(value)}"


def _resolve(message: str, place: str, data: object, schema: object) -> KeyPath:
    """Read "$.pools[0].nodes"; "[...]" stands for some key of a mapping and is looked for."""
    key: KeyPath = ()
    for name, index, some_key in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])", place):
        if not some_key:
            key = (*key, name or int(index))
            continue
        culprit = _culprit(message, data, key, schema)
        if culprit is None:
            return key
        key = (*key, culprit)
    return key


def _culprit(message: str, data: object, key: KeyPath, schema: Any) -> str | int | None:  # noqa: ANN401
    """Find the entry of the mapping at `key` that the message is about, by trying each alone."""
    mapping = _value_at(data, key)
    for name, value in mapping.items() if isinstance(mapping, dict) else ():
        try:
            msgspec.convert(_replaced(data, key, {name: value}), schema, str_keys=True)
        except msgspec.ValidationError as error:
            if str(error) == message:  # not of another part of the document
                return name if isinstance(name, int) else str(name)
    return None


def _replaced(data: Any, key: KeyPath, value: object) -> object:  # noqa: ANN401
    """Return `data` with another value at `key`."""
    if not key:
        return value
    copy = data.copy()
    copy[key[0]] = _replaced(data[key[0]], key[1:], value)
    return copy


def _value_at(data: Any, key: KeyPath) -> object:  # noqa: ANN401
    for part in key:
        data = data[part]
    return data


def _echo(value: object) -> str:
    """Show a value: scalars as written, containers by their kind."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else f"a list of {len(value)}"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST_ECHO else text[:_LONGEST_ECHO] + "..."


def _known_keys(schema: object, data: object, key: KeyPath) -> list[str]:
    structs = _structs(_kinds_at(schema, data, key))
    tags = [kind.tag_field for kind in structs if kind.tag_field is not None]
    return list(dict.fromkeys(tags + [f.encode_name for kind in structs for f in kind.fields]))


def _choices(schema: object, data: object, key: KeyPath) -> list[str]:
    """Return the values allowed at `key`: of an enum, of a literal, or the tags of structs."""
    found: list[object] = []
    for kind in _kinds_at(schema, data, key):
        if isinstance(kind, inspect.EnumType):
            found += [member.value for member in kind.cls]
        elif isinstance(kind, inspect.LiteralType):
            found += kind.values
    if not found and key:
        structs = _structs(_kinds_at(schema, data, key[:-1]))
        found += [kind.tag for kind in structs if kind.tag_field == key[-1]]
    return [str(value) for value in found]


def _kinds_at(schema: object, data: object, key: KeyPath) -> list[Kind]:
    """Return the alternatives that the schema offers at `key`."""
    kinds = _alternatives(_type_info(schema), data)
    for depth, part in enumerate(key, start=1):
        value = _value_at(data, key[:depth])
        children = [child for kind in kinds for child in _children(kind, part)]
        kinds = [kind for child in children for kind in _alternatives(child, value)]
    return kinds


def _alternatives(kind: Kind, value: object) -> list[Kind]:
    """Open a union; of tagged structs only the one that the value names remains, if any."""
    kinds = list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]
    if not isinstance(value, dict):
        return kinds
    tagged = [kind for kind in _structs(kinds) if kind.tag_field is not None]
    return [kind for kind in tagged if value.get(kind.tag_field) == kind.tag] or kinds


def _structs(kinds: Iterable[Kind]) -> list[inspect.StructType]:
    return [kind for kind in kinds if isinstance(kind, inspect.StructType)]


def _children(kind: Kind, part: str | int) -> list[Kind]:
    """Return the type that a container has under a key or index."""
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == part]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [kind.item_type]
    if isinstance(kind, inspect.TupleType) and isinstance(part, int):
        return list(kind.item_types[part : part + 1])
    return []
