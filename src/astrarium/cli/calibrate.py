"""`astrarium calibrate`: a profile of a cluster, learned from measured iterations."""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli import learn as learning
from astrarium.cli import options


def calibrate(  # noqa: PLR0913  one parameter per flag
    from_table: learning.FROM_TABLES = None,
    from_log: learning.FROM_LOGS = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model of the logs, if they do not state it."),
    ] = None,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="FILE|k=v,...", help="Strategy of the logs, in place of theirs."),
    ] = None,
    seq_length: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Sequence length of the logs.")
    ] = None,
    global_batch: Annotated[
        str | None, typer.Option(metavar="SEQUENCES", help="Global batch of the logs.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Runtime of the logs, or rows of the table to take."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Take the table's rows of this GPU type.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take the table's rows of this source.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FILE.json", help="Where the profile goes.")
    ] = learning.DEFAULT_OUT,
    json: options.JSON = False,
) -> None:
    """Learn a few factors of a cluster from iterations measured on it."""
    from astrarium.errors import InputError

    if not from_table and not from_log:
        raise InputError("nothing to learn from; give --from TABLE.csv or --from-log FILE")
    learning.learn(
        learning.LearnFlags(
            tables=from_table or (),
            logs=from_log or (),
            model=model,
            gpus=gpus,
            cluster=cluster,
            strategy=strategy,
            seq_length=seq_length,
            global_batch=global_batch,
            runtime=runtime,
            gpu=gpu,
            source=source,
            out=out,
            json=json,
        )
    )
