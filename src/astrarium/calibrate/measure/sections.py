"""The sections of a calibration, and the order in which their cases run.

Shapes are those that dense and expert layers of real models have under tensor parallelism, from
0.3 B to 400 B parameters, sampled with fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from astrarium.calibrate.measure.cases import Case, Scale
from astrarium.calibrate.measure.cases_layers import host_cases, layer_cases, sustained_cases
from astrarium.calibrate.measure.cases_matrix import (
    attention_cases,
    dtype_cases,
    gemm_cases,
    grouped_cases,
)
from astrarium.calibrate.measure.cases_memory import (
    optimizer_cases,
    pointwise_cases,
    stream_cases,
    vocabulary_cases,
)
from astrarium.calibrate.measure.cases_processor import processor_cases
from astrarium.errors import InputError, did_you_mean

# Each lists the cases of a scale for a kind of device, "cuda" or "cpu".
ON_ONE_DEVICE: Final[dict[str, Callable[[Scale, str], Iterable[Case]]]] = {
    "gemm": gemm_cases,
    "attention": attention_cases,
    "pointwise": pointwise_cases,
    "vocabulary": vocabulary_cases,
    "stream": stream_cases,
    "optimizer": optimizer_cases,
    "host": host_cases,
    "layer": layer_cases,
    "grouped": grouped_cases,
    "dtype": dtype_cases,
    "sustained": sustained_cases,
    "processor": processor_cases,
}
HEATING: Final = "sustained"  # runs after the others: they should not meet a card it has heated
COLLECTIVES: Final = "collectives"  # needs several devices, see `collectives`
SECTIONS: Final = (*ON_ONE_DEVICE, COLLECTIVES)
QUICK_SHARE: Final = 5  # a quick run takes every fifth case


def check_sections(names: Sequence[str]) -> tuple[str, ...]:
    """The named sections in the order they run."""
    for name in names:
        if name not in SECTIONS:
            raise InputError(
                f"unknown section '{name}'{did_you_mean(name, SECTIONS)}; "
                f"there are {', '.join(SECTIONS)}"
            )
    return tuple(name for name in SECTIONS if name in names)


def list_cases(names: Sequence[str], scale: Scale, device: str) -> list[Case]:
    """The cases of some sections on one device of a kind, collectives left out.

    Sections are dealt evenly, so that a run that ends early has some of each, and no section
    meets the card in a state of its own.
    """
    lists = {n: list(ON_ONE_DEVICE[n](scale, device)) for n in names if n in ON_ONE_DEVICE}
    hot = lists.pop(HEATING, [])
    return [*dealt([_thinned(cases, scale) for cases in lists.values()]), *hot]


def _thinned(cases: list[Case], scale: Scale) -> list[Case]:
    """For a quick run every fifth case of each operator, role and kernel, the first included."""
    if not scale.is_thinned:
        return cases
    seen: dict[tuple[str, str, str], int] = {}
    kept = []
    for case in cases:
        kind = (case.operator, str(case.shape.get("role")), str(case.shape.get("kernel")))
        if seen.setdefault(kind, 0) % QUICK_SHARE == 0:
            kept.append(case)
        seen[kind] += 1
    return kept


def dealt(lists: Sequence[Sequence[Case]]) -> list[Case]:
    """One list in which every given list is spread evenly."""
    placed = [
        ((index + 0.5) / len(cases), order, case)
        for order, cases in enumerate(lists)
        for index, case in enumerate(cases)
    ]
    return [case for _, _, case in sorted(placed, key=lambda entry: entry[:2])]
