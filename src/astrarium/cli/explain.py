"""`astrarium explain`: where time, memory and money of a plan go, and how two plans differ.

A launch script or configuration of another program in place of a plan is judged: `review`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from astrarium.cli import options
from astrarium.errors import InputError

# Flags that are about a configuration; a plan has all of it in its file.
ONLY_FOR_CONFIGS = (
    "model",
    "gpus",
    "cluster",
    "seq_length",
    "global_batch",
    "tokens",
    "precision",
    "runtime",
    "profile",
    "market",
    "region",
    "prices",
    "price",
    "discount",
    "power_price",
    "power_utilisation",
    "out",
)

_STRATEGY = "is a strategy; `astrarium predict MODEL ... --strategy` takes it"


def explain(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN",
            help="A plan.json or its folder, a program.json; or a launch script or configuration.",
        ),
    ],
    against: Annotated[
        str | None, typer.Option(metavar="PLAN", help="Compare with the best plan of this file.")
    ] = None,
    rank: Annotated[
        str, typer.Option(metavar="K", help="Which plan of PLAN; 1 is the best.")
    ] = "1",
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    model: options.MODEL_OPTION = None,
    seq_length: options.SEQ_LENGTH = None,
    global_batch: options.STATED_GLOBAL_BATCH = None,
    tokens: options.TOKENS = None,
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
    report: options.REPORT = None,
) -> None:
    """Where time, memory and money go; of a plan, or of what you launch with."""
    from pathlib import Path

    from astrarium.cli import programs
    from astrarium.cli.shell import typed
    from astrarium.plans.files import is_plan

    if programs.is_program(plan):
        programs.explain(plan, typed(ctx), json=json)
        return
    if not is_plan(Path(plan)):
        from astrarium.cli import review
        from astrarium.configs.detect import read_config

        imported = read_config(plan, "the arguments")
        if imported is not None:
            review.answer(ctx, imported)
            return
        _check_for_plan(plan)
    if report is not None:
        _check_report(plan, against, report)
    _explain_plan(plan, against, rank, typed(ctx), json=json)
    if report is not None:
        _write_report(ctx, plan, rank)


def _write_report(ctx: typer.Context, plan: str, rank: str) -> None:
    from pathlib import Path

    from astrarium.api import request
    from astrarium.cli.planning import write_report
    from astrarium.plans.files import load_document

    write_report(ctx, load_document(Path(plan)), request.rank(rank))


def _check_report(plan: str, against: str | None, report: str) -> None:
    """Refuse a report of two plans, and one that has no place."""
    from pathlib import Path

    from astrarium.cli.planning import check_report
    from astrarium.plans.document import PLAN_FILE

    if against is not None:
        raise InputError(f"--report {report}: shows one file of plans; drop --against")
    check_report(report, (plan, str(Path(plan) / PLAN_FILE)))


def _check_for_plan(plan: str) -> None:
    """Refuse what is neither a configuration nor, by its keys, meant to be a plan."""
    from collections.abc import Mapping
    from pathlib import Path

    from astrarium.configs.detect import content_of, is_strategy

    if plan == "-":
        raise InputError("-: standard input is not read; write it to a file and name that")
    if "=" in plan and not Path(plan).exists():
        raise InputError(f"{plan}: {_STRATEGY}")
    content = content_of(Path(plan))
    if isinstance(content, Mapping) and "schema" in content:
        return
    if isinstance(content, Mapping) and is_strategy(content):
        raise InputError(f"{plan}: {_STRATEGY}")
    raise InputError(
        f"{plan}: not recognised: neither a plan, nor a launch script or configuration of"
        " Megatron-LM, Megatron-Bridge, DeepSpeed, torchtitan, accelerate or nanotron"
    )


def _check_plan_flags(plan: str, typed: Collection[str]) -> None:
    """Refuse flags that mean nothing for a plan."""
    given = [name for name in ONLY_FOR_CONFIGS if name in typed]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(
            f"{plan} is a plan, which is explained from itself alone; drop {flags}, or name a"
            " launch script or configuration"
        )


def _explain_plan(
    plan: str, against: str | None, rank: str, typed: Collection[str], *, json: bool
) -> None:
    from dataclasses import asdict
    from pathlib import Path

    from astrarium.api import request
    from astrarium.cli import output
    from astrarium.plans.files import load_document, plan_of_rank
    from astrarium.report.explain.terms import compare
    from astrarium.report.explain.terms import explain as explained_plan

    document = load_document(Path(plan))
    _check_plan_flags(plan, typed)
    number = request.rank(rank)
    chosen = plan_of_rank(document, number, plan)
    if against is None:
        explanation = explained_plan(chosen, document.cluster)
        if json:
            output.print_json(asdict(explanation))
            return
        from astrarium.report.explain.text import explanation_report

        output.show(lambda width: explanation_report(document, explanation, width))
        return
    other = load_document(Path(against))
    compared = compare((document, chosen), (other, plan_of_rank(other, 1, against)))
    if json:
        output.print_json(asdict(compared))
        return
    from astrarium.report.explain.text import comparison_report

    output.show(lambda width: comparison_report(compared, (plan, against)))
