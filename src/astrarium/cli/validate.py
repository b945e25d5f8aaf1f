"""`astrarium validate`: predictions against measured iterations."""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli import options

GROUPS = ("source", "gpu", "model", "framework", "runtime")


def validate(
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE.csv...", help="Tables of measured iterations."),
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="|".join(GROUPS),
            help="What rows are grouped by.",
            autocompletion=options.one_of(*GROUPS),
        ),
    ] = "source",
    score: Annotated[
        str,
        typer.Option(
            metavar="stated|all",
            help="Score times of rows that state their strategy, or also where parts are assumed.",
            autocompletion=options.one_of("stated", "all"),
        ),
    ] = "stated",
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE.csv", help="Write the rows with their predictions."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(metavar="FILE.png|svg|html", help="Draw predicted over measured times."),
    ] = None,
    profile: options.PROFILE = None,
    json: options.JSON = False,
) -> None:
    """Predictions against measurements: errors by source, and the rows behind them."""
    from dataclasses import asdict
    from pathlib import Path

    from astrarium.cli import output, request
    from astrarium.documents import write_atomic
    from astrarium.report import validation
    from astrarium.validate.metrics import Scoring
    from astrarium.validate.predictions import predict_rows
    from astrarium.validate.table import read_table

    grouping = request.choice("--by", by, validation.Grouping)
    scoring = request.choice("--score", score, Scoring)
    if plot is not None:
        from astrarium.report.scatter import check_plot

        check_plot(plot)
    read = [read_table(table) for table in tables]
    with output.progress("predicting"):
        predictions = predict_rows(
            [row for table in read for row in table.rows], request.tunings(profile)
        )
    document = validation.validation_document(
        read, predictions, grouping, all_times=scoring is Scoring.ALL
    )
    if out is not None:
        write_atomic(Path(out), validation.predictions_csv(read, predictions))
    if plot is not None:
        from astrarium.report.scatter import draw

        draw(plot, validation.scatter_points(predictions))
    if json:
        output.print_json(asdict(document))
    else:
        output.show(lambda width: validation.validation_report(document, width))
