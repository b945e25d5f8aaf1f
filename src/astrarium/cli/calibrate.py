"""`astrarium calibrate`: measure a device or learn from measured iterations; write a profile."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from astrarium.cli import INTERRUPTED, output
from astrarium.cli.shell import command

if TYPE_CHECKING:
    from astrarium.calibrate.learn.logs import StatedSettings
    from astrarium.calibrate.learn.measurement import Measurement, SetAside
    from astrarium.calibrate.measure.journal import JournalContents
    from astrarium.calibrate.measure.run import Outcome


LEARNED_FILE = "cluster-profile.json"


def learn(values: Mapping[str, Any], *, out: str | None, json: bool) -> None:
    """Learn factors, write the profile, show what changed."""
    from astrarium.calibrate.learn import profile as learn_profile
    from astrarium.calibrate.learn.factors import learn as learned_from
    from astrarium.calibrate.learn.measurement import no_run_left
    from astrarium.documents import write_atomic
    from astrarium.report.runs import learned_report

    file = out or LEARNED_FILE
    tables, logs = values["from_table"] or (), values["from_log"] or ()
    origin = [*tables, *logs]
    output.check_out(file, ".json", learn_profile.SCHEMA.encode(), origin)
    with output.progress("learning"):
        runs, aside = _runs_of_tables(tables, values)
        logged, notes = _runs_of_logs(logs, values)
        if not runs and not logged:
            raise no_run_left(aside)
        learned = learned_from([*runs, *logged], ", ".join(origin))
    profile = learn_profile.profile_of(learned, origin, aside)
    document = learn_profile.to_dict(profile)
    write_atomic(Path(file), output.to_json(document))
    output.answer(document, lambda _: learned_report(profile, notes, file), json=json)


def _runs_of_tables(
    tables: Sequence[str], wanted: Mapping[str, Any]
) -> tuple[list[Measurement], list[SetAside]]:
    """The runs of the rows that are wanted, and what is left aside."""
    from astrarium.calibrate.learn.measurement import runs_of_rows
    from astrarium.catalog import find_gpu
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.errors import InputError
    from astrarium.validate.table import read_table

    gpu = None if wanted["gpu"] is None else find_gpu(wanted["gpu"]).name
    runtime = None if wanted["runtime"] is None else find_runtime(wanted["runtime"]).name
    source = wanted["source"]
    rows = [row for table in tables for row in read_table(table).rows]
    if source is not None and rows:
        sources = sorted({row.source for row in rows})
        rows = [row for row in rows if row.source == source]
        if not rows:
            raise InputError(f"--source '{source}': no such source; there are {', '.join(sources)}")
    return runs_of_rows(rows, gpu, runtime)


def _runs_of_logs(
    logs: Sequence[str], values: Mapping[str, Any]
) -> tuple[list[Measurement], list[str]]:
    """The runs of all logs, and a note on how the time of each was taken."""
    from astrarium.calibrate.learn.logs import measurement_of, read_logs
    from astrarium.units import format_seconds

    runs: list[Measurement] = []
    notes: list[str] = []
    if not logs:
        return runs, notes
    given = _given(values)
    for log in (log for path in logs for log in read_logs(path)):
        run, pace = measurement_of(log, given)
        runs.append(run)
        taken = "as --runtime says" if given.runtime else "--runtime NAME changes it"
        notes.append(
            f"{log.path}: {log.program}, taken for {run.runtime.name} ({taken});"
            f" {format_seconds(run.seconds or 0.0)} per iteration, the median of {pace.used}"
            f" (middle half within {100 * pace.spread:.1f} %), {pace.left_out} left out as warm-up"
        )
    return runs, notes


def _given(values: Mapping[str, Any]) -> StatedSettings:
    from astrarium.api import request
    from astrarium.calibrate.learn.logs import StatedSettings
    from astrarium.model import load_model
    from astrarium.search.planner import only_pool
    from astrarium.strategy.document import read_strategy_keys

    model, strategy = values["model"], values["strategy"]
    return StatedSettings(
        pool=only_pool(request.cluster(values["gpus"], values["cluster"])[0]),
        model=None if model is None else load_model(model),
        seq_length=values["seq_length"],
        global_batch=values["global_batch"],
        strategy=None if strategy is None else read_strategy_keys(strategy),
        runtime=values["runtime"],
    )


DEFAULT_OUT = "profile.parquet"


@command("calibrate", "learn", "json")
def calibrate(
    ctx: click.Context,
    *,
    out: str | None,
    from_journal: str | None,
    json: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Measure a device, or learn from measured iterations.

    It measures matrix products, attention, memory, the host and links. Every result goes into a
    journal at once; after Ctrl-C, a crash or the end of its time, the same command continues. With
    --from or --from-log it measures nothing, and learns a few factors from your own iterations.
    """
    if values["from_table"] or values["from_log"]:
        learn(values, out=out, json=json)
        return
    from astrarium.calibrate.fit.profile import PARQUET, make_header, warnings_of, write_profile
    from astrarium.calibrate.measure.journal import read_journal
    from astrarium.calibrate.measure.run import Outcome
    from astrarium.report.runs import calibration_report

    path = Path(out or DEFAULT_OUT)
    output.check_out(path, ".parquet", PARQUET, [from_journal] if from_journal else [])
    if from_journal is not None:
        contents, outcome = read_journal(Path(from_journal)), Outcome()
    else:
        contents, outcome = _measure(ctx, path, values)
    header = make_header(contents)
    write_profile(path, header, contents.rows)
    warnings = warnings_of(header)
    left = outcome.left
    data = {**header, "file": str(path), "left": left, "warnings": warnings}
    output.answer(
        data, lambda width: calibration_report(header, path.name, left, warnings, width), json=json
    )


def _measure(
    ctx: click.Context, path: Path, values: Mapping[str, Any]
) -> tuple[JournalContents, Outcome]:
    """Measure; Ctrl-C says how to go on."""
    from astrarium.calibrate.measure.sections import SECTIONS, check_sections

    journal = path.with_name(f"{path.name}.jsonl")
    sections, device = values["sections"], values["device"]
    asked = [name.strip() for name in (sections or "").split(",") if name.strip()]
    names = SECTIONS if sections is None else check_sections(asked)
    measuring = _measuring()
    request = measuring.MeasureRequest(
        journal, device, names, values["quick"], values["seconds"], values["ranks"]
    )
    if values["again"]:
        measuring.find_device(device)  # nothing is thrown away for a device that is not there
        journal.unlink(missing_ok=True)
    try:
        with output.bar("starting") as show:
            return measuring.calibrate(request, lambda case, *done: show(case.section, *done))
    except KeyboardInterrupt:
        print(f"\nstopped; the same command continues from {journal}", file=sys.stderr)
        ctx.exit(INTERRUPTED)


def _measuring() -> Any:  # noqa: ANN401  the module
    """The part that needs torch."""
    from astrarium.errors import InputError

    try:
        from astrarium.calibrate.measure import device
    except ImportError as error:
        raise InputError(
            f"measuring needs {error.name}, which is not installed; "
            "pip install 'astrarium[calibrate]'"
        ) from None
    return device
