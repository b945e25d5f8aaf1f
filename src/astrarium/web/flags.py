"""Requests: the flags of the command line as JSON, by their names.

The models are made of `table`, the list of all flags. Values stay texts or numbers here: what is
wrong with them is said by the very code that reads the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic import create_model as make

from astrarium.errors import did_you_mean
from astrarium.web.answers import REFUSED, Answer, problem
from astrarium.web.table import FILES, PLAN_FLAGS, PREDICT_FLAGS, SEVERAL, WHY_NOT_FLAGS, WORDS

Amount = StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=2000)]
Texts = Annotated[list[Amount], Field(max_length=1000)]
Mapped = dict[str, Any]


class PoolRow(BaseModel):
    """A row of the form: GPUs of one type, at a price if one is stated."""

    model_config = ConfigDict(extra="forbid")

    type: Annotated[StrictStr, Field(max_length=200)]
    count: Amount
    usd_per_gpu_hour: Amount | None = None


class RequestBody(BaseModel):
    """What a plan and a prediction are asked about beside their flags."""

    model_config = ConfigDict(extra="forbid")

    config: Annotated[
        Mapped | None, Field(description="Content of a config.json or model file, not `model`.")
    ] = None
    cluster: Annotated[
        Mapped | None, Field(description="Content of a cluster file, in place of `gpus`.")
    ] = None
    pools: Annotated[
        list[PoolRow] | None,
        Field(max_length=1000, description="`gpus` and `price` as the rows of a form."),
    ] = None


def _model(name: str, flags: Mapping[str, object], told: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for flag, default in flags.items():
        if flag in FILES or flag in RequestBody.model_fields:
            continue
        kind: Any = Amount
        if flag == "sensitivity":
            kind = StrictBool
        elif flag == "strategy":
            kind = Amount | Mapped
        elif flag == "gpus" or flag in SEVERAL:
            kind = Amount | Mapped if flag == "gpus" else Amount | Texts | Mapped
        words = WORDS.get(flag)
        extra: Any = {"examples": list(words)} if words else None
        about = f"As --{flag.replace('_', '-')}."
        fields[flag] = (
            Annotated[kind | None, Field(description=about, json_schema_extra=extra)],
            default,
        )
    return make(name, __base__=RequestBody, __doc__=told, **fields)


PlanRequest: Final = _model("PlanRequest", PLAN_FLAGS, "The flags of `astrarium plan`.")
PredictRequest: Final = _model("PredictRequest", PREDICT_FLAGS, "The flags of `astrarium predict`.")
WhyNotRequest: Final = _model(
    "WhyNotRequest", WHY_NOT_FLAGS, "The flags of `astrarium plan`, and a strategy."
)


class Chosen(BaseModel):
    """A plan of a document."""

    model_config = ConfigDict(extra="forbid")

    document: Annotated[Mapped, Field(description="A plan document.")]
    rank: Annotated[Amount, Field(description="Which plan of it; 1 is the best.")] = 1


class TraceRequest(Chosen):
    """As `astrarium trace`."""

    every_rank: StrictBool = False


class CompareRequest(BaseModel):
    """Two plans: as `astrarium explain --against`."""

    model_config = ConfigDict(extra="forbid")

    first: Chosen
    second: Chosen


class ExportRequest(Chosen):
    """As `astrarium export`."""

    target: Annotated[StrictStr, Field(max_length=200)]
    program: Annotated[StrictStr, Field(max_length=200)] | None = None
    nearest: StrictBool = False


def complaint(errors: Sequence[Any]) -> Answer:
    """What is wrong with a body that does not have the form of a request."""
    first = errors[0]
    # Of a value that may be a number, a text or a list, the branches stand behind its key.
    key = [part for part in first["loc"] if part != "body" and not _is_branch(part)]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    name = name.removeprefix(".")
    if first["type"] == "extra_forbidden" and len(key) == 1:
        flag = str(key[0])
        hint = did_you_mean(flag, sorted({*PLAN_FLAGS, *PREDICT_FLAGS} - {*FILES}))
        message = f"unknown flag '{flag}'{hint}"
        if flag in FILES:
            message = f"--{flag.replace('_', '-')} names a file, and the server reads none"
        return problem(REFUSED, message, flag)
    message = str(first["msg"])
    return problem(REFUSED, f"{name}: {message}" if name else message, name or None)


def _is_branch(part: object) -> bool:
    return isinstance(part, str) and (not part.isidentifier() or part in _BRANCHES)


_BRANCHES: Final = ("int", "float", "str", "bool", "PoolRow")
