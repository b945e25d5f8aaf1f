"""The plan document, schema `astrarium.plan/1`: what `--json` prints and `plan.json` holds.

The dataclasses here are the schema: their fields are the keys, units in the names. Everything
that is shown is rendered from them, so that text and JSON cannot disagree, and a document can be
explained later from itself alone. Keys that a newer version added are ignored when reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from astrarium.documents.clusters import ClusterPart as ClusterPart
from astrarium.documents.clusters import Link as Link
from astrarium.documents.clusters import PoolPart as PoolPart
from astrarium.model.workload import Evaluation as Evaluation
from astrarium.model.workload import Numerics, Precision
from astrarium.model.workload import Ramp as Ramp
from astrarium.strategy.estimate import MEMORY_KEYS as MEMORY_KEYS
from astrarium.strategy.estimate import Plan as Plan
from astrarium.strategy.estimate import Run as Run
from astrarium.strategy.estimate import StageMemory as StageMemory
from astrarium.strategy.estimate import StageSeconds as StageSeconds
from astrarium.strategy.types import Overlap as Overlap
from astrarium.strategy.types import Recompute as Recompute
from astrarium.strategy.types import Stage as Stage
from astrarium.strategy.types import Strategy as Strategy
from astrarium.value import Value

SCHEMA = "astrarium.plan/1"
PLAN_FILE = "plan.json"


class WorkloadPart(Value, frozen=True):
    """What is trained; `model_as_given` is what the user called it: a name or a path.

    `model_config` is the config.json or model file it was built from; null in older files.
    """

    model: str
    model_as_given: str
    parameters: int
    active_parameters: int
    layers: int
    seq_length: int
    global_batch: int
    tokens: int | None
    precision: Precision
    numerics: Numerics = Numerics.STRICT
    optimizer: str = "adamw"
    lora_rank: int | None = None  # of adapters, where a plan trains them
    lora_modules: tuple[str, ...] = ()
    model_config: dict[str, Any] | None = None

    @property
    def has_experts(self) -> bool:
        return self.active_parameters != self.parameters


class SearchPart(Value, frozen=True):
    """What the search did, within which limits.

    `reasons` splits the counts of `rejected` by the rule that acted. `rampup_batch` and
    `evaluation` belong to the run of every plan; null in older files. `faster_alone` is null
    unless some pools only hold the others up.
    """

    objective: str
    mode: str
    seconds: float
    space: int
    evaluated: int
    rejected: dict[str, int]
    reasons: dict[str, int]
    optimal: bool
    bound_gap: float
    budget_usd: float | None = None
    deadline_seconds: float | None = None
    listed: int | None = None  # plans asked for; those behind them are points of the front
    rampup_batch: Ramp | None = None
    evaluation: Evaluation | None = None
    faster_alone: AlonePart | None = None
    left_out: str | None = None  # what the proof, or the gap, is not about


class AlonePart(Value, frozen=True):
    """A plan on all GPUs of one pool that is faster than what has to use all pools."""

    pool: str
    gpus: int
    iteration_seconds: float
    strategy: Strategy


class ParetoPart(Value, frozen=True):
    """A point of the front of time against money: no other plan beats it in both.

    `tokens_per_second` is the speed while it trains; `goodput` is the share of the run that it
    does. What is null or empty is not known, or the file is older than the key.
    """

    gpus: dict[str, int]
    tokens_per_second: float
    usd_total: float | None
    train_seconds: float | None
    plan: int  # index in `plans`
    usd_per_hour: float | None = None
    spot_gpus: dict[str, int] = msgspec.field(default_factory=dict)  # of `gpus`, by type
    cloud: dict[str, str] = msgspec.field(default_factory=dict)  # by GPU type
    goodput: float = 1.0
    kwh: float | None = None
    train_seconds_interval: tuple[float, float] | None = None
    usd_interval: tuple[float, float] | None = None
    tied_with: tuple[int, ...] = ()  # other points that the intervals do not tell apart


class ComparePart(Value, frozen=True):
    """What the user has, beside plan 1, and what that saves: negative where it takes more.

    Seconds and dollars are those of the run, or of an iteration without tokens. `refused` says
    why there is no plan. Nothing is saved (null) against what does not run or does not fit.
    """

    cluster: ClusterPart
    plan: Plan | None
    refused: str
    saved_seconds: float | None
    saved_usd: float | None
    saved_kwh: float | None
    notes: tuple[str, ...] = ()


class SensitivityPart(Value, frozen=True):
    """What would change the GPUs of plan 1 if it were `factor` times as large, and to which.

    A `factor` of null: nothing up to `unchanged_to` does. `gpus_then` is by pool; empty if no plan
    keeps the limits then.
    """

    what: str  # price (USD per GPU and hour), network or link (bytes per second and node)
    pool: str  # or both, of a link: "A - B"
    factor: float | None
    value_now: float
    value_then: float | None
    gpus_then: dict[str, int]
    unchanged_to: float | None = None


class ChoicePart(Value, frozen=True):
    """Which plan to start, by rank: of the near-tie, the simplest with room in memory.

    `near_tie` are the listed plans that cannot be told from the fastest; `chance` is that the
    fastest is really faster than the recommended, `slower` what the prediction says. `fastest` is
    null if it is not listed.
    """

    recommended: int
    fastest: int | None
    near_tie: tuple[int, ...]
    slower: float
    chance: float
    why: tuple[str, ...]  # what the recommended plan does without


class PlanDocument(Value, frozen=True):
    """`search` is null when a single strategy was predicted; `notes` are for the reader.

    Without any plan `error` says why, and nothing is known of the search. `compare` and
    `sensitivity` are there where they were asked for, `choice` where a plan is recommended.
    """

    schema: str
    workload: WorkloadPart
    cluster: ClusterPart
    search: SearchPart | None
    plans: tuple[Plan, ...]
    pareto: tuple[ParetoPart, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    compare: ComparePart | None = None
    sensitivity: tuple[SensitivityPart, ...] | None = None
    choice: ChoicePart | None = None  # null with --prefer fastest, or where money decides

    @property
    def listed(self) -> tuple[Plan, ...]:
        """The best plans, as many as were asked for."""
        return self.plans if self.search is None else self.plans[: self.search.listed]


# What defaults make easy to write in code, and what files always hold, but for keys of later days.
_WHOLE = (Strategy, Recompute, Overlap, Stage)
LATER_KEYS = frozenset({"pipeline_inside", "modules"})


def schemas(types: Sequence[Any], ref_template: str) -> dict[str, Any]:
    """JSON schemas of documents and their parts, by name."""
    _, made = msgspec.json.schema_components(types, ref_template=ref_template)
    for part in (made[kind.__name__] for kind in _WHOLE if kind.__name__ in made):
        part["required"] = [key for key in part["properties"] if key not in LATER_KEYS]
    return made


def to_dict(document: PlanDocument) -> dict[str, Any]:
    """The document as plain data, ready for JSON."""
    data: dict[str, Any] = msgspec.to_builtins(document)  # twenty times as fast as `asdict`
    for key in [key for key in ("error", "compare", "sensitivity", "choice") if data[key] is None]:
        del data[key]
    return data


def from_dict(data: Mapping[str, Any]) -> PlanDocument:
    """The document that `to_dict` wrote; for files, `load_document` explains mistakes better."""
    return msgspec.convert(data, PlanDocument)
