"""`astrarium fit`: will it fit, by how much not, and what would make it."""

from __future__ import annotations

import typer

from astrarium.cli import options


def fit(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    model: options.OPTIONAL_MODEL = None,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    strategy: options.OPTIONAL_STRATEGY = None,
    seq_length: options.SEQ_LENGTH = None,
    global_batch: options.OPTIONAL_GLOBAL_BATCH = None,
    as_type: options.AS_TYPE = None,
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

    from astrarium.api import imports, money, request
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.cli import output
    from astrarium.cli.shell import typed
    from astrarium.report.fit import fit_document, fit_report
    from astrarium.search import fit as search

    filled = imports.filled(ctx.params, typed(ctx))
    asked = filled.read(money.terms(ctx.params))
    if filled.imported is not None:
        imports.check_accepted(filled.imported)
    chosen = None if strategy is None else request.strategy(filled.imported or strategy, asked)
    program = find_runtime(filled.runtime)
    asked, tuning = request.tuned(request.under(asked, program), profile, program.name)
    with output.progress("searching"):
        report = search.fit(asked.workload, asked.cluster, chosen, runtime=program, tuning=tuning)
    document = fit_document(report, asked.cluster, filled.called(asked), asked.notes)
    if json:
        output.print_json(asdict(document))
    else:
        output.show(lambda width: fit_report(document, width, chosen=chosen is not None))
    if not document.fits:
        raise typer.Exit(1)
