"""Finds the function that makes a module and its inputs: "examples/bert.py:make".

The function is called with the batch and sizes as keywords and gives `(module, inputs)`. Inputs are
a dictionary of tensors by the names under which the module's `forward` takes them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from astrarium.errors import InputError, did_you_mean

FORM: Final = '"path/to/file.py:function" or "package.module:function"'
NAMED_FACTORY: Final = "astrarium.runtime.spmd.hf:make"  # of models that are called by a name
Factory = Callable[..., tuple[Any, dict[str, Any]]]


def called(factory: str, sizes: Mapping[str, Any]) -> str:
    """The usual name of a module: its function, or the model that this project makes."""
    return str(sizes["model"]) if factory == NAMED_FACTORY and "model" in sizes else factory


def load_factory(name: str) -> Factory:
    """Return the named function, wrapped so that what it gives is checked."""
    place, colon, function_name = name.rpartition(":")
    if not colon or not place or not function_name:
        raise InputError(f"factory {name!r}: give it as {FORM}")
    module = _load_file(name, Path(place)) if place.endswith(".py") else _load_module(name, place)
    function = getattr(module, function_name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        hint = did_you_mean(function_name, known) or _functions(known)
        raise InputError(f"factory {name!r}: {place} has no {function_name!r}{hint}")
    if not callable(function):
        raise InputError(
            f"factory {name!r}: {function_name!r} is {_article(function)}, not a function"
        )
    return _checked(name, function)


def _functions(known: list[str]) -> str:
    return f"; its functions: {', '.join(known)}" if known else "; it has no functions"


def _load_file(name: str, path: Path) -> ModuleType:
    if not os.path.isfile(path):
        siblings = (
            [str(other) for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        )
        hint = did_you_mean(str(path), siblings)
        raise InputError(f"factory {name!r}: no file {str(path)!r}{hint}")
    spec = importlib.util.spec_from_file_location(f"astrarium_factory_{path.stem}", path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        said = f"{_words(error)}{_way_to_get(error)}"
        raise InputError(f"factory {name!r}: {path} cannot be loaded: {said}") from error
    return module


def _way_to_get(error: Exception) -> str:
    """The way to install a missing package."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    return f"; install it: pip install {error.name.partition('.')[0]}"


def _load_module(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except Exception as error:
        raise InputError(
            f"factory {name!r}: module {place!r} cannot be loaded: {_words(error)}; give {FORM}"
        ) from error


def _checked(name: str, function: Callable[..., Any]) -> Factory:
    def make(*args: object, **sizes: object) -> tuple[Any, dict[str, Any]]:
        _check_sizes(name, function, args, sizes)
        try:
            made = function(*args, **sizes)
        except InputError:  # it says itself what to do
            raise
        except Exception as error:
            raise InputError(f"factory {name!r} failed: {_words(error)}") from error
        return _check_made(name, made)

    return make


def _check_sizes(
    name: str, function: Callable[..., Any], args: tuple[object, ...], sizes: Mapping[str, object]
) -> None:
    """Name a misspelt size, instead of the interpreter's words for it."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # what is not written in Python may not tell
        return
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for size in sizes:
            if size not in signature.parameters:
                known = [key for key in signature.parameters if key != "batch"]
                hint = did_you_mean(size, known) or f"; its sizes: {', '.join(known) or 'none'}"
                raise InputError(f"factory {name!r} takes no size {size!r}{hint}")
    if not signature.parameters:
        raise InputError(f"factory {name!r} takes nothing; its first parameter must be the batch")
    try:
        signature.bind(*args, **sizes)
    except TypeError as error:
        raise InputError(f"factory {name!r}: {error}") from error


def _check_made(name: str, made: object) -> tuple[Any, dict[str, Any]]:
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError(
            f"factory {name!r} gave {_article(made)}; it must give (module, inputs): a torch "
            "module and a dictionary of tensors"
        )
    module, inputs = made
    if not hasattr(module, "named_parameters"):
        raise InputError(f"factory {name!r} gave {_article(module)} as its module")
    if not isinstance(inputs, dict) or not inputs:
        raise InputError(
            f"factory {name!r} gave {_article(inputs)} as inputs; give a dictionary of tensors"
        )
    for key, value in inputs.items():
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            raise InputError(
                f"factory {name!r}: input {key!r} is {_article(value)}, not a tensor; settings "
                "that are no tensors belong into the module"
            )
    return module, inputs


def _article(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple | list | dict) and not value:
        return f"an empty {type(value).__name__}"
    return f"a value of type {type(value).__name__}"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
