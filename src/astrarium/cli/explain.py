"""`astrarium explain`: where time, memory and money of a plan go, and how two plans differ."""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli import options


def explain(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan.json or its folder.")],
    against: Annotated[
        str | None, typer.Option(metavar="PLAN", help="Compare with the best plan of this file.")
    ] = None,
    rank: Annotated[
        str, typer.Option(metavar="K", help="Which plan of PLAN; 1 is the best.")
    ] = "1",
    json: options.JSON = False,
) -> None:
    """Where time, memory and money of a plan go; what binds."""
    from dataclasses import asdict
    from pathlib import Path

    from astrarium.cli import output, request
    from astrarium.plans.files import load_document, plan_of_rank
    from astrarium.report.explain import compare
    from astrarium.report.explain import explain as explained_plan

    number = request.count("--rank", rank, request.MOST_PLANS)
    document = load_document(Path(plan))
    chosen = plan_of_rank(document, number, plan)
    if against is None:
        explanation = explained_plan(chosen, document.cluster)
        if json:
            output.print_json(asdict(explanation))
            return
        from astrarium.report.explanation import explanation_report

        output.show(lambda width: explanation_report(document, explanation, width))
        return
    other = load_document(Path(against))
    compared = compare((document, chosen), (other, plan_of_rank(other, 1, against)))
    if json:
        output.print_json(asdict(compared))
        return
    from astrarium.report.explanation import comparison_report

    output.show(lambda width: comparison_report(compared, (plan, against)))
