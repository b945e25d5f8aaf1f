"""A program that ran, as text: losses beside those of one device, seconds of every rank."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from astrarium.report.runs.execution import loss_fields, timed_lines
from astrarium.report.tables import Field, listing, title
from astrarium.runtime.spmd.job import ProgramRun
from astrarium.runtime.spmd.timed import MeasuredProgram
from astrarium.units import format_bytes, format_count, format_seconds


def program_run_report(run: ProgramRun, width: int) -> Iterator[RenderableType]:
    """All of a run that a person wants to know, the verdict last."""
    steps = "1 step" if run.steps == 1 else f"{run.steps} steps"
    yield Text(f"{run.factory}, {steps} by {run.ranks} processes on {run.device}")
    yield title("Processes")
    parts = run.processes
    yield from listing(
        [
            Field("rank", [str(part.rank) for part in parts], right=True),
            Field("pool", [part.pool for part in parts], drop=2),
            Field("weights", [format_count(part.parameters) for part in parts], right=True),
            Field("peak", [format_bytes(part.peak_bytes) for part in parts], right=True, drop=1),
            Field("step", [format_seconds(part.median_step_seconds) for part in parts], right=True),
        ],
        width,
    )
    yield title("Losses")
    yield from listing(_losses(run), width)
    took, predicted = map(format_seconds, (run.median_step_seconds, run.predicted_seconds))
    yield Text(f"a step took {took} here; predicted for the devices of the program: {predicted}")
    yield Text(verdict(run))


def _losses(run: ProgramRun) -> list[Field]:
    alone = run.single_process
    fields = loss_fields(run.losses, "one device", None if alone is None else alone.losses)
    seconds = [format_seconds(one) for one in run.step_seconds]
    return [*fields, Field("seconds", seconds, right=True, drop=1)]


def verdict(run: ProgramRun) -> str:
    """Whether the ranks did what one device does."""
    alone = run.single_process
    if not run.is_finite:
        return "FAILED: losses are no numbers"
    if alone is None:
        return "ran; nothing was compared"
    losses = f"{alone.largest_loss_difference:.1e} of each at most"
    found = [f"losses differ by {_with_rounding(losses, alone.loss_rounding)}"]
    for what, worst in (("gradients", alone.gradients), ("buffers", alone.buffers)):
        if worst is not None:
            where = f" ({worst.name})" if worst.name else ""
            found.append(
                f"{what} by {_with_rounding(f'{worst.largest:.1e}{where}', worst.rounding)}"
            )
    word = "equal to" if alone.equal else "NOT equal to"
    return f"{word} {alone.reference}: {', '.join(found)}; tolerance {alone.tolerance:.0e}"


def _with_rounding(difference: str, rounding: float) -> str:
    """A difference beside what single precision does to the module itself."""
    return f"{difference} (rounding of the module: {rounding:.1e})" if rounding else difference


def measured_program_report(run: MeasuredProgram) -> Iterator[RenderableType]:
    """A step as it was timed beside its prediction."""
    yield Text(f"{run.factory}, run by {len(run.shares_of_cores)} ranks on a core each")
    yield from timed_lines(run, "a step")
