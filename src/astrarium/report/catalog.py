"""The catalog as documents and tables: GPU types, models, instances, runtimes, prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from itertools import groupby
from typing import Any, TypedDict

from rich.console import RenderableType
from rich.text import Text

from astrarium.catalog import (
    Figure,
    Gpu,
    Instance,
    describe_gpu,
    describe_instance,
    find_gpu,
    find_instance,
    gpus,
    instances,
    sources,
)
from astrarium.catalog.models import ModelEntry, find_model_entry, model_names
from astrarium.catalog.prices import REGIONS, STALE_AFTER_DAYS, Book, Offer, age_days, is_stale
from astrarium.catalog.runtimes import Constant, describe_runtime, find_runtime
from astrarium.errors import InputError
from astrarium.model import Model
from astrarium.report.tables import Field, gib, indented, labelled, listing, runs, table, title
from astrarium.report.wording import unit_price
from astrarium.units import format_count, format_usd
from astrarium.value import replace

SCHEMA = "astrarium.catalog/1"
NAMES_OFFERED = 8


class ListedGpu(TypedDict):
    """A GPU type; SI units in the names."""

    name: str
    aliases: list[str]
    vendor: str
    architecture: str
    form_factor: str
    release_year: int
    memory_bytes: int
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


class ListedModel(TypedDict):
    name: str
    parameters: int | None
    active_parameters: int | None
    family: str
    aliases: list[str]
    published: str
    source: str
    date: str
    method: str
    note: str
    doubts: str


INSTANCE_KEYS = (
    *("name", "cloud", "gpu", "gpus_per_node", "inter_node_bytes_per_second", "fabric"),
    *("availability", "usd_per_hour", "spot_usd_per_hour", "price_dates", "doubts"),
)


def _picked(thing: object, keys: Iterable[str], known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: known[key] if key in known else getattr(thing, key) for key in keys}


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    known = {
        "memory_bytes_per_second": gpu.memory_bandwidth,
        "peak_flops_per_second": dict(gpu.peak_flops),
        "link_bytes_per_second": gpu.link_bandwidth,
        "inter_node_bytes_per_second": gpu.inter_node_bandwidth,
    }
    return _picked(gpu, ListedGpu.__annotations__, known | price_to_dict(gpu))


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
    return _picked(entry, ListedModel.__annotations__, {})


def built_model_to_dict(entry: ModelEntry, model: Model) -> dict[str, Any]:
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
    dates, rate = list(instance.price_dates or ()), instance.inter_node_bandwidth
    known = {"inter_node_bytes_per_second": rate, "price_dates": dates}
    return _picked(instance, INSTANCE_KEYS, known)


def gpus_table(types: Sequence[Gpu], width: int) -> Iterator[RenderableType]:
    peaks = [gpu.peak_flops.get("bf16") for gpu in types]
    fields = (
        Field("name", [gpu.name for gpu in types]),
        Field("alias", [gpu.aliases[0] if gpu.aliases else "" for gpu in types]),
        Field("GiB", [gib(gpu.memory_bytes) for gpu in types], right=True),
        Field("bf16 TFLOP/s", [f"{p / 1e12:,.0f}" if p else "-" for p in peaks], right=True),
        Field("TB/s", [f"{gpu.memory_bandwidth / 1e12:.2f}" for gpu in types], right=True),
        Field("node", [str(gpu.gpus_per_node) for gpu in types], right=True),
        Field("$/h", [unit_price(gpu.usd_per_gpu_hour) for gpu in types], right=True),
        Field("spot", [unit_price(gpu.spot_usd_per_gpu_hour) for gpu in types], right=True, drop=1),
    )
    yield from listing(fields, width)


def models_table(entries: Sequence[ModelEntry], width: int) -> Iterator[RenderableType]:
    sizes = [(entry.parameters, entry.active_parameters) for entry in entries]
    totals, active = (
        [format_count(n) if n else "" for n in both] for both in zip(*sizes, strict=True)
    )
    fields = (
        Field("name", [entry.name for entry in entries]),
        Field("family", [entry.family for entry in entries], drop=1),
        Field("parameters", totals, right=True),
        Field("active", active, right=True),
        Field("published", [entry.published for entry in entries], prose=True),
    )
    yield from listing(fields, width)


def gpu_named(name: str) -> Gpu:
    """The GPU type of a name; for a part of names, the names that have it."""
    try:
        return find_gpu(name)
    except InputError:
        _offer_containing("gpus", name, [gpu.name for gpu in gpus()])
        raise


def model_named(name: str) -> ModelEntry:
    """The model of a name; for a part of names, the names that have it."""
    try:
        return find_model_entry(name)
    except InputError:
        _offer_containing("models", name, model_names())
        raise


def _offer_containing(command: str, part: str, names: Sequence[str]) -> None:
    """Refuse a part of names with those that have it, the ones it begins first."""
    wanted, listed = part.strip().lower(), f"`astrarium catalog {command}` lists all"
    having = [name for name in names if wanted in name.lower()]
    if not wanted or not having:
        return
    if len(having) == 1:
        raise InputError(f"'{part}' is not a full name (did you mean '{having[0]}'?); {listed}")
    having.sort(key=lambda name: not name.lower().startswith(wanted))
    shown, more = having[:NAMES_OFFERED], len(having) - NAMES_OFFERED
    rest = f" and {more} more" if more > 0 else ""
    raise InputError(f"'{part}' is part of several {command}: {', '.join(shown)}{rest}; {listed}")


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


def instances_report(chosen: Sequence[Instance], width: int) -> Iterator[RenderableType]:
    """One instance in full, several as a table."""
    if len(chosen) == 1:
        yield from instance_report(chosen[0])
    else:
        yield from instances_table(chosen, width)


def instances_table(offers: Sequence[Instance], width: int) -> Iterator[RenderableType]:
    """Instances; the numbers beside names refer to the limits below the table."""
    limits = list(dict.fromkeys(offer.availability for offer in offers if offer.availability))
    rates = [offer.inter_node_bandwidth for offer in offers]
    fields = (
        Field("name", [marked(offer, limits) for offer in offers]),
        Field("cloud", [offer.cloud for offer in offers]),
        Field("n", [str(offer.gpus_per_node) for offer in offers], right=True),
        Field("GPU", [offer.gpu for offer in offers], prose=True),
        Field(
            "network GB/s",
            ["-" if r is None else f"{r / 1e9:,.4g}" for r in rates],
            right=True,
            drop=2,
        ),
        Field("$/h", [usd(offer.usd_per_hour) for offer in offers], right=True),
        Field("spot", [usd(offer.spot_usd_per_hour) for offer in offers], right=True, drop=3),
    )
    yield from listing(fields, width)
    if limits:
        yield numbered(limits)


def marked(offer: Instance, limits: Sequence[str]) -> str:
    if not offer.availability:
        return offer.name
    return f"{offer.name} ({limits.index(offer.availability) + 1})"


def gpu_report(gpu: Gpu, offers: Sequence[Instance], width: int) -> Iterator[RenderableType]:
    """All that is known about a GPU type, and where it can be rented."""
    yield Text(f"{gpu.name} (also {', '.join(gpu.aliases)})" if gpu.aliases else gpu.name, "bold")
    yield ""
    yield from figures_report(describe_gpu(gpu), gpu.doubts_by_figure.get("*", ""))
    if offers:
        yield title(f"Instances with it ({len(offers)})")
        yield from instances_table(offers, width)


def instance_report(instance: Instance) -> Iterator[RenderableType]:
    yield Text(f"{instance.name} ({instance.cloud})", "bold")
    yield ""
    yield from figures_report(describe_instance(instance), instance.doubts_by_figure.get("*", ""))


def figures_report(figures: Sequence[Figure], doubt: str) -> Iterator[RenderableType]:
    """Figures under the keys that override them, then doubts, then the sources by number."""
    cited = list(dict.fromkeys(code for figure in figures for code in figure.sources))
    numbers = [sorted(cited.index(code) + 1 for code in figure.sources) for figure in figures]
    yield table(
        [
            Field("figure", [figure.name for figure in figures]),
            Field("value", [_value(figure) for figure in figures], prose=True),
            Field("date", [figure.date for figure in figures], prose=True),
            Field("sources", [runs(of_figure) for of_figure in numbers], prose=True),
        ]
    )
    doubts = [f"{figure.name}: {figure.doubt}" for figure in figures if figure.doubt]
    if doubt or doubts:
        yield title("Doubts (?)")
        yield from map(indented, [doubt, *doubts] if doubt else doubts)
    yield title("Sources")
    yield numbered([source_line(code) for code in cited])
    yield Text("\nKeys in [gpus.NAME] or [instances.NAME] of astrarium.toml override.", "dim")


def model_report(entry: ModelEntry, model: Model) -> Iterator[RenderableType]:
    """A model as built from its config, beside what its catalog entry states."""
    yield Text(
        f"{entry.name} (also {', '.join(entry.aliases)})" if entry.aliases else entry.name, "bold"
    )
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
    known = [(label, text) for label, text in facts.items() if text]
    yield indented(labelled(known, style="dim"))


def _kinds(model: Model) -> str:
    counts = [model.kind_of_layer.count(kind) for kind in range(len(model.kinds))]
    if len(counts) == 1:
        return "all alike"
    return ", ".join(f"{n} {k.name}" for n, k in zip(counts, model.kinds, strict=True))


def numbered(lines: Sequence[str]) -> RenderableType:
    return labelled([(f"{number:4}", line) for number, line in enumerate(lines, 1)], gap=1)


def source_line(code: str) -> str:
    known = sources().get(code)
    if known is None:
        return code
    return ", ".join(part for part in (known.title, known.date, known.url) if part)


def _value(figure: Figure) -> str:
    return f"{figure.value_text} {figure.unit}".rstrip() + (" (?)" if figure.doubt else "")


def usd(amount: float | None) -> str:
    return "-" if amount is None else format_usd(amount)


def runtime_to_dict(name: str) -> dict[str, Any]:
    """A runtime with all its constants, own and inherited."""
    constants = {
        constant.name: {"value": constant.value, "source": constant.source}
        for constant in describe_runtime(name)
    }
    return {"name": name, "title": find_runtime(name).title, "constants": constants}


def runtimes_table(names: Sequence[str]) -> Iterator[RenderableType]:
    found = [find_runtime(name) for name in names]
    titles, planned = [one.title for one in found], ["yes" if one.rules else "" for one in found]
    fields = [Field("runtime", names), Field("plans", planned), Field("what", titles, prose=True)]
    yield table(fields)
    yield Text("\n`astrarium catalog runtimes NAME` shows the constants of one.", "dim")


def runtime_report(name: str) -> Iterator[RenderableType]:
    """The constants of a runtime; units are in their names."""
    runtime = find_runtime(name)
    yield Text(f"{runtime.name} ({runtime.title})", "bold")
    yield title("Constants")
    constants = describe_runtime(name)
    yield table(
        [
            Field("constant", [constant.name for constant in constants]),
            Field("value", [_constant(constant) for constant in constants], prose=True),
            Field("from", [constant.source for constant in constants], prose=True),
        ]
    )


def _constant(constant: Constant) -> str:
    value = constant.value
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)


CURRENCY = "USD"


def spread_to_dict(gpu: Gpu, offers: Sequence[Offer], today: date) -> dict[str, Any]:
    """The default price of a type, and the least and most that clouds ask for it."""
    spot = [price for o in offers if (price := o.spot_usd_per_gpu_hour) is not None]
    newest = max((offer.date for offer in offers), default="")
    return {
        "gpu": gpu.name,
        "currency": CURRENCY,
        **price_to_dict(gpu),
        "least_usd_per_gpu_hour": min(_of_regions(offers, "least_usd_per_hour"), default=None),
        "most_usd_per_gpu_hour": max(_of_regions(offers, "most_usd_per_hour"), default=None),
        "spot_least_usd_per_gpu_hour": min(spot, default=None),
        "spot_most_usd_per_gpu_hour": max(spot, default=None),
        "clouds": sorted({offer.cloud for offer in offers}),
        "newest": newest,
        "age_days": age_days(newest, today),
    }


def _of_regions(offers: Sequence[Offer], figure: str) -> list[float]:
    found = [(getattr(offer, figure), offer.gpus) for offer in offers]
    return [price / gpus for price, gpus in found if price is not None]


def offer_to_dict(offer: Offer, today: date) -> dict[str, Any]:
    return {
        **asdict(offer),
        "note": list(offer.marks),
        "currency": CURRENCY,
        "usd_per_gpu_hour": offer.usd_per_gpu_hour,
        "spot_usd_per_gpu_hour": offer.spot_usd_per_gpu_hour,
        "age_days": age_days(offer.date, today),
        "stale": is_stale(offer.date, today),
    }


def prices_table(
    types: Sequence[Gpu],
    offers_of: Callable[[str], Sequence[Offer]],
    today: date,
    width: int,
    notes: Sequence[str] = (),
) -> Iterator[RenderableType]:
    """A line for each GPU type: its default price per hour, and the spread over clouds."""
    lines = [spread_to_dict(gpu, offers_of(gpu.name), today) for gpu in types]

    def of(key: str) -> list[Any]:
        return [line[key] for line in lines]

    fields = (
        Field("GPU", of("gpu")),
        Field("default", [unit_price(price) for price in of("usd_per_gpu_hour")], right=True),
        Field("least", [usd(price) for price in of("least_usd_per_gpu_hour")], right=True),
        Field("most", [usd(price) for price in of("most_usd_per_gpu_hour")], right=True),
        Field("spot", [unit_price(p) for p in of("spot_usd_per_gpu_hour")], right=True),
        Field("clouds", [str(len(clouds) or "-") for clouds in of("clouds")], right=True),
        Field("newest", of("newest"), drop=1),
        Field(
            "days old", ["" if age is None else f"{age:,}" for age in of("age_days")], right=True
        ),
    )
    yield from listing(fields, width)
    yield Text(
        "US dollars per GPU and hour; the default is the median over clouds, each by the median of"
        " its regions",
        "dim",
    )
    for note in notes:
        yield Text(f"note: {note}")


def offers_report(
    gpu: Gpu, book: Book, instances: Sequence[Instance], width: int, notes: Sequence[str] = ()
) -> Iterator[RenderableType]:
    """All offers of a type, the cheapest first, with their age, spread and sources."""
    offers, today = book.of(gpu.name), book.today
    yield from prices_table([gpu], book.of, today, width, notes)
    known = price_to_dict(gpu)["price_sources"]
    cited = list(dict.fromkeys([*known, *(offer.source for offer in offers)]))
    by_name = {instance.name: instance for instance in instances}
    limits = list(dict.fromkeys(i.availability for i in instances if i.availability))
    lines = _regions_together(sorted(offers, key=_cheapest_first))
    if lines:
        yield title("Whole instances on offer; prices per GPU and hour")
    fields = (
        Field("cloud", [offer.cloud for offer in lines]),
        Field("region", [offer.region for offer in lines]),
        Field(
            "instance",
            [
                marked(by_name[o.instance], limits) if o.instance in by_name else o.instance
                for o in lines
            ],
            prose=True,
        ),
        Field("n", [str(offer.gpus) for offer in lines], right=True),
        Field("on demand", [_short(offer.usd_per_gpu_hour) for offer in lines], right=True),
        Field("spread", [_spread(offer) for offer in lines], right=True, drop=2),
        Field("spot", [_short(offer.spot_usd_per_gpu_hour) for offer in lines], right=True),
        Field("days old", [_age(offer, today) for offer in lines], right=True),
        Field("notes", [", ".join(offer.marks) for offer in lines], prose=True, drop=3),
        Field("source", [str(cited.index(o.source) + 1) for o in lines], drop=4),
    )
    if lines:
        yield from listing(fields, width)
        yield Text(f"! stale: older than {STALE_AFTER_DAYS} days", "dim")
    if limits and lines:
        yield numbered(limits)
    if cited:
        yield title("Sources")
        yield numbered([source_line(code) for code in cited])


def _cheapest_first(offer: Offer) -> tuple[float, str, int, str, str]:
    price = offer.usd_per_gpu_hour
    place = str(REGIONS.index(offer.region)) if offer.region in REGIONS else offer.region
    return (
        float("inf") if price is None else round(price, 6),
        offer.cloud,
        -offer.gpus,
        offer.instance,
        place,
    )


def _regions_together(offers: Sequence[Offer]) -> list[Offer]:
    """One line for regions in which an instance costs the same."""

    def same(offer: Offer) -> Offer:
        return replace(offer, region="", regions=1)

    joined = []
    for _, group in groupby(offers, key=same):
        alike = list(group)
        regions = [offer.region for offer in alike]
        places = "all" if set(regions) == set(REGIONS) else ", ".join(regions)
        count = sum(offer.regions for offer in alike)
        joined.append(replace(alike[0], region=places, regions=count))
    return joined


def _short(price: float | None) -> str:
    """Cents are enough to compare by; `--json` has all digits."""
    return "-" if price is None else f"${price:,.2f}"


def _spread(offer: Offer) -> str:
    least, most = offer.least_usd_per_hour, offer.most_usd_per_hour
    if least is None or most is None or least == most:
        return ""
    return f"{least / offer.gpus:,.2f}-{most / offer.gpus:,.2f}"


def _age(offer: Offer, today: date) -> str:
    age = age_days(offer.date, today)
    return "" if age is None else f"{age:,}{' !' if is_stale(offer.date, today) else ''}"
