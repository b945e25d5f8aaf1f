"""`astrarium replan`, `simulate` and `sites`: jobs that run, on clusters that change."""

from __future__ import annotations

from typing import Any

import click

from astrarium.cli import output
from astrarium.cli.shell import command, typed


@command("replan", "json", "out")
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


@command("simulate", "json")
def simulate(ctx: click.Context, *, json: bool, **values: Any) -> None:  # noqa: ANN401
    """Simulate policies of a running job over a trace of capacity and prices.

    The answer is the same for the same seed.
    """
    from astrarium.api.operations import simulated
    from astrarium.report.operations import simulation_report

    if values["save_trace"] is not None:
        output.check_out(values["save_trace"], ".csv", b"hours", (values["trace"],), "--save-trace")
    with output.progress("simulating"):
        document = simulated(values, typed(ctx))
    output.answer(document, lambda width: simulation_report(document, width), json=json)


@command("sites", "json")
def sites(ctx: click.Context, *, json: bool, **values: Any) -> None:  # noqa: ANN401
    """Predict a plan that runs in several data centres, with outer steps over slow links."""
    from astrarium.api.operations import over_several_sites
    from astrarium.report.operations import sites_report

    document = over_several_sites(values, typed(ctx))
    output.answer(document, lambda width: sites_report(document, width), json=json)
