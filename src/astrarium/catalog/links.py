"""Links between GPUs and between nodes: nominal rates, and what is known about real ones.

`links` gives peaks of a kind of link, per GPU, port or node and direction. `link_figures` gives
single facts: latencies (the constants of NCCL's tuner among them), bandwidths that software
assumes or that were measured, and the price of moving data. They document and feed calibration;
a user cannot override them, only the links of a GPU type, instance or cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Final, cast

from astrarium.catalog.provenance import join_doubts
from astrarium.catalog.records import Record, read_table, to_records


class LinkScope(StrEnum):
    """What a link connects."""

    INTRA_NODE = "intra-node"
    INTER_NODE = "inter-node"


class LinkOwner(StrEnum):
    """What a bandwidth belongs to."""

    GPU = "gpu"
    PORT = "port"
    NODE = "node"


class LinkFigureKind(StrEnum):
    """What a figure about links measures, and with it the SI unit of its value."""

    LATENCY = "latency"  # seconds
    EFFECTIVE_BANDWIDTH = "effective bandwidth"  # bytes/s that other software reckons with
    MEASURED_BANDWIDTH = "measured bandwidth"  # bytes/s
    MEASURED_FLOOR = "measured floor"  # bytes/s of bus bandwidth below which a node is faulty
    TRANSFER_PRICE = "transfer price"  # USD/byte
    EFFICIENCY = "efficiency"  # fraction of the peak


@dataclass(frozen=True, slots=True)
class CatalogLink:
    """A kind of link and its nominal rate in one direction."""

    name: str
    scope: LinkScope
    per: LinkOwner
    bandwidth: float
    note: str
    sources: Mapping[str, tuple[str, ...]] = field(hash=False)
    doubts: str


@dataclass(frozen=True, slots=True)
class LinkFigure:
    """One fact about links; `upper` is given where the source states a range from `value` on."""

    name: str
    kind: LinkFigureKind
    scope: str
    value: float
    upper: float | None
    note: str
    sources: Mapping[str, tuple[str, ...]] = field(hash=False)
    doubts: str


_RATE_KEYS: Final = ("gbytes_per_s", "gbits_per_s")
_VALUE_KEYS: Final = ("microseconds", "gbytes_per_s", "usd_per_gbyte", "fraction")


@cache
def links() -> tuple[CatalogLink, ...]:
    """Return all kinds of links."""
    return tuple(_link(record) for record in _read("links"))


def link_figures(kind: LinkFigureKind | None = None) -> tuple[LinkFigure, ...]:
    """Return all figures about links, or those of one kind."""
    return tuple(figure for figure in _link_figures() if kind is None or figure.kind is kind)


@cache
def _link_figures() -> tuple[LinkFigure, ...]:
    return tuple(_link_figure(record) for record in _read("figures"))


def _read(table: str) -> list[Record]:
    entries = cast("Mapping[str, Mapping[str, object]]", read_table("links.json")[table])
    return list(to_records(entries).values())


def _link(record: Record) -> CatalogLink:
    key = next(key for key in _RATE_KEYS if key in record.values)
    return CatalogLink(
        name=record.name,
        scope=LinkScope(record.text("scope")),
        per=LinkOwner(record.text("per")),
        bandwidth=record.quantity(key),
        note=record.text("note"),
        sources=record.sources,
        doubts=join_doubts(record.doubts),
    )


def _link_figure(record: Record) -> LinkFigure:
    key = next(key for key in _VALUE_KEYS if key in record.values)
    return LinkFigure(
        name=record.name,
        kind=LinkFigureKind(record.text("kind")),
        scope=record.text("scope"),
        value=record.quantity(key),
        upper=record.optional(f"upper_{key}"),
        note=record.text("note"),
        sources=record.sources,
        doubts=join_doubts(record.doubts),
    )
