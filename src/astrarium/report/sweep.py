"""The answers of a sweep: a table over two of its keys, the best scenarios, a picture of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from astrarium.errors import InputError, did_you_mean
from astrarium.report.front.picture import Box, Drawing, Label, to_svg
from astrarium.report.tables import Field, dollars, listing, title
from astrarium.units import DAY, HOUR, format_count, format_seconds
from astrarium.value import Value

SCHEMA: Final = "astrarium.sweep/2"
PREFERRED: Final = "tokens_per_second"
MOST_CELLS: Final = 10_000
_ASKED: Final = "asked."
_MESSAGES, _TRADES = 3, 10  # reasons, and trades of time against money, that are printed
_OF: Final = {True: "of the run", False: "of a billion tokens"}
_LOWER: Final = ("seconds", "usd", "days", "gib", "gap")  # in names of figures that should be low
_CELL: Final = (92, 28)  # pixels of a cell in a picture
_LEFT, _TOP, _SIZE = 200, 80, 12

# Columns of the best scenarios: name, head, and which goes first if there is no room.
_SHOWN: Final = (
    *((name, name, drop) for drop, name in enumerate(("tp", "pp", "cp", "dp"), 3)),
    ("micro_batch", "micro", 2),
    ("zero_stage", "ZeRO", 1),
    ("iteration_seconds", "iteration s", 0),
    ("tokens_per_second", "tokens/s", 0),
    ("usd_total", "USD", 0),
)

Row = Mapping[str, Any]


class Pivot(Value, frozen=True):
    """The best value of every combination of two keys; null where there is no plan."""

    rows: str
    columns: str
    value: str
    is_lower_better: bool
    row_keys: tuple[str, ...]
    column_keys: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    scenarios: tuple[tuple[str | None, ...], ...]  # whose plan it is


class ScenarioTrade(Value, frozen=True):
    """A plan that no other one of the sweep beats in both time and money.

    `asked` has the keys that differ between scenarios.
    """

    scenario: str
    asked: dict[str, str]
    gpus: str
    seconds: float
    usd: float


class SweepDocument(Value, frozen=True):
    """What a sweep found; `pivot` is null unless two keys are named.

    The front is that of the runs if all have the same tokens, else that of a billion tokens each.
    """

    schema: str
    scenarios: int
    status: dict[str, int]  # scenarios by what became of them
    messages: dict[str, int]  # why scenarios have no plan, the most frequent first
    cpu_seconds: float
    varies: dict[str, tuple[str, ...]]  # keys that differ between scenarios, with their values
    figures: tuple[str, ...]  # that may be compared
    pivot: Pivot | None
    best: tuple[dict[str, Any], ...]
    front: tuple[ScenarioTrade, ...]
    front_is_of_runs: bool


def where(rows: Sequence[Row], conditions: Sequence[str]) -> list[Row]:
    """The rows whose questions have these values: KEY=VALUE; or of a scenario by its key."""
    kept = list(rows)
    asked = ["scenario", *_asked(rows)]
    for condition in conditions:
        key, equals, value = condition.partition("=")
        if not equals:
            raise InputError(f"--where {condition}: expected KEY=VALUE")
        name = _column(key, asked, "--where")
        values = _values(rows, name)
        if value not in values:
            raise InputError(
                f"--where {condition}: no scenario has this; {key} is {', '.join(values)[:200]}"
            )
        kept = [row for row in kept if str(row.get(name) or "") == value]
    return kept


def sweep_document(
    rows: Sequence[Row],
    keys: tuple[str | None, str | None] = (None, None),
    value: str = PREFERRED,
    top: int = 5,
) -> SweepDocument:
    if not rows:
        raise InputError("the sweep has no such rows")
    firsts = {row["scenario"]: row for row in reversed(rows)}
    asked, figures = _asked(rows), _figures(rows)
    value = _column(value, figures, "--value")
    values = {name: _values(firsts.values(), name) for name in asked}
    varies = {name: found for name, found in values.items() if len(found) > 1}
    planned = [row for row in rows if row["status"] == "planned"]
    is_lower_better = any(part in value for part in _LOWER)
    chosen = _best_of_scenarios(planned, value, is_lower_better=is_lower_better)
    is_of_runs = len(values.get(f"{_ASKED}tokens", ())) == 1
    pivot = None
    if keys[0] is not None or keys[1] is not None:
        named = zip(keys, ("--rows", "--columns"), strict=True)
        names = [None if one is None else _column(one, asked, flag) for one, flag in named]
        pivot = _pivot(firsts.values(), chosen, names, value, is_lower_better=is_lower_better)
    messages = (row["message"] for row in firsts.values() if row.get("message"))
    return SweepDocument(
        SCHEMA,
        len(firsts),
        dict(Counter(row["status"] for row in firsts.values()).most_common()),
        dict(Counter(messages).most_common()),
        sum(row["cpu_seconds"] for row in firsts.values()),
        {name.removeprefix(_ASKED): found for name, found in varies.items()},
        tuple(figures),
        pivot,
        tuple(dict(row) for row in chosen[:top]),
        tuple(_front(planned, tuple(varies), is_of_runs=is_of_runs)),
        is_of_runs,
    )


def _asked(rows: Sequence[Row]) -> list[str]:
    return [n for n in dict.fromkeys(chain.from_iterable(rows)) if n.startswith(_ASKED)]


def _figures(rows: Sequence[Row]) -> list[str]:
    """Columns of numbers, the preferred one first."""
    known = (name for row in rows for name, value in row.items() if type(value) in (int, float))
    return sorted(dict.fromkeys(known), key=lambda name: name != PREFERRED)


def _values(rows: Iterable[Row], name: str) -> tuple[str, ...]:
    return tuple(sorted({str(row.get(name) or "") for row in rows}, key=_by_number))


def _front(
    rows: Iterable[Row], varies: Sequence[str], *, is_of_runs: bool
) -> Iterator[ScenarioTrade]:
    """From the fastest to the cheapest."""
    trades = list[tuple[float, float, Row]]()
    for row in rows:
        if is_of_runs:
            seconds, usd = row["train_days"] and row["train_days"] * DAY, row["usd_total"]
        else:
            rate, hourly = row["tokens_per_second"], row["usd_per_hour"]
            seconds = 1e9 / rate if rate else None
            usd = None if seconds is None or hourly is None else hourly * seconds / HOUR
        if seconds is not None and usd is not None:
            trades.append((seconds, usd, row))
    least = inf
    for seconds, usd, row in sorted(trades, key=lambda one: one[:2]):
        if usd < least:
            least = usd
            asked = {name.removeprefix(_ASKED): str(row.get(name) or "") for name in varies}
            yield ScenarioTrade(row["scenario"], asked, row["gpus"] or "", seconds, usd)


def _column(name: str, known: Sequence[str], flag: str) -> str:
    """A column by its name; that of a question without what stands before it."""
    plain = {one.removeprefix(_ASKED): one for one in known}
    found = plain.get(name.replace("-", "_"))
    if found is None:
        raise InputError(
            f"{flag} {name}: no such column{did_you_mean(name, plain)}; there are"
            f" {', '.join(plain)}"
        )
    return found


def _best_of_scenarios(rows: Sequence[Row], value: str, *, is_lower_better: bool) -> list[Row]:
    """The best plan of every scenario, the best scenario first."""
    sign = 1 if is_lower_better else -1
    first: dict[str, Row] = {}
    known = (row for row in rows if row.get(value) is not None)
    for row in sorted(known, key=lambda row: sign * row[value]):
        first.setdefault(row["scenario"], row)
    return list(first.values())


def _pivot(
    scenarios: Iterable[Row],
    chosen: Sequence[Row],
    names: Sequence[str | None],
    value: str,
    *,
    is_lower_better: bool,
) -> Pivot:
    def keys(row: Row) -> tuple[str, str]:
        first, second = ("" if name is None else str(row.get(name) or "") for name in names)
        return first, second

    found = {keys(row): row for row in reversed(chosen)}
    axes = [sorted({keys(row)[axis] for row in scenarios}, key=_by_number) for axis in (0, 1)]
    if len(axes[0]) * len(axes[1]) > MOST_CELLS:
        raise InputError(
            f"{' and '.join(filter(None, names))} make {len(axes[0]):,} x {len(axes[1]):,} cells,"
            f" at most {MOST_CELLS:,} are shown; choose other keys, or fewer scenarios by --where"
        )
    places = [[found.get((row, column), {}) for column in axes[1]] for row in axes[0]]
    cells, owners = (
        tuple(tuple(one.get(name) for one in row) for row in places) for name in (value, "scenario")
    )
    first, second = ((name or "").removeprefix(_ASKED) for name in names)
    rows, columns = map(tuple, axes)
    return Pivot(first, second, value, is_lower_better, rows, columns, cells, owners)


def _by_number(text: str) -> tuple[int, float, str]:
    """Numbers by their size, then texts."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def sweep_report(document: SweepDocument, width: int) -> Iterator[RenderableType]:
    """The document for people."""
    counts = ", ".join(f"{count:,} {status}" for status, count in document.status.items())
    varies = ", ".join(f"{name} ({len(found)})" for name, found in document.varies.items())
    yield Text(f"{document.scenarios:,} scenarios: {counts}; {document.cpu_seconds:,.1f} s of CPU")
    yield Text(f"varies: {varies or 'nothing'}")
    for message, count in list(document.messages.items())[:_MESSAGES]:
        yield Text(f"{count:,} without a plan: {message}")
    if len(document.messages) > _MESSAGES:
        yield Text(f"{len(document.messages) - _MESSAGES:,} more reasons: --json")
    if document.pivot is not None:
        yield from _pivot_report(document.pivot, width)
    if document.best:
        yield title("Best scenarios")
        yield from listing(list(_best_fields(document)), width)
    if len(document.front) > 1:
        yield from _front_report(document, width)


def _front_report(document: SweepDocument, width: int) -> Iterator[RenderableType]:
    front, rest = document.front[:_TRADES], document.front[_TRADES:]
    yield title(f"Time against money {_OF[document.front_is_of_runs]}")
    fields = [
        *(Field(name, [one.asked[name] for one in front]) for name in document.varies),
        Field("time", [format_seconds(one.seconds) for one in front], right=True),
        Field("USD", [dollars(one.usd) for one in front], right=True),
    ]
    yield from listing(fields, width)
    if rest:
        yield Text(f"{len(rest)} more: --json")


def _pivot_report(pivot: Pivot, width: int) -> Iterator[RenderableType]:
    best = "lowest" if pivot.is_lower_better else "highest"
    over = " and ".join(name for name in (pivot.rows, pivot.columns) if name)
    yield title(f"{pivot.value}, the {best} by {over}")
    columns = list(zip(*pivot.cells, strict=True))
    yield from listing(
        [
            Field(pivot.rows, list(pivot.row_keys)),
            *(
                Field(key or pivot.value, [_cell(one) for one in cells], right=True)
                for key, cells in zip(pivot.column_keys, columns, strict=True)
            ),
        ],
        width,
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else _figure(value)


def _figure(value: float) -> str:
    return format_count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _best_fields(document: SweepDocument) -> Iterator[Field]:
    rows = document.best
    for name in document.varies:
        yield Field(name, [str(row.get(_ASKED + name) or "") for row in rows])
    for name, head, drop in _SHOWN:
        cells = [_cell(row[name]) for row in rows]
        if any(cell != "-" for cell in cells):
            yield Field(head, cells, right=True, drop=drop)


def picture(path: str, pivot: Pivot | None) -> bytes:
    """The table of two keys as a picture."""
    if not path.lower().endswith(".svg"):
        raise InputError(f"--plot {path}: expected a name that ends in .svg")
    if pivot is None:
        raise InputError(f"--plot {path}: needs --rows and --columns")
    return to_svg(_drawing(pivot)).encode()


def _drawing(pivot: Pivot) -> Drawing:
    """A pivot as bars in cells, the best ones longest, with their figures on them."""
    figures = [one for row in pivot.cells for one in row if one is not None]
    low, high = min(figures, default=0.0), max(figures, default=0.0)
    shapes: list[Box | Label] = []
    across, down = _CELL
    wide, tall = len(pivot.column_keys), len(pivot.row_keys)
    width, height = _LEFT + wide * across + 20, _TOP + tall * down + 20
    shapes.append(Box(0, 0, width, height))
    what = f"{pivot.value} by {pivot.rows} and {pivot.columns}"
    shapes.append(Label(16, 28, what, _SIZE + 3, bold=True))
    for column, key in enumerate(pivot.column_keys):
        place = _LEFT + (column + 0.5) * across
        shapes.append(Label(place, _TOP - 8, key, _SIZE, "middle"))
    for number, (key, cells) in enumerate(zip(pivot.row_keys, pivot.cells, strict=True)):
        top = _TOP + number * down
        shapes.append(Label(_LEFT - 8, top + 18, key, _SIZE, "end"))
        for column, value in enumerate(cells):
            left = _LEFT + column * across
            if value is not None:
                share = 0.5 if high == low else (value - low) / (high - low)
                good = 1 - share if pivot.is_lower_better else share
                right = left + 2 + (across - 4) * max(good, 0.02)
                shapes.append(Box(left + 2, top + 2, right, top + down - 2, "line"))
            shapes.append(Label(left + across / 2, top + 18, _cell(value), _SIZE, "middle"))
    best = "lower" if pivot.is_lower_better else "higher"
    about = f"{tall} x {wide} cells from {_cell(low)} to {_cell(high)}; {best} is better"
    return Drawing(width, height, what, about, tuple(shapes))
