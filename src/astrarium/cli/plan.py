"""`astrarium plan`: the best strategies for a workload on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from astrarium.cli import options

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
    from astrarium.cli.shell import ARGUMENTS, knows
    from astrarium.report.build import document_of
    from astrarium.report.document import PLAN_FILE, to_dict
    from astrarium.search import planner
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.rules import user_rules

    request.check_planned(runtime)
    files = _front_files(front or (), [model, cluster, profile])
    goal = request.choice("--objective", objective, Objective, without=(Objective.GPUS,))
    how = request.choice("--mode", mode, planner.Mode)
    if gpus is None and cluster is None and market is not None:
        how, mix = planner.Mode.UP_TO, mix or "1"  # nobody rents all that a cloud has
    most_types = None if mix is None else request.count("--mix", mix, request.MOST_POOLS)
    limits = Limits(request.usd("--budget", budget), request.seconds("--deadline", deadline))
    listed = request.count("--top", top, request.MOST_PLANS)
    rules = user_rules(rule or ())
    terms = money.Terms(
        market,
        region,
        max_gpus,
        prices or (),
        price or (),
        discount or (),
        power_price,
        power_utilisation,
        money_decides=how is planner.Mode.UP_TO
        and (goal is Objective.COST or limits.budget_usd is not None),
        may_choose=True,
    )
    length = request.run_length(tokens, epochs, dataset_tokens)
    asked = request.read(model, gpus, cluster, seq_length, global_batch, length, precision, terms)
    run = request.run_terms(
        global_batch=asked.workload.global_batch,
        spot=spot,
        interruptions=interruptions or (),
        checkpoint_every=checkpoint_every,
        storage_bandwidth=storage_bandwidth,
        restart_time=restart_time,
        rampup_batch=rampup_batch,
        eval_every=eval_every,
        eval_iterations=eval_iterations,
        co2=co2,
    )
    request.check_run_length(run, length)
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
            terms=run,
            most_types=most_types,
        )
    document = document_of(
        planned, reference=model, objective=goal, mode=how, limits=limits, notes=asked.notes
    )
    written = output.write_document(out, PLAN_FILE, to_dict(document))
    if files:
        from astrarium.report.front_files import write_front

        for file in files:
            write_front(FRONT_FLAG, file, document)
    if json:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.plan_report(document, width))
    typed, exports = ctx.meta[ARGUMENTS], knows(ctx, "export")
    output.show(
        lambda width: tables.next_steps(typed, written, width, exports=exports, files=files)
    )


def _front_files(files: Sequence[str], inputs: Sequence[str | None]) -> Sequence[str]:
    """The files of --front, once it is known that they can be written."""
    if files:
        from astrarium.cli import output
        from astrarium.report.front_files import check_front

        for file in files:
            check_front(FRONT_FLAG, file)
            output.check_not_read(FRONT_FLAG, file, [read for read in inputs if read])
    return files
