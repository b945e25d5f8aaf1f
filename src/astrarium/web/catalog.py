"""All that can be chosen on the page."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from astrarium.catalog.models import ModelEntry
from astrarium.errors import InputError
from astrarium.report.catalog import (
    SCHEMA,
    ListedGpu,
    ListedModel,
    built_model_to_dict,
    gpu_to_dict,
    model_to_dict,
)
from astrarium.web.example import EXAMPLE

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
    """A target of exports; a launcher starts any of the others."""

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


def catalog() -> dict[str, Any]:
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
