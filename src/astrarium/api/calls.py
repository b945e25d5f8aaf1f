"""The functions of the package: the questions of the command line, asked from Python.

Arguments are called as the flags are, and take numbers or the same texts: the readers of the table
of flags read both. Messages call them by their names in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from astrarium.api import planning
from astrarium.api.asked import AskedValues, ClusterGiven, Kind, ModelGiven, PlanAsked, asked
from astrarium.api.flags import PLAN_FLAGS, PREDICT_FLAGS, Flag, as_keyword, flags, read
from astrarium.api.plans import Plans, StrPath
from astrarium.errors import did_you_mean, naming
from astrarium.units import Amount
from astrarium.value import replace

if TYPE_CHECKING:
    from astrarium.api.plans import Program
    from astrarium.strategy.types import Strategy

Gpus = str | Mapping[str, int]  # "h100:64,a100:32", or {"h100": 64, "a100": 32}
Objective = Literal["throughput", "cost", "time"]
Mode = Literal["exact", "up-to"]
Prefer = Literal["recommended", "fastest"]
Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "fp4"]
PlanPrecision = Literal["bf16", "fp16", "fp8", "mxfp8", "fp4", "best"]
Numerics = Literal["strict", "reduced"]
Packing = Literal["off", "on"]
Lengths = str | Path | Sequence[float]  # a text, a file, or all of them
ExpertMessages = Literal["alltoall", "overlapped", "deepep", "deepep-overlapped"]


class TrainingTerms(TypedDict, total=False):
    """The model and its training; see the flags of the same names."""

    numerics: Numerics
    optimizer: str
    finetune: str
    lora_rank: Amount
    lora_modules: str
    freeze: str
    lengths: Lengths
    packing: Packing
    mtp_layers: int
    teacher: ModelGiven
    reference: ModelGiven
    expert_imbalance: Amount
    expert_messages: ExpertMessages


class PriceTerms(TrainingTerms, total=False):
    """Prices and speeds of GPUs; see the flags of the same names."""

    as_type: str  # model_type that the model, a config.json, is read as
    profile: StrPath  # of the cluster, written by `astrarium calibrate`
    market: str  # "aws,gcp" or "all": prices and instances of these clouds
    region: str  # us, europe, asia or other
    prices: Sequence[StrPath]  # files with own prices
    price: Mapping[str, Amount] | Sequence[str]  # USD of a GPU and hour, by type
    discount: Sequence[str]  # "30" or "aws=30": percent off
    power_price: Amount  # USD per kWh, for owned machines
    power_utilisation: Amount  # percent


class RunFlags(PriceTerms, total=False):
    """Beside prices, how the run goes; see the flags of `astrarium plan` of the same names."""

    max_gpus: Amount  # of each type, with a market alone
    mix: Amount  # most pools in one job
    epochs: Amount  # of `dataset_tokens`, in place of `tokens`
    dataset_tokens: Amount
    rampup_batch: str  # "START,INCREMENT,SAMPLES"
    eval_every: Amount
    eval_iterations: Amount
    spot: Literal["never", "always", "mix"]
    interruptions: Sequence[str]  # of a spot node an hour: "0.01" or "h100=10%/day"
    failures: Amount  # of any node an hour: "0.0002" or "1%/day"
    checkpoint_every: str  # "30min"
    storage_bandwidth: str  # "2GB/s/node"
    restart_time: str  # "10min"
    co2: Amount  # kilograms a kWh
    compare: StrPath  # a strategy that one has: a file, or "tp=8,pp=4"
    compare_gpus: Gpus
    sensitivity: bool


def plan(  # noqa: PLR0913  one parameter per thing that is often asked
    model: ModelGiven,
    *,
    global_batch: Amount,
    gpus: Gpus | None = None,
    cluster: ClusterGiven | None = None,
    seq_length: Amount | None = None,
    tokens: Amount | None = None,
    objective: Objective = "throughput",
    budget_usd: Amount | None = None,
    deadline_seconds: Amount | None = None,
    mode: Mode = "exact",
    precision: PlanPrecision = "bf16",
    runtime: str | None = None,
    rules: Sequence[str] = (),
    top: Amount = 5,
    prefer: Prefer = "recommended",
    fit_chance: Amount | None = None,
    memory_margin: Amount | None = None,
    **terms: Unpack[RunFlags],
) -> Plans:
    """The best strategies for a model on GPUs; as `astrarium plan`.

    `model` is a catalog name, the path of a config.json or model file, the content of one, or a
    Model. GPUs are given as `gpus` or as `cluster`, a cluster file or a Cluster, or are chosen from
    a `market`. Raises InputError for what cannot be used, NoFeasiblePlanError if nothing fits.
    """
    given = {**locals(), **terms}
    _check_names("plan", terms, RunFlags)
    with naming(as_keyword):
        question = planning.read(_asked(PlanAsked, PLAN_FLAGS, given))
        planned = planning.search(question)
        changes = planning.changes(question, planned) if terms.get("sensitivity") else None
        return Plans(planning.document(question, planned, changes))


def plan_briefly(arguments: Mapping[str, Any]) -> Plans:
    """As `plan`, with its arguments: the same plans, whose gap no linear program narrows.

    With `top` 1 it takes much less time.
    """
    with naming(as_keyword):
        question = planning.read(_asked(PlanAsked, PLAN_FLAGS, arguments))
        question = replace(question, brief=True)
        return Plans(planning.document(question, planning.search(question)))


def predict(  # noqa: PLR0913  one parameter per thing that is often asked
    model: ModelGiven | None,
    strategy: str | Path | Mapping[str, Any] | Strategy,
    *,
    global_batch: Amount | None = None,
    gpus: Gpus | None = None,
    cluster: ClusterGiven | None = None,
    seq_length: Amount | None = None,
    tokens: Amount | None = None,
    runtime: str = "megatron",
    precision: Precision = "bf16",
    **terms: Unpack[PriceTerms],
) -> Plans:
    """The time, memory and money of one strategy; as `astrarium predict`.

    `strategy` is a text such as "tp=8,pp=4", a strategy file or plan.json, the keys of one as a
    mapping, or the `strategy` of a plan. It may also be a launch script or configuration of another
    program; then what that states (model, batch, sequence length) can be None here. The one plan is
    `best` of what is returned.
    """
    given = {**locals(), **terms}
    if not isinstance(strategy, str | Path | Mapping):
        given["strategy"] = _strategy_keys(strategy)
    _check_names("predict", terms, PriceTerms)
    with naming(as_keyword):
        return Plans(planning.prediction(_asked(AskedValues, PREDICT_FLAGS, given)))


def synthesize(  # noqa: PLR0913  one parameter per flag
    model: str | Path,
    *,
    batch: Amount,
    gpus: Gpus | None = None,
    cluster: ClusterGiven | None = None,
    memory: Amount | None = None,
    micro_batches: Amount | Literal["auto"] = "auto",
    mesh: Literal["auto", "flat", "nodes"] = "auto",
    all_devices: bool = False,
    sizes: Mapping[str, Any] | None = None,
    optimizer: Literal["adam", "sgd"] = "adam",
    allow_replicate: Sequence[str] = (),
    profile: StrPath | None = None,
) -> Program:
    """One program for devices of different speed; as `astrarium synthesize`.

    `model` names a function that makes a torch module and its inputs, as "examples/bert.py:make";
    `sizes` are its arguments beside the batch. `memory` is in bytes, or a text such as "15GiB".
    Pools that cost more time than they save have no part in the program, but with `all_devices`.
    """
    given = locals()
    from astrarium.api import synthesis
    from astrarium.api.plans import Program

    with naming(as_keyword):
        table = flags("synthesize")
        values = read(table, _given(given, table), from_python=True)
        return Program(synthesis.answer(synthesis.read(values), lambda what, done, total: None))


def _check_names(function: str, terms: Mapping[str, object], known: type) -> None:
    names = known.__annotations__
    for name in terms:
        if name not in names:
            hint = did_you_mean(name, [*globals()[function].__annotations__, *names])
            raise TypeError(f"{function}() has no argument '{name}'{hint}")


def _asked(kind: type[Kind], table: Mapping[str, Flag], arguments: Mapping[str, Any]) -> Kind:
    return asked(kind, table, _given(arguments, table), from_python=True)


def _given(arguments: Mapping[str, Any], table: Mapping[str, Flag]) -> dict[str, Any]:
    """The arguments by the names of their flags, without those at their defaults."""
    return {
        name: arguments[as_keyword(name)]
        for name, flag in table.items()
        if as_keyword(name) in arguments and arguments[as_keyword(name)] != flag.default
    }


def _strategy_keys(strategy: Strategy) -> dict[str, Any]:
    from astrarium.strategy.document import strategy_to_dict

    keys = strategy_to_dict(strategy)
    del keys["num_micro_batches"]
    return keys
