"""`astrarium validate`: predictions against measured iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from astrarium.cli import output
from astrarium.cli.shell import command

if TYPE_CHECKING:
    from astrarium.report.validation import Grouping
    from astrarium.validate.metrics import Scoring


@command("validate")
def validate(
    _: click.Context,
    *,
    tables: tuple[str, ...],
    by: Grouping,
    score: Scoring,
    out: str | None,
    plot: str | None,
    profile: str | None,
    json: bool,
) -> None:
    """Compare predictions with measurements.

    Shows the errors by source, and the rows with the largest.
    """
    from astrarium.api import request
    from astrarium.documents import write_atomic
    from astrarium.report import validation
    from astrarium.validate.predictions import predict_rows
    from astrarium.validate.table import read_table

    if plot is not None:
        validation.check_plot(plot)
    for flag, file in (("--out", out), ("--plot", plot)):
        if file is not None:
            output.check_not_read(flag, file, [*tables, *([profile] if profile else [])])
    read = [read_table(table) for table in tables]
    tuned = None if profile is None else request.used_profile(profile)
    with output.progress("predicting"):
        rows = [row for table in read for row in table.rows]
        predictions = predict_rows(rows, request.tunings(tuned))
    used = None
    if tuned is not None and profile is not None:
        count = sum(p.plan is not None and tuned.concerns(p.scenario) for p in predictions)
        used = validation.UsedOn(profile, tuned.gpu, tuned.runtime, count)
    document = validation.validation_document(read, predictions, by, score, used)
    if out is not None:
        write_atomic(Path(out), validation.predictions_csv(read, predictions))
    if plot is not None:
        validation.draw(plot, predictions, score)
    output.answer(document, lambda width: validation.validation_report(document, width), json=json)
