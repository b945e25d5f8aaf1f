"""`astrarium calibrate`: measure a device and keep what it teaches in one profile file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from astrarium.api import readers
from astrarium.api.flags import Flag, switch
from astrarium.cli import INTERRUPTED, output
from astrarium.cli import learn as learning
from astrarium.cli.shell import JSON, command

if TYPE_CHECKING:
    from astrarium.calibrate.measure.journal import JournalContents
    from astrarium.calibrate.measure.run import Outcome

DEFAULT_OUT = "profile.parquet"
MOST_SECONDS = 86400.0
MOST_RANKS = 1024

MEASURE_FLAGS = {
    "device": Flag("What to measure. Default: a GPU if there is one.", words=("cpu", "cuda")),
    "out": Flag(
        "The profile. Default: profile.parquet, with its journal beside it as FILE.jsonl, or"
        f" {learning.DEFAULT_OUT} for learned factors.",
        "FILE",
    ),
    "quick": switch("Measure a fifth of the cases, in about a minute."),
    "sections": Flag(
        "Measure only these sections. Default: all; the reference lists them.", "NAME[,NAME...]"
    ),
    "seconds": Flag(
        "The longest it may take.",
        "SECONDS",
        readers.duration(MOST_SECONDS, bare_unit="s"),
        default=600,
    ),
    "ranks": Flag(
        "Number of devices for collectives. Default: all GPUs, or two cores on cpu.",
        "N",
        readers.count(MOST_RANKS),
    ),
    "again": switch("Measure again what the journal already has."),
    "from_journal": Flag("Measure nothing; make the profile from this journal.", "FILE"),
}


@command(MEASURE_FLAGS, learning.LEARN_FLAGS, {"json": JSON})
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
        learning.learn(values, out=out, json=json)
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
        print(f"\nstopped; the same command goes on from {journal}", file=sys.stderr)
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
