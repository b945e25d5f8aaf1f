"""The catalog as documents and tables: GPU types, models, instances, prices, with provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from astrarium.catalog import (
    Figure,
    Gpu,
    Instance,
    describe_gpu,
    describe_instance,
    find_instance,
    instances,
    sources,
)
from astrarium.catalog.models import ModelEntry
from astrarium.errors import InputError
from astrarium.model import Model
from astrarium.report.layout import gib, new_table, title
from astrarium.units import format_count, format_rate, format_usd

SCHEMA = "astrarium.catalog/1"


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """What the catalog says about a GPU type; SI units in the names."""
    return {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "form_factor": gpu.form_factor,
        "release_year": gpu.release_year,
        "memory_bytes": gpu.memory_bytes,
        "memory_bytes_per_second": gpu.memory_bandwidth,
        "peak_flops_per_second": dict(gpu.peak_flops),
        "gpus_per_node": gpu.gpus_per_node,
        "nvlink_domain": gpu.nvlink_domain,
        "link_bytes_per_second": gpu.link_bandwidth,
        "inter_node_bytes_per_second": gpu.inter_node_bandwidth,
        **price_to_dict(gpu),
        "doubts": gpu.doubts,
    }


def price_to_dict(gpu: Gpu) -> dict[str, Any]:
    figures = {figure.name: figure for figure in describe_gpu(gpu)}
    figure = figures.get("usd_per_gpu_hour")
    return {
        "usd_per_gpu_hour": gpu.usd_per_gpu_hour,
        "spot_usd_per_gpu_hour": gpu.spot_usd_per_gpu_hour,
        "price_date": figure.date if figure else "",
        "price_sources": list(figure.sources) if figure else [],
    }


def model_to_dict(entry: ModelEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters,
        "family": entry.family,
        "aliases": list(entry.aliases),
        "published": entry.published,
        "source": entry.source,
        "date": entry.date,
        "method": entry.method,
        "note": entry.note,
        "doubts": entry.doubts,
    }


def built_model_to_dict(entry: ModelEntry, model: Model) -> dict[str, Any]:
    """An entry with what its config makes."""
    return {
        **model_to_dict(entry),
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "experts": model.max_experts,
        "max_seq_length": model.max_seq_length,
        "config": dict(entry.config),
    }


def instance_to_dict(instance: Instance) -> dict[str, Any]:
    return {
        "name": instance.name,
        "cloud": instance.cloud,
        "gpu": instance.gpu,
        "gpus_per_node": instance.gpus_per_node,
        "inter_node_bytes_per_second": instance.inter_node_bandwidth,
        "fabric": instance.fabric,
        "availability": instance.availability,
        "usd_per_hour": instance.usd_per_hour,
        "spot_usd_per_hour": instance.spot_usd_per_hour,
        "price_dates": list(instance.price_dates or ()),
        "doubts": instance.doubts,
    }


def figures_to_list(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    return [asdict(figure) for figure in figures]


def gpus_table(gpus: Sequence[Gpu]) -> RenderableType:
    heads = ("!name", "!alias", ":GiB", ":bf16 TFLOP/s", ":TB/s", ":node", ":$/h", ":spot")
    table = _table(*heads, gap=1)
    for gpu in gpus:
        peak = gpu.peak_flops.get("bf16")
        table.add_row(
            gpu.name,
            gpu.aliases[0] if gpu.aliases else "",
            gib(gpu.memory_bytes),
            f"{peak / 1e12:,.0f}" if peak else "-",
            f"{gpu.memory_bandwidth / 1e12:.2f}",
            str(gpu.gpus_per_node),
            _usd(gpu.usd_per_gpu_hour),
            _usd(gpu.spot_usd_per_gpu_hour),
        )
    return table


def prices_report(gpus: Sequence[Gpu], offers: Sequence[Instance]) -> Iterator[RenderableType]:
    """Default prices per GPU and hour with their dates and sources, then those of instances."""
    table = _table("!GPU", ":on demand", ":spot", "dates", "sources")
    for gpu in gpus:
        price = price_to_dict(gpu)
        table.add_row(
            gpu.name,
            _usd(gpu.usd_per_gpu_hour),
            _usd(gpu.spot_usd_per_gpu_hour),
            price["price_date"],
            ", ".join(price["price_sources"]),
        )
    yield table
    yield Text("US dollars per GPU and hour, medians over clouds: defaults, not offers", "dim")
    if offers:
        yield title("Whole instances, US dollars per hour")
        yield instances_table(offers)


def models_table(entries: Sequence[ModelEntry]) -> RenderableType:
    table = _table("!name", "family", ":parameters", ":active", "published")
    for entry in entries:
        table.add_row(
            entry.name,
            entry.family,
            "not stated" if entry.parameters is None else format_count(entry.parameters),
            "" if entry.active_parameters is None else format_count(entry.active_parameters),
            entry.published,
        )
    return table


def instances_named(name: str | None) -> tuple[Instance, ...]:
    """The instance of a name, or all with a GPU type, or all."""
    if name is None:
        return instances()
    try:
        return (find_instance(name),)
    except InputError:
        try:
            return instances(name)
        except InputError:
            pass
        raise


def instances_report(chosen: Sequence[Instance]) -> Iterator[RenderableType]:
    """One instance in full, several as a table."""
    if len(chosen) == 1:
        yield from instance_report(chosen[0])
    else:
        yield instances_table(chosen)


def instances_table(offers: Sequence[Instance]) -> RenderableType:
    table = _table("name", "!cloud", "!GPUs", ":network", ":$/h", ":spot")
    for instance in offers:
        network, limit = instance.inter_node_bandwidth, instance.availability
        table.add_row(
            Text(instance.name).append(f" ({limit})" if limit else "", "dim"),
            instance.cloud,
            f"{instance.gpus_per_node} x {instance.gpu}",
            "-" if network is None else format_rate(network),
            _usd(instance.usd_per_hour),
            _usd(instance.spot_usd_per_hour),
        )
    return table


def gpu_report(gpu: Gpu, offers: Sequence[Instance]) -> Iterator[RenderableType]:
    """All that is known about a GPU type, and where it can be rented."""
    yield Text(f"{gpu.name} (also {', '.join(gpu.aliases)})" if gpu.aliases else gpu.name, "bold")
    yield ""
    yield from figures_report(describe_gpu(gpu), gpu.doubts_by_figure.get("*", ""))
    if offers:
        yield title(f"Instances with it ({len(offers)})")
        yield instances_table(offers)


def instance_report(instance: Instance) -> Iterator[RenderableType]:
    yield Text(f"{instance.name} ({instance.cloud})", "bold")
    yield ""
    yield from figures_report(describe_instance(instance), instance.doubts_by_figure.get("*", ""))


def figures_report(figures: Sequence[Figure], doubt: str) -> Iterator[RenderableType]:
    """Figures under the keys that override them, then doubts, then the sources by number."""
    cited = list(dict.fromkeys(code for figure in figures for code in figure.sources))
    table = _table("!figure", "value", "date", "sources")
    for figure in figures:
        mark = " (?)" if figure.doubt else ""
        value = f"{figure.value_text} {figure.unit}".rstrip() + mark
        numbers = _ranges([cited.index(code) + 1 for code in figure.sources])
        table.add_row(figure.name, value, figure.date, numbers)
    yield table
    doubts = [f"{figure.name}: {figure.doubt}" for figure in figures if figure.doubt]
    if doubt or doubts:
        yield title("Doubts (?)")
        yield from _indented([doubt, *doubts] if doubt else doubts)
    yield title("Sources")
    listed = Table.grid(padding=(0, 1))
    listed.add_column(justify="right", no_wrap=True, min_width=4)
    listed.add_column(overflow="fold")
    for number, code in enumerate(cited, start=1):
        listed.add_row(str(number), Text(_source(code)))
    yield listed
    yield Text("\nKeys in [gpus.NAME] or [instances.NAME] of astrarium.toml override.", "dim")


def model_report(entry: ModelEntry, model: Model) -> Iterator[RenderableType]:
    """A model as built from its config, beside what its catalog entry states."""
    yield Text(
        f"{entry.name} (also {', '.join(entry.aliases)})" if entry.aliases else entry.name, "bold"
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    facts = {
        "parameters": f"{model.parameters:,}",
        "active": f"{model.active_parameters:,}" if model.max_experts else "",
        "published": entry.published,
        "family": entry.family,
        "layers": f"{model.num_layers} ({_kinds(model)})",
        "hidden": f"{model.hidden:,}",
        "vocabulary": f"{model.vocab:,}",
        "experts": f"{model.max_experts}" if model.max_experts else "",
        "sequence": f"up to {model.max_seq_length:,} tokens" if model.max_seq_length else "",
        "counted by": entry.method,
        "source": ", ".join(part for part in (entry.source, entry.date) if part),
        "note": entry.note,
        "doubts": entry.doubts,
    }
    for label, text in facts.items():
        if text:
            grid.add_row(label, Text(text))
    yield Padding(grid, (0, 0, 0, 2))


def _kinds(model: Model) -> str:
    """How many layers of each kind there are."""
    counts = [model.kind_of_layer.count(kind) for kind in range(len(model.kinds))]
    if len(counts) == 1:
        return "all alike"
    return ", ".join(f"{n} {k.name}" for n, k in zip(counts, model.kinds, strict=True))


def _source(code: str) -> str:
    known = sources().get(code)
    if known is None:
        return code
    return ", ".join(part for part in (known.title, known.date, known.url) if part)


def _indented(lines: Sequence[str]) -> Iterator[RenderableType]:
    for line in lines:
        yield Padding(Text(line), (0, 0, 0, 2))


def _usd(amount: float | None) -> str:
    return "-" if amount is None else format_usd(amount)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers with runs joined: 1-3, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


def _table(*heads: str, gap: int = 2) -> Table:
    """A table; a head with ":" is right-aligned, one with "!" is never broken."""
    table = new_table(gap)
    for head in heads:
        table.add_column(
            head.lstrip(":!"),
            justify="right" if head[0] == ":" else "left",
            no_wrap=head[0] == "!",
            overflow="fold",
        )
    return table
