"""A plan as one HTML file to send around: pictures where scripts run, tables everywhere.

The script, the styles and the data are in the file, and its own policy forbids requests. All text
of the document is escaped. The data for the pictures has a bounded size: if necessary, points,
plans and timelines far down the lists are left out, and the report says so.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from io import StringIO
from itertools import chain
from math import floor, log10
from typing import Any, Final

import msgspec
from rich.console import Console, RenderableType

from astrarium.errors import InputError
from astrarium.plans.document import Plan, PlanDocument, to_dict
from astrarium.report.front.points import front_of
from astrarium.report.front.table import fields, thinned
from astrarium.report.plan.stages import memory_fields
from astrarium.report.plan.text import choices, facts, reasons, results, search_words
from astrarium.report.tables import Field, dollars, interval, percent, title
from astrarium.report.timeline import timeline_document
from astrarium.report.wording import (
    gpus_words,
    layers_of_stages,
    link_words,
    rejection,
    short_types,
    stage_gpus,
    strategy_words,
    time_cause,
)
from astrarium.strategy.types import Reach
from astrarium.units import format_count, format_seconds
from astrarium.value import Value

MOST_TIMELINES: Final = 3
MOST_PLANS: Final = 10_000  # tried first
FEWEST_PLANS: Final = 8
LESS: Final = 0.75  # of the plans, where those tried had no room
DOCUMENT_SHARE: Final = 0.5  # of the room; the rest is for timelines
STEPS: Final = 10**6  # of an iteration in a timeline: finer than any screen
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
    # The pictures do not need it, and people share a report more freely than a configuration.
    whole["workload"]["model_config"] = None
    most = MOST_PLANS
    while True:
        kept = _kept(document, rank, most)
        text = _document_text(document, whole, kept)
        if len(text) <= room or most <= FEWEST_PLANS:
            break
        # First in proportion to the excess, so that a long front is not written many times.
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
    """The timeline, rounded to visible digits; "" if the plan is too old to have one."""
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


ENDING: Final = ".html"
MARK: Final = '<meta name="generator" content="Astrarium report">'  # where a report begins
MOST_BYTES: Final = 4_000_000
MOST_ROWS: Final = 100  # of a table of plans or points
TEXT_WIDTH: Final = 100  # characters of what is shown as on a terminal
ONLY_DRAWN: Final = (
    "The timeline is only drawn; the table of stages below has the seconds of their passes, and"
    " `astrarium trace` writes it for Perfetto."
)
# The file makes no request, even if its text is hostile; script and styles are inside.
POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def report_html(document: PlanDocument, command: Sequence[str], rank: int = 1) -> str:
    """The report on a document; `rank` is of the chosen plan, `command` made it."""
    chosen = document.plans[rank - 1]
    tables = "\n".join(_body(document, chosen))
    frame = _frame(document, chosen)
    fixed = len((frame + tables + _asset("report.js") + _asset("report.css")).encode())
    data = embedded(document, rank, MOST_BYTES - fixed - len(shlex.join(command)) * 6 - 10_000)
    left_out = [f"Left out, to keep this file small: {words}." for words in data.left_out]
    return "\n".join(
        [
            frame,
            tables,
            *_notes("Notes", [*document.notes, *left_out]),
            *_search(document),
            *_section("Command", f"<pre><code>{escape(_lines(command))}</code></pre>"),
            "</main>",
            f'<script type="application/json" id="data">{data.text}</script>',
            f"<script>{_asset('report.js')}</script>",
            "</body>\n</html>\n",
        ]
    )


def _frame(document: PlanDocument, chosen: Plan) -> str:
    workload = document.workload
    gpus = gpus_words(chosen.gpus, short_types(chosen.gpus))
    title = escape(f"{workload.model} on {gpus}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{_asset("report.css")}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<noscript><p class="faint">The pictures of this file need JavaScript. Without it, the tables have
the same figures.</p></noscript>"""


@cache
def _asset(name: str) -> str:
    """A built file of the page; it must not end the element that contains it."""
    text = (files("astrarium") / "web" / "static" / name).read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script").replace("</style", "<\\/style").strip()


def _body(document: PlanDocument, chosen: Plan) -> Iterator[str]:
    used = {pool for plan in document.listed for pool in plan.pools}
    trains = {plan.finetune for plan in document.listed}
    given = facts(document.workload, document.cluster, (), used, trains)
    limits = front_of(document).limit_words().items() if document.pareto else ()
    yield from _section("Inputs", _facts([*given, *limits]))
    yield from _section("Plans", _plans(document, chosen), *_more(len(document.listed), "plans"))
    if document.pareto:
        yield from _front(document)
    words = caption(chosen, experts=document.workload.has_experts)
    yield f"""<section id="chosen"><h2>Plan <span data-rank>{chosen.rank}</span></h2>
<p class="caption" data-caption>{escape(words)}</p></section>"""
    time, memory = _times(chosen), _table(memory_fields(chosen, chosen.memory, full=True))
    yield '<div class="pair">'
    yield from _picture("breakdown", "Where the time of an iteration goes", time)
    yield from _picture("memory", "Memory of each stage", memory)
    yield "</div>"
    yield from _picture("timeline", "Timeline of an iteration", "", ONLY_DRAWN)
    yield from _picture("topology", "Which GPUs hold which stage", _stages(chosen))
    yield from _texts(document, chosen)


def _section(title: str, *parts: str) -> Iterator[str]:
    yield f"<section><h2>{escape(title)}</h2>"
    yield from parts
    yield "</section>"


def _picture(name: str, title: str, table: str, without: str = "") -> Iterator[str]:
    """A place for a picture above a table of the same data, or words `without` scripts."""
    yield f'<section><h2>{escape(title)}</h2><div data-picture="{name}"></div>'
    if table:
        yield f"<details open data-table><summary>As a table</summary>{table}</details>"
    if without:
        yield f'<noscript><p class="faint">{escape(without)}</p></noscript>'
    yield "</section>"


def _facts(lines: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in lines)
    return f"<dl>{rows}</dl>"


def _table(columns: Sequence[Field], ranks: Sequence[int] = (), chosen: int = 0) -> str:
    """A table; rows that stand for plans name their ranks."""
    heads = "".join(f"<th{_kind(column)}>{escape(column.head)}</th>" for column in columns)
    body = []
    for index, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        cells = zip(columns, row, strict=True)
        inside = "".join(f"<td{_kind(column)}>{escape(text)}</td>" for column, text in cells)
        rank = ranks[index] if ranks else 0
        mark = (
            f' data-plan="{rank}"' + (' class="chosen"' if rank == chosen else "") if rank else ""
        )
        body.append(f"<tr{mark}>{inside}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n<tbody>'
        + "\n".join(body)
        + "</tbody></table></div>"
    )


def _kind(column: Field) -> str:
    return ' class="number"' if column.right else ""


def _plans(document: PlanDocument, chosen: Plan) -> str:
    plans = document.listed[:MOST_ROWS]
    if chosen not in plans:
        plans = (*plans, chosen)
    experts = document.workload.has_experts
    ranks = [plan.rank for plan in plans]
    number = Field("#", [str(rank) for rank in ranks], right=True)
    columns = [number, *choices(plans, document.cluster, experts), *results(plans)]
    return _table(columns, ranks, chosen.rank)


def _more(number: int, what: str) -> Iterator[str]:
    if number > MOST_ROWS:
        yield f'<p class="faint">{MOST_ROWS} of {number:,} {what} are in the table.</p>'


def _front(document: PlanDocument) -> Iterator[str]:
    front = front_of(document)
    columns = fields(front, thinned(front, MOST_ROWS))
    title = f"Time against {'money' if front.priced else 'GPUs'}"
    table = _table(columns) + "".join(_more(len(front.points), "points"))
    yield from _picture("front", title, table)


def _times(plan: Plan) -> str:
    ranked = sorted(plan.breakdown_seconds.items(), key=lambda item: -item[1])
    spent = [(time_cause(key), seconds) for key, seconds in ranked if seconds > 0]
    total = plan.iteration_seconds
    return _table(
        [
            Field("cause", [cause.title for cause, _ in spent]),
            Field("time", [format_seconds(seconds) for _, seconds in spent], right=True),
            Field("share", [percent(seconds / total) for _, seconds in spent], right=True),
            Field("meaning", [cause.meaning for cause, _ in spent]),
        ]
    )


def _stages(plan: Plan) -> str:
    if not plan.stage_seconds:
        return ""
    layers, types, stages = layers_of_stages(plan), stage_gpus(plan), plan.stage_seconds
    sends = [
        (format_seconds(s.send_seconds), link_words(s.link, s.link_pools))
        if s.link is not Reach.NOWHERE
        else ("", "")
        for s in stages
    ]
    return _table(
        [
            Field("stage", [str(s.stage) for s in stages], right=True),
            Field("GPUs", [types.get(s.stage, s.gpu) for s in stages]),
            Field("layers", [str(layers.get(s.stage, "")) for s in stages], right=True),
            Field("forward", [format_seconds(s.forward_seconds) for s in stages], right=True),
            Field("backward", [format_seconds(s.backward_seconds) for s in stages], right=True),
            Field("busy", [percent(s.busy_share) for s in stages], right=True),
            Field("send", [seconds for seconds, _ in sends], right=True),
            Field("to the next stage", [link for _, link in sends]),
        ]
    )


def _texts(document: PlanDocument, chosen: Plan) -> Iterator[str]:
    """Sections shown as on a terminal: the comparison, the sensitivity, the run."""
    if document.compare is not None:
        from astrarium.report.plan.compare import compare_section

        yield from _terminal(compare_section(document, document.compare))
    if document.sensitivity is not None:
        from astrarium.report.plan.sensitivity import sensitivity_section

        changes = sensitivity_section(document, document.sensitivity, TEXT_WIDTH)
        yield from _terminal(changes)
    if chosen.run is not None:
        from astrarium.report.plan.run import run_section

        lines = run_section(chosen, chosen.run, document.cluster, TEXT_WIDTH)
        yield from _terminal([title(f"The run of plan {chosen.rank}"), *lines])


def _terminal(parts: Iterable[RenderableType]) -> Iterator[str]:
    """A section of the text of `astrarium plan`; its first line is the title."""
    text = StringIO()
    console = Console(
        file=text, width=TEXT_WIDTH, color_system=None, highlight=False, markup=False, emoji=False
    )
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    title, _, rest = "\n".join(lines).strip("\n").partition("\n")
    yield from _section(title, f"<pre>{escape(rest)}</pre>")


def _notes(title: str, notes: Sequence[str]) -> Iterator[str]:
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        yield from _section(title, f"<ul>{items}</ul>")


def _search(document: PlanDocument) -> Iterator[str]:
    search = document.search
    if search is None:
        return
    counts = [f"{count:,}" for count in search.rejected.values()]
    columns = [
        Field("strategies", counts, right=True),
        Field("", [*map(rejection, search.rejected)]),
    ]
    yield from _section(
        "Search",
        f"<p>{escape(search_words(search))}</p>",
        _table(columns) if counts else "",
        *(f'<p class="faint">{escape(line)}</p>' for line in reasons(search)),
    )


def _lines(command: Sequence[str]) -> str:
    """A command line, broken before its options."""
    lines: list[str] = []
    for word in map(shlex.quote, command):
        if not lines or word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return " \\\n  ".join(lines)
