"""`astrarium catalog`: what is known about GPUs, models, prices and the like, and from where."""

from __future__ import annotations

import click

from astrarium.api import completion as complete
from astrarium.api.flags import FLAGS, Flag
from astrarium.cli.shell import JSON, SETTINGS, CommandGroup, command

catalog = CommandGroup(
    "catalog",
    no_args_is_help=True,
    help="GPUs, models, prices, instances and runtimes, with source and date.",
    context_settings=SETTINGS,
)
_NAMED = Flag("Show all about this type.", "NAME", is_argument=True)
GPU = {"name": _NAMED._replace(complete=complete.complete_gpu)}
OUTPUT = {"json": JSON}


@command(GPU, OUTPUT, group=catalog)
def gpus(_: click.Context, *, name: str | None, json: bool) -> None:
    """GPU types: peaks, memory, links, nodes."""
    from astrarium import catalog as data
    from astrarium.cli import output
    from astrarium.report.catalog import entries as report

    if name is None:
        every = data.gpus()
        if json:
            entries = [report.gpu_to_dict(gpu) for gpu in every]
            output.print_json({"schema": report.SCHEMA, "gpus": entries})
        else:
            output.show(lambda width: report.gpus_table(every, width))
        return
    gpu = report.gpu_named(name)
    if json:
        figures = report.figures_to_list(data.describe_gpu(gpu))
        entry = {**report.gpu_to_dict(gpu), "figures": figures}
        output.print_json({"schema": report.SCHEMA, "gpus": [entry]})
        return
    output.show(lambda width: report.gpu_report(gpu, data.instances(gpu.name), width))


@command(
    {"name": _NAMED._replace(help="Show all about this model.", complete=complete.complete_model)},
    OUTPUT,
    group=catalog,
)
def models(_: click.Context, *, name: str | None, json: bool) -> None:
    """Models: parameters, family, published size."""
    from astrarium.catalog import models as data
    from astrarium.cli import output
    from astrarium.report.catalog import entries as report

    if name is None:
        every = data.model_entries()
        if json:
            entries = [report.model_to_dict(entry) for entry in every]
            output.print_json({"schema": report.SCHEMA, "models": entries})
        else:
            output.show(lambda width: report.models_table(every, width))
        return
    from astrarium.model import model_of_entry

    entry = report.model_named(name)
    built = model_of_entry(entry)
    if json:
        document = report.built_model_to_dict(entry, built)
        output.print_json({"schema": report.SCHEMA, "models": [document]})
        return
    output.show(lambda width: report.model_report(entry, built))


CLOUD = Flag("Only these clouds.", "CLOUD,...", complete=complete.complete_clouds)


@command(
    GPU,
    {"cloud": CLOUD, "region": FLAGS["region"], "prices": FLAGS["prices"]},
    OUTPUT,
    group=catalog,
)
def prices(
    _: click.Context,
    *,
    name: str | None,
    cloud: str | None,
    region: str | None,
    prices: tuple[str, ...] | None,
    json: bool,
) -> None:
    """Prices per GPU and hour: least, most, age; with NAME every offer."""
    from astrarium import catalog as data
    from astrarium.api import money
    from astrarium.cli import output
    from astrarium.report.catalog import prices as report
    from astrarium.report.catalog.entries import SCHEMA, gpu_named, instance_to_dict

    book, notes = money.book(cloud, region, prices or ())
    today = money.today()
    chosen = data.gpus() if name is None else (gpu_named(name),)
    if json:
        entries = [report.spread_to_dict(gpu, book.of(gpu.name), today) for gpu in chosen]
        document: dict[str, object] = {"schema": SCHEMA, "prices": entries, "notes": notes}
        if name is not None:
            instances = data.instances(chosen[0].name)
            offers = [report.offer_to_dict(offer, today) for offer in book.of(chosen[0].name)]
            document["instances"] = [instance_to_dict(instance) for instance in instances]
            document["offers"] = offers
        output.print_json(document)
    elif name is None:
        output.show(lambda width: report.prices_table(chosen, book.of, today, width, notes))
    else:
        gpu, instances = chosen[0], data.instances(chosen[0].name)
        output.show(lambda width: report.offers_report(gpu, book, instances, width, notes))


@command(
    {
        "name": _NAMED._replace(
            help="Show the constants of this runtime.", complete=complete.complete_runtime
        )
    },
    OUTPUT,
    group=catalog,
)
def runtimes(_: click.Context, *, name: str | None, json: bool) -> None:
    """Training programs: what each does that decides time and memory."""
    from astrarium.catalog import runtimes as data
    from astrarium.cli import output
    from astrarium.report.catalog import runtimes as report

    chosen = data.runtime_names() if name is None else (data.find_runtime(name).name,)
    if json:
        entries = [report.runtime_to_dict(each) for each in chosen]
        output.print_json({"schema": report.SCHEMA, "runtimes": entries})
    elif name is None:
        output.show(lambda width: report.runtimes_table(chosen))
    else:
        output.show(lambda width: report.runtime_report(chosen[0]))


@command(
    {
        "name": _NAMED._replace(
            help="Show all about this instance, or list those with a GPU type.",
            complete=complete.complete_instance,
        )
    },
    OUTPUT,
    group=catalog,
)
def instances(_: click.Context, *, name: str | None, json: bool) -> None:
    """Nodes that can be rented or bought: GPUs, network, price."""
    from astrarium import catalog as data
    from astrarium.cli import output
    from astrarium.report.catalog import entries as report

    chosen = report.instances_named(name)
    if json:
        entries = [report.instance_to_dict(instance) for instance in chosen]
        if len(chosen) == 1:
            entries[0]["figures"] = report.figures_to_list(data.describe_instance(chosen[0]))
        output.print_json({"schema": report.SCHEMA, "instances": entries})
        return
    output.show(lambda width: report.instances_report(chosen, width))
