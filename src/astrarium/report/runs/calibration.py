"""What a calibration found, as text: the device, the factors of its operators, the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from astrarium.report.tables import Field, indented, labelled, listing, percent, title
from astrarium.units import format_rate, format_seconds

_HOST = {
    "launch_seconds": "between two kernels",
    "kernel_seconds": "the host for one kernel",
    "layer_forward_seconds": "the host for a plain layer, forward",
    "layer_backward_seconds": "the host for a plain layer, backward",
}


def calibration_report(
    header: Mapping[str, Any], file: str, left: int, warnings: Sequence[str], width: int
) -> Iterator[RenderableType]:
    """All of a profile's header that a person wants to know."""
    yield labelled(_facts(header, file), style="dim")
    yield from _operators(header, width)
    for warning in warnings:
        yield Text(f"warning: {warning}")
    yield from _host(header["host"])
    yield from _failures(header["failed"], left)


def _facts(header: Mapping[str, Any], file: str) -> Iterator[tuple[str, str]]:
    known = header["gpu"] or "not in the catalog"
    yield "device", f"{header['device'].get('name', 'unknown')} ({known})"
    if header["specification"]:
        flops, bandwidth = (header["specification"][n] for n in ("flops", "memory_bandwidth"))
        rates = f"{format_rate(flops, 'FLOP')}, {format_rate(bandwidth)} of memory"
        yield "figures", f"{rates}: from what it reached"
    yield "software", ", ".join(f"{name} {text}" for name, text in header["versions"].items())
    cases = header["sections"]
    counts = ", ".join(f"{name} {count:,}" for name, count in cases.items())
    total = sum(cases.values())
    noun = "case" if total == 1 else "cases"
    yield "measured", f"{total:,} {noun} ({counts}), {header['date']}"
    yield "profile", file


def _operators(header: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    fits = {**header["operators"], **header["links"]}
    if not fits:
        return
    yield title("Measured against modelled time")
    entries = list(fits.values())
    yield from listing(
        [
            Field("class", list(fits)),
            Field("cases", [f"{entry['rows']:,}" for entry in entries], right=True),
            Field("median", [f"{entry['median']:.2f}" for entry in entries], right=True),
            Field("spread", [percent(entry["spread"]) for entry in entries], right=True, drop=1),
            Field("factor", [_factor(entry) for entry in entries], right=True),
        ],
        width,
    )


def _factor(entry: Mapping[str, Any]) -> str:
    return "not used" if entry.get("bounded") else f"{entry['ratio']:.2f}"


def _host(host: Mapping[str, float]) -> Iterator[RenderableType]:
    if not host:
        return
    yield title("Gaps")
    for name, text in _HOST.items():
        if name in host:
            yield indented(f"{format_seconds(host[name]):>9}  {text}")


def _failures(failed: list[Mapping[str, Any]], left: int) -> Iterator[RenderableType]:
    if failed:
        yield title("Could not be measured")
        counts = Counter((row.get("operator"), row["failure"]) for row in failed)
        for (operator, reason), count in counts.items():
            yield indented(f"{count} x {operator}: {reason}")
    if left:
        cases = "1 case is" if left == 1 else f"{left:,} cases are"
        yield title(f"{cases} left: the same command goes on")
