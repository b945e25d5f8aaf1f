"""Configurations of other programs on the command line: what they state needs no flag.

Where a flag says it too, both must agree: two answers to one question are a mistake that would
cost days.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.cli.money import Terms
    from astrarium.cli.request import Request
    from astrarium.configs.imported import Imported
    from astrarium.model import Model

FROM_CONFIG = "-"  # in place of a model: the one that the configuration states


@dataclass(frozen=True, slots=True)
class Filled:
    """Flags of a command, completed by a configuration."""

    imported: Imported | None
    model: str | Model
    reference: str  # what the document calls the model as given
    gpus: str | None
    cluster: str | None
    seq_length: str | None
    global_batch: str | None
    tokens: int | None
    precision: str
    runtime: str

    def read(self, terms: Terms) -> Request:
        """What is asked about; the configuration agrees with it."""
        from astrarium.cli import request

        asked = request.read(
            self.model,
            self.gpus,
            self.cluster,
            self.seq_length,
            self.global_batch,
            self.tokens,
            self.precision,
            terms,
        )
        if self.imported is None:
            return asked
        check_agreement(self.imported, asked)
        return replace(asked, notes=(*asked.notes, *self.imported.summary))


def filled(ctx: typer.Context, strategy: str | None) -> Filled:
    """The flags of a command whose strategy may be a configuration."""
    from astrarium.cli import request
    from astrarium.configs.detect import read_config

    flags, model = ctx.params, ctx.params["model"]
    imported = None if strategy is None else read_config(strategy)
    if imported is not None:
        return completed(ctx, imported)
    if model in (None, FROM_CONFIG):
        raise InputError("Missing argument 'MODEL'; only a configuration can state the model")
    return Filled(
        None,
        model,
        model,
        flags["gpus"],
        flags["cluster"],
        flags["seq_length"],
        flags["global_batch"],
        request.run_length(flags.get("tokens")),
        flags["precision"],
        flags.get("runtime", request.Runtime.MEGATRON),
    )


def completed(ctx: typer.Context, imported: Imported) -> Filled:
    """The flags of a command, and for those left out what a configuration states."""
    from astrarium.cli import request

    flags, model = ctx.params, ctx.params["model"]
    described = imported.described
    names = model not in (None, FROM_CONFIG)
    length: str | None = flags["seq_length"]
    if length is None and described.seq_length is not None:
        length = str(described.seq_length)
    gpus = _counted(flags["gpus"], described.gpus)
    batch = flags["global_batch"] or _batch(imported, gpus, flags["cluster"])
    return Filled(
        imported,
        model if names else imported.model(),
        model if names else imported.source,
        gpus,
        flags["cluster"],
        length,
        batch,
        request.run_length(flags.get("tokens")) or _tokens(imported, length, batch),
        _precision(ctx, imported),
        flags["runtime"] if is_given(ctx, "runtime") else described.runtime,
    )


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether a flag was typed, and not left at its default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _counted(gpus: str | None, count: int | None) -> str | None:
    """--gpus with a type alone means as many as the configuration starts."""
    if gpus is None or count is None or ":" in gpus or "," in gpus:
        return gpus
    return f"{gpus}:{count}"


def _batch(imported: Imported, gpus: str | None, cluster: str | None) -> str | None:
    """The batch that a configuration states; for a replica alone, times the replicas."""
    from pathlib import Path

    from astrarium.cluster import load_cluster, parse_gpus

    described = imported.described
    if described.global_batch is not None or described.batch_of_replica is None:
        count = 1
    elif gpus is not None:
        count = parse_gpus(gpus).num_gpus
    elif cluster is not None:
        count = load_cluster(Path(cluster)).num_gpus
    else:
        return None
    batch = imported.batch(count)
    return None if batch is None else str(batch)


def _tokens(imported: Imported, seq_length: str | None, batch: str | None) -> int | None:
    """The length of the run; where it is stated in iterations, for the batch asked about."""
    from astrarium.cli import request

    described = imported.described
    if described.tokens or not (described.iterations and seq_length and batch):
        return described.tokens
    length = request.count("--seq-length", seq_length, request.MOST_SEQ_LENGTH)
    sequences = request.count("--global-batch", batch, request.MOST_GLOBAL_BATCH)
    return described.iterations * sequences * length


def _precision(ctx: typer.Context, imported: Imported) -> str:
    asked: str = ctx.params["precision"]
    own = imported.described.precision.value
    if is_given(ctx, "precision") and asked.lower() != own:
        raise InputError(f"{imported.source} has {own}, but --precision says {asked}; keep one")
    return own


def check_agreement(imported: Imported, asked: Request) -> None:
    """InputError where a configuration and the flags contradict each other."""
    workload = asked.workload
    stated = {
        "gpus": (asked.cluster.num_gpus, "--gpus or --cluster"),
        "seq_length": (workload.seq_length, "--seq-length"),
        "global_batch": (workload.global_batch, "--global-batch"),
    }
    found = [*imported.disagreements(stated), *imported.model_disagreements(workload.model)]
    if found:
        raise InputError("; ".join(found) + "; make them agree")


def check_accepted(imported: Imported) -> None:
    """InputError if the program itself would stop at its options."""
    if imported.conflicts:
        reasons = "; ".join(imported.conflicts)
        raise InputError(f"{imported.source}: {imported.title} would refuse it: {reasons}")
