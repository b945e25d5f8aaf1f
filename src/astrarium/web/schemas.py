"""Answers of the API as JSON schemas, made of the documents' own types."""

from __future__ import annotations

from typing import Any, Final, Literal, TypedDict

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from astrarium.export.result import NearestPart, RefusalPart
from astrarium.plans.document import PlanDocument
from astrarium.plans.document import schemas as document_schemas
from astrarium.report.explain.terms import Explanation, PlanComparison
from astrarium.report.operations import ReplanDocument, StragglersDocument
from astrarium.report.plan.imported import ImportDocument
from astrarium.report.sweep import SweepDocument
from astrarium.report.timeline import TimelineDocument
from astrarium.web.catalog import Catalog


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
    ReplanDocument,
    StragglersDocument,
    StreamEvent,
    SweepDocument,
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
