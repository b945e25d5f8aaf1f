"""In what a plan differs from another, in the keys of a strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import Final

from astrarium.export.features import layers_of_stages
from astrarium.export.header import gpus_words
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, Strategy

# Told apart, or by the layers of stages.
_APART: Final = ("stages", "overlap", "split")


def differences(asked: Job, found: Job) -> Iterator[str]:
    """What is another than asked for."""
    before, after = asked.strategy, found.strategy
    yield from _changed("GPUs", gpus_words(asked), gpus_words(found))
    yield from _changed("precision", asked.workload.precision, found.workload.precision)
    names = [field.name for field in fields(Strategy) if field.name not in _APART]
    for name in names:
        yield from _changed(name, getattr(before, name), getattr(after, name))
    for name in (field.name for field in fields(Overlap)):
        old, new = getattr(before.overlap, name), getattr(after.overlap, name)
        yield from _changed(f"overlap.{name}", old, new)
    yield from _stages(before, after)
    yield from _on_demand(asked, found)


def _changed(name: str, old: object, new: object) -> Iterator[str]:
    if old != new:
        yield f"{name} {_words(old)} -> {_words(new)}"


def _stages(before: Strategy, after: Strategy) -> Iterator[str]:
    """Layers, if the same number of stages is cut differently; pools, if there are several."""
    old, new = (layers_of_stages(strategy) for strategy in (before, after))
    if len(old) == len(new):
        yield from _changed("layers of stages", "+".join(map(str, old)), "+".join(map(str, new)))
    each = [_pools(strategy) for strategy in (before, after)]
    if any(len(pools) > 1 for pools in each):
        yield from _changed("pools of stages", *map(", ".join, each))


def _pools(strategy: Strategy) -> list[str]:
    """Those of all stages in their order; once for neighbours that are alike."""
    each = (" and ".join(dict(stage.pools)) for stage in strategy.ordered_stages)
    return [names for names, _ in groupby(each)]


def _on_demand(asked: Job, found: Job) -> Iterator[str]:
    """Spot nodes that are none any more."""
    spot = sum(asked.plan.run.spot_gpus.values()) if asked.plan.run else 0
    if spot and not (found.plan.run and sum(found.plan.run.spot_gpus.values())):
        yield f"{spot} GPUs as spot -> on demand"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, Recompute):
        return str(value)
    if value.granularity is Granularity.NONE:
        return "none"
    parts = [value.granularity.value, value.method.value if value.method is not Method.NONE else ""]
    parts += [str(value.layers) if value.layers else "", ",".join(value.modules)]
    return " ".join(part for part in parts if part)
