"""`astrarium plan`: the best strategies for a workload on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from astrarium.cli import options
from astrarium.errors import NoFeasiblePlanError

if TYPE_CHECKING:
    from astrarium.cli.request import Request
    from astrarium.report.document import PlanDocument
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.planner import Mode, Planned

FRONT_FLAG = "--front"


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
    mix: options.MIX = None,
    prices: options.PRICE_FILES = None,
    price: options.PRICES = None,
    discount: options.DISCOUNTS = None,
    power_price: options.POWER_PRICE = None,
    power_utilisation: options.POWER_UTILISATION = None,
    epochs: options.EPOCHS = None,
    dataset_tokens: options.DATASET_TOKENS = None,
    rampup_batch: options.RAMPUP_BATCH = None,
    eval_every: options.EVAL_EVERY = None,
    eval_iterations: options.EVAL_ITERATIONS = None,
    spot: options.SPOT = "never",
    interruptions: options.INTERRUPTIONS = None,
    checkpoint_every: options.CHECKPOINT_EVERY = None,
    storage_bandwidth: options.STORAGE_BANDWIDTH = None,
    restart_time: options.RESTART_TIME = None,
    co2: options.CO2 = None,
    json: options.JSON = False,
    out: options.OUT = None,
    front: options.FRONT = None,
) -> None:
    """The best strategies: time, memory, money, why others fell out."""
    from astrarium.cli import money, output, request
    from astrarium.report.build import document_of
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.rules import user_rules

    request.check_planned(runtime)
    files = _front_files(front or (), [model, cluster, profile])
    goal = request.choice("--objective", objective, Objective, without=(Objective.GPUS,))
    market_alone = gpus is None and cluster is None and market is not None
    how = _mode(mode, market_alone=market_alone)
    limits = Limits(request.usd("--budget", budget), request.seconds("--deadline", deadline))
    listed = request.count("--top", top, request.MOST_PLANS)
    most_types = _most_types(mix, market_alone=market_alone)
    rules = user_rules(rule or ())
    terms = money.terms(ctx.params, money_decides=_money_decides(goal, how, limits))
    length = request.run_length(tokens, epochs, dataset_tokens)
    asked = request.read(model, gpus, cluster, seq_length, global_batch, length, precision, terms)
    run = request.run_terms(ctx.params, asked.workload)
    asked, tuning = request.tuned(asked, profile, request.Runtime.MEGATRON)
    search = _search_for(runtime)
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
            terms=run,
            most_types=most_types,
        )
    document = document_of(
        planned, reference=model, objective=goal, mode=how, limits=limits, notes=asked.notes
    )
    _hand_over(ctx, document, files)


def _mode(text: str, *, market_alone: bool) -> Mode:
    """The mode of --mode; a market has more than anybody rents."""
    from astrarium.cli import request
    from astrarium.search.planner import Mode

    asked = request.choice("--mode", text, Mode)
    return Mode.UP_TO if market_alone else asked


def _most_types(text: str | None, *, market_alone: bool) -> int | None:
    """Pools that one job may use; of a market, offers of different clouds among them, one."""
    from astrarium.cli import request

    if text is None:
        return 1 if market_alone else None
    return request.count("--mix", text, request.MOST_POOLS)


def _money_decides(objective: Objective, mode: Mode, limits: Limits) -> bool:
    """Whether GPUs without a price are of no use, and others may be taken."""
    cheap = objective == "cost" or limits.budget_usd is not None
    return cheap and mode == "up-to"


def _hand_over(ctx: typer.Context, document: PlanDocument, files: Sequence[str]) -> None:
    """Write the document where --out and --front say, and print it as --json or as text."""
    from astrarium.cli import output
    from astrarium.cli.shell import ARGUMENTS, knows
    from astrarium.report.document import PLAN_FILE, to_dict

    written = output.write_document(ctx.params["out"], PLAN_FILE, to_dict(document))
    if files:
        from astrarium.report.front_files import write_front

        for file in files:
            write_front(FRONT_FLAG, file, document)
    if ctx.params["json"]:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.plan_report(document, width))
    typed, exports = ctx.meta[ARGUMENTS], knows(ctx, "export")
    runs = bool(document.plans[0].runtimes)
    output.show(
        lambda width: tables.next_steps(
            typed, written, width, exports=exports, runs=runs, files=files
        )
    )


def _search_for(runtime: str) -> Callable[..., Planned]:
    """Of a plain plan, or of what no option of Megatron's says."""
    from astrarium.cli.request import Runtime

    if runtime.lower() == Runtime.ANY:
        from astrarium.search.beyond import plan_beyond

        return plan_beyond
    from astrarium.search.planner import plan as plain_plan

    return plain_plan


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


def _front_files(files: Sequence[str], inputs: Sequence[str | None]) -> Sequence[str]:
    """The files of --front, once it is known that they can be written."""
    if files:
        from astrarium.cli import output
        from astrarium.report.front_files import check_front

        for file in files:
            check_front(FRONT_FLAG, file)
            output.check_not_read(FRONT_FLAG, file, [read for read in inputs if read])
    return files
