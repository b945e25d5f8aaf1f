"""Programs timed on cores of this machine, each rank held to its device's share of one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from astrarium.errors import InputError
from astrarium.runtime.execute import Progress, step_seconds
from astrarium.runtime.job import Device
from astrarium.runtime.measure import KEEP_MEMORY, TIMED_STEPS, WARM_UP_STEPS, cores_for, slowed
from astrarium.runtime.spmd.job import ProgramSettings, run_programs

if TYPE_CHECKING:
    from astrarium.spmd.program import ProgramDocument

SCHEMA: Final = "astrarium.measured-program/1"


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """A step as it was timed beside its prediction."""

    schema: str
    factory: str
    shares_of_cores: tuple[float, ...]
    predicted_seconds: float
    measured_seconds: float
    measured_range_seconds: tuple[float, float]

    @property
    def error(self) -> float:
        """The error of the prediction, relative to the measurement."""
        return self.predicted_seconds / self.measured_seconds - 1.0


def measure_program(
    document: ProgramDocument, timeout_seconds: float, progress: Progress
) -> MeasuredProgram:
    """Train as the program says, on a core for each of its ranks; nothing is compared."""
    pools = {pool.name: pool.gpu for pool in document.cluster.pools}
    strangers = sorted({gpu.name for gpu in pools.values() if not gpu.is_processor})
    if strangers:
        raise InputError(
            f"--measure: the program is for {', '.join(strangers)}, and its times are not those of"
            " a processor; make one for cores: --gpus cpu:1,cpu@50%:1 --profile FILE, FILE of"
            " `astrarium calibrate --device cpu`"
        )
    shares = tuple(pools[device.pool].share for device in document.devices)
    (reports,) = run_programs(
        [document],
        Device.CPU,
        ProgramSettings(steps=WARM_UP_STEPS + TIMED_STEPS, compare=False),
        timeout_seconds=timeout_seconds,
        progress=progress,
        environment={"CORES": ",".join(map(str, cores_for(len(shares)))), **KEEP_MEMORY},
        beside=partial(slowed, shares=shares),
    )
    seconds = step_seconds(reports)[WARM_UP_STEPS:]
    return MeasuredProgram(
        SCHEMA,
        document.source.factory,
        shares,
        document.program.seconds,
        statistics.median(seconds),
        (min(seconds), max(seconds)),
    )
