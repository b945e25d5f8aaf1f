"""Instances: nodes that can be rented or bought, with their links, networks and prices.

Prices are medians over the regions of the cloud, whole node, US dollars, taken from the price
book (`prices`), which has them by class of regions. Storage and reserved contracts are not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from astrarium.catalog import overrides, records
from astrarium.catalog.gpus import find_gpu, gpus
from astrarium.catalog.records import Figure, Figures, PriceDates, Record, describe, join_doubts
from astrarium.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A node of one cloud (or "onprem"); SI units, None where not known."""

    name: str
    cloud: str = ""
    gpu: str  # name of the GPU type
    gpus_per_node: int
    vcpus: int | None = None
    host_memory_bytes: int | None = None
    intra_node_link: str = ""
    intra_node_bandwidth: float | None = None  # per GPU and direction; None with a single GPU
    fabric: str = ""
    inter_node_bandwidth: float | None = None  # per node and direction, what GPUs can use of it
    inter_node_total_bandwidth: float | None = None
    adapters: int | None = None
    gpudirect: str = ""  # "yes", "no", or the transport that takes its place
    availability: str = ""  # "" unless retired or restricted
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    price_dates: PriceDates | None = None
    sources: Mapping[str, tuple[str, ...]] = field(hash=False)  # codes or files by key
    doubts_by_figure: Mapping[str, str] = field(hash=False)

    @property
    def doubts(self) -> str:
        return join_doubts(self.doubts_by_figure)


_REQUIRED: Final = ("gpu", "gpus_per_node")
FIGURES: Final = Figures(
    "cloud",
    "spot_usd_per_hour",
    {
        "host_memory_bytes": "host_memory_gib",
        "intra_node_bandwidth": "intra_node_gbytes_per_s",
        "inter_node_bandwidth": "inter_node_gbits_per_s",
        "inter_node_total_bandwidth": "inter_node_total_gbits_per_s",
    },
    {},
)
_TABLES_KEPT: Final = 4


def instances(gpu: str | None = None) -> tuple[Instance, ...]:
    """Return all instances, or those with a GPU type given by name or alias."""
    table = _table(overrides.stamps())[0]
    wanted = find_gpu(gpu).name if gpu is not None else None
    return tuple(i for i in table.values() if wanted is None or i.gpu == wanted)


def find_instance(name: str) -> Instance:
    """Return the instance of this name in any case; Azure's "Standard_" may be left out."""
    table, names = _table(overrides.stamps())
    found = names.get(_key(name))
    if found is None:
        raise InputError(
            f"unknown instance '{name}'{did_you_mean(name, table)}; "
            "`astrarium catalog instances` lists all"
        )
    return table[found]


def describe_instance(instance: Instance) -> tuple[Figure, ...]:
    """Return what is known about an instance, each figure with source, date and doubt."""
    return describe(
        records.figures_of(instance, FIGURES),
        instance.sources,
        instance.doubts_by_figure,
        instance.price_dates,
    )


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", re.sub(r"^standard_", "", name.strip().lower()))


@lru_cache(maxsize=_TABLES_KEPT)
def _table(files: tuple[overrides.Stamp, ...]) -> tuple[dict[str, Instance], dict[str, str]]:
    """Return the instances by name, and the names by normalised name."""
    builtin = records.to_records(records.read_table("instances.json"))
    entries = overrides.entries(overrides.Section.INSTANCES, files)
    found, names = records.with_overrides(builtin, entries, _key, _REQUIRED)
    gpu_names = frozenset(gpu.name for gpu in gpus())
    return {name: _instance(record, gpu_names) for name, record in found.items()}, names


def _instance(record: Record, gpu_names: Set[str]) -> Instance:
    stated = record.attributes(Instance, FIGURES.keys) | {"gpu": _gpu_name(record, gpu_names)}
    if "host_memory_bytes" in stated:
        stated["host_memory_bytes"] = round(stated["host_memory_bytes"])
    return Instance(
        name=record.name, sources=record.sources, doubts_by_figure=record.doubts, **stated
    )


def _gpu_name(record: Record, gpu_names: Set[str]) -> str:
    """Resolve the alias that a user's file may have."""
    gpu = str(record.values.get("gpu", ""))
    try:
        return gpu if gpu in gpu_names else find_gpu(gpu).name
    except InputError as error:
        file = record.sources.get("gpu", record.sources[records.ALL])[0]
        raise InputError(f"{file}: instances.{record.name}: gpu: {error}") from None
