"""The lists of the page: GPU types, models, targets, and the example that it opens with."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from astrarium.errors import InputError

GIB: Final = 2**30


class CatalogGpu(TypedDict):
    """A GPU type; SI units in the names."""

    name: str
    aliases: list[str]
    vendor: str
    architecture: str
    form_factor: str
    release_year: int
    memory_bytes: int
    memory_gib: float
    memory_bytes_per_second: float
    peak_flops_per_second: dict[str, float]
    gpus_per_node: int
    nvlink_domain: int
    link_bytes_per_second: float
    inter_node_bytes_per_second: float
    usd_per_gpu_hour: float | None
    spot_usd_per_gpu_hour: float | None
    price_date: str
    price_sources: list[str]
    doubts: str


class CatalogModel(TypedDict):
    """A model; what its config makes is null where the config makes none."""

    name: str
    parameters: int | None
    active_parameters: int | None
    layers: int | None
    hidden: int | None
    experts: int | None
    max_seq_length: int | None
    family: str
    aliases: list[str]
    published: str
    source: str
    date: str
    method: str
    note: str
    doubts: str


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
    from astrarium.report.catalog import entries as report

    runtimes = [find_runtime(name) for name in runtime_names()]
    return {
        "schema": report.SCHEMA,
        "gpus": [
            {**report.gpu_to_dict(gpu), "memory_gib": gpu.memory_bytes / GIB} for gpu in data.gpus()
        ],
        "models": [_model(entry) for entry in model_entries()],
        "targets": _targets(),
        "runtimes": [{"name": one.name, "title": one.title} for one in runtimes],
        "clouds": list(cloud_names()),
        "defaults": dict(EXAMPLE),
    }


def _model(entry: Any) -> dict[str, Any]:  # noqa: ANN401
    """An entry with what its config makes; one of the user's that makes nothing has no layers."""
    from astrarium.model import model_of_entry
    from astrarium.report.catalog.entries import model_to_dict

    listed = model_to_dict(entry)
    try:
        built = model_of_entry(entry)
    except InputError:
        return {**listed, **dict.fromkeys(("layers", "hidden", "experts", "max_seq_length"))}
    return {
        **listed,
        "parameters": built.parameters,
        "active_parameters": built.active_parameters,
        "layers": built.num_layers,
        "hidden": built.hidden,
        "experts": built.max_experts,
        "max_seq_length": built.max_seq_length,
    }


def _targets() -> list[dict[str, Any]]:
    from astrarium.export.target import find_target, target_names

    every = [find_target(name) for name in target_names()]
    return [
        {
            "name": one.name,
            "title": one.title,
            "version": one.version,
            "is_launcher": one.is_launcher,
        }
        for one in every
    ]
