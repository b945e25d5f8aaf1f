"""`astrarium calibrate --from TABLE.csv` and `--from-log FILE`: learn from measured iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from astrarium.calibrate.learn_checks import SetAside
    from astrarium.calibrate.logs_settings import Given
    from astrarium.calibrate.measurement import Measurement

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
DEFAULT_OUT = "cluster-profile.json"


@dataclass(frozen=True, slots=True)
class LearnFlags:
    """Flags of `calibrate` that say what to learn from, as typed."""

    tables: Sequence[str] = ()
    logs: Sequence[str] = ()
    model: str | None = None
    gpus: str | None = None
    cluster: str | None = None
    strategy: str | None = None
    seq_length: str | None = None
    global_batch: str | None = None
    runtime: str | None = None
    gpu: str | None = None
    source: str | None = None
    out: str = DEFAULT_OUT
    json: bool = False


def learn(flags: LearnFlags) -> None:
    """Learn factors, write the profile, show what changed."""
    from pathlib import Path

    from astrarium.calibrate import learn_profile
    from astrarium.calibrate.learn import learn as learned_from
    from astrarium.cli import output
    from astrarium.documents import parsing, write_atomic

    parsing.format_of(Path(flags.out))  # a name that could not be read back is refused at once
    with output.progress("learning"):
        runs, aside, notes = _runs(flags)
        origin = [*flags.tables, *flags.logs]
        learned = learned_from(runs, ", ".join(origin))
    parts = [learn_profile.SetAsidePart(entry.label, entry.reason) for entry in aside]
    profile = learn_profile.profile_of(learned, origin, parts)
    document = learn_profile.to_dict(profile)
    write_atomic(Path(flags.out), output.to_json(document))
    if flags.json:
        output.print_json(document)
        return
    from astrarium.report.learned import learned_report

    output.show(lambda width: learned_report(profile, notes, flags.out))


def _runs(flags: LearnFlags) -> tuple[list[Measurement], list[SetAside], list[str]]:
    """Runs of tables and logs together, what tables hold besides, and notes on logs."""
    from astrarium.calibrate.learn_table import runs_of_rows
    from astrarium.catalog import find_gpu
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.errors import InputError
    from astrarium.validate.table import read_table

    gpu = None if flags.gpu is None else find_gpu(flags.gpu).name
    runtime = None if flags.runtime is None else find_runtime(flags.runtime).name
    rows = [row for table in flags.tables for row in read_table(table).rows]
    if flags.source is not None:
        sources = sorted({row.source for row in rows})
        rows = [row for row in rows if row.source == flags.source]
        if not rows:
            raise InputError(
                f"--source '{flags.source}': no such source; there are {', '.join(sources)}"
            )
    runs, aside = runs_of_rows(rows, gpu, runtime) if rows else ([], [])
    notes: list[str] = []
    if flags.logs:
        logged, notes = _runs_of_logs(flags)
        runs += logged
    return runs, aside, notes


def _runs_of_logs(flags: LearnFlags) -> tuple[list[Measurement], list[str]]:
    from astrarium.calibrate.logs import read_log
    from astrarium.calibrate.logs_settings import measurement_of
    from astrarium.units import format_seconds

    given = _given(flags)
    runs, notes = [], []
    for path in flags.logs:
        log = read_log(path)
        run, pace = measurement_of(log, given)
        runs.append(run)
        notes.append(
            f"{path}: {log.program}, {format_seconds(run.seconds or 0.0)} per iteration, the median"
            f" of {pace.used} (middle half within {100 * pace.spread:.1f} %), {pace.left_out} left"
            " out as warm-up"
        )
    return runs, notes


def _given(flags: LearnFlags) -> Given:
    from astrarium.calibrate.logs_settings import Given
    from astrarium.cli import request
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
    return Given(
        pool=only_pool(request.cluster(flags.gpus, flags.cluster)),
        model=None if flags.model is None else load_model(flags.model),
        seq_length=seq_length,
        global_batch=batch,
        strategy=strategy,
        runtime=flags.runtime,
    )
