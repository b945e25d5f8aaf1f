"""The tables of a user's catalog file: keys of the data files, checked for sense.

A table has a key for every figure of a GPU type or an instance, all optional; the catalog decides
what a new entry needs. Numbers are positive and at most `LARGEST_FIGURE`. The reader of models
checks model entries. Imported only when there is a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, UnsetType, defstruct

from astrarium.catalog.gpus import FIGURES as GPU_FIGURES
from astrarium.catalog.gpus import INSTANCE_FIGURES, Gpu, Instance
from astrarium.catalog.records import Figures, unit_of

# No figure of the catalog comes near these; larger ones are typing errors.
LARGEST_FIGURE = 1e12
LARGEST_COUNT = 10**6

_Count: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_FIGURE: Any = Annotated[float, Meta(gt=0, le=LARGEST_FIGURE)] | UnsetType
# By the annotation of an attribute; a key with a unit is always a figure.
_TYPES: dict[str, Any] = {
    "str": _Text | UnsetType,
    "int": _Count | UnsetType,
    "float": _FIGURE,
    "bool": bool | UnsetType,
    "tuple[int, ...]": list[_Count] | UnsetType,
    "tuple[str, ...]": list[_Text] | UnsetType,
}


def _keys(kind: type[Any], figures: Figures) -> Iterator[tuple[str, Any, Any]]:
    """The keys of a table with their types: `like`, `aliases`, and those of its figures."""
    stated = {field.name: str(field.type).removesuffix(" | None") for field in fields(kind)}
    yield "like", _TYPES["str"], UNSET
    for name in [*stated.keys() & {"aliases"}, *figures.names(kind)]:
        for each in figures.rates.get(name, ("",)):
            key = figures.keys.get(name, name).format(each)
            yield key, _FIGURE if unit_of(key).text else _TYPES[stated[name]], UNSET


def _table(name: str, kind: type[Any], figures: Figures) -> Any:  # noqa: ANN401  a struct
    return defstruct(name, list(_keys(kind, figures)), forbid_unknown_fields=True, kw_only=True)


GpuEntry: Any = _table("GpuEntry", Gpu, GPU_FIGURES)
InstanceEntry: Any = _table("InstanceEntry", Instance, INSTANCE_FIGURES)
CatalogFile: Any = defstruct(
    "CatalogFile",
    [
        ("gpus", dict[str, GpuEntry], {}),
        ("instances", dict[str, InstanceEntry], {}),
        ("models", dict[str, dict[str, object]], {}),
    ],
    forbid_unknown_fields=True,
    kw_only=True,
)
