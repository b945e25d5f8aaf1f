"""`astrarium sweep`: many scenarios of one file; `astrarium sweep show`: what they found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from astrarium.cli import output
from astrarium.cli.shell import SETTINGS, CommandGroup, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astrarium.sweep.engines import Batch, Engine, EngineKind
    from astrarium.sweep.folder import SweepFolder


class SweepGroup(CommandGroup):
    """A word that is no command of the group is the file of a sweep."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


sweep = SweepGroup(
    "sweep",
    no_args_is_help=True,
    help="Answer all scenarios of a file, and show the results. `astrarium sweep FILE` is short for"
    " `astrarium sweep run FILE`.",
    context_settings=SETTINGS,
)


@command("sweep run", group=sweep)
def run(
    _: click.Context,
    *,
    file: str,
    out: str | None,
    engine: EngineKind,
    workers: int | None,
    ray_address: str | None,
    json: bool,
) -> None:
    """Answer all scenarios of a file."""
    from astrarium.report.sweep import sweep_document, sweep_report
    from astrarium.sweep import engines
    from astrarium.sweep.folder import SweepFolder
    from astrarium.sweep.scenarios import read_sweep

    scenarios = read_sweep(Path(file))
    folder = SweepFolder(Path(out or Path(file).stem))
    folder.create()
    done = folder.finished()
    rest = [one for one in scenarios if one.key not in done]
    used = workers or engines.cores()
    is_local = engine is engines.EngineKind.LOCAL
    chosen = engines.local(used) if is_local else engines.over_ray(ray_address)
    _answer(folder, chosen, engines.batches(rest, used), len(rest))
    keys = {one.key for one in scenarios}
    rows = [row for row in folder.rows() if row["scenario"] in keys]
    document = sweep_document(rows)
    if not json:
        before = len(scenarios) - len(rest)
        counts = f"{len(rest):,} scenarios answered, {before:,} were there before"
        output.write(f"{counts}; rows in {folder.path}\n")
    output.answer(document, lambda width: sweep_report(document, width), json=json)


def _answer(folder: SweepFolder, engine: Engine, batches: Sequence[Batch], count: int) -> None:
    done = 0
    with output.bar("answering") as show:
        for rows in engine(batches):
            folder.add(rows)
            done += len({row["scenario"] for row in rows})
            show("scenarios", done, count)


@command("sweep show", group=sweep)
def show(
    _: click.Context,
    *,
    folder: str,
    rows: str | None,
    columns: str | None,
    where: tuple[str, ...] | None,
    value: str,
    top: int,
    plot: str | None,
    json: bool,
) -> None:
    """Show what a sweep found: a table over two of its keys, and the best scenarios."""
    from astrarium.documents import write_atomic_bytes
    from astrarium.report import sweep as report
    from astrarium.sweep.folder import SweepFolder

    found = report.where(SweepFolder.there(Path(folder)).rows(), where or ())
    document = report.sweep_document(found, (rows, columns), value, top)
    if plot is not None:
        write_atomic_bytes(Path(plot), report.picture(plot, document.pivot))
    output.answer(document, lambda width: report.sweep_report(document, width), json=json)
