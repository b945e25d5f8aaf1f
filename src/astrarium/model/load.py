"""Loads a model from a catalog name, a config.json, its folder, or a model file.

A catalog name wins over a file of the same name in the current folder (write `./name` for that).
Files are recognised by their content: a list `layers` makes a model file, `model_type` a config.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from astrarium.catalog.models import ModelEntry, find_model_entry, is_model_name, model_names
from astrarium.errors import InputError, did_you_mean
from astrarium.model.blocks import Model
from astrarium.model.huggingface import as_type, from_config

CONFIG_FILE = "config.json"
SUFFIXES = (".json", ".yaml", ".yml", ".toml")


def load_model(reference: str) -> Model:
    """Return the model of a catalog name, a config.json, the folder of one, or a model file."""
    if not reference or is_model_name(reference):
        return model_of_entry(find_model_entry(reference))
    path = os.path.expanduser(reference)
    if os.path.isdir(path):
        return _from_folder(Path(path))
    if os.path.exists(path):
        return _from_file(Path(path), Path(path).stem)
    if "/" in reference or "\\" in reference or reference.lower().endswith(SUFFIXES):
        raise InputError(
            f"no such file: '{reference}'; expected a config.json or a model file"
            f"{_hub_hint(reference)}"
        )
    return model_of_entry(find_model_entry(reference))


def load_as(reference: str, kind: str) -> Model:
    """The model of a config.json, or of the folder of one, read as if it were of another type."""
    from astrarium import documents

    path = Path(os.path.expanduser(reference))
    name = path.resolve().name if path.is_dir() else path.stem
    path = path / CONFIG_FILE if path.is_dir() else path
    if not path.is_file():
        raise InputError(
            f"--as {kind}: '{reference}' is no config.json, and only such a file is read as another"
            " type; leave --as out"
        )
    values = documents.read(path)
    if not isinstance(values, Mapping):
        raise InputError(f"{path}: expected a mapping with 'model_type', got a list")
    stated = values.get("model_type")
    model = _build(as_type(values, kind, str(path)), name, str(path), path)
    note = f"--as {kind}: {path} says model_type {stated!r} and is read as {kind}; check its size"
    return replace(model, left_out=(f"{note}: {model.parameters:,} parameters", *model.left_out))


def model_of_entry(entry: ModelEntry) -> Model:
    return _build(entry.config, entry.name, entry.place, None)


def model_of_config(values: Mapping[str, object], name: str, label: str) -> Model:
    """Build the model of the content of a config.json or of a model file."""
    return _build(values, name, label, None)


def _hub_hint(reference: str) -> str:
    """A hint for the name of a model on a hub: nothing is downloaded."""
    _, slash, name = reference.partition("/")
    if not slash or "/" in name or name.lower().endswith(SUFFIXES):
        return ""
    if is_model_name(name):
        return f"; the catalog knows '{name}'"
    known = f"a name of `astrarium catalog models`{did_you_mean(name, model_names())}"
    return f"; for a model of a hub, give its config.json or {known}"


def _from_folder(folder: Path) -> Model:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"{folder}: is a folder without {CONFIG_FILE}; name a file in it")
    return _from_file(path, folder.resolve().name)


def _from_file(path: Path, name: str) -> Model:
    from astrarium import documents

    values = documents.read(path)
    if not isinstance(values, Mapping):
        raise InputError(f"{path}: expected a mapping with 'layers' or 'model_type', got a list")
    return _build(values, name, str(path), path)


def _build(values: Mapping[str, object], name: str, label: str, path: Path | None) -> Model:
    return replace(_described(values, name, label, path), config=values)


def _described(values: Mapping[str, object], name: str, label: str, path: Path | None) -> Model:
    if "model_type" in values:
        return from_config(values, name, label, path)
    if "layers" not in values:
        what = "neither 'model_type' (a config.json) nor 'layers' (a model file) is there"
        raise InputError(f"{label}: {what}")
    from astrarium.model.modelfile import load_model_file, model_from_mapping

    # From the file itself complaints name the line.
    return model_from_mapping(values, name, label) if path is None else load_model_file(path)
