"""`astrarium catalog`: what is known about GPUs, models, prices and the like, and from where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from astrarium.cli import output
from astrarium.cli.shell import SETTINGS, CommandGroup, command

if TYPE_CHECKING:
    from rich.console import RenderableType

catalog = CommandGroup(
    "catalog",
    no_args_is_help=True,
    help="List GPUs, models, prices, instances and runtimes.",
    context_settings=SETTINGS,
)


def _answer(
    what: str,
    entries: Sequence[Mapping[str, Any]],
    report: Callable[[int], Iterator[RenderableType]],
    *,
    json: bool,
    **more: Any,  # noqa: ANN401  of the document
) -> None:
    from astrarium.report.catalog import SCHEMA

    output.answer({"schema": SCHEMA, what: entries, **more}, report, json=json)


@command("catalog gpus", "json", group=catalog)
def gpus(_: click.Context, *, name: str | None, json: bool) -> None:
    """GPU types: peaks, memory, links, nodes."""
    from astrarium import catalog as data
    from astrarium.report import catalog as report

    if name is None:
        every = data.gpus()
        entries = [report.gpu_to_dict(gpu) for gpu in every]
        _answer("gpus", entries, lambda width: report.gpus_table(every, width), json=json)
        return
    gpu = report.gpu_named(name)
    entry = {**report.gpu_to_dict(gpu), "figures": data.describe_gpu(gpu)}
    offers = data.instances(gpu.name)
    _answer("gpus", [entry], lambda width: report.gpu_report(gpu, offers, width), json=json)


@command("catalog models", "json", group=catalog)
def models(_: click.Context, *, name: str | None, json: bool) -> None:
    """Models: parameters, family, published size."""
    from astrarium.catalog import models as data
    from astrarium.model import model_of_entry
    from astrarium.report import catalog as report

    if name is None:
        every = data.model_entries()
        entries = [report.model_to_dict(entry) for entry in every]
        _answer("models", entries, lambda width: report.models_table(every, width), json=json)
        return
    entry = report.model_named(name)
    built = model_of_entry(entry)
    document = report.built_model_to_dict(entry, built)
    _answer("models", [document], lambda _: report.model_report(entry, built), json=json)


@command("catalog gpus", "catalog offers", "json", group=catalog)
def prices(
    _: click.Context,
    *,
    name: str | None,
    cloud: str | None,
    region: str | None,
    prices: tuple[str, ...] | None,
    json: bool,
) -> None:
    """Prices of one GPU for one hour: least, most and age; with NAME, every offer."""
    from astrarium import catalog as data
    from astrarium.api import money
    from astrarium.report import catalog as report

    book, notes = money.book(cloud, region, prices or ())
    today = money.today()
    chosen = data.gpus() if name is None else (report.gpu_named(name),)
    entries = [report.spread_to_dict(gpu, book.of(gpu.name), today) for gpu in chosen]
    if name is None:
        table = partial(report.prices_table, chosen, book.of, today, notes=notes)
        _answer("prices", entries, table, json=json, notes=notes)
        return
    gpu, instances = chosen[0], data.instances(chosen[0].name)
    _answer(
        "prices",
        entries,
        lambda width: report.offers_report(gpu, book, instances, width, notes),
        json=json,
        notes=notes,
        instances=[report.instance_to_dict(instance) for instance in instances],
        offers=[report.offer_to_dict(offer, today) for offer in book.of(gpu.name)],
    )


@command("catalog runtimes", "json", group=catalog)
def runtimes(_: click.Context, *, name: str | None, json: bool) -> None:
    """Training programs: what each does that decides time and memory."""
    from astrarium.catalog import runtimes as data
    from astrarium.report import catalog as report

    chosen = data.runtime_names() if name is None else (data.find_runtime(name).name,)
    entries = [report.runtime_to_dict(each) for each in chosen]

    def shown(_: int) -> Iterator[RenderableType]:
        return report.runtimes_table(chosen) if name is None else report.runtime_report(chosen[0])

    _answer("runtimes", entries, shown, json=json)


@command("catalog instances", "json", group=catalog)
def instances(_: click.Context, *, name: str | None, json: bool) -> None:
    """Instances to rent or buy: GPUs, network, price."""
    from astrarium import catalog as data
    from astrarium.report import catalog as report

    chosen = report.instances_named(name)
    entries = [report.instance_to_dict(instance) for instance in chosen]
    if len(chosen) == 1:
        entries[0]["figures"] = data.describe_instance(chosen[0])
    _answer("instances", entries, lambda width: report.instances_report(chosen, width), json=json)
