"""A dry run as text: bytes and seconds of every sort of stage, predicted and found."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from astrarium.report.tables import Field, listing, title
from astrarium.runtime.dry import DryRun
from astrarium.units import format_bytes, format_seconds


def dry_report(run: DryRun, width: int) -> Iterator[RenderableType]:
    """What each stage holds and takes, the worst misjudgement last."""
    gpus = "1 GPU" if run.planned_gpus == 1 else f"{run.planned_gpus} GPUs"
    software = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    yield Text(
        f"{run.model}, plan {run.plan_rank} for {gpus}, one rank at a time on"
        f" {run.gpu or 'the CPU'} ({software})"
    )
    for note in run.notes:
        yield Text(f"note: {note}")
    yield title("Memory, predicted / allocated")
    yield from listing(_memory(run), width)
    if any(stage.measured_seconds is not None for stage in run.stages):
        yield title("Iteration of one rank, messages taking no time")
        yield from listing(_seconds(run), width)
    yield Text(_verdict(run))


def _memory(run: DryRun) -> list[Field]:
    fields = _named(run)
    for cause in run.stages[0].predicted_bytes:
        texts = [
            _pair(s.predicted_bytes[cause], (s.allocated_bytes or {}).get(cause))
            for s in run.stages
        ]
        fields.append(Field(cause, texts, right=True, drop=1))
    peaks = [_pair(stage.predicted_peak, stage.allocated_peak) for stage in run.stages]
    errors = [_percent(stage.peak_error) for stage in run.stages]
    return [*fields, Field("peak", peaks, right=True), Field("error", errors, right=True)]


def _seconds(run: DryRun) -> list[Field]:
    pairs = [(stage.predicted_seconds, stage.measured_seconds) for stage in run.stages]
    errors = [guess / true - 1 if guess and true else None for guess, true in pairs]
    return [
        *_named(run),
        Field("predicted", [_time(guess) for guess, _ in pairs], right=True),
        Field("measured", [_time(true) for _, true in pairs], right=True),
        Field("error", [_percent(error) for error in errors], right=True),
    ]


def _named(run: DryRun) -> list[Field]:
    stages = [", ".join(map(str, (s.stage, *s.like))) for s in run.stages]
    return [
        Field("stage", stages, prose=True),
        Field("layers", [str(stage.layers) for stage in run.stages], right=True),
    ]


def _pair(predicted: float, allocated: float | None) -> str:
    found = "too much" if allocated is None else format_bytes(allocated)
    return f"{format_bytes(predicted)} / {found}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"


def _verdict(run: DryRun) -> str:
    full = [str(stage.stage) for stage in run.stages if stage.allocated_bytes is None]
    if full:
        return (
            f"Out of memory here: stage {', '.join(full)}. Without TransformerEngine more is kept"
            " than the plan counts on; see the prediction above."
        )
    errors = {stage.stage: stage.peak_error or 0.0 for stage in run.stages}
    worst = max(errors, key=lambda stage: abs(errors[stage]))
    return f"The peak of stage {worst} is misjudged most: {errors[worst]:+.1%}."
