"""Predictions against measurements as a document, as text, and as rows of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from astrarium.documents import write_atomic_bytes
from astrarium.errors import InputError
from astrarium.report.front.picture import (
    HEIGHT,
    MOST_TICKS,
    PLOT,
    TITLE_SIZE,
    WIDTH,
    Box,
    Dot,
    Drawing,
    Label,
    Polyline,
    Shape,
    grid,
    to_svg,
    x_of,
    y_of,
)
from astrarium.report.front.points import axis_of, duration
from astrarium.report.tables import Field, indented, listing, table, title
from astrarium.report.wording import WORDS, strategy_words
from astrarium.validate import metrics
from astrarium.validate.metrics import measured_seconds, sweeps
from astrarium.validate.predictions import GB, Prediction
from astrarium.validate.table import Table
from astrarium.value import Value

SCHEMA: Final = "astrarium.validation/1"
ERRORS_SHOWN: Final = 8
REASONS_SHOWN: Final = 12
ADDED: Final = ("predicted_iter_time_s", "predicted_peak_mem_gb", "predicted_fits", "reason")
NOT_SCORED: Final = "not scored"
DIGITS: Final = 6  # significant ones in tables of predictions


class Grouping(StrEnum):
    SOURCE = "source"
    GPU = "gpu"
    MODEL = "model"
    FRAMEWORK = "framework"
    RUNTIME = "runtime"


KEYS: Final[dict[Grouping, Callable[[Prediction], str]]] = {
    Grouping.SOURCE: lambda prediction: prediction.row.source or "no source",
    Grouping.GPU: lambda prediction: (
        prediction.scenario.pool.gpu.name if prediction.scenario else prediction.row.gpu
    ),
    Grouping.MODEL: lambda prediction: prediction.row.model,
    Grouping.FRAMEWORK: lambda prediction: prediction.row.framework,
    Grouping.RUNTIME: lambda prediction: (
        prediction.scenario.runtime.name if prediction.scenario else "not modelled"
    ),
}


class RowsAside(Value, frozen=True):
    """Rows that are not modelled, not scored or not believed for one reason."""

    reason: str
    rows: int
    first: str  # the place of one of them


class LargestError(Value, frozen=True):
    place: str
    source: str
    model: str
    gpus: str
    strategy: str
    measured_seconds: float
    predicted_seconds: float
    error: float


class UsedOn(Value, frozen=True):
    """The profile that tuned the predictions, and the number of rows that it changed."""

    file: str
    gpu: str
    runtime: str | None
    rows: int


class ValidationDocument(Value, frozen=True):
    """`groups` are the rows by `by`, `all` is everything. Errors are shares of the measured."""

    schema: str
    tables: tuple[str, ...]
    by: str
    least_mfu: float
    scored: str  # "stated" strategies or "all"
    groups: tuple[metrics.Metrics, ...]
    all: metrics.Metrics
    unmodelled: tuple[RowsAside, ...]
    unscored: tuple[RowsAside, ...]  # modelled, but their time is not scored
    implausible: tuple[RowsAside, ...]
    profile: UsedOn | None
    largest_errors: tuple[LargestError, ...]
    sweeps: tuple[metrics.Sweep, ...]


def validation_document(
    tables: Sequence[Table],
    predictions: Sequence[Prediction],
    by: Grouping,
    scoring: metrics.Scoring,
    profile: UsedOn | None = None,
) -> ValidationDocument:
    """Everything `astrarium validate` says."""
    *groups, whole = metrics.metrics_by(predictions, KEYS[by], scoring)
    times = metrics.time_scores(predictions, scoring)
    worst = sorted(times, key=lambda score: abs(score.error), reverse=True)[:ERRORS_SHOWN]
    return ValidationDocument(
        schema=SCHEMA,
        tables=tuple(table.path for table in tables),
        by=by.value,
        least_mfu=metrics.LEAST_MFU,
        scored=scoring.value,
        groups=tuple(groups),
        all=whole,
        unmodelled=_aside((p, p.reason) for p in predictions if p.plan is None),
        unscored=_aside((p, metrics.why_not_scored(p, scoring)) for p in predictions),
        implausible=_aside((p, _implausible(p)) for p in predictions),
        profile=profile,
        largest_errors=tuple(
            _largest_error(score.prediction, score.measured, score.error) for score in worst
        ),
        sweeps=tuple(sweeps(times)),
    )


def _aside(rows: Iterable[tuple[Prediction, str | None]]) -> tuple[RowsAside, ...]:
    """Rows by reason, the most frequent first; those without a reason are left out."""
    found: dict[str, list[Prediction]] = {}
    for prediction, reason in rows:
        if reason:
            found.setdefault(str(reason), []).append(prediction)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return tuple(RowsAside(why, len(rows), rows[0].row.place) for why, rows in ordered)


def _implausible(prediction: Prediction) -> str | None:
    """Figures of a row that cannot be true."""
    row, scenario = prediction.row, prediction.scenario
    if scenario is None:
        return None
    if metrics.why_not_scored(prediction, metrics.Scoring.ALL) is metrics.NotScored.TOO_FAST:
        share = metrics.mfu_of_time(prediction) or 0.0
        return (
            f"{measured_seconds(prediction):.4g} s would be {100 * share:.0f} % of the peak of"
            f" {row.num_gpus} {scenario.pool.gpu.name}"
        )
    if metrics.exceeds_memory(prediction):
        has = scenario.pool.gpu.memory_bytes / GB
        name = scenario.pool.gpu.name
        return f"peak_mem_gb {row.peak_mem_gb:g} on a {name} of {has:.1f} GB"
    return None


def _largest_error(prediction: Prediction, measured: float, error: float) -> LargestError:
    assert prediction.plan is not None
    assert prediction.scenario is not None
    plan, row = prediction.plan, prediction.row
    return LargestError(
        place=row.place,
        source=row.source,
        model=row.model,
        gpus=f"{plan.strategy.gpus} {prediction.scenario.pool.gpu.name}",
        strategy=strategy_words(
            plan.strategy, experts=prediction.scenario.workload.model.max_experts > 0
        ),
        measured_seconds=measured,
        predicted_seconds=plan.iteration_seconds,
        error=error,
    )


def predictions_csv(tables: Sequence[Table], predictions: Sequence[Prediction]) -> str:
    """The input rows in their order with the predictions added."""
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    kept = [name for name in columns if name not in ADDED]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*kept, *ADDED])
    for prediction in predictions:
        cells = [prediction.row.cells.get(name, "") for name in kept]
        writer.writerow([*cells, *_added(prediction)])
    return text.getvalue()


def _added(prediction: Prediction) -> tuple[str, str, str, str]:
    seconds, memory = prediction.iter_time_s, prediction.peak_mem_gb
    return (
        "" if seconds is None else f"{seconds:.{DIGITS}g}",
        "" if memory is None else f"{memory:.{DIGITS}g}",
        "" if prediction.fits is None else str(prediction.fits).lower(),
        prediction.reason,
    )


def validation_report(document: ValidationDocument, width: int) -> Iterator[RenderableType]:
    """Metrics by group, sweeps, the largest errors and what could not be modelled."""
    whole = document.all
    yield Text(
        f"{_rows(whole.rows, 'measured ')}, {whole.modelled:,} modelled; times of"
        f" {whole.timed:,} are scored: strategy"
        f" {'stated' if document.scored == 'stated' else 'stated or assumed'},"
        f" at least {100 * document.least_mfu:.0f} % of peak, no doubt noted"
    )
    if document.unscored:
        why = ", ".join(f"{entry.reason} {entry.rows:,}" for entry in document.unscored)
        yield Text(f"modelled and not scored: {why}")
    if document.profile is not None:
        yield Text(_profile_words(document.profile))
    yield title("Time of an iteration: errors in % of the measured")
    by, groups = document.by, (*document.groups, whole)
    yield from listing(list(_fields(by, groups, WORDS.validation_time)), width)
    if any(map(_of_memory, document.groups)):
        yield title("Memory: errors in % of the measured; out of memory foretold")
        weighed = [*filter(_of_memory, groups)]
        yield from listing(list(_fields(by, weighed, WORDS.validation_memory)), width)
    if document.sweeps:
        yield title("Sweeps: what trusting the first plan costs, in % of the best measured time")
        swept = [group for group in groups if group.sweeps]
        yield from listing(list(_fields(by, swept, WORDS.validation_sweeps)), width)
    if document.largest_errors:
        yield title("Largest errors")
        yield from _errors(document.largest_errors)
    if document.implausible:
        yield title("Implausible, not scored")
        yield from _reasons(document.implausible)
    if document.unmodelled:
        yield title("Not modelled")
        yield from _reasons(document.unmodelled)


def _fields(
    by: str, groups: Sequence[metrics.Metrics], columns: Sequence[tuple[str, str, str, int]]
) -> Iterator[Field]:
    """A row for each group; what is not known is blank."""
    yield Field(by, [group.name for group in groups])
    for head, name, form, drop in columns:
        values = [getattr(group, name) for group in groups]
        scale, form = (100, ".1f") if form == "%" else (1, form)
        cells = ["" if value is None else f"{scale * value:{form}}" for value in values]
        yield Field(head, cells, right=True, drop=drop)


def _of_memory(group: metrics.Metrics) -> bool:
    return bool(group.memory_rows or group.out_of_memory or group.false_alarms is not None)


def _errors(errors: Sequence[LargestError]) -> Iterator[RenderableType]:
    for found in errors:
        yield Text(
            f"{100 * found.error:+.0f} %  {found.model} on {found.gpus}: measured"
            f" {found.measured_seconds:.4g} s, predicted {found.predicted_seconds:.4g} s"
        )
        yield indented(f"{found.strategy}; {found.place}", style="dim")


def _reasons(unmodelled: Sequence[RowsAside]) -> Iterator[RenderableType]:
    shown = unmodelled[:REASONS_SHOWN]
    yield table(
        [
            Field("rows", [f"{entry.rows:,}" for entry in shown], right=True),
            Field("reason", [entry.reason for entry in shown], prose=True),
            Field("first at", [entry.first for entry in shown], prose=True),
        ]
    )
    rest = unmodelled[REASONS_SHOWN:]
    if rest:
        rows = sum(entry.rows for entry in rest)
        reasons = "1 other reason" if len(rest) == 1 else f"{len(rest)} other reasons"
        yield Text(f"and {_rows(rows)} for {reasons}; --json lists all", "dim")


def _profile_words(profile: UsedOn) -> str:
    of = profile.gpu + (f" under {profile.runtime}" if profile.runtime else "")
    if not profile.rows:
        return f"profile {profile.file} of {of}: no row is of these, so it changes nothing"
    return f"profile {profile.file} of {of}: used for {_rows(profile.rows)}"


def _rows(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'row' if count == 1 else 'rows'}"


BAND: Final = 0.1  # the dashed lines: predictions off by 10 %


def check_plot(path: str) -> None:
    """Refuse what cannot be drawn before any work is done."""
    if not path.lower().endswith(".svg"):
        raise InputError(f"--plot {path}: expected a name that ends in .svg")


def draw(path: str, predictions: Sequence[Prediction], scoring: metrics.Scoring) -> None:
    """Write predicted over measured seconds as a picture, a point for each row."""
    scored = {id(score.prediction) for score in metrics.time_scores(predictions, scoring)}
    points = [
        (one, measured, one.iter_time_s)
        for one in predictions
        if (measured := measured_seconds(one)) is not None and one.iter_time_s is not None
    ]
    if not points:
        raise InputError(f"--plot {path}: no row has both a measured and a predicted time")
    every = [seconds for _, *pair in points for seconds in pair]
    across = axis_of(duration("measured iteration", max(every)), every, None, MOST_TICKS[0])
    up = axis_of(duration("predicted", max(every)), every, None, MOST_TICKS[1])
    ends = (across.low, across.high)
    title = f"Predictions against measurements (dashed: {BAND:.0%} off)"
    shapes: list[Shape] = [
        Box(0, 0, WIDTH, HEIGHT),
        Label(PLOT.left, 30, title, TITLE_SIZE, bold=True),
        *grid(across, up),
    ]
    for factor in (1 - BAND, 1.0, 1 + BAND):
        line = tuple((x_of(across, end), y_of(up, factor * end)) for end in ends)
        shapes.append(Polyline(line, "frame", dashed=factor != 1.0))
    for one, measured, predicted in points:
        place = x_of(across, measured), y_of(up, predicted), 3.0
        about = f"{one.row.place}, {one.row.source}"
        if id(one) in scored:
            shapes.append(Dot(*place, "disc", "other", about))
        else:
            shapes.append(Dot(*place, "ring", "frame", f"{about}, {NOT_SCORED}"))
    about = f"{len(points):,} rows, from {min(every):.3g} to {max(every):.3g} s"
    drawing = Drawing(WIDTH, HEIGHT, title, about, tuple(shapes))
    write_atomic_bytes(Path(path), to_svg(drawing).encode())
