"""The profile of a cluster: learned factors in a file, `astrarium.tuning/1`.

The file says what was learned from which runs, so that it can be read and judged; `factors` is
what the cost model takes. A file is checked whole before anything of it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from astrarium import __version__, documents
from astrarium.calibrate.learn.factors import Errors, Factor, Learned
from astrarium.calibrate.learn.measurement import MOST_RESERVE_SHARE, PLAUSIBLE, SetAside
from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import find_runtime, runtime_names
from astrarium.cost.tuning import Operators, Tuning
from astrarium.errors import InputError
from astrarium.value import Value

SCHEMA: Final = "astrarium.tuning/1"
MOST_SECONDS: Final = 3600.0


class Factors(Value, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Time ratios, and what is added in seconds and bytes."""

    compute: float = 1.0
    intra_link: float = 1.0
    inter_link: float = 1.0
    attention: float = 1.0
    host: float = 1.0
    step_seconds: float = 0.0
    memory_bytes: float = 0.0


class ClusterProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Factors learned from runs of one GPU type under one runtime."""

    schema: str
    date: str
    astrarium: str
    gpu: str
    runtime: str
    origin: tuple[str, ...]
    factors: Factors
    learned: tuple[Factor, ...] = ()
    time_error: Errors | None = None
    memory_error: Errors | None = None
    set_aside: tuple[SetAside, ...] = ()

    @property
    def tuning(self) -> Tuning:
        stated = asdict(self.factors)
        operators = {Operators.ATTENTION.value: stated.pop("attention")}
        return Tuning(", ".join(self.origin), operators=operators, **stated)


def profile_of(
    learned: Learned, origin: Sequence[str], also_aside: Sequence[SetAside] = ()
) -> ClusterProfile:
    tuning = learned.tuning
    return ClusterProfile(
        schema=SCHEMA,
        date=date.today().isoformat(),
        astrarium=__version__,
        gpu=learned.gpu,
        runtime=learned.runtime,
        origin=tuple(origin),
        factors=Factors(
            **{
                name: getattr(tuning, name)
                for name in Factors.__struct_fields__
                if name != "attention"
            },
            attention=tuning.of(Operators.ATTENTION),
        ),
        learned=learned.factors,
        time_error=learned.time,
        memory_error=learned.memory,
        set_aside=(*also_aside, *learned.set_aside),
    )


def to_dict(profile: ClusterProfile) -> dict[str, Any]:
    """The profile as its file has it."""
    return msgspec.to_builtins(profile)


def load_profile(path: Path) -> ClusterProfile:
    """Read a profile; InputError names the place of what is damaged, foreign or impossible."""
    content = documents.read(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        found = f"its schema is {schema!r}" if schema else "it states no schema"
        raise InputError(
            f"{path}: not a profile of a cluster ({found}, expected '{SCHEMA}'); `astrarium"
            " calibrate --from TABLE.csv` writes one"
        )
    profile = documents.load(path, ClusterProfile)
    _check(path, profile)
    return profile


def _check(path: Path, profile: ClusterProfile) -> None:
    try:
        gpu = find_gpu(profile.gpu)
    except InputError as error:
        line = documents.line_of(path, "gpu")
        raise InputError(f"{path}:{line}: gpu: {error}") from None
    if profile.runtime not in runtime_names():
        known = ", ".join(runtime_names())
        raise InputError(f"{path}: runtime: unknown '{profile.runtime}'; known: {known}")
    limits = {
        **PLAUSIBLE,
        "step_seconds": (0.0, MOST_SECONDS),
        # No less than nothing is reserved, and no more than learning itself takes for true.
        "memory_bytes": (
            -find_runtime(profile.runtime).reserved_bytes,
            MOST_RESERVE_SHARE * gpu.memory_bytes,
        ),
    }
    for name, (low, high) in limits.items():
        value = getattr(profile.factors, name)
        if not (isfinite(value) and low <= value <= high):
            line = documents.line_of(path, "factors", name)
            raise InputError(
                f"{path}:{line}: factors.{name}: {value:g} is outside {low:g} to {high:g};"
                " learn the profile anew"
            )
