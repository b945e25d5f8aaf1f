"""`astrarium fit`: will it fit, by how much not, and what would make it."""

from __future__ import annotations

import typer

from astrarium.cli import options


def fit(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    model: options.MODEL,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    strategy: options.OPTIONAL_STRATEGY = None,
    seq_length: options.SEQ_LENGTH = None,
    global_batch: options.OPTIONAL_GLOBAL_BATCH = None,
    precision: options.PRECISION = "bf16",
    profile: options.PROFILE = None,
    market: options.MARKET = None,
    region: options.REGION = None,
    prices: options.PRICE_FILES = None,
    price: options.PRICES = None,
    discount: options.DISCOUNTS = None,
    power_price: options.POWER_PRICE = None,
    power_utilisation: options.POWER_UTILISATION = None,
    json: options.JSON = False,
) -> None:
    """Will it fit: bytes by cause, smallest count, cheapest change.

    The exit code is 1 if it does not fit.
    """
    from dataclasses import asdict

    from astrarium.api import money, request
    from astrarium.cli import output
    from astrarium.report.fit import fit_document, fit_report
    from astrarium.search import fit as search

    asked = request.read(
        model, gpus, cluster, seq_length, global_batch, None, precision, money.terms(ctx.params)
    )
    chosen = None if strategy is None else request.strategy(strategy, asked)
    asked, tuning = request.tuned(asked, profile, request.Runtime.MEGATRON)
    with output.progress("searching"):
        report = search.fit(asked.workload, asked.cluster, chosen, tuning=tuning)
    document = fit_document(report, asked.cluster, model, asked.notes)
    if json:
        output.print_json(asdict(document))
    else:
        output.show(lambda width: fit_report(document, width, chosen=chosen is not None))
    if not document.fits:
        raise typer.Exit(1)
