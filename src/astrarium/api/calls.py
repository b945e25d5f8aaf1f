"""The functions of the package: the questions of the command line, asked from Python.

Arguments are called as the flags are, and take numbers or the same texts. They go through the very
code that reads the flags, so that the two cannot disagree; only messages are put in Python's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from astrarium.api import planning
from astrarium.api.plans import Plans, StrPath
from astrarium.api.request import ClusterGiven, ModelGiven
from astrarium.api.wording import FLAGS, in_words_of_python
from astrarium.errors import did_you_mean

if TYPE_CHECKING:
    from astrarium.api.programs import Program
    from astrarium.plans.document import StrategyPart

Amount = int | float | str  # a number, or a text such as "2T" or "200k"
Gpus = str | Mapping[str, int]  # "h100:64,a100:32", or {"h100": 64, "a100": 32}
Objective = Literal["throughput", "cost", "time"]
Mode = Literal["exact", "up-to"]
Precision = Literal["bf16", "fp16", "fp8"]


class PriceTerms(TypedDict, total=False):
    """What GPUs cost, and what is known about their speed; see the flags of the same names."""

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


_SEVERAL: Final = ("rules", "prices", "price", "discount", "interruptions", "allow_replicate")
_DEFAULTS: Final[Mapping[str, str]] = {"spot": "never"}
# What a configuration may say otherwise, unless the caller does.
_STATED_ELSEWHERE: Final[Mapping[str, str]] = {"precision": "bf16", "runtime": "megatron"}


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
    precision: Precision = "bf16",
    rules: Sequence[str] = (),
    top: Amount = 5,
    **terms: Unpack[RunFlags],
) -> Plans:
    """The best strategies for a model on GPUs; as `astrarium plan`.

    `model` is a catalog name, the path of a config.json or model file, the content of one, or a
    Model. GPUs are given as `gpus` or as `cluster`, a cluster file or a Cluster, or are chosen from
    a `market`. Raises InputError for what cannot be used, NoFeasiblePlanError if nothing fits.
    """
    given = {**locals(), **terms}
    del given["terms"]
    _check_names("plan", terms, RunFlags)
    with in_words_of_python():
        question = planning.read(_as_flags(given, RunFlags))
        planned = planning.search(question)
        changes = planning.changes(question, planned) if terms.get("sensitivity") else None
        return Plans(planning.document(question, planned, changes))


def predict(  # noqa: PLR0913  one parameter per thing that is often asked
    model: ModelGiven | None,
    strategy: str | Path | Mapping[str, Any] | StrategyPart,
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
    """What one strategy takes in time, memory and money; as `astrarium predict`.

    `strategy` is a text such as "tp=8,pp=4", a strategy file or plan.json, the keys of one as a
    mapping, or the `strategy` of a plan. It may also be a launch script or configuration of another
    program; then what that states (model, batch, sequence length) can be None here. The one plan is
    `best` of what is returned.
    """
    given = {**locals(), **terms}
    del given["terms"]
    _check_names("predict", terms, PriceTerms)
    with in_words_of_python():
        typed = [name for name in _STATED_ELSEWHERE if given[name] != _STATED_ELSEWHERE[name]]
        return Plans(planning.prediction(_as_flags(given, PriceTerms), typed))


def synthesize(  # noqa: PLR0913  one parameter per flag
    model: str | Path,
    *,
    batch: Amount,
    gpus: Gpus | None = None,
    cluster: ClusterGiven | None = None,
    memory: Amount | None = None,
    micro_batches: Amount | Literal["auto"] = "auto",
    mesh: Literal["auto", "flat", "nodes"] = "auto",
    sizes: Mapping[str, Any] | None = None,
    optimizer: Literal["adam", "sgd"] = "adam",
    allow_replicate: Sequence[str] = (),
    profile: StrPath | None = None,
) -> Program:
    """One program for devices of different speed; as `astrarium synthesize`.

    `model` names a function that makes a torch module and its inputs, as "examples/bert.py:make";
    `sizes` are its arguments beside the batch. `memory` is in bytes, or a text such as "15GiB".
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from astrarium.api import synthesis
    from astrarium.api.programs import Program

    flags: dict[str, Any] = dict.fromkeys(("gpus", "cluster", "memory", "sizes", "profile"))
    flags |= {
        name: value if name == "sizes" else _text(name, value) for name, value in given.items()
    }
    with in_words_of_python():
        return Program(synthesis.answer(synthesis.read(flags), lambda what, done, total: None))


def _check_names(function: str, terms: Mapping[str, object], known: type) -> None:
    names = known.__annotations__
    for name in terms:
        if name not in names:
            hint = did_you_mean(name, names)
            raise TypeError(f"{function}() has no argument '{name}'{hint}")


def _as_flags(given: Mapping[str, Any], further: type) -> dict[str, Any]:
    """The arguments as the texts that flags would have."""
    flags: dict[str, Any] = dict.fromkeys(further.__annotations__)
    flags |= _DEFAULTS
    for name, value in given.items():
        flags[FLAGS.get(name, name)] = None if value is None else _text(name, value)
    return flags


def _text(name: str, value: Any) -> Any:  # noqa: ANN401
    if name in ("model", "cluster", "sensitivity"):
        return value
    if name == "strategy" and not isinstance(value, str | Path):
        return value if isinstance(value, Mapping) else _strategy_keys(value)
    if name in ("gpus", "compare_gpus") and isinstance(value, Mapping):
        return ",".join(f"{gpu}:{number}" for gpu, number in value.items())
    if name == "deadline_seconds":
        return str(value) if _has_unit(str(value)) else f"{value} s"
    if name in _SEVERAL:
        return _texts(value)
    return fspath(value) if isinstance(value, Path) else str(value)


def _strategy_keys(part: StrategyPart) -> dict[str, Any]:
    """Those of a plan, for any batch."""
    from dataclasses import asdict

    keys = asdict(part)
    del keys["num_micro_batches"]
    return keys


def _has_unit(text: str) -> bool:
    return text.strip()[-1:].isalpha()


def _texts(value: Any) -> list[str]:  # noqa: ANN401
    """A repeated flag: of a mapping NAME=VALUE, of one text just this."""
    if isinstance(value, Mapping):
        return [f"{name}={amount}" for name, amount in value.items()]
    return [value] if isinstance(value, str) else [str(one) for one in value]
