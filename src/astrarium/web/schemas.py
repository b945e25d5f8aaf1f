"""What the API returns, as JSON schemas that are made of the documents' own types."""

from __future__ import annotations

from typing import Any, Final, Literal, TypedDict

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from astrarium.catalog.models import ModelEntry
from astrarium.errors import InputError
from astrarium.export.result import NearestPart, RefusalPart
from astrarium.plans.document import PlanDocument
from astrarium.plans.document import schemas as document_schemas
from astrarium.report.catalog import (
    SCHEMA,
    ListedGpu,
    ListedModel,
    built_model_to_dict,
    gpu_to_dict,
    model_to_dict,
)
from astrarium.report.explain.terms import Explanation, PlanComparison
from astrarium.report.plan.imported import ImportDocument
from astrarium.report.timeline import TimelineDocument

GIB: Final = 2**30


class CatalogGpu(ListedGpu):
    """A GPU type of the page."""

    memory_gib: float


class CatalogModel(ListedModel):
    """A model; what its config makes is null where the config makes none."""

    layers: int | None
    hidden: int | None
    experts: int | None
    max_seq_length: int | None


class CatalogTarget(TypedDict):
    """What a plan can be exported to; a launcher starts any of the others."""

    name: str
    title: str
    version: str
    is_launcher: bool


class CatalogRuntime(TypedDict):
    """Software that a strategy can be predicted for."""

    name: str
    title: str


class Catalog(TypedDict):
    """All that can be chosen; `defaults` are the flags of the example that the page opens with."""

    schema: str
    gpus: list[CatalogGpu]
    models: list[CatalogModel]
    targets: list[CatalogTarget]
    runtimes: list[CatalogRuntime]
    clouds: list[str]
    defaults: dict[str, str | int]


EXAMPLE: Final = {
    "model": "llama-2-70b",
    "gpus": "h100:64",
    "seq_length": 4096,
    "global_batch": 1024,
    "tokens": "2T",
    "objective": "throughput",
    "mode": "exact",
    "precision": "bf16",
    "top": 10,
}


def catalog() -> dict[str, Any]:
    """What can be chosen."""
    from astrarium import catalog as data
    from astrarium.catalog.models import model_entries
    from astrarium.catalog.prices import cloud_names
    from astrarium.catalog.runtimes import find_runtime, runtime_names
    from astrarium.export.target import find_target, target_names

    runtimes = [find_runtime(name) for name in runtime_names()]
    targets = [find_target(name) for name in target_names()]
    return {
        "schema": SCHEMA,
        "gpus": [{**gpu_to_dict(gpu), "memory_gib": gpu.memory_bytes / GIB} for gpu in data.gpus()],
        "models": [_model(entry) for entry in model_entries()],
        "targets": [
            {key: getattr(one, key) for key in CatalogTarget.__annotations__} for one in targets
        ],
        "runtimes": [{"name": one.name, "title": one.title} for one in runtimes],
        "clouds": list(cloud_names()),
        "defaults": dict(EXAMPLE),
    }


def _model(entry: ModelEntry) -> dict[str, Any]:
    """An entry with what its config makes; one of the user's that makes nothing has no layers."""
    from astrarium.model import model_of_entry

    listed = dict.fromkeys(CatalogModel.__annotations__) | model_to_dict(entry)
    try:
        built = built_model_to_dict(entry, model_of_entry(entry))
    except InputError:
        return listed
    return {key: built[key] for key in listed}


class Health(TypedDict):
    """Whether the server answers, and how busy it is."""

    status: str
    version: str
    workers: int
    working: int
    waiting: int


class RepairPart(TypedDict):
    """A way out: fields of the request with their new values; "" leaves a field out."""

    label: str
    changes: dict[str, str]


class ProblemPart(TypedDict):
    """What is wrong, in the words of the command line; `field` is where, if that is known.

    `asks` are variables that a launch script leaves open: `set` answers.
    """

    message: str
    field: str | None
    repairs: list[RepairPart]
    asks: list[str]


class Problem(TypedDict):
    """Why there is no answer."""

    error: ProblemPart


class NoPlan(Problem):
    """No plan is feasible; the document says for what."""

    document: PlanDocument


class ExportedFiles(TypedDict):
    """An export: its files by name, and what `export --json` says about it."""

    schema: str
    target: str
    version: str
    software: str
    plan: int
    folder: str
    files: dict[str, str]
    command: str
    where: str
    needs: list[str]
    notes: list[str]
    refused: list[RefusalPart]
    nearest: NearestPart | None


class TargetTimes(TypedDict):
    """By target: the time of what it makes of a plan, over the plan's; null if it cannot."""

    times: dict[str, float | None]


class ExportRefused(Problem, total=False):
    """A plan that the target cannot express: why, and the nearest that it can."""

    refused: list[RefusalPart]
    nearest: NearestPart | None


class WhyNot(TypedDict):
    """A strategy as if it were an answer; `broken` says what keeps it from being one.

    There is no document of a strategy that the runtime would refuse.
    """

    document: PlanDocument | None
    broken: list[str]


class StreamEvent(TypedDict):
    """An event of a stream; `data` is JSON.

    `progress` holds seconds, phase, done and total (0: not known), `plans` and `document` a
    PlanDocument, so far and in the end, `error` message, field and status.
    """

    event: Literal["progress", "plans", "document", "error"]
    data: str


class Trace(TypedDict):
    """A trace in the Trace Event Format, for Perfetto."""

    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str
    otherData: dict[str, Any]


TYPES: Final = (
    Catalog,
    PlanComparison,
    Explanation,
    ExportRefused,
    ExportedFiles,
    Health,
    ImportDocument,
    NoPlan,
    PlanDocument,
    Problem,
    StreamEvent,
    TargetTimes,
    TimelineDocument,
    Trace,
    WhyNot,
)


def openapi(app: FastAPI, reference: str) -> dict[str, Any]:
    """The description of the API, with the schemas of what it returns."""
    described = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        openapi_version="3.1.0",
    )
    made = document_schemas(TYPES, reference)
    schemas: dict[str, Any] = described.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in made.items():
        assert name not in schemas, f"two schemas are called {name}"
        schemas[name] = schema
    return described
