"""The user's own plan at the terms of the answer: the same cost model, the same prices."""

from __future__ import annotations

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import Cluster
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError
from astrarium.model.workload import Workload
from astrarium.search.money import Runs, best_paid
from astrarium.search.outcome import Limits, Objective
from astrarium.search.plan import Plan
from astrarium.search.planner import predict
from astrarium.strategy.types import Strategy
from astrarium.value import Value


class OwnPlan(Value, frozen=True):
    """The user's plan, or why there is none."""

    cluster: Cluster
    plan: Plan | None
    refused: str = ""


def compared(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    *,
    objective: Objective,
    limits: Limits,
    terms: RunTerms,
    runtime: Runtime | None = None,
    tuning: Tuning = NEUTRAL,
) -> OwnPlan:
    """Predict and price a strategy as if it were one of the answers; limits need not be kept."""
    try:
        plan = predict(workload, cluster, strategy, runtime=runtime, tuning=tuning)
    except InputError as error:
        return OwnPlan(cluster, None, str(error))
    runs = Runs(workload, cluster, terms, tuning, runtime or find_runtime())
    return OwnPlan(cluster, best_paid(runs, plan, objective, limits))
