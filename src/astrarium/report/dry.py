"""A dry run as text: bytes and seconds of every sort of stage, predicted and found."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from astrarium.report.layout import Field, listing, title
from astrarium.runtime.dry import DryRun, DryStage
from astrarium.units import format_bytes, format_seconds


def dry_report(run: DryRun, width: int) -> Iterator[RenderableType]:
    """What each stage holds and takes, the worst misjudgement last."""
    software = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    yield Text(
        f"{run.model}, plan {run.plan_rank} for {run.planned_gpus} GPUs, one rank at a time on"
        f" {run.gpu or 'the CPU'} ({software})"
    )
    for note in run.notes:
        yield Text(f"note: {note}")
    yield title("Memory, predicted / allocated")
    yield from listing(_memory(run), width)
    if all(stage.measured_seconds is not None for stage in run.stages):
        yield title("Iteration of one rank, messages taking no time")
        yield from listing(_seconds(run), width)
    yield Text(_verdict(run))


def _memory(run: DryRun) -> list[Field]:
    fields = _named(run)
    for cause in run.stages[0].predicted_bytes:
        texts = [
            _pair(stage.predicted_bytes[cause], stage.allocated_bytes[cause])
            for stage in run.stages
        ]
        fields.append(Field(cause, texts, right=True, drop=1))
    peaks = [_pair(stage.predicted_peak, stage.allocated_peak) for stage in run.stages]
    errors = [f"{_error(stage):+.1%}" for stage in run.stages]
    return [*fields, Field("peak", peaks, right=True), Field("error", errors, right=True)]


def _seconds(run: DryRun) -> list[Field]:
    predicted = [stage.predicted_seconds or 0.0 for stage in run.stages]
    measured = [stage.measured_seconds or 0.0 for stage in run.stages]
    errors = [f"{guess / true - 1:+.1%}" for guess, true in zip(predicted, measured, strict=True)]
    return [
        *_named(run),
        Field("predicted", [format_seconds(s) for s in predicted], right=True),
        Field("measured", [format_seconds(s) for s in measured], right=True),
        Field("error", errors, right=True),
    ]


def _named(run: DryRun) -> list[Field]:
    stages = [", ".join(map(str, (s.stage, *s.like))) for s in run.stages]
    return [
        Field("stage", stages, prose=True),
        Field("layers", [str(stage.layers) for stage in run.stages], right=True),
    ]


def _pair(predicted: float, allocated: float) -> str:
    return f"{format_bytes(predicted)} / {format_bytes(allocated)}"


def _error(stage: DryStage) -> float:
    return stage.predicted_peak / stage.allocated_peak - 1


def _verdict(run: DryRun) -> str:
    worst = max(run.stages, key=lambda stage: abs(_error(stage)))
    return f"The peak of stage {worst.stage} is misjudged most: {_error(worst):+.1%}."
