"""The document of a program, with what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from astrarium.spmd.price.compute import MeasuredOperators
from astrarium.spmd.price.devices import Devices
from astrarium.spmd.price.programs import price_program
from astrarium.spmd.program import (
    MEMORY_CAUSES,
    DeviceMemoryPart,
    DevicePart,
    DeviceProgram,
    ProgramDocument,
    SourcePart,
    SynthesisPart,
)

NOTHING: Final[Mapping[str, float]] = {}


def document_of(
    source: SourcePart,
    devices: Devices,
    program: DeviceProgram,
    search: SynthesisPart,
    baselines: Mapping[str, float] = NOTHING,
    notes: tuple[str, ...] = (),
    measured: MeasuredOperators | None = None,
) -> ProgramDocument:
    """The document of a program, with its seconds and bytes by cause."""
    price = price_program(program, devices, optimizer=source.optimizer, measured=measured)
    causes = {cause: getattr(price.memory, cause) for cause in MEMORY_CAUSES}
    memory = []
    for rank in range(devices.count):
        sizes = {cause: float(values[rank]) for cause, values in causes.items()}
        memory.append(
            DeviceMemoryPart(rank, sum(sizes.values()), float(devices.room[rank]), **sizes)
        )
    return ProgramDocument(
        source,
        devices.cluster,
        tuple(DevicePart(one.rank, one.pool, one.gpu.name, one.node) for one in devices.devices),
        replace(program, seconds=price.seconds),
        price.breakdown,
        tuple(memory),
        search,
        dict(baselines),
        notes,
    )
