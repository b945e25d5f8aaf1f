"""The data that a report embeds for its pictures: document, timelines of a few plans, captions.

Its size is bounded. If necessary, points, plans and timelines far down the lists are left out, and
the report says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from math import floor, log10
from typing import Any, Final

import msgspec

from astrarium.errors import InputError
from astrarium.plans.document import Plan, PlanDocument, to_dict
from astrarium.report.tables import dollars, interval, percent
from astrarium.report.timeline.columns import timeline_document
from astrarium.report.wording import gpus_words, short_types, strategy_words
from astrarium.units import format_count, format_seconds
from astrarium.value import Value

MOST_TIMELINES: Final = 3
MOST_PLANS: Final = 10_000  # tried first
FEWEST_PLANS: Final = 8
LESS: Final = 0.75  # of the plans, where those tried had no room
DOCUMENT_SHARE: Final = 0.5  # of the room; the rest is for timelines
STEPS: Final = 10**6  # of an iteration that a timeline tells apart: finer than any screen
BYTES_DIGITS: Final = 5
# What would end a script, or begin a comment in one, is written as JSON's escapes.
ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class Embedded(Value, frozen=True):
    """JSON that may stand inside a script element, and what it lacks, in words."""

    text: str
    left_out: tuple[str, ...]


def embedded(document: PlanDocument, rank: int, room: int) -> Embedded:
    """The data of a report in at most `room` bytes, with the plan of a rank as the chosen one."""
    data, left_out = _document_within(document, rank, int(room * DOCUMENT_SHARE))
    room -= len(data) + 100  # the keys around the parts
    timelines: dict[int, str] = {}
    lacking: list[int] = []
    first = [rank, *(plan.rank for plan in document.plans if plan.rank != rank)]
    for number in first[:MOST_TIMELINES]:
        text = _timeline_text(document.plans[number - 1])
        if text and len(text) <= room:
            timelines[number] = text
            room -= len(text) + 10
        elif text:
            lacking.append(number)
    if lacking:
        which = ", ".join(map(str, lacking))
        left_out.append(
            f"the timeline of plan {which}, which is too large; `astrarium trace` writes it to a"
            " file of its own"
        )
    parts = ",".join(f'"{number}":{text}' for number, text in timelines.items())
    return Embedded(f'{{"rank":{rank},{data},"timelines":{{{parts}}}}}', tuple(left_out))


def json_for_script(data: object) -> str:
    """Compact JSON in ASCII that may stand inside a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character, escaped in ESCAPES.items():
        text = text.replace(character, escaped)
    return text


def caption(plan: Plan, *, experts: bool) -> str:
    """A plan in two lines: its GPUs and choices, then its results."""
    given = [
        f"{format_seconds(plan.iteration_seconds)} an iteration"
        f" ({interval(plan.interval_seconds, plan.iteration_seconds)})",
        f"{format_count(plan.tokens_per_second)} tokens/s",
        f"MFU {percent(plan.mfu)}",
    ]
    if plan.usd_per_hour is not None:
        given.append(f"{dollars(plan.usd_per_hour)} an hour")
    if plan.train_seconds is not None:
        cost = "" if plan.usd_total is None else f", {dollars(plan.usd_total)}"
        given.append(f"the run: {format_seconds(plan.train_seconds)}{cost}")
    gpus = gpus_words(plan.gpus, short_types(plan.gpus))
    words = strategy_words(plan.strategy, experts=experts)
    return f"{gpus}: {words}\n{'; '.join(given)}"


def _document_within(document: PlanDocument, rank: int, room: int) -> tuple[str, list[str]]:
    """Document and captions as members of a JSON object; with fewer plans where it must be."""
    whole = to_dict(document)
    # The pictures do not need it, and a report is passed on further than a configuration may be.
    whole["workload"]["model_config"] = None
    most = MOST_PLANS
    while True:
        kept = _kept(document, rank, most)
        text = _document_text(document, whole, kept)
        if len(text) <= room or most <= FEWEST_PLANS:
            break
        # At first by as much as is too much, so that a long front is not written many times.
        fitting = int(len(kept) * room / len(text))
        most = max(FEWEST_PLANS, min(int(most * LESS), fitting))
    if len(kept) == len(document.plans):
        return text, []
    points = sum(part.plan in kept for part in document.pareto)
    return text, [
        f"{len(document.plans) - len(kept):,} of {len(document.plans):,} plans; the picture of the"
        f" front has {points:,} of its {len(document.pareto):,} points, and --json all of them"
    ]


def _kept(document: PlanDocument, rank: int, most: int) -> list[int]:
    """Indices of the first plans, of the chosen, and of points spread evenly over the front."""
    front = [part.plan for part in document.pareto]
    step = max(1, -(-len(front) // most))
    spread = chain(front[::step], front[-1:])
    return sorted({*range(min(most, len(document.listed))), rank - 1, *spread})


def _document_text(document: PlanDocument, whole: Mapping[str, Any], kept: Sequence[int]) -> str:
    """Plans keep their ranks; the indices that points name are those of the plans kept."""
    place = {old: new for new, old in enumerate(kept)}
    points = [i for i, part in enumerate(document.pareto) if part.plan in place]
    point_place = {old: new for new, old in enumerate(points)}
    pareto = [
        {
            **whole["pareto"][i],
            "plan": place[whole["pareto"][i]["plan"]],
            "tied_with": [
                point_place[other] for other in document.pareto[i].tied_with if other in point_place
            ],
        }
        for i in points
    ]
    search = whole["search"]
    if search is not None:
        listed = sum(index < len(document.listed) for index in kept)
        search = {**search, "listed": listed}
    shown = {**whole, "plans": [whole["plans"][i] for i in kept], "pareto": pareto}
    experts = document.workload.has_experts
    captions = {document.plans[i].rank: caption(document.plans[i], experts=experts) for i in kept}
    parts = {"document": {**shown, "search": search}, "captions": captions}
    return json_for_script(parts)[1:-1]


def _timeline_text(plan: Plan) -> str:
    """The timeline, rounded to visible digits; "" where the plan is too old to have one."""
    try:
        timeline = timeline_document(plan)
    except InputError:
        return ""
    digits = max(0, -floor(log10(timeline.seconds / STEPS)))
    data = msgspec.to_builtins(timeline)
    for key in ("start", "end"):
        data["events"][key] = [round(second, digits) for second in data["events"][key]]
    for stage in data["memory"]:
        stage["moments"] = [round(second, digits) for second in stage["moments"]]
        stage["bytes"] = [
            int(round(size, BYTES_DIGITS - 1 - floor(log10(size)))) if size >= 1 else 0
            for size in stage["bytes"]
        ]
    return json_for_script(data)
