"""`astrarium explain`: where time, memory and money of a plan go, and how two plans differ.

A launch script or configuration of another program in place of a plan is judged: `api.review`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from astrarium.api.flags import ANSWER_FLAGS, CONFIG_FLAGS
from astrarium.cli import output
from astrarium.cli.shell import command, typed
from astrarium.errors import InputError, flag

if TYPE_CHECKING:
    from astrarium.configs.imported import Imported
    from astrarium.configs.values import Answers

# Flags that are about a configuration; a plan has all of it in its file.
ONLY_FOR_CONFIGS = (
    "model",
    *(name for name in CONFIG_FLAGS if name != "model"),
    *("out", "set", "vocab_size"),
)

_STRATEGY = "is a strategy; `astrarium predict MODEL ... --strategy` takes it"


@command("explain", "script", "configuration", "json", "out", "report")
def explain(
    ctx: click.Context,
    *,
    plan: str,
    against: str | None,
    rank: int,
    json: bool,
    out: str | None,
    report: str | None,
    **values: Any,  # noqa: ANN401  of configurations
) -> None:
    """Explain where the time, memory and money of a plan go.

    For a launch script or configuration, also say whether it runs and what would be better.
    """
    from astrarium.cli import programs

    answers = _answers(*(values.pop(name) for name in ANSWER_FLAGS))
    from astrarium.plans.document import is_plan

    if programs.is_program(plan):
        programs.explain(plan, typed(ctx), json=json)
        return
    if not is_plan(Path(plan)):
        from astrarium.configs.detect import read_config

        imported = read_config(plan, "the arguments", answers)
        if imported is not None:
            _judge(ctx, imported, values, json=json, out=out)
            return
        _check_for_plan(plan)
    if answers.arguments:
        other = f"to compare it with another plan, write --against {answers.arguments[0]}"
        raise InputError(f"{plan} is a plan, which takes no arguments; {other}")
    if report is not None:
        _check_report(plan, against, report)
    _explain_plan(plan, against, rank, typed(ctx), json=json)
    if report is not None:
        from astrarium.cli.planning import write_report
        from astrarium.plans.document import load_document

        write_report(ctx, load_document(Path(plan)), rank)
        if not json:
            output.write(f"\n{report} is written\n")


def _judge(
    ctx: click.Context,
    imported: Imported,
    values: Mapping[str, Any],
    *,
    json: bool,
    out: str | None,
) -> None:
    """Judge a configuration; the exit code is 1 if it does not run."""
    for name in ("against", "rank", "report"):
        if name in typed(ctx):
            raise InputError(
                f"--{name} is for plans, and {imported.source} is a configuration; drop it"
            )
    from astrarium.api import review
    from astrarium.api.asked import AskedValues
    from astrarium.plans.document import PLAN_FILE, to_dict
    from astrarium.report.plan.imported import import_report, import_to_dict

    case = review.reviewed(AskedValues(**values, given=typed(ctx)), imported)
    with output.progress("searching"):
        document = review.document(case)
    if document.answer is not None:
        output.write_document(out, PLAN_FILE, to_dict(document.answer))
    output.answer(import_to_dict(document), lambda width: import_report(document, width), json=json)
    if document.runs is False:
        ctx.exit(1)


def _answers(
    arguments: Sequence[str] | None, set_: Sequence[str] | None, vocab_size: int | None
) -> Answers:
    """The answers of the command line to the questions that a script leaves open."""
    from os import environ

    from astrarium.api.imports import answers

    return answers(arguments, set_, vocab_size, environ)


def _check_report(plan: str, against: str | None, report: str) -> None:
    """Refuse a report of two plans, and one that has no place."""
    from astrarium.cli.planning import check_report
    from astrarium.plans.document import PLAN_FILE

    if against is not None:
        raise InputError(f"--report {report}: shows one file of plans; drop --against")
    check_report(report, (plan, str(Path(plan) / PLAN_FILE)))


def _check_for_plan(plan: str) -> None:
    """Refuse what is neither a configuration nor, by its keys, meant to be a plan."""
    from astrarium.configs.detect import content_of, is_strategy

    if plan == "-":
        raise InputError("-: standard input is not read; write it to a file and name that")
    if "=" in plan and not os.path.exists(plan):
        raise InputError(f"{plan}: {_STRATEGY}")
    content = content_of(Path(plan))
    if isinstance(content, Mapping) and "schema" in content:
        return
    if isinstance(content, Mapping) and is_strategy(content):
        raise InputError(f"{plan}: {_STRATEGY}")
    from astrarium.api.imports import not_recognised

    raise not_recognised(plan)


def _check_plan_flags(plan: str, given: Collection[str]) -> None:
    """Refuse flags that mean nothing for a plan."""
    useless = [flag(name) for name in ONLY_FOR_CONFIGS if name in given]
    if useless:
        flags = ", ".join(useless)
        raise InputError(
            f"{plan} is a plan, and its file has everything; drop {flags}, or name a"
            " launch script or configuration"
        )


def _explain_plan(
    plan: str, against: str | None, rank: int, given: Collection[str], *, json: bool
) -> None:
    from astrarium.plans.document import load_document, plan_of_rank
    from astrarium.report.explain.terms import compare
    from astrarium.report.explain.terms import explain as explained_plan

    document = load_document(Path(plan))
    _check_plan_flags(plan, given)
    chosen = plan_of_rank(document, rank, plan)
    if against is None:
        explanation = explained_plan(chosen, document.cluster)
        if json:
            output.print_json(explanation)
            return
        from astrarium.report.explain.text import explanation_report

        output.show(lambda width: explanation_report(document, explanation, width))
        return
    other = load_document(Path(against))
    compared = compare((document, chosen), (other, plan_of_rank(other, 1, against)))
    if json:
        output.print_json(compared)
        return
    from astrarium.report.explain.text import comparison_report

    output.show(lambda width: comparison_report(compared, (plan, against)))
