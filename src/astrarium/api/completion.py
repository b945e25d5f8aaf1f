"""The values with which a shell completes flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def complete_model(incomplete: str) -> list[str]:
    from astrarium.catalog.models import model_names

    return _completed(incomplete, model_names())


def complete_gpus(incomplete: str) -> list[str]:
    """Types of GPU, also after a comma; the count stays with the user."""
    before, comma, last = incomplete.rpartition(",")
    if ":" in last:
        return []
    return [f"{before}{comma}{name}:" for name in complete_gpu(last)]


def complete_gpu(incomplete: str) -> list[str]:
    from astrarium.catalog import gpus

    names = [gpu.aliases[0] if gpu.aliases else gpu.name for gpu in gpus()]
    return _completed(incomplete, names)


def complete_instance(incomplete: str) -> list[str]:
    from astrarium.catalog import instances

    return _completed(incomplete, [instance.name for instance in instances()])


def complete_clouds(incomplete: str) -> list[str]:
    """Clouds of the price book, also after a comma."""
    from astrarium.catalog.prices import cloud_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _completed(last, ["all", *cloud_names()])]


def complete_runtime(incomplete: str) -> list[str]:
    from astrarium.catalog.runtimes import runtime_names

    return _completed(incomplete, runtime_names())


def complete_target(incomplete: str) -> list[str]:
    from astrarium.export.target import target_names

    return [name for name in target_names() if name.startswith(incomplete.lower())]


def _completed(incomplete: str, names: Iterable[str]) -> list[str]:
    """Names that go on from what was typed, whatever its case; the typed part stays."""
    typed = incomplete.lower()
    return [incomplete + name[len(typed) :] for name in names if name.lower().startswith(typed)]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Completes a flag that takes one of a few words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
