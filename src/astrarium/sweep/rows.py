"""The answer to a scenario as rows: one per plan, or one that says why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import process_time
from typing import TYPE_CHECKING, Any, Final

from astrarium.errors import InputError, NoFeasiblePlanError

if TYPE_CHECKING:
    from astrarium.api.plans import Plans
    from astrarium.plans.document import Plan
    from astrarium.sweep.scenarios import Question, SweepScenario

ASKED: Final = "asked."  # before the names of columns that hold what was asked
Row = dict[str, Any]

_STRATEGY: Final = (
    *("tp", "pp", "virtual_stages", "cp", "ep", "etp", "dp", "micro_batch", "num_micro_batches"),
    *("zero_stage", "offload_optimizer"),
)
# Columns of an answer; those of the question are texts, as they are in the file.
COLUMNS: Final[Mapping[str, type]] = {
    "scenario": str,
    "status": str,  # planned, no plan, refused or failed
    "cpu_seconds": float,
    "question": str,  # as JSON
    "message": str,
    "rank": int,
    "gpus": str,
    "num_gpus": int,
    **dict.fromkeys(_STRATEGY, int),
    "recompute": str,
    "iteration_seconds": float,
    "iteration_seconds_low": float,
    "iteration_seconds_high": float,
    "tokens_per_second": float,
    "mfu": float,
    "peak_gib": float,
    "fit_chance": float,
    "usd_per_hour": float,
    "usd_total": float,
    "train_days": float,
    "optimal": bool,
    "bound_gap": float,
}
ALWAYS: Final = ("scenario", "status", "cpu_seconds")  # in every row
_GIB: Final = 2**30
_DAY: Final = 86400.0

Answer = Callable[["Question"], "Plans"]


def answered(scenario: SweepScenario, answer: Answer | None = None) -> list[Row]:
    """The rows of a scenario; a question that cannot be answered is a row, and stops nothing."""
    begin = process_time()
    try:
        plans = (answer or planned)(scenario.question)
    except NoFeasiblePlanError as error:
        rows: list[Row] = [{"status": "no plan", "message": str(error)}]
    except InputError as error:
        rows = [{"status": "refused", "message": str(error)}]
    except Exception as error:  # a fault in one scenario must not lose the others
        rows = [{"status": "failed", "message": f"{type(error).__name__}: {error}"}]
    else:
        rows = [_row(plan, plans) for plan in plans]
    common = {"scenario": scenario.key, "cpu_seconds": process_time() - begin}
    common["question"] = json.dumps(scenario.question, default=str)
    asked = {f"{ASKED}{name}": _text(value) for name, value in scenario.question.items()}
    return [{**common, **row, **asked} for row in rows]


def planned(question: Question) -> Plans:
    from astrarium.api.calls import plan_briefly
    from astrarium.api.flags import as_keyword

    one = {"top": 1, **question}
    return plan_briefly({as_keyword(name): value for name, value in one.items()})


def _row(plan: Plan, plans: Plans) -> Row:
    strategy, search = plan.strategy, plans.document.search
    low, high = plan.interval_seconds
    return {
        "status": "planned",
        "rank": plan.rank,
        "gpus": ",".join(f"{name}:{count}" for name, count in plan.gpus.items()),
        "num_gpus": sum(plan.gpus.values()),
        **{name: int(getattr(strategy, name)) for name in _STRATEGY},
        "recompute": str(strategy.recompute.granularity),
        "iteration_seconds": plan.iteration_seconds,
        "iteration_seconds_low": low,
        "iteration_seconds_high": high,
        "tokens_per_second": plan.tokens_per_second,
        "mfu": plan.mfu,
        "peak_gib": max(stage.peak_bytes for stage in plan.memory) / _GIB,
        "fit_chance": plan.fit_chance,
        "usd_per_hour": plan.usd_per_hour,
        "usd_total": plan.usd_total,
        "train_days": None if plan.train_seconds is None else plan.train_seconds / _DAY,
        "optimal": search and search.optimal,
        "bound_gap": search and search.bound_gap,
    }


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
