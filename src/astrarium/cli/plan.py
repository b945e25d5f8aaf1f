"""`astrarium plan`, `predict` and `fit`: the best strategies, one strategy, or whether one fits."""

from __future__ import annotations

from typing import Any

import click

from astrarium.cli import output
from astrarium.cli.shell import command, typed


@command("plan", "plan outputs")
def plan(ctx: click.Context, **values: Any) -> None:  # noqa: ANN401
    """Find the best strategies, and their time, memory and price."""
    from astrarium.cli.planning import answer

    answer(ctx, values)


@command("predict", "json", "out")
def predict(ctx: click.Context, *, json: bool, out: str | None, **values: Any) -> None:  # noqa: ANN401
    """Predict the time, memory and price of one strategy."""
    from astrarium.api.asked import AskedValues
    from astrarium.api.planning import prediction
    from astrarium.plans.document import PLAN_FILE, to_dict

    document = prediction(AskedValues(**values, given=typed(ctx)))
    output.write_document(out, PLAN_FILE, to_dict(document))
    if json:
        output.print_json(to_dict(document))
        return
    from astrarium.report.plan import text

    output.show(lambda width: text.prediction_report(document, width))


@command("fit", "json")
def fit(ctx: click.Context, *, json: bool, **values: Any) -> None:  # noqa: ANN401
    """Check whether a model fits, and what would make it fit.

    The exit code is 1 if it does not fit.
    """
    from astrarium.api import imports, request
    from astrarium.api.asked import AskedValues
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.report.plan.fit import fit_document, fit_report
    from astrarium.search import fit as search

    given = AskedValues(**values, given=typed(ctx))
    filled = imports.filled(given)
    asked = filled.read()
    if filled.imported is not None:
        imports.check_accepted(filled.imported)
    strategy = filled.imported or given.strategy
    chosen = None if strategy is None else request.strategy(strategy, asked)
    program = find_runtime(request.runtime_of(filled.asked))
    asked, tuning = request.tuned(request.under(asked, program), given.profile, program.name)
    with output.progress("searching"):
        report = search.fit(
            asked.workload,
            asked.cluster,
            chosen,
            runtime=program,
            tuning=tuning,
            is_launched=filled.imported is not None,
        )
    document = fit_document(report, asked.cluster, filled.called(asked), asked.notes)
    has_strategy = chosen is not None
    output.answer(
        document, lambda width: fit_report(document, width, chosen=has_strategy), json=json
    )
    if not document.fits:
        ctx.exit(1)
