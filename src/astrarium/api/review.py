"""A configuration of another program: whether it runs, what it takes, what would be better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astrarium.api import imports, request
from astrarium.api.asked import AskedValues
from astrarium.api.request import Request
from astrarium.catalog.runtimes import GRAPHS, Runtime, find_runtime
from astrarium.configs.imported import Fate, Imported, OpenQuestionError
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import Tuning
from astrarium.errors import InputError, NoFeasiblePlanError, flag, in_shell
from astrarium.plans.document import PlanDocument
from astrarium.report.plan.document import cluster_part, compare_part, document_of, workload_part
from astrarium.report.plan.fit import FitDocument, fit_document
from astrarium.report.plan.imported import (
    AS_IF_CORRECTED,
    SCHEMA,
    ImportDocument,
    faster_than,
    options_part,
)
from astrarium.report.plan.text import EVEN, EXPORTED_TO
from astrarium.search.comparison import OwnPlan, compared
from astrarium.search.fit import fit
from astrarium.search.offload import with_offload
from astrarium.search.outcome import DEFAULT_FIT_CHANCE, KeptFree, Limits, Mode, Objective, Prefer
from astrarium.search.planner import Planned, check_runtime, plan
from astrarium.search.refusals import why_refused
from astrarium.strategy.types import Strategy
from astrarium.value import Value, replace


class ReviewedConfig(Value, frozen=True):
    """A configuration with its missing facts filled in, ready to be predicted.

    `conflicts` are the reasons why it would not run. If there is a `strategy` all the same, they
    are only about how it is written, and the prediction ignores them.
    """

    imported: Imported
    asked: Request
    reference: str
    runtime: Runtime
    tuning: Tuning
    strategy: Strategy | None
    conflicts: tuple[str, ...]


def reviewed(given: AskedValues, imported: Imported) -> ReviewedConfig:
    """The configuration with the flags applied; nothing is predicted yet."""
    filled = imports.completed(given, imported)
    if filled.asked.gpus is None and filled.asked.cluster is None:
        count = imported.described.gpus or "N"
        raise InputError(
            f"{imported.source}: on which GPUs? "
            + in_shell(f"Add --gpus TYPE:{count} such as h100:{count}", "Choose their type."),
            "gpus",
        )
    if filled.asked.global_batch is None:
        raise InputError(
            f"{imported.source} does not state the batch; add {flag('global_batch', 'SEQUENCES')}",
            "global_batch",
        )
    asked = filled.read()
    runtime = find_runtime(request.runtime_of(filled.asked))
    asked = request.under(asked, runtime)
    asked, tuning = request.tuned(asked, given.profile, runtime.name)
    asked = _with_order_of_pools(asked)
    strategy, conflicts = _strategy(imported, asked, runtime)
    is_default = imported.described.gpus_is_default and given.cluster is None
    if strategy is None and is_default and ":" not in str(given.gpus):
        variable = imported.described.open_gpus
        raise OpenQuestionError(
            f"{imported.source}: on {asked.cluster.num_gpus} GPUs it would not start"
            f" ({'; '.join(conflicts)}); but the machine sets ${variable}: say the number"
            + in_shell(f" with --gpus {given.gpus}:N or --set {variable}=N"),
            "gpus",
        )
    return ReviewedConfig(
        imported, asked, filled.called(asked), runtime, tuning, strategy, conflicts
    )


def _strategy(
    imported: Imported, asked: Request, runtime: Runtime
) -> tuple[Strategy | None, tuple[str, ...]]:
    unknown = tuple(
        f"{one.option}: {one.says}" for one in imported.unknown if one.fate is Fate.REFUSED
    )
    written = (*imported.conflicts, *unknown)
    try:
        strategy = request.strategy(imported, asked)
    except InputError as error:
        # Its message often says again what is a conflict already.
        return None, written if imported.conflicts else (str(error), *unknown)
    reasons: tuple[str, ...] = ()
    if runtime.parses_as_megatron:
        reasons = why_refused(asked.workload, asked.cluster.pools, strategy, runtime.rules)
    return None if reasons else strategy, tuple(dict.fromkeys((*written, *reasons)))


def document(case: ReviewedConfig) -> ImportDocument:
    fit = _fit(case)
    answer, error = _answer(case, fit)
    asked, imported = case.asked, case.imported
    unsure = imported.savings() if fit is not None and not fit.fits else {}
    fits = fit is not None and (fit.fits or _fits_with(fit, tuple(unsure.values())))
    runs = False if case.conflicts else fits
    return ImportDocument(
        SCHEMA,
        imported.source,
        imported.program,
        case.runtime.name,
        workload_part(asked.workload, case.reference),
        cluster_part(asked.cluster),
        options_part(imported),
        case.conflicts,
        runs,
        fit,
        answer,
        faster_than(fit, answer),
        error,
        _notes(case),
        tuple(unsure),
    )


def _fits_with(
    fit: FitDocument, savings: Sequence[Mapping[str, tuple[float, float]]]
) -> bool | None:
    """Whether it may fit: with what saves memory and is not modelled; None where not sure."""
    if fit.plan is None:
        return False
    if not savings:
        return None if (fit.plan.fit_chance or 0.0) > EVEN else False
    needed: list[list[bool]] = [[], []]  # with the least that is saved, with the most
    for end, out in enumerate(needed):
        for stage in fit.plan.memory:
            shares = {
                cause: min(sum(one[cause][end] for one in savings if cause in one), 1.0)
                for cause in stage.by_cause
            }
            saved = sum(size * shares[cause] for cause, size in stage.by_cause.items())
            out.append(stage.peak_bytes - saved <= stage.capacity_bytes)
    return True if all(needed[0]) else None if all(needed[1]) else False


def _with_order_of_pools(asked: Request) -> Request:
    """The request with a note on the order of pools: scripts do not assign nodes to GPU types."""
    names = [pool.name for pool in asked.cluster.pools]
    if len(names) == 1:
        return asked
    note = f"stages are laid over the GPU types in the order given: {', then '.join(names)}"
    return replace(asked, notes=(*asked.notes, note))


def _notes(case: ReviewedConfig) -> tuple[str, ...]:
    """The notes without what the lists of options say in full."""
    listed = set(case.imported.summary) - set(case.imported.notes)
    return tuple(note for note in case.asked.notes if note not in listed)


def _fit(case: ReviewedConfig) -> FitDocument | None:
    if case.strategy is None:
        return None
    asked = case.asked
    report = fit(
        asked.workload,
        asked.cluster,
        case.strategy,
        runtime=case.runtime,
        tuning=case.tuning,
        is_launched=True,
    )
    return fit_document(report, asked.cluster, case.reference, ())


def _planned_for(case: ReviewedConfig) -> Runtime:
    """The software of the configuration, where plans are for it; else Megatron, or for adapters."""
    own, usual = case.runtime, find_runtime()
    other = find_runtime(request.FINETUNING_RUNTIME)
    same = [name for name, to in EXPORTED_TO.items() if to == EXPORTED_TO.get(own.name)]
    first = own if own.name == GRAPHS else find_runtime(same[0]) if same else usual
    for runtime in (first, own, usual, other):
        try:
            check_runtime(runtime, case.asked.workload, case.asked.cluster)
        except InputError:
            continue
        return runtime
    return usual if case.asked.workload.adapters is None else other


def _answer(case: ReviewedConfig, fit: FitDocument | None) -> tuple[PlanDocument | None, str]:
    """The best plan for the same GPUs and workload, with the configuration beside it.

    It fits as surely as other plans or as the configuration, where any does.
    """
    asked, objective, limits = case.asked, Objective.THROUGHPUT, Limits()
    own_chance = fit.plan.fit_chance if fit is not None and fit.plan and fit.fits else None
    surely = KeptFree(fit_chance=min(DEFAULT_FIT_CHANCE, own_chance or DEFAULT_FIT_CHANCE))

    def under(runtime: Runtime, kept_free: KeptFree = surely) -> Planned:
        return plan(
            asked.workload,
            asked.cluster,
            objective=objective,
            kept_free=kept_free,
            tuning=case.tuning,
            prefer=Prefer.RECOMMENDED,
            runtime=runtime,
        )

    def usual() -> Planned:
        try:
            return under(runtime)
        except NoFeasiblePlanError:
            return under(runtime, KeptFree())

    runtime = _planned_for(case)
    try:
        if runtime == find_runtime():
            planned = with_offload(asked.workload, asked.cluster, usual, under)
        else:
            planned = usual()
    except (InputError, NoFeasiblePlanError) as error:
        return None, str(error)
    refused = "; ".join(case.conflicts)
    if case.strategy is None:
        own = OwnPlan(asked.cluster, None, refused)
    else:
        own = compared(
            asked.workload,
            asked.cluster,
            case.strategy,
            objective=objective,
            limits=limits,
            terms=RunTerms(),
            runtime=case.runtime,
            tuning=case.tuning,
        )
        own = replace(own, refused=own.refused or refused)
    corrected = (AS_IF_CORRECTED,) if case.conflicts and own.plan is not None else ()
    return document_of(
        planned,
        reference=case.reference,
        objective=objective,
        mode=Mode.EXACT,
        notes=asked.notes,
        compare=compare_part(own, planned.plans[0], corrected),
    ), ""
