"""`astrarium validate`: predictions against measured iterations."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from astrarium.cli import options

GROUPS = ("source", "gpu", "model", "framework", "runtime")
SCORES = ("stated", "all")

TABLES: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="TABLE.csv...", help="Tables of measured iterations.")
]
BY: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="|".join(GROUPS),
        help="What rows are grouped by.",
        autocompletion=options.one_of(*GROUPS),
    ),
]
SCORE: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="|".join(SCORES),
        help="Score times where the strategy is stated, or also where parts are assumed.",
        autocompletion=options.one_of(*SCORES),
    ),
]
OUT: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FILE.csv", help="Write the rows with their predictions.")
]
PLOT: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE.png|svg|html", help="Draw predicted over measured times."),
]


def validate(
    tables: TABLES,
    by: BY = "source",
    score: SCORE = "stated",
    out: OUT = None,
    plot: PLOT = None,
    profile: options.PROFILE = None,
    json: options.JSON = False,
) -> None:
    """Predictions against measurements: errors by source, the rows behind them."""
    from dataclasses import asdict

    from astrarium.api import request
    from astrarium.cli import output
    from astrarium.report import scatter, validation
    from astrarium.validate.metrics import Scoring
    from astrarium.validate.predictions import predict_rows
    from astrarium.validate.table import read_table

    grouping = request.choice("--by", by, validation.Grouping)
    scoring = request.choice("--score", score, Scoring)
    if plot is not None:
        scatter.check_plot(plot)
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
    document = validation.validation_document(read, predictions, grouping, scoring, used)
    if out is not None:
        output.write_text(out, validation.predictions_csv(read, predictions))
    if plot is not None:
        scatter.draw(plot, validation.scatter_points(predictions, scoring))
    if json:
        output.print_json(asdict(document))
    else:
        output.show(lambda width: validation.validation_report(document, width))
