"""`astrarium predict`: what one strategy takes in time, memory and money."""

from __future__ import annotations

import typer

from astrarium.cli import options


def predict(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    strategy: options.STRATEGY,
    model: options.OPTIONAL_MODEL = None,
    global_batch: options.STATED_GLOBAL_BATCH = None,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    seq_length: options.SEQ_LENGTH = None,
    tokens: options.TOKENS = None,
    as_type: options.AS_TYPE = None,
    precision: options.PRECISION = "bf16",
    runtime: options.RUNTIME = "megatron",
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
    from astrarium.api.planning import prediction
    from astrarium.cli import output
    from astrarium.cli.shell import typed
    from astrarium.plans.document import PLAN_FILE, to_dict

    document = prediction(ctx.params, typed(ctx))
    output.write_document(out, PLAN_FILE, to_dict(document))
    if json:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.prediction_report(document, width))
