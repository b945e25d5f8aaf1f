"""`astrarium replan`, `simulate` and `sites`: jobs that run, on clusters that change."""

from __future__ import annotations

from typing import Any

import click

from astrarium.api.flags import REPLAN_FLAGS
from astrarium.cli import output
from astrarium.cli.plan import OUT
from astrarium.cli.shell import JSON, command, typed


@command(REPLAN_FLAGS, {"json": JSON, "out": OUT})
def replan(ctx: click.Context, *, json: bool, out: str | None, **values: Any) -> None:  # noqa: ANN401
    """Adapt a running plan to GPUs that were lost, gained or slowed down.

    Three answers are compared with all that they cost: stay, reshape on the same GPUs, or move. The
    exit code is 1 if no plan fits what is left.
    """
    from astrarium.api.operations import replanned
    from astrarium.plans.document import PLAN_FILE, to_dict
    from astrarium.report.operations import replan_report

    with output.progress("replanning"):
        document = replanned(values, typed(ctx)).document
    output.write_document(out, PLAN_FILE, to_dict(document.plan_document))
    output.answer(document, lambda width: replan_report(document, width), json=json)
