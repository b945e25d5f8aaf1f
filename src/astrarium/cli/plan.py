"""`astrarium plan`: the best strategies for a workload on a cluster."""

from __future__ import annotations

from typing import Any

import click

from astrarium.api.flags import PLAN_FLAGS, Flag
from astrarium.api.readers import texts
from astrarium.cli.shell import JSON, command

OUT = Flag("Write DIR/plan.json.", "DIR")
REPORT = Flag("Write one HTML file with all pictures, to mail around.", "FILE.html")
OUTPUTS = {
    "json": JSON,
    "out": OUT,
    "front": Flag(
        "Write the front of time against money; repeatable.",
        "FILE.csv|parquet|svg|png",
        texts,
        several=True,
    ),
    "plot": Flag("Draw the front as a picture; repeatable.", "FILE.svg|png", texts, several=True),
    "report": REPORT,
}


@command(PLAN_FLAGS, OUTPUTS)
def plan(ctx: click.Context, **values: Any) -> None:  # noqa: ANN401
    """Find the best strategies, and their time, memory and price."""
    from astrarium.cli.planning import answer

    answer(ctx, values)
