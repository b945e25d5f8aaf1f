"""Runs of programs: settings of the ranks, their reports, and how these compare.

`run_program` starts one process for each rank on this machine. On several machines the same
worker is started by torchrun (`astrarium.runtime.spmd.worker`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from math import isfinite
from typing import TYPE_CHECKING, Final

from astrarium.errors import InputError
from astrarium.runtime.execute import EMPTY, TOLERANCE, Progress, counted, results_of, step_seconds
from astrarium.runtime.job import Device
from astrarium.runtime.launch import Beside, launch

if TYPE_CHECKING:
    from astrarium.spmd.graph import Graph
    from astrarium.spmd.program import ProgramDocument

SCHEMA: Final = "astrarium.program-run/2"
PROGRAM_FILE: Final = "program-{number}.json"  # in the folder of a run
SETTINGS_FILE: Final = "settings.json"
MODULE: Final = "astrarium.runtime.spmd.worker"
# Ranks hold their own peak and one process that of the whole model, but never at once: what is
# freed goes back to the machine, or a model of half its memory could not be compared on it.
GIVE_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
TIMEOUT_SECONDS: Final = 600.0
# So many times its own rounding a module's numbers may differ when sums are taken in another order.
MOST_ROUNDINGS: Final = 8.0


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """Settings of a run of a program; they travel as JSON."""

    steps: int = 4
    programs: int = 1  # one after another, by the same processes
    rounds: int = 1  # how often the programs take turns
    learning_rate: float = 1e-3
    clip_norm: float | None = None
    compare: bool = True  # with one process
    load: str | None = None  # checkpoints
    save: str | None = None
    watch_seconds: float = 0.0  # after every round: how long ranks find out what share they have
    share_gpus: bool = False  # ranks take turns at the GPUs there are, and exchange over gloo


USUAL: Final = ProgramSettings()


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of tensors from one process, relative to the largest number of each."""

    largest: float
    name: str
    # How far the module's own tensors are from those in double precision, at most; 0: not needed.
    rounding: float = 0.0


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank on a program; references only on rank 0."""

    job: int  # the number of its program
    rank: int
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    update_seconds: tuple[float, ...]
    parameters: int  # numbers that it holds
    peak_bytes: int
    reference_losses: tuple[float, ...] = ()
    exact_losses: tuple[float, ...] = ()  # in double precision; empty: not needed
    gradients: Difference | None = None
    buffers: Difference | None = None  # after the last step; None: no step changes any
    shares: tuple[float, ...] = ()  # of a core, by round, where that was watched


@dataclass(frozen=True, slots=True)
class Compared:
    """One process beside the ranks; above the tolerance, the module's own rounding decides."""

    reference: str  # what was compared with, in words
    losses: tuple[float, ...]
    largest_loss_difference: float  # relative
    loss_rounding: float  # relative, of the module; 0: not looked at
    equal_losses: bool
    gradients: Difference
    buffers: Difference | None
    tolerance: float

    @property
    def equal(self) -> bool:
        tensors = [one for one in (self.gradients, self.buffers) if one is not None]
        return self.equal_losses and all(
            is_close(one.largest, one.rounding, self.tolerance) for one in tensors
        )


def is_close(difference: float, rounding: float, tolerance: float) -> bool:
    """Whether a difference is within the tolerance or as rounding makes it; no number never is."""
    return difference <= max(tolerance, MOST_ROUNDINGS * rounding)


def loss_differences(losses: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """By step, relative."""
    pairs = zip(losses, others, strict=True)
    return tuple(abs(ours - theirs) / (abs(theirs) or 1.0) for ours, theirs in pairs)


@dataclass(frozen=True, slots=True)
class RankRunPart:
    """One process of a run."""

    rank: int
    pool: str
    parameters: int
    peak_bytes: int
    predicted_bytes: float
    median_step_seconds: float


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A run and its result; `single_process` is null where it was not asked for."""

    schema: str
    factory: str
    device: str
    ranks: int
    steps: int
    losses: tuple[float, ...]
    single_process: Compared | None
    step_seconds: tuple[float, ...]  # as long as the slowest rank took
    median_step_seconds: float  # without the first step, where there are more
    predicted_seconds: float  # on the devices that the program is for
    processes: tuple[RankRunPart, ...]

    @property
    def is_finite(self) -> bool:
        return all(map(isfinite, self.losses))

    @property
    def is_right(self) -> bool:
        """Losses are numbers, and those of one process where that was looked at."""
        return self.is_finite and (self.single_process is None or self.single_process.equal)


def run_program(
    document: ProgramDocument,
    *,
    ranks: int | None = None,
    device: Device = Device.CPU,
    settings: ProgramSettings = USUAL,
    timeout_seconds: float = TIMEOUT_SECONDS,
    progress: Progress = lambda what, done, total: None,
) -> ProgramRun:
    """Train as the program says, one process for each of its ranks on this machine."""
    check_ranks(document, ranks, device, share_gpus=settings.share_gpus)
    (reports,) = run_programs(
        [document],
        device,
        replace(settings, programs=1, rounds=1),
        timeout_seconds=timeout_seconds,
        progress=progress,
    )
    return _run_of(document, device, settings, reports)


def check_ranks(
    document: ProgramDocument, ranks: int | None, device: Device, *, share_gpus: bool = False
) -> None:
    """A program runs on as many ranks as it was made for; InputError says what to do else."""
    if ranks is not None and ranks != document.ranks:
        raise InputError(
            f"--ranks {ranks}: the program is for {document.ranks} ranks; run it on as many, or"
            f" synthesise one for {ranks} devices"
        )
    if device is Device.CUDA:
        from astrarium.runtime.execute import visible_gpus

        there, needed = visible_gpus(), 1 if share_gpus else document.ranks
        if there < needed:
            ways = ", --share-gpus" if there else ""
            raise InputError(
                f"the program needs {needed} GPUs, and this machine has {there}; use"
                f" --device cpu{ways}, or torchrun on several machines"
            )


def run_programs(
    documents: Sequence[ProgramDocument],
    device: Device,
    settings: ProgramSettings,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    progress: Progress = lambda what, done, total: None,
    environment: Mapping[str, str] = EMPTY,
    beside: Beside = lambda pids: nullcontext(),
) -> list[tuple[RankReport, ...]]:
    """Run programs for equally many ranks by one set of processes; of each, the ranks' reports."""
    import sys

    import msgspec

    from astrarium.spmd.program import to_text

    settings = replace(settings, programs=len(documents))
    files = {
        PROGRAM_FILE.format(number=number): to_text(document).encode()
        for number, document in enumerate(documents)
    }
    names = [document.source.factory for document in documents]
    steps = len(documents) * settings.steps * settings.rounds
    answers = launch(
        {**files, SETTINGS_FILE: msgspec.json.encode(settings)},
        documents[0].ranks,
        environment={"DEVICE": device.value, **GIVE_BACK, **environment},
        timeout_seconds=timeout_seconds,
        command=(sys.executable, "-P", "-m", MODULE),
        listener=counted(names, steps, progress),
        beside=beside,
    )
    return results_of(answers, RankReport, len(documents))


def _run_of(
    document: ProgramDocument,
    device: Device,
    settings: ProgramSettings,
    reports: Sequence[RankReport],
) -> ProgramRun:
    from astrarium.spmd.capture import called

    seconds = step_seconds(reports)
    return ProgramRun(
        schema=SCHEMA,
        factory=called(document.source.factory, document.source.sizes),
        device=device.value,
        ranks=document.ranks,
        steps=settings.steps,
        losses=reports[0].losses,
        single_process=compared_with(reports[0], _reference(document.program.graph), device),
        step_seconds=seconds,
        median_step_seconds=statistics.median(seconds[1:] or seconds),
        predicted_seconds=document.program.seconds,
        processes=tuple(
            RankRunPart(
                report.rank,
                document.devices[report.rank].pool,
                report.parameters,
                report.peak_bytes,
                document.program.bytes[report.rank] if document.program.bytes else 0.0,
                statistics.median(report.step_seconds[1:] or report.step_seconds),
            )
            for report in reports
        ),
    )


def compared_with(first: RankReport, reference: str, device: Device) -> Compared | None:
    """The distance of the first rank's losses and tensors from the reference's."""
    if first.gradients is None:
        return None
    tolerance, known = TOLERANCE[device], first.reference_losses
    found = loss_differences(first.losses, known)
    rounding = loss_differences(known, first.exact_losses) if first.exact_losses else ()
    so_far = list(accumulate(rounding, max)) or [0.0] * len(found)  # what is rounded stays so
    return Compared(
        reference=reference,
        losses=known,
        largest_loss_difference=max(found),
        loss_rounding=max(rounding, default=0.0),
        equal_losses=all(map(is_close, found, so_far, repeat(tolerance))),
        gradients=first.gradients,
        buffers=first.buffers,
        tolerance=tolerance,
    )


def _reference(graph: Graph) -> str:
    from astrarium.spmd.graph import chance

    drops = any(chance(node) > 0 for node in graph.nodes)
    numbers = ", its dropout drawn by position" if drops else ""
    return f"the module on one device{numbers}"
