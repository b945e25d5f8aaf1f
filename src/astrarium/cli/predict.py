"""`astrarium predict`: what one strategy takes in time, memory and money."""

from __future__ import annotations

import typer

from astrarium.cli import options


def predict(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    model: options.MODEL,
    global_batch: options.GLOBAL_BATCH,
    strategy: options.STRATEGY,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    seq_length: options.SEQ_LENGTH = None,
    tokens: options.TOKENS = None,
    precision: options.PRECISION = "bf16",
    runtime: options.ANY_RUNTIME = "megatron",
    profile: options.PROFILE = None,
    market: options.MARKET = None,
    region: options.REGION = None,
    prices: options.PRICE_FILES = None,
    price: options.PRICES = None,
    discount: options.DISCOUNTS = None,
    power_price: options.POWER_PRICE = None,
    power_utilisation: options.POWER_UTILISATION = None,
    json: options.JSON = False,
    out: options.OUT = None,
) -> None:
    """One strategy: time, memory, money, and where they go."""
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.cli import money, output, request
    from astrarium.plans.document import PLAN_FILE, to_dict
    from astrarium.report.build import document_of_prediction
    from astrarium.search import planner

    terms, length = money.terms(ctx.params), request.run_length(tokens)
    asked = request.read(model, gpus, cluster, seq_length, global_batch, length, precision, terms)
    chosen = request.strategy(strategy, asked)
    program = find_runtime(runtime)
    asked = request.under(asked, program)
    asked, tuning = request.tuned(asked, profile, program.name)
    predicted = planner.predict(
        asked.workload, asked.cluster, chosen, runtime=program, tuning=tuning
    )
    document = document_of_prediction(asked.workload, asked.cluster, predicted, model, asked.notes)
    output.write_document(out, PLAN_FILE, to_dict(document))
    if json:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.prediction_report(document, width))
