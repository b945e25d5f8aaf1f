"""`astrarium export` and `trace`: a plan as files for other software, and for Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from astrarium.cli import output
from astrarium.cli.shell import command


@command("export")
def export(
    _: click.Context,
    *,
    plan: str,
    to: str,
    out: str,
    program: str | None,
    rank: int,
    force: bool,
    nearest: bool,
    json: bool,
) -> None:
    """Write a plan as a configuration, a launch script and a README.

    If the target cannot express the plan, the reason and the nearest plan that it can are shown.
    """
    from astrarium.api import exporting
    from astrarium.export.result import lines
    from astrarium.export.target import find_target
    from astrarium.plans.document import PLAN_FILE, load_document

    # A typing error is reported before a large plan is read.
    exporting.software_of(find_target(to), program)
    output.check_not_read("--out", Path(out) / PLAN_FILE, (plan, Path(plan) / PLAN_FILE))
    place = load_document(Path(plan)), rank, to, Path(out)
    try:
        with output.progress("exporting"):
            done = exporting.export(
                *place, program=program, nearest=nearest, force=force, where=plan
            )
    except exporting.RefusedError as refused:
        if json:
            output.print_json(refused.result)
        raise
    output.answer(done, lambda width: lines(done, width), json=json)


@command("trace")
def trace(_: click.Context, *, plan: str, out: str, rank: int, json: bool) -> None:
    """Write the predicted iteration of a plan, for Perfetto.

    It shows the passes, transfers, updates and memory of every stage. Open it in ui.perfetto.dev.
    """
    from json import dumps

    from astrarium.documents import write_atomic
    from astrarium.plans.document import PLAN_FILE, load_document, plan_of_rank
    from astrarium.report.timeline import trace_of

    output.check_out(out, ".json", b"traceEvents", (plan, Path(plan) / PLAN_FILE))
    document = load_document(Path(plan))
    chosen = plan_of_rank(document, rank, plan)
    with output.progress("tracing"):
        made = trace_of(document, chosen)
        write_atomic(Path(out), dumps(made, allow_nan=False))
    written = {
        "trace": out,
        "events": len(made["traceEvents"]),
        "stages": len(chosen.stage_seconds),
        "iteration_seconds": chosen.iteration_seconds,
    }
    says = (
        f"{out}: {written['events']:,} events in {chosen.iteration_seconds:.3g} s, stages: "
        f"{written['stages']}. Open it in ui.perfetto.dev or chrome://tracing."
    )
    output.answer(written, lambda _: [says], json=json)
