"""What `astrarium plan` does with its flags: read, search, compare, write and show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from astrarium.api import planning
from astrarium.cli import output
from astrarium.errors import NoFeasiblePlanError

if TYPE_CHECKING:
    from astrarium.plans.document import PlanDocument

FRONT_FLAG = "--front"


def answer(ctx: typer.Context) -> None:
    """Plan what the flags ask for, and hand over what was found."""
    flags = ctx.params
    inputs = [flags[name] for name in ("model", "cluster", "profile", "compare")]
    files = _front_files(flags["front"] or (), inputs)
    question = planning.read(flags)
    with output.progress("searching"), _refusal_as_json(question, flags["json"]):
        planned = planning.search(question)
    changes = None
    if flags["sensitivity"]:
        with output.progress("looking for what would change the answer"):
            changes = planning.changes(question, planned)
    _hand_over(ctx, planning.document(question, planned, changes), files)


def _hand_over(ctx: typer.Context, document: PlanDocument, files: Sequence[str]) -> None:
    """Write the document where --out and --front say, and print it as --json or as text."""
    from astrarium.cli.shell import ARGUMENTS
    from astrarium.plans.document import PLAN_FILE, to_dict

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
    typed, best = ctx.meta[ARGUMENTS], document.plans[0].strategy.program
    runs = bool(document.plans[0].runtimes) and best is None
    command = best.command if best else ""
    output.show(
        lambda width: tables.next_steps(
            typed, written, width, runs=runs, files=files, program=command
        )
    )


@contextmanager
def _refusal_as_json(question: planning.Question, wanted: bool) -> Iterator[None]:
    """Print a document also where no plan is feasible; the error itself goes on to the user."""
    try:
        yield
    except NoFeasiblePlanError as error:
        if wanted:
            from astrarium.plans.document import to_dict
            from astrarium.report.build import document_without_plans

            asked, name = question.asked, question.reference
            why = asked.workload, asked.cluster, name, str(error), asked.notes
            output.print_json(to_dict(document_without_plans(*why)))
        raise


def _front_files(files: Sequence[str], inputs: Sequence[str | None]) -> Sequence[str]:
    """The files of --front, once it is known that they can be written."""
    if files:
        from astrarium.report.front_files import check_front

        for file in files:
            check_front(FRONT_FLAG, file)
            output.check_not_read(FRONT_FLAG, file, [read for read in inputs if read])
    return files
