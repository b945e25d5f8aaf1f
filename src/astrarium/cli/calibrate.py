"""`astrarium calibrate`: measure a device and keep what it teaches in one profile file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli import INTERRUPTED, options
from astrarium.cli import learn as learning

if TYPE_CHECKING:
    from astrarium.calibrate.measure.journal import JournalContents
    from astrarium.calibrate.measure.run import Outcome

DEVICE = Annotated[
    str | None,
    typer.Option(
        metavar="cpu|cuda",
        help="What to measure; default: a GPU if there is one.",
        autocompletion=options.one_of("cpu", "cuda"),
    ),
]
OUT = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The profile; default: profile.parquet, with its journal beside it as FILE.jsonl, or"
        f" {learning.DEFAULT_OUT} for what is learned.",
    ),
]
SECTIONS = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]", help="Measure these alone; default: all. See the reference."
    ),
]
SECONDS = Annotated[str, typer.Option(metavar="SECONDS", help="The longest it may take.")]
RANKS = Annotated[
    str | None,
    typer.Option(metavar="N", help="Devices of collectives; default: all GPUs, two cores on cpu."),
]
QUICK = Annotated[bool, typer.Option("--quick", help="A fifth of the cases: about a minute.")]
AGAIN = Annotated[bool, typer.Option("--again", help="Measure anew what the journal has.")]
FROM_JOURNAL = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Measure nothing: make the profile of this journal."),
]

DEFAULT_OUT = "profile.parquet"
MOST_SECONDS = 86400.0
MOST_RANKS = 1024


def calibrate(  # noqa: PLR0913  one parameter per flag
    device: DEVICE = None,
    out: OUT = None,
    quick: QUICK = False,
    sections: SECTIONS = None,
    seconds: SECONDS = "600",
    ranks: RANKS = None,
    again: AGAIN = False,
    from_journal: FROM_JOURNAL = None,
    from_table: learning.FROM_TABLES = None,
    from_log: learning.FROM_LOGS = None,
    model: learning.MODEL = None,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    strategy: learning.STRATEGY = None,
    seq_length: learning.SEQ_LENGTH = None,
    global_batch: learning.GLOBAL_BATCH = None,
    runtime: learning.RUNTIME = None,
    gpu: learning.GPU = None,
    source: learning.SOURCE = None,
    json: options.JSON = False,
) -> None:
    """Measure a device, or learn from measured iterations.

    Measured are products, attention, memory, host and links. Every result is kept at once in a
    journal; the same command goes on after Ctrl-C, a crash or the end of its time. With --from or
    --from-log nothing is measured: a few factors are learned from iterations of your own cluster.
    """
    if from_table or from_log:
        logged = learning.OfLogs(model, gpus, cluster, strategy, seq_length, global_batch)
        wanted = learning.Wanted(gpu, runtime, source)
        learning.learn(from_table or (), from_log or (), logged, wanted, out=out, json=json)
        return
    from astrarium.calibrate.fit.profile import PARQUET, make_header, warnings_of, write_profile
    from astrarium.calibrate.measure.journal import read_journal
    from astrarium.calibrate.measure.run import Outcome
    from astrarium.cli import output

    path = Path(out or DEFAULT_OUT)
    output.check_out(path, ".parquet", PARQUET, [from_journal] if from_journal else [])
    if from_journal is not None:
        contents, outcome = read_journal(Path(from_journal)), Outcome()
    else:
        contents, outcome = _measure(path, device, quick, sections, seconds, ranks, again)
    header = make_header(contents)
    write_profile(path, header, contents.rows)
    warnings = warnings_of(header)
    if json:
        file = {"file": str(path), "left": outcome.left, "warnings": warnings}
        output.print_json({**header, **file})
        return
    from astrarium.report.runs.calibration import calibration_report

    output.show(lambda width: calibration_report(header, path.name, outcome.left, warnings, width))


def _measure(
    path: Path,
    device: str | None,
    quick: bool,
    sections: str | None,
    seconds: str,
    ranks: str | None,
    again: bool,
) -> tuple[JournalContents, Outcome]:
    """Read the flags and measure; Ctrl-C says how to go on."""
    from astrarium.api import request
    from astrarium.calibrate.measure.sections import SECTIONS, check_sections
    from astrarium.cli import output
    from astrarium.units import parse_seconds

    journal = path.with_name(f"{path.name}.jsonl")
    names = SECTIONS if sections is None else check_sections(_words(sections))
    limit = request.parse(
        "--seconds", seconds, lambda text: parse_seconds(text, bare_unit="s"), MOST_SECONDS
    )
    count = None if ranks is None else request.count("--ranks", ranks, MOST_RANKS)
    measuring = _measuring()
    asked = measuring.MeasureRequest(journal, device, names, quick, limit, count)
    if again:
        measuring.find_device(device)  # nothing is thrown away for a device that is not there
        journal.unlink(missing_ok=True)
    try:
        with output.bar("starting") as show:
            return measuring.calibrate(asked, lambda case, *done: show(case.section, *done))
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from {journal}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


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
