"""`astrarium predict`: what one strategy takes in time, memory and money."""

from __future__ import annotations

from typing import Any

import click

from astrarium.api.flags import PREDICT_FLAGS
from astrarium.cli import output
from astrarium.cli.plan import OUT
from astrarium.cli.shell import JSON, command, typed


@command(PREDICT_FLAGS, {"json": JSON, "out": OUT})
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
