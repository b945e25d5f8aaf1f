"""Notes on layers whose measured times do not fit the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from astrarium.cost.measured import nearest_measured
from astrarium.model.blocks import CustomBlock, Model, Timings
from astrarium.search.plan import Plan


def measured_notes(model: Model, plan: Plan) -> tuple[str, ...]:
    """What stands in for seconds that a model file lacks for the best plan, by GPU type."""
    parts = [part.timings for part in (*model.kinds, model.head) if part.timings]
    return tuple(
        note
        for gpu in (plan.gpus if parts else ())
        for note in (
            *_of_type(gpu, parts),
            *_of_degree(gpu, plan.strategy.tp, parts),
            *_free(gpu, model),
        )
    )


def _of_type(gpu: str, parts: Sequence[Timings]) -> Iterator[str]:
    lacking = sum(gpu not in timings for timings in parts)
    if lacking:
        what = _some(lacking, len(parts))
        yield f"{what} not measured on {gpu}: there they are predicted without a correction"


def _of_degree(gpu: str, degree: int, parts: Sequence[Timings]) -> Iterator[str]:
    measured = [timings[gpu] for timings in parts if gpu in timings]
    lacking = [by_degree for by_degree in measured if degree not in by_degree]
    if lacking:
        at = np.array(degree)
        instead = {sorted(degrees)[int(nearest_measured(degrees, at))] for degrees in lacking}
        taken = " or ".join(map(str, sorted(instead)))
        what = _some(len(lacking), len(parts))
        yield f"{what} not measured on {gpu} with tp {degree}: those with tp {taken} are taken"


def _some(lacking: int, measured: int) -> str:
    return f"the seconds of {'' if lacking == measured else 'some '}layers are"


def _free(gpu: str, model: Model) -> Iterator[str]:
    """Layers known by seconds alone, which other types know nothing about."""
    names = [
        kind.name
        for kind in model.kinds
        if isinstance(kind, CustomBlock)
        and kind.timings
        and gpu not in kind.timings
        and not kind.forward_flops
    ]
    if names:
        what = ", ".join(dict.fromkeys(names))
        yield f"{what}: neither seconds on {gpu} nor forward_flops are stated; priced as no work"
