"""`astrarium trace`: the predicted iteration of a plan, for Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from astrarium.api.flags import Flag
from astrarium.cli import output
from astrarium.cli.explain import RANK
from astrarium.cli.export import PLAN
from astrarium.cli.shell import JSON, command

FLAGS = {
    "plan": PLAN,
    "out": Flag(
        "The trace to write, a .json file.", "FILE", required=True, spellings=("--out", "-o")
    ),
    "rank": RANK,
    "json": JSON,
}


@command(FLAGS)
def trace(_: click.Context, *, plan: str, out: str, rank: int, json: bool) -> None:
    """Write the predicted iteration of a plan, for Perfetto.

    It shows the passes, transfers, updates and memory of every stage. Open it in ui.perfetto.dev.
    """
    from json import dumps

    from astrarium.documents import write_atomic
    from astrarium.plans.document import PLAN_FILE
    from astrarium.plans.files import load_document, plan_of_rank
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
