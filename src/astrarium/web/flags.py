"""Requests: the flags of the command line as JSON, by their names.

The models are made of the table of flags. Values stay texts or numbers here: the readers of the
table check them, as on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic import create_model as make

from astrarium.api.flags import (
    ANSWER_FLAGS,
    CONFIG_FLAGS,
    PLAN_FLAGS,
    PREDICT_FLAGS,
    WHY_NOT_FLAGS,
    Flag,
    flags,
)
from astrarium.errors import did_you_mean, flag
from astrarium.web.reply import REFUSED, Answer, problem

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
    """Questions to a plan and a prediction beside their flags."""

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


def _model(
    name: str, table: Mapping[str, Flag], description: str, base: type[BaseModel] = RequestBody
) -> type[BaseModel]:
    fields: dict[str, Any] = {
        name: (_field(name, one), one.default)
        for name, one in table.items()
        if not one.is_file and name not in base.model_fields
    }
    return make(name, __base__=base, __doc__=description, **fields)


def _field(name: str, one: Flag) -> Any:  # noqa: ANN401  a type
    kind: Any = StrictBool if one.is_switch else Amount
    if one.several:
        kind |= Texts
    if one.several or one.is_table:
        kind |= Mapped
    extra: Any = {"examples": list(one.words)} if one.words else None
    described = Field(description=f"As {flag(name)}.", json_schema_extra=extra)
    return Annotated[kind | None, described]


PlanRequest: Final = _model("PlanRequest", PLAN_FLAGS, "The flags of `astrarium plan`.")
PredictRequest: Final = _model("PredictRequest", PREDICT_FLAGS, "The flags of `astrarium predict`.")
WhyNotRequest: Final = _model(
    "WhyNotRequest", WHY_NOT_FLAGS, "The flags of `astrarium plan`, and a strategy."
)


REVIEW_FLAGS: Final = {**ANSWER_FLAGS, **CONFIG_FLAGS}
MOST_LETTERS: Final = 200_000


class SentText(RequestBody):
    """A launch script or configuration of another program; it is read, and never executed."""

    text: Annotated[StrictStr, Field(max_length=MOST_LETTERS)]
    name: Annotated[
        StrictStr,
        Field(max_length=200, description="Of the file, for messages; its end tells languages."),
    ] = "pasted"


ReviewRequest: Final = _model(
    "ReviewRequest", REVIEW_FLAGS, "As `astrarium explain SCRIPT`.", SentText
)


class Chosen(BaseModel):
    """A plan of a document."""

    model_config = ConfigDict(extra="forbid")

    document: Annotated[Mapped, Field(description="A plan document.")]
    rank: Annotated[Amount, Field(description="Which plan of it; 1 is the best.")] = 1


CHANGE_FLAGS: Final = flags("change", "price", "failures", "checkpoint_every", "storage_bandwidth")
ReplanRequest: Final = _model(
    "ReplanRequest", CHANGE_FLAGS, "As `astrarium replan`, of a plan of a document.", Chosen
)


class StragglersRequest(Chosen):
    """As `astrarium plan --stragglers`, of a document."""

    stragglers: Annotated[StrictStr, Field(max_length=200)] = "spread"
    repair_time: Amount | None = None


class CompareRequest(BaseModel):
    """Two plans: as `astrarium explain --against`."""

    model_config = ConfigDict(extra="forbid")

    first: Chosen
    second: Chosen


class ReportRequest(Chosen):
    """As `--report`, which shows `command`."""

    command: Texts = Field(default_factory=list)


class SweepRequest(BaseModel):
    """As `astrarium sweep show`."""

    model_config = ConfigDict(extra="forbid")

    rows: Annotated[StrictStr, Field(max_length=200)] | None = None
    columns: Annotated[StrictStr, Field(max_length=200)] | None = None
    value: Annotated[StrictStr, Field(max_length=200)] | None = None
    where: Texts = Field(default_factory=list)
    top: Annotated[StrictInt, Field(ge=1, le=1000)] = 1


class ExportRequest(Chosen):
    """As `astrarium export`."""

    target: Annotated[StrictStr, Field(max_length=200)]
    program: Annotated[StrictStr, Field(max_length=200)] | None = None
    nearest: StrictBool = False


def complaint(errors: Sequence[Any]) -> Answer:
    """The error of a body that does not have the form of a request."""
    first = errors[0]
    if first["type"] == "json_invalid":
        where = f"{first['ctx']['error']}, character {first['loc'][-1]}"
        return problem(REFUSED, f"the body is no JSON that can be read: {where}")
    key = _key(first)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    name = name.removeprefix(".")
    if first["type"] == "extra_forbidden" and len(key) == 1:
        name, known = str(key[0]), {**PLAN_FLAGS, **PREDICT_FLAGS, **REVIEW_FLAGS}
        hint = did_you_mean(name, sorted(one for one in known if not known[one].is_file))
        message = f"unknown flag '{name}'{hint}"
        if name in known and known[name].is_file:
            message = f"{flag(name)} names a file, and the server reads none"
        return problem(REFUSED, message, name)
    if not name:
        return problem(REFUSED, f"the body has to be a JSON object such as {EXAMPLE}")
    forms = dict.fromkeys(
        _FORMS[e["type"]] for e in errors if _key(e) == key and e["type"] in _FORMS
    )
    message = f"expected {' or '.join(forms)}" if forms else str(first["msg"])
    return problem(REFUSED, f"{name}: {message}", name)


EXAMPLE: Final = '{"model": "llama-3-8b", "gpus": "h100:8", "global_batch": 64}'
_FORMS: Final = {
    "int_type": "a number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "missing": "a value, and there is none",
}


def _key(error: Mapping[str, Any]) -> list[Any]:
    """The place of an error; of a value that may be of several kinds, they stand behind its key."""
    return [part for part in error["loc"] if part != "body" and not _is_branch(part)]


def _is_branch(part: object) -> bool:
    return isinstance(part, str) and (not part.isidentifier() or part in _BRANCHES)


_BRANCHES: Final = ("int", "float", "str", "bool", "PoolRow")
