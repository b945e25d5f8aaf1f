"""Configurations of other programs as strategies: what they state needs no flag.

Where a flag says it too, both must agree: two answers to one question are a mistake that would
cost days.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from astrarium.errors import InputError
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.api.money import MoneyFlags
    from astrarium.api.request import ClusterGiven, ModelGiven, Request
    from astrarium.configs.imported import Imported

FROM_CONFIG = "-"  # in place of a model: the one that the configuration states


class Filled(Value, frozen=True):
    """Flags of a command, completed by a configuration."""

    imported: Imported | None
    model: ModelGiven
    reference: str | None  # what the document calls the model; None: as it was given
    gpus: str | None
    cluster: ClusterGiven | None
    seq_length: str | None
    global_batch: str | None
    tokens: int | None
    precision: str
    runtime: str

    def called(self, asked: Request) -> str:
        """What the document calls the model."""
        from astrarium.api.request import reference_of

        return self.reference or reference_of(self.model, asked.workload.model)

    def read(self, terms: MoneyFlags) -> Request:
        """What is asked about; the configuration agrees with it."""
        from astrarium.api import request

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


Flags = Mapping[str, Any]  # by name: texts, or None


def filled(flags: Flags, typed: Collection[str] = ()) -> Filled:
    """The flags of a command whose strategy may be a configuration.

    `typed` are those that were given, and not left at their defaults.
    """
    from astrarium.api import request
    from astrarium.configs.detect import read_config

    flags = request.read_as(flags)
    strategy, model = flags["strategy"], flags["model"]
    imported = read_config(strategy) if isinstance(strategy, str) else None
    if imported is not None:
        return completed(flags, imported, typed)
    if model is None or model == FROM_CONFIG:
        raise InputError("Missing argument 'MODEL'; only a configuration can state the model")
    return Filled(
        None,
        model,
        None,
        flags["gpus"],
        flags["cluster"],
        flags["seq_length"],
        flags["global_batch"],
        request.run_length(flags.get("tokens")),
        flags["precision"],
        flags.get("runtime", request.DEFAULT_RUNTIME),
    )


def completed(flags: Flags, imported: Imported, typed: Collection[str]) -> Filled:
    """The flags of a command, and for those left out what a configuration states."""
    from astrarium.api import request

    model, described = flags["model"], imported.described
    is_named = model is not None and model != FROM_CONFIG
    length: str | None = flags["seq_length"]
    if length is None and described.seq_length is not None:
        length = str(described.seq_length)
    gpus = counted(flags["gpus"], described.gpus)
    batch = flags["global_batch"] or _batch(imported, gpus, flags["cluster"])
    return Filled(
        imported,
        model if is_named else imported.model(),
        None if is_named else imported.source,
        gpus,
        flags["cluster"],
        length,
        batch,
        request.run_length(flags.get("tokens")) or run_tokens(imported, length, batch),
        _precision(flags["precision"], imported, is_typed="precision" in typed),
        flags["runtime"] if "runtime" in typed else described.runtime,
    )


def counted(gpus: str | None, count: int | None) -> str | None:
    """--gpus with a type alone means as many as the configuration starts."""
    if gpus is None or count is None or ":" in gpus or "," in gpus:
        return gpus
    return f"{gpus}:{count}"


def _batch(imported: Imported, gpus: str | None, cluster_given: ClusterGiven | None) -> str | None:
    """The batch that a configuration states; for a replica alone, times the replicas."""
    from astrarium.api import request

    described = imported.described
    if described.global_batch is not None or described.batch_of_replica is None:
        count = 1
    elif gpus is not None or cluster_given is not None:
        count = request.cluster(gpus, cluster_given)[0].num_gpus
    else:
        return None
    batch = imported.batch(count)
    return None if batch is None else str(batch)


def run_tokens(imported: Imported, seq_length: str | None, batch: str | None) -> int | None:
    """The length of the run; where it is stated in iterations, for the batch asked about."""
    from astrarium.api import request

    described = imported.described
    if described.tokens or not (described.iterations and seq_length and batch):
        return described.tokens
    length = request.count("--seq-length", seq_length, request.MOST_SEQ_LENGTH)
    sequences = request.count("--global-batch", batch, request.MOST_GLOBAL_BATCH)
    return described.iterations * sequences * length


def _precision(asked: str, imported: Imported, *, is_typed: bool) -> str:
    own = imported.described.precision.value
    if is_typed and asked.lower() != own:
        raise InputError(f"{imported.source} has {own}, but --precision says {asked}; keep one")
    return own


def check_agreement(
    imported: Imported, asked: Request, gpus_flag: str = "--gpus or --cluster"
) -> None:
    """InputError where a configuration and the flags contradict each other."""
    workload = asked.workload
    stated = {
        "gpus": (asked.cluster.num_gpus, gpus_flag),
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
