"""The meaning of a user's configuration: the document `astrarium.import/1`, also as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins
from rich.console import RenderableType
from rich.text import Text

from astrarium.configs.imported import AsIf, Fate, Imported, Unknown, Used
from astrarium.plans.document import ClusterPart, PlanDocument, WorkloadPart, to_dict
from astrarium.report.explain.text import bullets, money_words, plan_lines
from astrarium.report.plan.compare import compare_section, differ
from astrarium.report.plan.fit import FitDocument, changes_section
from astrarium.report.plan.stages import memory_table
from astrarium.report.plan.text import header, verdict
from astrarium.report.tables import indented, labelled, title
from astrarium.value import Value

SCHEMA = "astrarium.import/1"
AS_MODELLED = "as modelled"
VALUELESS = ("True", "False", "")
AS_IF_CORRECTED = "yours does not run; it is predicted as if its conflicts were corrected"


class OptionsPart(Value, frozen=True):
    """What became of every option."""

    used: tuple[Used, ...]
    neutral: tuple[str, ...]
    as_if: tuple[AsIf, ...]
    unknown: tuple[Unknown, ...]


# Verdicts on what does not fit as predicted, but has options that save memory.
_WITH_SAVINGS = {
    True: ("FITS with the least that these options save (not in the prediction):", "bold green"),
    None: (
        "NOT SURE whether it fits: as predicted it does not, but it has options that save memory",
        "bold yellow",
    ),
    False: ("DOES NOT FIT even with the most that these options can save:", "bold red"),
}


class ImportDocument(Value, frozen=True):
    """What a configuration means, and whether it runs.

    `conflicts` say why it would not start. `fit` says whether it fits, as if the conflicts were
    corrected; null if it cannot be predicted even so. `answer` is the plan document of a search
    with the same GPUs and workload, in whose `compare` the configuration stands beside plan 1 (null
    if there is no plan at all: `error`). `faster` is the speed of plan 1 over its speed. Where it
    does not fit as predicted, `unsure` has what it states and what would save memory, but is not
    modelled; `runs` is null if it fits with the most that this can save, and not with the least.
    """

    schema: str
    source: str
    program: str
    runtime: str
    workload: WorkloadPart
    cluster: ClusterPart
    options: OptionsPart
    conflicts: tuple[str, ...]
    runs: bool | None
    fit: FitDocument | None
    answer: PlanDocument | None
    faster: float | None
    error: str
    notes: tuple[str, ...]
    unsure: tuple[str, ...] = ()


def options_part(imported: Imported) -> OptionsPart:
    return OptionsPart(imported.used, imported.neutral, imported.as_if, imported.unknown)


def faster_than(fit: FitDocument | None, answer: PlanDocument | None) -> float | None:
    """The speed of plan 1 over that of the configuration; None if that does not run."""
    if fit is None or fit.plan is None or not fit.fits or answer is None:
        return None
    return fit.plan.iteration_seconds / answer.plans[0].iteration_seconds


def import_to_dict(document: ImportDocument) -> dict[str, Any]:
    """The document as plain data, ready for JSON."""
    data: dict[str, Any] = to_builtins(document)
    data["answer"] = None if document.answer is None else to_dict(document.answer)
    return data


def import_report(document: ImportDocument, width: int) -> Iterator[RenderableType]:
    """The options, whether it runs, its time and memory, and the gain of a better plan."""
    plans = () if document.fit is None or document.fit.plan is None else (document.fit.plan,)
    trains = {plan.finetune for plan in plans}
    yield header(document.workload, document.cluster, document.notes, trains=trains)
    yield title(f"{document.source}, read for {document.program}")
    yield from _options(document.options)
    yield from _judgement(document, width)
    if document.answer is None:
        yield title("A better plan")
        yield indented(f"there is none: {document.error}")
        return
    compare = document.answer.compare
    if compare is not None and compare.plan is not None:
        yield from compare_section(document.answer, compare)
    if document.fit is None or document.fit.plan is None:
        best = document.answer.plans[0]
        yield title("The best plan on the same GPUs")
        yield from plan_lines(best, document.workload)
        yield indented(money_words(best))
    yield from _gain(document)


def _judgement(document: ImportDocument, width: int) -> Iterator[RenderableType]:
    if document.conflicts:
        yield title("Would it run?")
        program = document.program.rpartition(" ")[0]
        yield Text(f"WOULD NOT START: {program} would refuse it", style="bold red")
        yield from bullets(document.conflicts)
    if document.fit is None or document.fit.plan is None:
        return
    plan = document.fit.plan
    yield title("If that were fixed" if document.conflicts else "Would it run?")
    of_a_fork = [one.option for one in document.options.unknown if one.fate is Fate.FORKED]
    if of_a_fork:
        words = f"would not run with {document.program} as it is: {', '.join(of_a_fork)}"
        yield Text(words, style="yellow")
    if document.unsure:
        words, style = _WITH_SAVINGS[None if document.conflicts else document.runs]
        yield Text(words, style=style)
        yield from bullets(document.unsure)
        yield indented("without it, as predicted:")
    if plan.fits:
        yield verdict(plan)  # otherwise the first of the lines
    yield from plan_lines(plan, document.workload)
    yield indented(money_words(plan))
    yield title("Memory: GiB on each GPU of a stage")
    yield memory_table(plan, width)
    if not plan.fits:
        yield from changes_section(document.fit, plan)


def _gain(document: ImportDocument) -> Iterator[RenderableType]:
    answer, own = document.answer, document.fit.plan if document.fit else None
    if document.faster is None or document.faster == 1 or answer is None or own is None:
        return
    if not differ(own, answer.plans[0], experts=document.workload.has_experts):
        return  # the comparison says so
    words = f"plan 1 is {document.faster:.2f} times as fast"
    if document.faster < 1:
        words = "no better plan was found: yours is faster"
    yield Text(words, style="bold")


def _options(options: OptionsPart) -> Iterator[RenderableType]:
    """Four lists, the short ones in full sentences."""
    deciding = [one for one in options.used if one.sets != AS_MODELLED]
    same = [one for one in options.used if one.sets == AS_MODELLED]
    lists = {
        "  decide": [
            one.option if one.value in VALUELESS else f"{one.option} {one.value}"
            for one in deciding
        ],
        "  as modelled": [one.option for one in same],
        "  change nothing": options.neutral,
    }
    unknown = [Text(f"{one.option}: {one.says}", style="yellow") for one in options.unknown]
    yield labelled(
        [
            *((label, ", ".join(words)) for label, words in lists.items() if words),
            *(("  as if", one.text) for one in options.as_if),
            *(("  unknown", text) for text in unknown),
        ],
        style="dim",
    )
