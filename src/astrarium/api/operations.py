"""Questions about a running job: what to do about a changed cluster, and how it would fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.api import planning
from astrarium.api.asked import AskedValues
from astrarium.api.flags import as_keyword, flags, read
from astrarium.api.plans import Plan, Plans, StrPath
from astrarium.cluster import Cluster, market
from astrarium.cost.checkpoints import checkpoint_bytes
from astrarium.cost.training_run import RunTerms
from astrarium.documents import write_atomic
from astrarium.errors import InputError, flag, naming
from astrarium.operations.change import ClusterChange, named, situation
from astrarium.operations.replan import ReplanAnswer, ReplanTerms, decide
from astrarium.operations.simulate import Policy, Setting, simulate
from astrarium.operations.sites import Sites, over_sites
from astrarium.operations.stragglers import DEFAULT_REPAIR_SECONDS, Stragglers, steadiness
from astrarium.operations.traces import CapacityTrace, Drawn, drawn_trace, read_trace, trace_csv
from astrarium.plans.document import PlanDocument, is_plan, load_document
from astrarium.plans.job import Job, job_of
from astrarium.report.operations import (
    ReplanDocument,
    SimulationDocument,
    SitesDocument,
    StragglersDocument,
)
from astrarium.report.plan.document import cluster_part, document_of_prediction
from astrarium.units import HOUR
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.api.calls import Objective
    from astrarium.units import Amount

DRAW = "draw"  # in place of the file of a trace
LEAST_SITES = 2
OF_STRATEGIES = ("model", "gpus", "cluster", "global_batch", "seq_length", "precision", "runtime")
PlanGiven = StrPath | Plans | Plan | PlanDocument

# Fields by the flags that set them.
_TERMS = {
    "objective": "objective",
    "horizon": "horizon_seconds",
    "storage_bandwidth": "storage",
    "restart_time": "restart_seconds",
    "failures": "failures_per_hour",
    "checkpoint_every": "checkpoint_interval_seconds",
    "since_checkpoint": "since_checkpoint_seconds",
    "exact": "exact",
}
_DRAWN = {
    "losses": "losses_per_hour",
    "together": "nodes_together",
    "price_swing": "price_deviation",
}


class Replanned(Value, frozen=True):
    """The decision; `document` is what `--json` prints."""

    document: ReplanDocument

    @property
    def decision(self) -> str:
        """ "stay", "reshape" or "move"."""
        return self.document.best.value

    @property
    def answers(self) -> Mapping[str, ReplanAnswer]:
        """The three answers by their names."""
        return {answer.way: answer for answer in self.document.answers}

    @property
    def best(self) -> Plan:
        """The plan to run from now on, which can be exported."""
        return self.plans.best

    @property
    def plans(self) -> Plans:
        """The same as a document of its own, to be saved and given to `replan` the next time."""
        return Plans(self.document.plan_document)


def running(values: Mapping[str, Any], given: frozenset[str]) -> tuple[PlanDocument, Job]:
    """The plan of the shared flags: of a plan document, or a strategy that is predicted first."""
    plan, rank = values["plan"], values["rank"]
    where = plan if isinstance(plan, str) else "the plan"
    if isinstance(plan, Plan):
        document, rank = plan.document, plan.rank
    elif isinstance(plan, Plans):
        document = plan.document
    elif isinstance(plan, PlanDocument):
        document = plan
    elif is_plan(Path(plan)):
        document = load_document(Path(plan))
    elif "=" not in str(plan) and not Path(plan).exists():
        says = "there is no such file; `astrarium plan ... --out DIR` writes a plan"
        raise InputError(f"{plan}: {says}", "plan")
    else:
        from astrarium.configs.detect import read_config

        if values["model"] is None and read_config(str(plan), flag("strategy")) is None:
            says = "is neither a plan nor a configuration that states the model"
            raise InputError(f"{plan} {says}; add {flag('model')}", "model")
        said = {name: values[name] for name in (*OF_STRATEGIES, "price")}
        asked = AskedValues(strategy=str(plan), profile=None, given=given, **said)
        document = planning.prediction(asked)
        return document, job_of(document, 1, where)
    typed = [name for name in OF_STRATEGIES if name in given]
    if typed:
        raise InputError(
            f"{flag(typed[0])} belongs to a strategy, and {where} is a plan, which says it itself;"
            f" leave {flag(typed[0])} out"
        )
    job = job_of(document, rank, where)
    if values.get("price"):
        priced = market.with_prices(job.cluster, values["price"], frozenset())
        document = replace(document, cluster=cluster_part(priced))
        job = job_of(document, rank, where)
    return document, job


def replanned(values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> Replanned:
    asked, job = running(values, given)
    change, terms = _change(values), _terms(values)
    happened = situation(job.strategy, job.cluster, change)
    decision = decide(happened, job.workload, job.runtime, job.plan, terms)
    best = decision.of(decision.best).plan
    assert best is not None
    name = asked.workload.model_as_given
    document = document_of_prediction(job.workload, happened.now, best, name)
    return Replanned(
        ReplanDocument(
            change=change,
            objective=str(terms.objective),
            horizon_seconds=terms.horizon_seconds,
            workload=document.workload,
            cluster_before=cluster_part(happened.before),
            before=job.plan,
            answers=decision.answers,
            best=decision.best,
            plan_document=document,
            strategies_priced=decision.priced,
            search_seconds=decision.seconds,
            notes=(*happened.notes, *decision.notes),
        )
    )


def _change(values: Mapping[str, Any]) -> ClusterChange:
    slowed: Mapping[str, float] = values["slowed"] or {}
    stages = {name: factor for name, factor in slowed.items() if name.startswith("stage=")}
    change = ClusterChange(
        values["lost"] or {},
        values["gained"] or {},
        {int(name.removeprefix("stage=")): factor for name, factor in stages.items()},
        {name: factor for name, factor in slowed.items() if name not in stages},
    )
    if change == ClusterChange():
        ways = f"{flag('lost')} a100:8, {flag('gained')} h100:16 or {flag('slowed')} stage=2:1.4"
        raise InputError(f"nothing has changed; say what, as {ways}")
    return change


def _terms(values: Mapping[str, Any]) -> ReplanTerms:
    return ReplanTerms(**_given(values, _TERMS))


def _given(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    return {field: values[name] for name, field in fields.items() if values.get(name) is not None}


def simulated(values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> SimulationDocument:
    asked, job = running(values, given)
    seed, source = values["seed"], values["trace"]
    trace = _trace(values, job.cluster, given)
    policies = tuple(Policy) if values["policy"] == "all" else (Policy(values["policy"]),)
    plan = replace(job.plan, strategy=named(job.strategy, job.cluster))
    terms, spare = _terms(values), values["spare"]
    setting = Setting(job.workload, job.runtime, plan, job.cluster, terms, seed, spare)
    outcomes = tuple(simulate(setting, trace, policy) for policy in policies)
    if values["save_trace"] is not None:
        write_atomic(Path(values["save_trace"]), trace_csv(trace))
    return SimulationDocument(
        workload=asked.workload,
        plan=plan,
        trace=f"drawn with seed {seed}" if source == DRAW else str(source),
        hours=trace.hours,
        changes_of_capacity=sum(one.gpus != other.gpus for one, other in pairwise(trace.spans)),
        seed=seed,
        outcomes=outcomes,
    )


def _trace(values: Mapping[str, Any], cluster: Cluster, given: frozenset[str]) -> CapacityTrace:
    if values["trace"] == DRAW:
        hours, away = values["hours"] / HOUR, values["away"] / HOUR
        drawn = Drawn(hours, values["seed"], hours_away=away, **_given(values, _DRAWN))
        return drawn_trace(cluster, drawn)
    alone = [name for name in ("hours", "away", *_DRAWN) if name in given]
    if alone:
        raise InputError(
            f"{flag(alone[0])} is about a trace that is drawn, and {values['trace']} is a file;"
            f" leave it out, or give {DRAW} as TRACE"
        )
    return read_trace(Path(values["trace"]))


def over_several_sites(
    values: Mapping[str, Any], given: frozenset[str] = frozenset()
) -> SitesDocument:
    if values["sites"] < LEAST_SITES:
        raise InputError(f"{flag('sites')} {values['sites']}: outer steps need at least 2 sites")
    asked, job = running(values, given)
    fields = ("sites", "link", "latency", "every", "bits", "overlap")
    sites = Sites(*(values[name] for name in fields))
    found = over_sites(job.workload, job.cluster, job.plan, sites)
    return SitesDocument(workload=asked.workload, plan=job.plan, sites=sites, outcome=found)


def under_stragglers(
    document: PlanDocument,
    stragglers: Stragglers,
    terms: RunTerms,
    repair_seconds: float | None = None,
) -> StragglersDocument:
    """The listed plans of a document with GPUs and nodes that are slow and break."""
    repair = DEFAULT_REPAIR_SECONDS if repair_seconds is None else repair_seconds
    found = []
    for plan in document.listed:
        job = job_of(document, plan.rank)
        state = checkpoint_bytes(job.workload, job.runtime)
        found.append(steadiness(plan, job.cluster, stragglers, state, terms, repair))
    return StragglersDocument(stragglers, repair, terms.failures_per_hour, tuple(found))


def replan(  # noqa: PLR0913  one parameter per flag
    plan: PlanGiven,
    *,
    lost: str | Mapping[str, int] | None = None,
    gained: str | Mapping[str, int] | None = None,
    slowed: str | Sequence[str] | Mapping[str, float] | None = None,
    rank: int = 1,
    objective: Objective = "throughput",
    horizon: Amount = "24h",
    failures: Amount | None = None,
    checkpoint_every: Amount | None = None,
    since_checkpoint: Amount | None = None,
    storage_bandwidth: str | None = None,
    restart_time: Amount | None = None,
    exact: bool = False,
) -> Replanned:
    """Ways to go on after GPUs were lost, gained or slowed down; as `astrarium replan`.

    `plan` is a plan file, or what `plan`, `predict` or `load` returned, or the `plans` of an
    earlier answer. Raises InputError for what cannot have happened, NoFeasiblePlanError if nothing
    fits.
    """
    arguments = locals()
    with naming(as_keyword):
        given = {name: value for name, value in arguments.items() if value is not None}
        return replanned(read(flags("replan"), given, from_python=True))
