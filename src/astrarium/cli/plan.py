"""`astrarium plan`: the best strategies for a workload on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from astrarium.cli import options
from astrarium.errors import NoFeasiblePlanError

if TYPE_CHECKING:
    from astrarium.cli.request import Request


def plan(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    model: options.MODEL,
    global_batch: options.GLOBAL_BATCH,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    seq_length: options.SEQ_LENGTH = None,
    tokens: options.TOKENS = None,
    objective: options.OBJECTIVE = "throughput",
    budget: options.BUDGET = None,
    deadline: options.DEADLINE = None,
    mode: options.MODE = "exact",
    runtime: options.RUNTIME = "megatron",
    precision: options.PRECISION = "bf16",
    rule: options.RULES = None,
    top: options.TOP = "5",
    profile: options.PROFILE = None,
    json: options.JSON = False,
    out: options.OUT = None,
) -> None:
    """The best strategies: time, memory, money, why others fell out."""
    from astrarium.cli import output, request
    from astrarium.cli.shell import ARGUMENTS, knows
    from astrarium.report.build import document_of
    from astrarium.report.document import PLAN_FILE, to_dict
    from astrarium.search import planner
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.rules import user_rules

    request.check_planned(runtime)
    goal = request.choice("--objective", objective, Objective, without=(Objective.GPUS,))
    how = request.choice("--mode", mode, planner.Mode)
    limits = Limits(request.usd("--budget", budget), request.seconds("--deadline", deadline))
    listed = request.count("--top", top, request.MOST_PLANS)
    rules = user_rules(rule or ())
    asked = request.read(model, gpus, cluster, seq_length, global_batch, tokens, precision)
    asked, tuning = request.tuned(asked, profile, request.Runtime.MEGATRON)
    search = planner.plan
    if runtime.lower() == request.Runtime.ANY:
        from astrarium.search.beyond import plan_beyond as search
    with output.progress("searching"), _refusal_as_json(asked, model, json):
        planned = search(
            asked.workload,
            asked.cluster,
            objective=goal,
            mode=how,
            rules=rules,
            top=listed,
            limits=limits,
            tuning=tuning,
        )
    document = document_of(planned, reference=model, objective=goal, mode=how, notes=asked.notes)
    written = output.write_document(out, PLAN_FILE, to_dict(document))
    if json:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.plan_report(document, width))
    typed, exports = ctx.meta[ARGUMENTS], knows(ctx, "export")
    runs = bool(document.plans[0].runtimes)
    output.show(lambda width: tables.next_steps(typed, written, width, exports=exports, runs=runs))


@contextmanager
def _refusal_as_json(asked: Request, model: str, wanted: bool) -> Iterator[None]:
    """Print a document also where no plan is feasible; the error itself goes on to the user."""
    try:
        yield
    except NoFeasiblePlanError as error:
        if wanted:
            from astrarium.cli import output
            from astrarium.report.build import document_without_plans
            from astrarium.report.document import to_dict

            why = asked.workload, asked.cluster, model, str(error), asked.notes
            output.print_json(to_dict(document_without_plans(*why)))
        raise
