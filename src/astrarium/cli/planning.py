"""The steps of `astrarium plan`: read, search, compare, write and show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from astrarium.api import planning
from astrarium.api.asked import PlanAsked
from astrarium.api.flags import PLAN_FLAGS
from astrarium.cli import output
from astrarium.cli.shell import ARGUMENTS, typed
from astrarium.errors import InputError, NoFeasiblePlanError

if TYPE_CHECKING:
    from astrarium.plans.document import PlanDocument
    from astrarium.report.operations import StragglersDocument

FRONT_FLAG = "--front"
PLOT_FLAG = "--plot"
REPORT_FLAG = "--report"


def answer(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Plan what the flags ask for, and hand over what was found."""
    if values["repair_time"] is not None and values["stragglers"] is None:
        raise InputError("--repair-time goes with --stragglers; add it, or leave --repair-time out")
    inputs = [values[name] for name in ("model", "cluster", "profile", "compare")]
    files = _checked_files(values, [read for read in inputs if read])
    asked = PlanAsked(**{name: values[name] for name in PLAN_FLAGS}, given=typed(ctx))
    question = planning.read(asked)
    with output.progress("searching"), _refusal_as_json(question, values["json"]):
        planned = planning.search(question)
    changes = None
    if asked.sensitivity:
        with output.progress("looking for what would change the answer"):
            changes = planning.changes(question, planned)
    document = planning.document(question, planned, changes)
    steady = None
    if values["stragglers"] is not None:
        from astrarium.api.operations import under_stragglers

        speeds, repair = values["stragglers"], values["repair_time"]
        steady = under_stragglers(document, speeds, question.terms, repair)
    _hand_over(ctx, document, files, steady)


def _hand_over(
    ctx: click.Context,
    document: PlanDocument,
    files: Sequence[str],
    steady: StragglersDocument | None,
) -> None:
    """Write the document where its flags say, and print it as --json or as text."""
    from astrarium.plans.document import PLAN_FILE, to_dict

    written = output.write_document(ctx.params["out"], PLAN_FILE, to_dict(document))
    _write_files(ctx, document)
    if ctx.params["json"]:
        more = {} if steady is None else {"stragglers": steady}
        output.print_json(to_dict(document) | more)
        return
    from astrarium.report.plan import text

    output.show(lambda width: text.plan_report(document, width))
    if steady is not None:
        from astrarium.report.operations import stragglers_report

        output.show(lambda width: stragglers_report(steady, width))
    typed, runtimes = ctx.meta[ARGUMENTS], document.plans[0].runtimes
    if document.workload.teacher or document.workload.reference:
        runtimes = ()  # no export has a frozen model
    output.show(
        lambda width: text.next_steps(typed, written, width, runtimes=runtimes, files=files)
    )


@contextmanager
def _refusal_as_json(question: planning.Question, wanted: bool) -> Iterator[None]:
    """Print a document also where no plan is feasible; the error itself goes on to the user."""
    try:
        yield
    except NoFeasiblePlanError as error:
        if wanted:
            from astrarium.plans.document import to_dict
            from astrarium.report.plan.document import document_without_plans

            asked, name = question.asked, question.reference
            why = asked.workload, asked.cluster, name, str(error), asked.notes
            output.print_json(to_dict(document_without_plans(*why)))
        raise


def _checked_files(flags: Mapping[str, Any], inputs: Sequence[str]) -> list[str]:
    """The files of --front, --plot and --report, once it is known that they can be written."""
    files = [*(flags["front"] or ()), *(flags["plot"] or ())]
    if files:
        from astrarium.report.front.files import PICTURES, check_front

        for flag, endings in ((FRONT_FLAG, ()), (PLOT_FLAG, PICTURES)):
            for file in flags[flag.removeprefix("--")] or ():
                check_front(flag, file, endings)
                output.check_not_read(flag, file, inputs)
    if flags["report"]:
        files.append(check_report(flags["report"], inputs))
    return files


def _write_files(ctx: click.Context, document: PlanDocument) -> None:
    for flag in (FRONT_FLAG, PLOT_FLAG):
        for file in ctx.params[flag.removeprefix("--")] or ():
            from astrarium.report.front.files import write_front

            write_front(flag, file, document)
    if ctx.params["report"]:
        write_report(ctx, document)


def check_report(file: str, inputs: Sequence[str]) -> str:
    """Refuse before any work a report that could not be written afterwards."""
    from astrarium.report.page import ENDING, MARK

    output.check_out(file, ENDING, MARK.encode(), inputs, REPORT_FLAG)
    return file


def write_report(ctx: click.Context, document: PlanDocument, rank: int = 1) -> None:
    """Write the report that --report names, with a plan as the chosen one."""
    from pathlib import Path

    from astrarium.documents import write_atomic
    from astrarium.report.page import report_html

    with output.progress("writing the report"):
        text = report_html(document, ("astrarium", *ctx.meta[ARGUMENTS]), rank)
        write_atomic(Path(ctx.params["report"]), text)
