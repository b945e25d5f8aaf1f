"""The plan document, schema `astrarium.plan/1`: what `--json` prints and `plan.json` holds.

The dataclasses here are the schema: their fields are the keys, units in the names. Everything
that is shown is rendered from them, so that text and JSON cannot disagree, and a document can be
explained later from itself alone. Keys that a newer version added are ignored when reading. Files
are read with checks that name the key, so that what is read can be relied on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astrarium.documents.clusters import ClusterPart as ClusterPart
from astrarium.documents.clusters import Link as Link
from astrarium.documents.clusters import PoolPart as PoolPart
from astrarium.errors import InputError, check_printable
from astrarium.model.workload import Evaluation as Evaluation
from astrarium.model.workload import ExpertMessages, Numerics, Precision
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
from astrarium.units import LARGEST_QUANTITY
from astrarium.value import Value, replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    expert_imbalance: float = 1.0
    expert_messages: ExpertMessages = ExpertMessages.ALLTOALL
    optimizer: str = "adamw"
    lora_rank: int | None = None  # of adapters, where a plan trains them
    lora_modules: tuple[str, ...] = ()
    freeze: str | None = None  # the name of the layers that do not train
    lengths: str | None = None  # of sequences, where they differ
    packed: bool = False
    mtp_layers: int = 0  # of the layers, those that predict further tokens
    teacher: str | None = None  # a frozen model, as given
    reference: str | None = None
    model_config: dict[str, Any] | None = None
    frozen_config: dict[str, Any] | None = None  # of the teacher or reference

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
LATER_KEYS = frozenset({"pipeline_inside", "modules", "shard_groups"})


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


def pareto_of(plans: Sequence[Plan]) -> tuple[ParetoPart, ...]:
    """The plans that no other beats in time and money; without prices time alone decides."""
    points = [_time_and_money(plan) for plan in plans]
    return with_ties(
        [
            pareto_part(plan, index)
            for index, plan in enumerate(plans)
            if not any(
                time <= points[index][0]
                and usd <= points[index][1]
                and (time, usd) != points[index]
                for time, usd in points
            )
        ]
    )


def _time_and_money(plan: Plan) -> tuple[float, float]:
    seconds = plan.iteration_seconds if plan.train_seconds is None else plan.train_seconds
    return seconds, seconds * (plan.usd_per_hour or 0.0)


def pareto_part(
    plan: Plan, index: int, clouds: Mapping[str, tuple[str, str]] | None = None
) -> ParetoPart:
    """A plan as a point, as uncertain as its iteration; `clouds` by pool: GPU type, cloud."""
    clouds = clouds or {}
    spread = [bound / plan.iteration_seconds for bound in plan.interval_seconds]

    def interval(middle: float | None) -> tuple[float, float] | None:
        return None if middle is None else (middle * spread[0], middle * spread[1])

    run = plan.run
    return ParetoPart(
        gpus=plan.gpus,
        tokens_per_second=plan.tokens_per_second,
        usd_total=plan.usd_total,
        train_seconds=plan.train_seconds,
        plan=index,
        usd_per_hour=plan.usd_per_hour,
        spot_gpus={} if run is None else run.spot_gpus,
        cloud={clouds[pool][0]: clouds[pool][1] for pool in plan.pools if pool in clouds},
        goodput=1.0 if run is None else run.goodput,
        kwh=None if run is None else run.kwh,
        train_seconds_interval=interval(plan.train_seconds),
        usd_interval=interval(plan.usd_total),
    )


def with_ties(front: Sequence[ParetoPart]) -> tuple[ParetoPart, ...]:
    """The points with `tied_with`: each lies within the other's intervals of time and money."""
    if any(part.train_seconds_interval is None for part in front):
        return tuple(front)
    tied = _within_each_other([(p.train_seconds, p.train_seconds_interval) for p in front])
    if all(part.usd_interval is not None for part in front):
        tied &= _within_each_other([(part.usd_total, part.usd_interval) for part in front])
    return tuple(
        replace(part, tied_with=tuple(other for other in row.nonzero()[0].tolist() if other != own))
        for own, (part, row) in enumerate(zip(front, tied, strict=True))
    )


def _within_each_other(
    spans: Sequence[tuple[float | None, tuple[float, float] | None]],
) -> NDArray[np.bool_]:
    import numpy as np  # plans are explained without it

    middles = np.array([middle for middle, _ in spans], dtype=float)
    bounds = np.array([interval for _, interval in spans], dtype=float).reshape(-1, 2)
    inside = (bounds[:, :1] <= middles) & (middles <= bounds[:, 1:])
    return inside & inside.T


BEGINNING_BYTES = 128
_AGAIN = "write the file again with `astrarium plan ... --out DIR`"
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "num_micro_batches")
_POSITIVE = frozenset(
    (
        *_DEGREES,
        "virtual_stages",
        "capacity_bytes",
        "iteration_seconds",
        "tokens_per_second",
        "ideal_seconds",
        "model_seconds",
    )
)


def load_document(path: Path) -> PlanDocument:
    """Read a plan file, or that of a folder; InputError says what is wrong and where."""
    from astrarium import documents

    path = _plan_file(path)
    content = documents.read(path)
    _check_schema(content, str(path))
    return _checked(documents.load(path, PlanDocument), content, str(path))


def document_of_content(content: object, where: str) -> PlanDocument:
    """The document of the content of a plan file; complaints call it `where`."""
    from astrarium import documents

    _check_schema(content, where)
    return _checked(documents.checked(content, PlanDocument, where), content, where)


def _check_schema(content: object, where: str) -> None:
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if schema == SCHEMA:
        return
    family, _, version = str(schema).partition("/")
    if version and family == SCHEMA.partition("/")[0]:
        raise InputError(
            f"{where}: made by another version of Astrarium (its schema is '{schema}', this one"
            f" reads '{SCHEMA}'); {_AGAIN}"
        )
    found = f"its schema is '{schema}'" if schema else "it has no schema"
    raise InputError(
        f"{where}: not a plan ({found}, expected '{SCHEMA}');"
        " `astrarium plan ... --out DIR` writes one"
    )


def _checked(document: PlanDocument, content: Any, where: str) -> PlanDocument:  # noqa: ANN401
    check_names(document, where)
    for index, plan in enumerate(content["plans"]):
        _check_whole(plan["strategy"], f"{where}: plans[{index}].strategy")
    plain = to_dict(document)
    del plain["workload"]["model_config"]  # has its own checks, where a model is made of it
    for key, value in _numbers(plain):
        _check_number(key, value, where)
    own = document.compare.plan if document.compare else None
    for plan in (*document.plans, *([own] if own else [])):
        _check_plan(plan, where)
    for index, point in enumerate(document.pareto):
        _check_point(document, point, f"{where}: pareto[{index}]")
    return document


def _check_whole(strategy: Mapping[str, Any], where: str) -> None:
    """A strategy in a plan file states every key; only code may leave keys to defaults."""
    for key in Strategy.__struct_fields__:
        if key not in strategy and key not in LATER_KEYS:
            raise InputError(f"{where}: the required key '{key}' is missing; {_AGAIN}")


def check_names(document: PlanDocument, where: str) -> None:
    """Names go into the comments of scripts: none of them may end a line."""
    check_printable(f"{where}: workload.model", document.workload.model)
    for index, pool in enumerate(document.cluster.pools):
        check_printable(f"{where}: cluster.pools[{index}].name", pool.name)


def is_plan(path: Path) -> bool:
    """Whether a folder or a file is meant to be a plan: its first lines name a schema of ours."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return SCHEMA.partition("/")[0].encode() in file.read(BEGINNING_BYTES)
    except OSError:
        return False


def _plan_file(path: Path) -> Path:
    if not os.path.isdir(path):
        return path
    if not (path / PLAN_FILE).is_file():
        raise InputError(
            f"{path}: is a folder without {PLAN_FILE}; `astrarium plan ... --out {path}` writes one"
        )
    return path / PLAN_FILE


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:  # noqa: ANN401
    """Every number of a document under its key, such as plans[0].mfu."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _numbers(part, f"{key}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


def _check_number(key: str, value: float, where: str) -> None:
    """Refuse numbers that no plan has: NaN, infinite, negative, zero where it is divided by."""
    name = key.rpartition(".")[2]
    if not abs(value) <= LARGEST_QUANTITY:
        raise InputError(
            f"{where}: {key}: expected a number up to {LARGEST_QUANTITY:.0e}; {_AGAIN}"
        )
    # Rounding may leave -1e-17 of a cause; what is saved may be a loss.
    signed = ".breakdown_seconds." in key or name.startswith("saved_")
    if value < 0 and not signed:
        expected = "a number that is not negative"
    elif value == 0 and name in _POSITIVE:
        expected = "a number above zero"
    else:
        return
    raise InputError(f"{where}: {key}: expected {expected}, got {value:g}; {_AGAIN}")


def _check_plan(plan: Plan, where: str) -> None:
    if not plan.memory:
        raise InputError(f"{where}: plan {plan.rank} has no memory entries; {_AGAIN}")
    ranks = len({stage.pipeline_rank for stage in plan.strategy.stages})
    if plan.stage_seconds and ranks != len(plan.stage_seconds):
        raise InputError(
            f"{where}: plan {plan.rank} has {len(plan.stage_seconds)} entries of stage_seconds for"
            f" {ranks} pipeline ranks; {_AGAIN}"
        )
    chunks = plan.strategy.virtual_stages
    for stage in plan.stage_seconds:
        if {len(stage.chunk_forward_seconds), len(stage.chunk_backward_seconds)} != {chunks}:
            raise InputError(
                f"{where}: plan {plan.rank}, stage {stage.stage}: expected {chunks} entries of"
                f" chunk_forward_seconds and chunk_backward_seconds; {_AGAIN}"
            )


def _check_point(document: PlanDocument, point: ParetoPart, where: str) -> None:
    if point.plan >= len(document.plans):
        raise InputError(
            f"{where}.plan: expected the index of one of {len(document.plans)} plans,"
            f" got {point.plan}; {_AGAIN}"
        )
    if any(other >= len(document.pareto) for other in point.tied_with):
        raise InputError(
            f"{where}.tied_with: expected indices of {len(document.pareto)} points; {_AGAIN}"
        )


def plan_of_rank(document: PlanDocument, rank: int, where: str) -> Plan:
    for plan in document.plans:
        if plan.rank == rank:
            return plan
    ranks = [plan.rank for plan in document.plans]
    listed = f"{min(ranks)} to {max(ranks)}" if len(ranks) > 1 else ", ".join(map(str, ranks))
    raise InputError(f"{where}: there is no plan of rank {rank}; it holds rank {listed or 'none'}")
