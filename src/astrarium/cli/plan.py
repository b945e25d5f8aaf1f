"""`astrarium plan`: the best strategies for a workload on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from astrarium.cli import options

if TYPE_CHECKING:
    from astrarium.report.document import PlanDocument
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.planner import Mode


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
    market: options.MARKET = None,
    region: options.REGION = None,
    max_gpus: options.MAX_GPUS = None,
    prices: options.PRICE_FILES = None,
    price: options.PRICES = None,
    discount: options.DISCOUNTS = None,
    power_price: options.POWER_PRICE = None,
    power_utilisation: options.POWER_UTILISATION = None,
    json: options.JSON = False,
    out: options.OUT = None,
) -> None:
    """The best strategies: time, memory, money, why others fell out."""
    from astrarium.cli import money, output, request
    from astrarium.report.build import document_of
    from astrarium.search import planner
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.rules import user_rules

    request.check_planned(runtime)
    goal = request.choice("--objective", objective, Objective, without=(Objective.GPUS,))
    how = _mode(mode, market_alone=gpus is None and cluster is None and market is not None)
    limits = Limits(request.usd("--budget", budget), request.seconds("--deadline", deadline))
    listed = request.count("--top", top, request.MOST_PLANS)
    rules = user_rules(rule or ())
    terms = money.terms(ctx.params, money_decides=_money_decides(goal, how, limits))
    asked = request.read(model, gpus, cluster, seq_length, global_batch, tokens, precision, terms)
    asked, tuning = request.tuned(asked, profile, request.Runtime.MEGATRON)
    search = planner.plan
    if runtime.lower() == request.Runtime.ANY:
        from astrarium.search.beyond import plan_beyond as search
    with output.progress("searching"):
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
    _hand_over(ctx, document)


def _mode(text: str, *, market_alone: bool) -> Mode:
    """The mode of --mode; a market has more than anybody rents."""
    from astrarium.cli import request
    from astrarium.search.planner import Mode

    asked = request.choice("--mode", text, Mode)
    return Mode.UP_TO if market_alone else asked


def _money_decides(objective: Objective, mode: Mode, limits: Limits) -> bool:
    """Whether GPUs without a price are of no use, and others may be taken."""
    cheap = objective == "cost" or limits.budget_usd is not None
    return cheap and mode == "up-to"


def _hand_over(ctx: typer.Context, document: PlanDocument) -> None:
    """Write the document where --out says, and print it as --json or as text."""
    from astrarium.cli import output
    from astrarium.cli.shell import ARGUMENTS, knows
    from astrarium.report.document import PLAN_FILE, to_dict

    written = output.write_document(ctx.params["out"], PLAN_FILE, to_dict(document))
    if ctx.params["json"]:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.plan_report(document, width))
    typed, exports = ctx.meta[ARGUMENTS], knows(ctx, "export")
    output.show(lambda width: tables.next_steps(typed, written, width, exports=exports))
