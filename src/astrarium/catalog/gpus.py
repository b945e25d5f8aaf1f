"""GPU types and instances: their figures, links and prices.

Peaks are dense, with fp32 accumulation; memory is the total that CUDA or HIP reports. Link figures
are per GPU and direction. `CPU-core`, a core of a processor, is a device that lists leave out; its
times need a profile. A type is found by its name or an alias; case, spaces, hyphens, underscores,
the vendor's brand and "GB" against "G" make no difference, so the names of `nvidia-smi` work.

Instances are nodes to rent or buy. Their prices are medians over the regions of the cloud, for the
whole node, in US dollars, from the price book (`prices`), without storage and reserved contracts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, Final

from astrarium.catalog import overrides, records
from astrarium.catalog.records import (
    Figure,
    Figures,
    PriceDates,
    Record,
    describe,
    join_doubts,
    read_table,
)
from astrarium.errors import InputError, did_you_mean, in_shell, instead


class Dtype(StrEnum):
    """Number formats with a peak rate of their own."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU type and the node it usually sits in; SI units. The order is that of `describe_gpu`."""

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str = ""
    architecture: str = ""
    compute_capability: float = 0.0  # of NVIDIA's devices; 0: another maker's, or not known
    form_factor: str = ""
    release_year: int
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float] = field(hash=False)  # by Dtype; absent: not supported
    measured_matmul_flops: Mapping[str, float] = field(hash=False)  # best large matmul, if known
    tdp_watts: float
    link_type: str = ""
    link_bandwidth: float  # per GPU and direction inside the NVLink domain, else over PCIe
    link_bandwidth_to_peer: float  # the part of it that one peer can use
    pcie_type: str = ""
    pcie_bandwidth: float
    host_bandwidth: float | None = None  # to host memory and direction, where that is no PCIe
    peer_access: bool = True  # over PCIe; links of their own always have it
    gpus_per_node: int
    nvlink_domain: int  # GPUs that reach each other at link_bandwidth; 1: no such link
    inter_node_bandwidth: float  # per node and direction
    inter_node_instance: str = ""  # the instance that has it; "" if assumed
    usd_per_gpu_hour: float | None = None  # median over clouds; see `price_good_for`
    spot_usd_per_gpu_hour: float | None = None
    rented_sizes: tuple[int, ...] = ()  # GPUs of instances on offer; () if none is known
    price_dates: PriceDates | None = None
    price_good_for: int | None = None  # GPUs, where the price is that of less than a node
    price_offers_left_out: int = 0  # older than those whose median the price is
    share: float = 1.0  # of its time that the job has
    sources: Mapping[str, tuple[str, ...]] = field(hash=False)  # codes or files by key
    doubts_by_figure: Mapping[str, str] = field(hash=False)

    @property
    def is_processor(self) -> bool:
        return self.architecture == PROCESSOR

    @property
    def bandwidth_to_host(self) -> float:
        """Bytes a second between the GPU and the memory of its host, in one direction."""
        return self.host_bandwidth or self.pcie_bandwidth

    @property
    def whole_name(self) -> str:
        """The name without a share: CPU-core of CPU-core@50%."""
        return self.name.partition("@")[0]

    @property
    def doubts(self) -> str:
        return join_doubts(self.doubts_by_figure)


# Keys of figures in files, and those that an entry without a model to copy ("like") has to give.
_KEYS: Final[Mapping[str, Any]] = records.read_table("figures.json")
FIGURES: Final = Figures(
    "vendor",
    "rented_sizes",
    _KEYS["gpus"]["keys"],
    {"peak_flops": tuple(Dtype), "measured_matmul_flops": (Dtype.BF16, Dtype.FP8)},
)
_REQUIRED: Final = _KEYS["gpus"]["required"]
PROCESSOR: Final = "processor"
PROCESSORS: Final = "processors.json"
_SHARE: Final = re.compile(r"(?P<type>.+)@(?P<percent>[0-9.]+)%")
_BRANDS: Final = re.compile(r"\b(?:nvidia|amd|instinct|geforce|tesla)\b")
_TABLES_KEPT: Final = 4


def gpus() -> tuple[Gpu, ...]:
    """Return all GPU types, those of the user's files included."""
    return tuple(_table(overrides.stamps())[0].values())


def find_gpu(name: str) -> Gpu:
    table, names = _table(overrides.stamps())
    found = names.get(gpu_key(name))
    if found is None and (core := _processor(name)) is not None:
        return core
    if found is None:
        labels = [label for gpu in table.values() for label in (gpu.name, *gpu.aliases)]
        raise InputError(
            f"unknown GPU type '{name}'{did_you_mean(name, labels)}"
            + in_shell("; `astrarium catalog gpus` lists all"),
            repairs=instead(name, labels),
        )
    return table[found]


def _processor(name: str) -> Gpu | None:
    """A core of a processor, or the share of one that `CPU-core@50%` names."""
    table, names = _processors()
    part = _SHARE.fullmatch(name.strip())
    found = names.get(gpu_key(part["type"] if part else name))
    if found is None:
        return None
    whole = table[found]
    return shared(whole, _share(name, part["percent"])) if part else whole


def shared(gpu: Gpu, share: float) -> Gpu:
    """A device that gives the job a share of its time, so that everything takes longer."""
    return replace(
        gpu,
        name=f"{gpu.name.partition('@')[0]}@{100 * share:g}%",
        aliases=(),
        link_bandwidth=gpu.link_bandwidth * share,
        link_bandwidth_to_peer=gpu.link_bandwidth_to_peer * share,
        inter_node_bandwidth=gpu.inter_node_bandwidth * share,
        share=share,
    )


def _share(name: str, percent: str) -> float:
    try:
        share = float(percent) / 100
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise InputError(f"'{name}': the share is {percent} %; it must be above 0 and at most 100")
    return share


def gpu_key(name: str) -> str:
    """Normalise a name: two spellings of one type give the same key."""
    words = _BRANDS.sub(" ", re.sub(r"[\s_-]+", " ", name.lower()))
    return re.sub(r"(\d)gi?b", r"\1g", words.replace(" ", ""))


def describe_gpu(gpu: Gpu) -> tuple[Figure, ...]:
    """Return what is known about a GPU type, each figure with source, date and doubt."""
    return describe(gpu, FIGURES)


@lru_cache(maxsize=_TABLES_KEPT)
def _table(files: tuple[overrides.Stamp, ...]) -> tuple[dict[str, Gpu], dict[str, str]]:
    """Return the GPU types by name, and the names by normalised label."""
    builtin = records.to_records(records.read_table("gpus.json"))
    entries = overrides.entries(overrides.Section.GPUS, files)
    found, names = records.with_overrides(builtin, entries, gpu_key, _REQUIRED)
    return {name: _gpu(record) for name, record in found.items()}, names


@lru_cache(maxsize=1)
def _processors() -> tuple[dict[str, Gpu], dict[str, str]]:
    builtin = records.to_records(records.read_table(PROCESSORS))
    found, names = records.with_overrides(builtin, [], gpu_key, ())
    return {name: _gpu(record) for name, record in found.items()}, names


def _gpu(record: Record) -> Gpu:
    stated = record.attributes(Gpu, FIGURES.keys)
    stated["memory_bytes"] = round(stated["memory_bytes"])
    stated |= {name: _rates(record, name) for name in FIGURES.rates}
    stated.setdefault("link_bandwidth_to_peer", stated["link_bandwidth"])
    stated.setdefault("nvlink_domain", stated["gpus_per_node"])
    return Gpu(name=record.name, sources=record.sources, doubts_by_figure=record.doubts, **stated)


def _rates(record: Record, name: str) -> dict[str, float]:
    keys = {dtype: FIGURES.keys[name].format(dtype) for dtype in FIGURES.rates[name]}
    return {dtype: record.si(key) for dtype, key in keys.items() if key in record.values}


@cache
def names_of(software: str) -> dict[str, Any]:
    return read_table("gpu_names.json")[software]


def name_in(software: str, gpu: str) -> str:
    """The name of a GPU type in a program; "" if it is not known."""
    tables, short = names_of(software), gpu.partition("-")[0]
    name: str = tables["names"].get(gpu, short if short in tables["same"] else "")
    return name


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


_INSTANCE_REQUIRED: Final = _KEYS["instances"]["required"]
INSTANCE_FIGURES: Final = Figures("cloud", "spot_usd_per_hour", _KEYS["instances"]["keys"], {})


def instances(gpu: str | None = None) -> tuple[Instance, ...]:
    table = _instance_table(overrides.stamps())[0]
    wanted = find_gpu(gpu).name if gpu is not None else None
    return tuple(i for i in table.values() if wanted is None or i.gpu == wanted)


def find_instance(name: str) -> Instance:
    """Return the instance of this name in any case; Azure's "Standard_" may be left out."""
    table, names = _instance_table(overrides.stamps())
    found = names.get(_instance_key(name))
    if found is None:
        raise InputError(
            f"unknown instance '{name}'{did_you_mean(name, table)}; "
            "`astrarium catalog instances` lists all"
        )
    return table[found]


def describe_instance(instance: Instance) -> tuple[Figure, ...]:
    """Return what is known about an instance, each figure with source, date and doubt."""
    return describe(instance, INSTANCE_FIGURES)


def _instance_key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", re.sub(r"^standard_", "", name.strip().lower()))


@lru_cache(maxsize=_TABLES_KEPT)
def _instance_table(
    files: tuple[overrides.Stamp, ...],
) -> tuple[dict[str, Instance], dict[str, str]]:
    """Return the instances by name, and the names by normalised name."""
    builtin = records.to_records(records.read_table("instances.json"))
    entries = overrides.entries(overrides.Section.INSTANCES, files)
    found, names = records.with_overrides(builtin, entries, _instance_key, _INSTANCE_REQUIRED)
    gpu_names = frozenset(gpu.name for gpu in gpus())
    return {name: _instance(record, gpu_names) for name, record in found.items()}, names


def _instance(record: Record, gpu_names: Set[str]) -> Instance:
    stated = record.attributes(Instance, INSTANCE_FIGURES.keys) | {
        "gpu": _gpu_name(record, gpu_names)
    }
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
