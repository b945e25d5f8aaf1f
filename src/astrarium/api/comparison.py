"""`astrarium plan --compare`: the user's own strategy and cluster, read from flags and files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from astrarium import documents
from astrarium.api import imports, money, request
from astrarium.api.asked import AskedValues, PlanAsked
from astrarium.api.imports import counted
from astrarium.api.money import MoneyTerms
from astrarium.api.request import DEFAULT_RUNTIME, Request
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster
from astrarium.cluster.build import gpus_text, parse_gpus
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import GpuCountError, InputError, flag, refusal
from astrarium.model.prediction import with_predictions
from astrarium.plans.document import to_dict
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.configs.imported import Imported
    from astrarium.configs.settings import Described
    from astrarium.model import Model
    from astrarium.model.adapters import Adapters
    from astrarium.strategy.types import Strategy


class ComparedWith(Value, frozen=True):
    """The reference of --compare, before the workload is known."""

    reference: str | Imported
    cluster: Cluster | None  # None: that of the plan
    gpus: int | None  # that the strategy uses, where a plan file says so

    @property
    def types(self) -> tuple[str, ...]:
        """The GPU types that are not only the plan's."""
        return () if self.cluster is None else tuple(p.gpu.name for p in self.cluster.pools)


class Yours(Value, frozen=True):
    """The user's strategy, where it runs and under what, and notes on it."""

    asked: Request
    strategy: Strategy
    tuning: Tuning
    runtime: str = DEFAULT_RUNTIME


def given(asked: PlanAsked, *, has_cluster: bool) -> ComparedWith | None:
    """The reference that the flags name; None without --compare."""
    reference, gpus = asked.compare, asked.compare_gpus
    if reference is None:
        if gpus is not None:
            raise refusal(
                "compare_gpus",
                f" '{gpus_text(gpus)}' goes with {flag('compare')}; add your strategy, or drop it",
            )
        return None
    from astrarium.configs.detect import read_config

    whose = read_config(reference, flag("compare")) or reference
    if gpus is not None:
        started = gpus if isinstance(whose, str) else counted(gpus, whose.described)
        try:
            return ComparedWith(whose, parse_gpus(started or gpus), None)
        except InputError as error:
            raise refusal("compare_gpus", f" '{gpus_text(gpus)}': {error}") from None
    found = _of_plan_file(reference) if isinstance(whose, str) else None
    if found is None and not has_cluster:
        raise refusal(
            "compare",
            f" {reference}: on which GPUs? With {flag('market')} alone, {flag('compare_gpus')}"
            " TYPE:N names yours, such as a100:64",
        )
    return found or ComparedWith(whose, None, None)


def _of_plan_file(reference: str) -> ComparedWith | None:
    """The pools that the best plan of a plan file uses; None if this is no plan file."""
    from astrarium.plans.document import load_document

    path = Path(reference)
    if "=" in reference or not os.path.isfile(path):
        return None
    content = documents.read(path)
    if not isinstance(content, dict) or "plans" not in content:
        return None
    document = load_document(path)
    if not document.plans:
        raise refusal("compare", f" {reference}: the plan file holds no plans")
    best = document.plans[0]
    cluster = Cluster.from_dict(to_dict(document)["cluster"])
    pools = tuple(p for p in cluster.pools if p.name in best.pools) or cluster.pools
    return ComparedWith(reference, cluster.part(pools), best.num_gpus)


def stated(given: ComparedWith | None, asked: PlanAsked) -> tuple[PlanAsked, tuple[str, ...]]:
    """Lengths of sequences and of the run, by the flags or a configuration, and notes."""
    length, tokens = asked.seq_length, request.run_length(asked)
    notes = []
    if given is not None and not isinstance(given.reference, str):
        imported = given.reference
        own = imported.described.seq_length
        if length is None and own is not None:
            length = own
            notes.append(f"--seq-length not given: {own:,} taken, as {imported.source} has it")
        if tokens is None:
            tokens = imports.run_tokens(imported, length, asked.global_batch)
            if tokens is not None:
                notes.append(f"--tokens not given: {tokens:,} taken, as {imported.source} has it")
    return replace(asked, seq_length=length, tokens=tokens), tuple(notes)


def read(given: ComparedWith, asked: Request, terms: MoneyTerms, tuning: Tuning) -> Yours:
    """The strategy for the same workload, on its own cluster at the terms of the answer's."""
    own = replace(asked, notes=())
    if given.cluster is not None:
        theirs = frozenset(pool.gpu.name for pool in asked.cluster.pools)
        alike = MoneyTerms(replace(terms.flags, max_gpus=None), elsewhere=theirs)
        cluster, notes = money.priced(given.cluster, alike)
        own = replace(asked, cluster=cluster, notes=notes)
    runtime = DEFAULT_RUNTIME
    try:
        if not isinstance(given.reference, str):
            own, runtime = _imported(given.reference, own)
        strategy = request.strategy(given.reference, own, name="compare", gpus=given.gpus)
    except GpuCountError as error:
        if given.cluster is not None:
            raise
        ways = f"{flag('compare_gpus')} TYPE:N gives the number of GPUs that you have"
        raise InputError(f"{error}; {ways}", "compare_gpus") from None
    return replace(_tuned(own, asked, strategy, tuning), runtime=runtime)


def _imported(imported: Imported, own: Request) -> tuple[Request, str]:
    """The request with notes of a configuration, which must be of this very workload."""
    imports.check_agreement(imported, own, flag("compare_gpus"))
    imports.check_accepted(imported)
    described = imported.described
    workload = replace(
        own.workload,
        model=with_predictions(own.workload.model, described.mtp_layers or 0),
        precision=described.precision,
        numerics=described.numerics,
        optimizer=described.optimizer,
        expert_messages=described.expert_messages,
        adapters=_adapters(described, own.workload.model),
    )
    workload, fallbacks = request.usable_format(workload, own.cluster)
    notes = [*own.notes, *fallbacks]
    if workload.precision is not own.workload.precision:
        notes.append(
            f"{imported.source} trains in {workload.precision}, the plan in"
            f" {own.workload.precision}"
        )
    if workload.adapters != own.workload.adapters:
        theirs, planned = (_trained(one.adapters) for one in (workload, own.workload))
        notes.append(f"{imported.source} trains {theirs}, the plan {planned}")
    noted = replace(own, workload=workload, notes=(*notes, *imported.summary))
    runtime = find_runtime(imported.described.runtime)
    return request.under(noted, runtime), runtime.name


def _adapters(described: Described, model: Model) -> Adapters | None:
    """The adapters that a configuration trains; None where it trains all weights."""
    stated = AskedValues(
        model=model,
        gpus=None,
        cluster=None,
        seq_length=None,
        global_batch=None,
        precision=described.precision,
        profile=None,
        finetune=described.finetune,
        lora_rank=described.lora_rank,
        lora_modules=described.lora_modules,
    )
    return request.adapters_of(stated, model)[0]


def _trained(adapters: Adapters | None) -> str:
    if adapters is None:
        return "all weights"
    return f"{adapters.kind} of rank {adapters.rank} for {', '.join(adapters.modules)}"


def _tuned(own: Request, asked: Request, strategy: Strategy, tuning: Tuning) -> Yours:
    """Factors learned on the GPUs of the answer hold for the same type only."""
    types = {pool.gpu.name for pool in asked.cluster.pools}
    others = [pool.gpu.name for pool in own.cluster.pools if pool.gpu.name not in types]
    if tuning == NEUTRAL or not others:
        return Yours(own, strategy, tuning)
    note = f"--profile says nothing about {', '.join(others)}: predicted without it"
    return Yours(replace(own, notes=(*own.notes, note)), strategy, NEUTRAL)
