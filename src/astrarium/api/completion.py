"""The values with which a shell completes flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

Completer = Callable[[str], list[str]]


def _names(place: str, *also: str) -> Completer:
    """Completes names that a function lists, "module:function", imported when it is needed."""
    module, _, function = place.partition(":")

    def complete(incomplete: str) -> list[str]:
        names = getattr(import_module(f"astrarium.{module}"), function)()
        return _completed(incomplete, (*names, *also))

    return complete


complete_model = _names("catalog.models:model_names")
complete_runtime = _names("catalog.runtimes:runtime_names")
complete_planned_runtime = _names("catalog.runtimes:planned_runtimes", "all")
complete_target = _names("export.target:target_names")


def complete_gpus(incomplete: str) -> list[str]:
    """Types of GPU, also after a comma; the count stays with the user."""
    before, comma, last = incomplete.rpartition(",")
    return [] if ":" in last else [f"{before}{comma}{name}:" for name in complete_gpu(last)]


def complete_gpu(incomplete: str) -> list[str]:
    from astrarium.catalog import gpus

    return _completed(incomplete, (gpu.aliases[0] if gpu.aliases else gpu.name for gpu in gpus()))


def complete_instance(incomplete: str) -> list[str]:
    from astrarium.catalog import instances

    return _completed(incomplete, (instance.name for instance in instances()))


def complete_clouds(incomplete: str) -> list[str]:
    """Clouds of the price book, also after a comma."""
    from astrarium.catalog.prices import cloud_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _completed(last, ["all", *cloud_names()])]


def _completed(incomplete: str, names: Iterable[str]) -> list[str]:
    """Names that go on from what was typed, in either case; the typed part stays."""
    typed = incomplete.lower()
    return [incomplete + name[len(typed) :] for name in names if name.lower().startswith(typed)]


def one_of(*words: str) -> Completer:
    """Completes a flag that takes one of a few words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]
