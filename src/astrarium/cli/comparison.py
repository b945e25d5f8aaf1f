"""`astrarium plan --compare`: the user's own strategy and cluster, read from flags and files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from astrarium.cli.money import Terms
from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.cli.request import Request
    from astrarium.cluster import Cluster
    from astrarium.cost.tuning import Tuning
    from astrarium.strategy.types import Strategy

FLAG, GPUS_FLAG = "--compare", "--compare-gpus"


@dataclass(frozen=True, slots=True)
class Given:
    """What --compare names, before anything is known about the workload."""

    reference: str
    cluster: Cluster | None  # None: that of the plan
    gpus: int | None  # that the strategy uses, where a plan file says so

    @property
    def types(self) -> tuple[str, ...]:
        """The GPU types that are not only the plan's."""
        return () if self.cluster is None else tuple(p.gpu.name for p in self.cluster.pools)


@dataclass(frozen=True, slots=True)
class Yours:
    """The user's strategy, where it runs, and notes on it."""

    asked: Request
    strategy: Strategy
    tuning: Tuning


def given(reference: str | None, gpus: str | None, *, has_cluster: bool) -> Given | None:
    """What the flags name; None without --compare."""
    from astrarium.cluster import parse_gpus

    if reference is None:
        if gpus is not None:
            raise InputError(
                f"{GPUS_FLAG} '{gpus}' goes with {FLAG}; add your strategy, or drop it"
            )
        return None
    if gpus is not None:
        try:
            return Given(reference, parse_gpus(gpus), None)
        except InputError as error:
            raise InputError(f"{GPUS_FLAG} '{gpus}': {error}") from None
    found = _of_plan_file(reference)
    if found is None and not has_cluster:
        raise InputError(
            f"{FLAG} {reference}: on which GPUs? With --market alone, {GPUS_FLAG} TYPE:N names"
            " yours, such as a100:64"
        )
    return found or Given(reference, None, None)


def _of_plan_file(reference: str) -> Given | None:
    """The pools that the best plan of a plan file uses; None if this is no plan file."""
    from astrarium import documents
    from astrarium.cluster import Cluster
    from astrarium.plans.document import to_dict
    from astrarium.plans.files import load_document

    path = Path(reference)
    if "=" in reference or not path.is_file():
        return None
    content = documents.read(path)
    if not isinstance(content, dict) or "plans" not in content:
        return None
    document = load_document(path)
    if not document.plans:
        raise InputError(f"{FLAG} {reference}: the plan file holds no plans")
    best = document.plans[0]
    cluster = Cluster.from_dict(to_dict(document)["cluster"])
    pools = tuple(p for p in cluster.pools if p.name in best.pools) or cluster.pools
    return Given(reference, cluster.part(pools), best.num_gpus)


def read(given: Given, asked: Request, terms: Terms, tuning: Tuning) -> Yours:
    """The strategy for the same workload, on its own cluster at the terms of the answer's."""
    from astrarium.cli import money, request

    own = replace(asked, notes=())
    if given.cluster is not None:
        theirs = frozenset(pool.gpu.name for pool in asked.cluster.pools)
        alike = replace(
            terms, max_gpus=None, money_decides=False, may_choose=False, elsewhere=theirs
        )
        cluster, notes = money.priced(given.cluster, alike)
        own = replace(asked, cluster=cluster, notes=notes)
    try:
        strategy = request.strategy(given.reference, own, flag=FLAG, gpus=given.gpus)
    except InputError as error:
        if given.cluster is not None or "GPUs" not in str(error):
            raise
        raise InputError(f"{error}; {GPUS_FLAG} TYPE:N says how many you have") from None
    return _tuned(own, asked, strategy, tuning)


def _tuned(own: Request, asked: Request, strategy: Strategy, tuning: Tuning) -> Yours:
    """What was learned on the GPUs of the answer holds for the same type only."""
    from astrarium.cost.tuning import NEUTRAL

    types = {pool.gpu.name for pool in asked.cluster.pools}
    others = [pool.gpu.name for pool in own.cluster.pools if pool.gpu.name not in types]
    if tuning == NEUTRAL or not others:
        return Yours(own, strategy, tuning)
    note = f"--profile says nothing about {', '.join(others)}: predicted without it"
    return Yours(replace(own, notes=(*own.notes, note)), strategy, NEUTRAL)
