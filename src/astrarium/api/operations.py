"""Questions about a running job: what to do about a changed cluster, and how it would fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.api import planning
from astrarium.api.asked import AskedValues
from astrarium.api.flags import as_keyword, read
from astrarium.api.plans import Plan, Plans, StrPath
from astrarium.api.running_flags import REPLAN_FLAGS
from astrarium.catalog.runtimes import Runtime
from astrarium.cluster import Cluster
from astrarium.cost.checkpoints import Storage, checkpoint_bytes
from astrarium.cost.training_run import RunTerms
from astrarium.documents import write_atomic
from astrarium.errors import InputError, flag, naming
from astrarium.model.workload import Workload
from astrarium.operations.change import ClusterChange, named, situation
from astrarium.operations.replan import ReplanAnswer, ReplanTerms, decide
from astrarium.operations.simulate import Policy, Setting, simulate
from astrarium.operations.sites import Sites, over_sites
from astrarium.operations.stragglers import DEFAULT_REPAIR_SECONDS, Stragglers, steadiness
from astrarium.operations.traces import CapacityTrace, Drawn, drawn_trace, read_trace, trace_csv
from astrarium.plans.document import PlanDocument, is_plan, load_document
from astrarium.plans.job import Job, job_of
from astrarium.report.operations import (
    SITES_SCHEMA,
    ReplanDocument,
    SimulationDocument,
    SitesDocument,
    StragglersDocument,
    replan_document,
    simulation_document,
)
from astrarium.report.plan.document import document_of_prediction
from astrarium.units import HOUR
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.api.calls import Objective
    from astrarium.units import Amount

DRAW = "draw"  # in place of the file of a trace
ALL = "all"
LEAST_SITES = 2
OF_DRAWN = ("hours", "losses", "away", "together", "price_swing")
OF_STRATEGIES = ("model", "gpus", "cluster", "global_batch", "seq_length", "precision", "runtime")
PlanGiven = StrPath | Plans | Plan | PlanDocument


class Running(Value, frozen=True):
    """A plan that runs: all that its document says, checked."""

    document: PlanDocument
    job: Job

    @property
    def workload(self) -> Workload:
        return self.job.workload

    @property
    def cluster(self) -> Cluster:
        return self.job.cluster

    @property
    def runtime(self) -> Runtime:
        return self.job.runtime


class Replanned(Value, frozen=True):
    """What to do; `document` is what `--json` prints."""

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


def running(values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> Running:
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
        names = (*OF_STRATEGIES, "price")
        asked = AskedValues(
            strategy=str(plan), profile=None, given=given, **{name: values[name] for name in names}
        )
        document, rank = planning.prediction(asked), 1
        return Running(document, job_of(document, rank, where))
    typed = [name for name in OF_STRATEGIES if name in given]
    if typed:
        raise InputError(
            f"{flag(typed[0])} belongs to a strategy, and {where} is a plan, which says it itself;"
            f" leave {flag(typed[0])} out"
        )
    if values.get("price"):
        from astrarium.cluster import market

        cluster = Cluster.from_dict(_plain(document))
        from astrarium.report.plan.document import cluster_part

        priced = market.with_prices(cluster, values["price"], frozenset())
        document = replace(document, cluster=cluster_part(priced))
    return Running(document, job_of(document, rank, where))


def _plain(document: PlanDocument) -> dict[str, Any]:
    from msgspec import to_builtins

    plain: dict[str, Any] = to_builtins(document.cluster)
    return plain


def replanned(values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> Replanned:
    """The answer to `astrarium replan`."""
    asked = running(values, given)
    change = _change(values)
    happened = situation(asked.job.strategy, asked.cluster, change)
    terms = terms_of(values)
    decision = decide(happened, asked.workload, asked.runtime, asked.job.plan, terms)
    best = decision.of(decision.best)
    assert best.plan is not None
    name = asked.document.workload.model_as_given
    document = document_of_prediction(asked.workload, happened.now, best.plan, name)
    return Replanned(replan_document(decision, terms, change, document))


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


def terms_of(values: Mapping[str, Any]) -> ReplanTerms:
    """The terms of the flags that were given, and the defaults of the others."""
    given = {
        "objective": values.get("objective"),
        "horizon_seconds": values.get("horizon"),
        "storage": values["storage_bandwidth"] or Storage(),
        "restart_seconds": values.get("restart_time"),
        "failures_per_hour": values["failures"],
        "checkpoint_interval_seconds": values["checkpoint_every"],
        "since_checkpoint_seconds": values.get("since_checkpoint"),
        "exact": values.get("exact"),
    }
    return ReplanTerms(**{name: value for name, value in given.items() if value is not None})


def simulated(values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> SimulationDocument:
    """The answer to `astrarium simulate`."""
    asked = running(values, given)
    trace, drawn = _trace(values, asked.cluster, given), values["trace"] == DRAW
    wanted = values["policy"]
    policies = tuple(Policy) if wanted == ALL else (Policy(wanted),)
    strategy, cluster = named(asked.job.strategy, asked.cluster)
    terms = terms_of(values)
    plan = replace(asked.job.plan, strategy=strategy)
    setting = Setting(
        asked.workload,
        asked.runtime,
        plan,
        strategy,
        cluster,
        terms,
        values["seed"],
        values["spare"],
    )
    outcomes = tuple(simulate(setting, trace, policy) for policy in policies)
    name = f"drawn with seed {values['seed']}" if drawn else str(values["trace"])
    if values["save_trace"] is not None:
        write_atomic(Path(values["save_trace"]), trace_csv(trace))
    return simulation_document(asked.document, plan, name, trace, outcomes, values["seed"])


def _trace(values: Mapping[str, Any], cluster: Cluster, given: frozenset[str]) -> CapacityTrace:
    """The trace of a file, or one that is drawn."""
    if values["trace"] != DRAW:
        alone = [name for name in OF_DRAWN if name in given]
        if alone:
            raise InputError(
                f"{flag(alone[0])} is about a trace that is drawn, and {values['trace']} is a file;"
                f" leave it out, or give {DRAW} as TRACE"
            )
        return read_trace(Path(values["trace"]))
    chosen = {
        "hours": values["hours"] / HOUR,
        "seed": values["seed"],
        "losses_per_hour": values["losses"],
        "hours_away": values["away"] / HOUR,
        "nodes_together": values["together"],
        "price_deviation": values["price_swing"],
    }
    return drawn_trace(cluster, Drawn(**{k: v for k, v in chosen.items() if v is not None}))


def over_several_sites(
    values: Mapping[str, Any], given: frozenset[str] = frozenset()
) -> SitesDocument:
    """The answer to `astrarium sites`."""
    if values["sites"] < LEAST_SITES:
        raise InputError(f"{flag('sites')} {values['sites']}: outer steps need at least 2 sites")
    asked = running(values, given)
    sites = Sites(
        values["sites"],
        values["link"],
        values["latency"],
        values["every"],
        values["bits"],
        values["fragments"],
        values["overlap"],
    )
    if sites.fragments > sites.every:
        raise InputError(
            f"{flag('fragments')} {sites.fragments} take turns within {flag('every')} {sites.every}"
            " iterations; give fewer"
        )
    found = over_sites(asked.workload, asked.cluster, asked.job.plan, sites)
    return SitesDocument(SITES_SCHEMA, asked.document.workload, asked.job.plan, sites, found)


def under_stragglers(
    document: PlanDocument,
    stragglers: Stragglers,
    terms: RunTerms,
    repair_seconds: float | None = None,
) -> StragglersDocument:
    """What the listed plans of a document take with GPUs and nodes that are slow and break."""
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
    """What a running job should do about GPUs lost, gained or slowed down; as `astrarium replan`.

    `plan` is a plan file, or what `plan`, `predict` or `load` returned, or the `plans` of an
    earlier answer. Raises InputError for what cannot have happened, NoFeasiblePlanError if nothing
    fits.
    """
    arguments = locals()
    with naming(as_keyword):
        given = {name: value for name, value in arguments.items() if value is not None}
        return replanned(read(REPLAN_FLAGS, given, from_python=True))
