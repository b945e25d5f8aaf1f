"""Synthesised programs as text: what GPUs get of every axis, and what they send each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from astrarium.plans.document import PlanPart
from astrarium.report.layout import Field, listing, percent, title
from astrarium.report.words import short_types
from astrarium.strategy.types import DividedAxis, ProgramSummary
from astrarium.units import format_seconds

MESSAGES_SHOWN = 2  # in one line: those that take longest


def program_words(plan: PlanPart, program: ProgramSummary) -> str:
    """The shares of the first axis, which nearly everything is divided along, and the messages."""
    parts = [f"one program on {plan.num_gpus} GPUs"]
    if program.axes:
        first = program.axes[0]
        parts.append(f"{first.name} of {first.granules}: {pieces_words(plan, first)}")
    longest = sorted(program.messages, key=lambda message: -message.seconds)[:MESSAGES_SHOWN]
    parts += [f"{message.collective} of {message.of} x {message.count:,}" for message in longest]
    return "; ".join(parts)


def pieces_words(plan: PlanPart, axis: DividedAxis) -> str:
    """Granules of each GPU, pool by pool: V100 5 each, T4 3 each."""
    short, parts, first = short_types(plan.gpus), [], 0
    for stage in plan.strategy.stages:
        pieces = axis.pieces[first : first + stage.devices]
        first += stage.devices
        runs = [(piece, len(list(run))) for piece, run in groupby(pieces)]
        shown = " + ".join(f"{piece} x {n}" if n > 1 else f"{piece}" for piece, n in runs)
        if len(runs) == 1 and stage.devices > 1:
            shown = f"{runs[0][0]} each"
        parts.append(f"{short.get(stage.gpu, stage.gpu)} {shown}")
    return ", ".join(parts)


def program_report(plan: PlanPart, program: ProgramSummary, width: int) -> Iterator[RenderableType]:
    """Which axes are divided how, what is sent, and the command that writes the whole program."""
    yield title("Axes: whole granules of each GPU")
    axes = program.axes
    yield from listing(
        [
            Field("axis", [axis.name for axis in axes], prose=True),
            Field("alike", [f"{axis.alike:,}" for axis in axes], right=True, drop=1),
            Field("granules", [f"{axis.granules:,}" for axis in axes], right=True),
            Field("pieces", [pieces_words(plan, axis) for axis in axes], prose=True),
        ],
        width,
    )
    yield title("Messages of an iteration")
    sent = sorted(program.messages, key=lambda message: -message.seconds)
    shares = [percent(message.seconds / plan.iteration_seconds) for message in sent]
    yield from listing(
        [
            Field("collective", [message.collective for message in sent]),
            Field("of", [message.of for message in sent]),
            Field("number", [f"{message.count:,}" for message in sent], right=True),
            Field("time", [format_seconds(message.seconds) for message in sent], right=True),
            Field("share", shares, right=True),
        ],
        width,
    )
    if program.command:
        yield title("The whole program")
        yield Padding(Text(program.command, style="cyan"), (0, 0, 0, 2))
