"""`astrarium calibrate --from TABLE.csv` and `--from-log FILE`: learn from measured iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from astrarium.calibrate.learn.checks import SetAside
    from astrarium.calibrate.learn.log_settings import StatedSettings
    from astrarium.calibrate.learn.measurement import Measurement

FROM_TABLES: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="TABLE.csv", help="Learn from a table of iterations; repeatable."
    ),
]
FROM_LOGS: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--from-log",
        metavar="FILE",
        help="Learn from a log of Megatron-LM, torchtitan or nanotron; repeatable.",
    ),
]
MODEL: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Model of the logs, if they do not state it."),
]
STRATEGY: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE|k=v,...", help="Strategy of the logs, in place of theirs."),
]
SEQ_LENGTH: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Sequence length of the logs.")
]
GLOBAL_BATCH: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SEQUENCES", help="Global batch of the logs.")
]
RUNTIME: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Runtime of the logs; of tables, rows to take.")
]
GPU: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Take the table's rows of this GPU type.")
]
SOURCE: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Take the table's rows of this source.")
]
DEFAULT_OUT = "cluster-profile.json"


@dataclass(frozen=True, slots=True)
class OfLogs:
    """What flags say about logs, as typed."""

    model: str | None = None
    gpus: str | None = None
    cluster: str | None = None
    strategy: str | None = None
    seq_length: str | None = None
    global_batch: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of tables to take, as typed; the runtime is that of logs, too."""

    gpu: str | None = None
    runtime: str | None = None
    source: str | None = None


def learn(
    tables: Sequence[str],
    logs: Sequence[str],
    of_logs: OfLogs,
    wanted: Wanted,
    *,
    out: str | None,
    json: bool,
) -> None:
    """Learn factors, write the profile, show what changed."""
    from pathlib import Path

    from astrarium.calibrate.learn import profile as learn_profile
    from astrarium.calibrate.learn.checks import no_run_left
    from astrarium.calibrate.learn.factors import learn as learned_from
    from astrarium.cli import output
    from astrarium.documents import write_atomic

    file = out or DEFAULT_OUT
    origin = [*tables, *logs]
    output.check_out(file, ".json", learn_profile.SCHEMA.encode(), origin)
    with output.progress("learning"):
        runs, aside = _runs_of_tables(tables, wanted)
        logged, notes = _runs_of_logs(logs, of_logs, wanted.runtime)
        if not runs and not logged:
            raise no_run_left(aside)
        learned = learned_from([*runs, *logged], ", ".join(origin))
    profile = learn_profile.profile_of(learned, origin, aside)
    document = learn_profile.to_dict(profile)
    write_atomic(Path(file), output.to_json(document))
    if json:
        output.print_json(document)
        return
    from astrarium.report.runs.learned import learned_report

    output.show(lambda width: learned_report(profile, notes, file))


def _runs_of_tables(
    tables: Sequence[str], wanted: Wanted
) -> tuple[list[Measurement], list[SetAside]]:
    """The runs of the rows that are wanted, and what is left aside."""
    from astrarium.calibrate.learn.table import runs_of_rows
    from astrarium.catalog import find_gpu
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.errors import InputError
    from astrarium.validate.table import read_table

    gpu = None if wanted.gpu is None else find_gpu(wanted.gpu).name
    runtime = None if wanted.runtime is None else find_runtime(wanted.runtime).name
    rows = [row for table in tables for row in read_table(table).rows]
    if wanted.source is not None and rows:
        sources = sorted({row.source for row in rows})
        rows = [row for row in rows if row.source == wanted.source]
        if not rows:
            raise InputError(
                f"--source '{wanted.source}': no such source; there are {', '.join(sources)}"
            )
    return runs_of_rows(rows, gpu, runtime)


def _runs_of_logs(
    logs: Sequence[str], flags: OfLogs, runtime: str | None
) -> tuple[list[Measurement], list[str]]:
    """The runs of all logs, and a note on how the time of each was taken."""
    from astrarium.calibrate.learn.log_settings import measurement_of
    from astrarium.calibrate.learn.logs import read_logs
    from astrarium.units import format_seconds

    runs: list[Measurement] = []
    notes: list[str] = []
    if not logs:
        return runs, notes
    given = _given(flags, runtime)
    for log in (log for path in logs for log in read_logs(path)):
        run, pace = measurement_of(log, given)
        runs.append(run)
        taken = "as --runtime says" if runtime else "--runtime NAME changes it"
        notes.append(
            f"{log.path}: {log.program}, taken for {run.runtime.name} ({taken});"
            f" {format_seconds(run.seconds or 0.0)} per iteration, the median of {pace.used}"
            f" (middle half within {100 * pace.spread:.1f} %), {pace.left_out} left out as warm-up"
        )
    return runs, notes


def _given(flags: OfLogs, runtime: str | None) -> StatedSettings:
    from astrarium.api import request
    from astrarium.calibrate.learn.log_settings import StatedSettings
    from astrarium.model import load_model
    from astrarium.search.planner import only_pool
    from astrarium.strategy.document import read_strategy_keys

    strategy: dict[str, Any] | None = None
    if flags.strategy is not None:
        strategy = read_strategy_keys(flags.strategy)
    counts = {
        "--seq-length": (flags.seq_length, request.MOST_SEQ_LENGTH),
        "--global-batch": (flags.global_batch, request.MOST_GLOBAL_BATCH),
    }
    seq_length, batch = (
        None if text is None else request.count(flag, text, most)
        for flag, (text, most) in counts.items()
    )
    return StatedSettings(
        pool=only_pool(request.cluster(flags.gpus, flags.cluster)[0]),
        model=None if flags.model is None else load_model(flags.model),
        seq_length=seq_length,
        global_batch=batch,
        strategy=strategy,
        runtime=runtime,
    )
