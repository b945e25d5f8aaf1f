"""The catalog of models: names, aliases, the config each is built from, and its known size.

The number of parameters is a fact of its own, which tests compare with the built model. The user's
entries (`[models.NAME]`) need only `config`. `astrarium.model` builds the models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from astrarium.catalog import overrides, records
from astrarium.errors import InputError, did_you_mean, in_shell, instead

_TABLES_KEPT = 4
_TEXTS = ("source", "date", "method", "published", "note", "doubts")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model; `parameters` is None only where the user's file does not state it."""

    name: str
    aliases: tuple[str, ...]
    config: Mapping[str, object] = field(hash=False)
    source: str
    date: str
    parameters: int | None
    active_parameters: int | None  # of models with experts, where known
    method: str  # how `parameters` was obtained
    published: str  # the size as its authors print it
    note: str
    doubts: str
    place: str  # what error messages call the entry

    @property
    def family(self) -> str:
        return str(self.config.get("model_type", "model-file"))


def model_entries() -> tuple[ModelEntry, ...]:
    """Return all entries, the user's included, in the order of the catalog."""
    return tuple(_table(overrides.stamps())[0].values())


def model_names() -> tuple[str, ...]:
    return tuple(_table(overrides.stamps())[0])


def is_model_name(name: str) -> bool:
    """Tell whether the catalog knows a model by this name or alias."""
    return bool(_candidates(name))


def find_model_entry(name: str) -> ModelEntry:
    """Return the model of this name or alias; case, '-', '_', ' ' and '/' do not matter."""
    table, _ = _table(overrides.stamps())
    found = _candidates(name)
    if len(found) > 1:
        may_be = f"'{name}' may be {' or '.join(found)}; write one of these names exactly"
        raise InputError(may_be, repairs=instead("", found))
    if not found:
        labels = [label for entry in table.values() for label in (entry.name, *entry.aliases)]
        raise InputError(
            f"unknown model '{name}'{did_you_mean(name, labels)}"
            + in_shell(
                "; `astrarium catalog models` lists all, and a path to a config.json works too"
            ),
            repairs=instead(name, labels),
        )
    return table[found[0]]


def _candidates(name: str) -> tuple[str, ...]:
    table, names = _table(overrides.stamps())
    return (name,) if name in table else names.get(_key(name), ())


def _key(name: str) -> str:
    return re.sub(r"[\s_/-]+", "", name.lower())


@lru_cache(maxsize=_TABLES_KEPT)
def _table(
    files: tuple[overrides.Stamp, ...],
) -> tuple[dict[str, ModelEntry], dict[str, tuple[str, ...]]]:
    """Return the entries by name, and the names by normalised label (two: ambiguous)."""
    table = {
        name: _entry(name, values, f"catalog model '{name}'") for name, values in _builtin().items()
    }
    values_of: dict[str, Mapping[str, object]] = dict(_builtin())
    for given in overrides.entries(overrides.Section.MODELS, files):
        known = _index(table).get(_key(given.name), ())
        name = given.name if given.name in table or len(known) != 1 else known[0]
        values_of[name] = _overlaid(values_of.get(name, {}), given)
        table[name] = _entry(name, values_of[name], given.place)
    return table, _index(table)


def _overlaid(before: Mapping[str, object], given: overrides.Entry) -> dict[str, object]:
    """Let the user's keys replace those of an entry; a new config has a new size."""
    kept = {} if "config" in given.values else before
    aliases = {"aliases": before["aliases"]} if "aliases" in before else {}
    return {**aliases, **kept, "source": str(given.file), "date": "", **given.values}


@lru_cache(maxsize=1)
def _builtin() -> dict[str, dict[str, object]]:
    return records.read_table("models.json")


def _index(table: Mapping[str, ModelEntry]) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for entry in table.values():
        for key in dict.fromkeys(_key(label) for label in (entry.name, *entry.aliases)):
            names[key] = (*names.get(key, ()), entry.name)
    return names


def _entry(name: str, values: Mapping[str, object], place: str) -> ModelEntry:
    known = ("aliases", "config", "parameters", "active_parameters", *_TEXTS)
    for key in values:
        if key not in known:
            hint = did_you_mean(key, known)
            raise InputError(f"{place}: {key}: unknown key{hint}; known keys: {', '.join(known)}")
    config = values.get("config")
    if not isinstance(config, Mapping):
        raise InputError(f"{place}: config: expected the content of a config.json, got {config!r}")
    aliases = values.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InputError(f"{place}: aliases: expected a list of names, got {aliases!r}")
    return ModelEntry(
        name=name,
        aliases=tuple(aliases),
        config=config,
        parameters=_count(values, "parameters", place),
        active_parameters=_count(values, "active_parameters", place),
        place=place,
        **{key: str(values.get(key, "")) for key in _TEXTS},
    )


def _count(values: Mapping[str, object], key: str, place: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{place}: {key}: expected a whole number of at least 1, got {value!r}")
    return value
