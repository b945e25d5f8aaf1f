"""Pipeline stages as text: bytes by cause on each, and how many layers they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from astrarium.plans.document import MEMORY_KEYS, MemoryPart, PlanPart
from astrarium.report.tables import GAP, Bar, gib, natural_width, new_table
from astrarium.report.wording import layers_of_stages, layers_words, stage_gpus
from astrarium.value import Value

FULL_NAMES = 112  # columns from which the causes of memory are written out
STAGES_SHOWN = 8
NEARLY_FULL = 0.95
BAR = (16, 10, 4)  # characters of a bar with full names, without, and the fewest that say much

_SHORT_CAUSES = ("weights", "grads", "optim", "activ", "work", "reserve")


def memory_table(plan: PlanPart, width: int, *, every_stage: bool = False) -> RenderableType:
    """Bytes by cause on the stages of a plan; of many stages the telling ones, unless all."""
    full = width >= FULL_NAMES
    gap = GAP if full else 1
    shown = plan.memory if every_stage else _telling_stages(plan.memory)
    columns = _columns(plan, full=full)
    while _columns_width(columns, shown, gap) > width and any(c.optional for c in columns):
        columns.remove(next(column for column in columns if column.optional))
    alike = len({gib(stage.capacity_bytes) for stage in plan.memory}) == 1
    scale = f"of {gib(plan.memory[0].capacity_bytes)}" if alike else ""
    bar = min(BAR[0] if full else BAR[1], width - _columns_width(columns, shown, gap) - gap)
    has_bar = bar >= max(BAR[2], len(scale))
    table = new_table(gap)
    for column in columns:
        table.add_column(
            column.head,
            justify="left" if column.left else "right",
            style=column.style,
            no_wrap=True,
        )
    if has_bar:
        table.add_column(scale, justify="left", no_wrap=True)
    for stage in shown:
        bars = [Bar(stage.share, bar, _style(stage))] if has_bar else []
        table.add_row(*(column.text(stage) for column in columns), *bars)
    return Group(table, *_below(plan, [stage for stage in plan.memory if stage not in shown]))


class _Column(Value, frozen=True):
    head: str
    text: Callable[[MemoryPart], str]
    left: bool = False
    style: str = ""
    optional: bool = False  # goes where the width has no room


def _columns(plan: PlanPart, *, full: bool) -> list[_Column]:
    """GPU types where there are several; capacities where they differ."""
    layers, gpus = layers_of_stages(plan), stage_gpus(plan)
    causes = [
        _Column(head, lambda stage, cause=cause: gib(getattr(stage, cause)))  # type: ignore[misc]
        for head, cause in zip(MEMORY_KEYS if full else _SHORT_CAUSES, MEMORY_KEYS, strict=True)
    ]
    columns = [
        _Column("stage", lambda stage: f"{stage.stage}"),
        _Column("layers", lambda s: f"{layers[s.stage]:,}" if s.stage in layers else ""),
        *causes,
        _Column("peak", lambda stage: gib(stage.peak_bytes), style="bold"),
        _Column("", lambda stage: f"{100 * stage.share:,.0f} %"),
    ]
    if plan.is_mixed:
        gpu = _Column("GPU", lambda s: gpus.get(s.stage, s.gpu), left=True, optional=True)
        columns.insert(1, gpu)
    if len({gib(stage.capacity_bytes) for stage in plan.memory}) > 1:
        columns.insert(-1, _Column("of", lambda stage: gib(stage.capacity_bytes), optional=True))
    return columns


def _columns_width(columns: Sequence[_Column], stages: Sequence[MemoryPart], gap: int) -> int:
    rows = [[column.text(stage) for column in columns] for stage in stages]
    return natural_width([column.head for column in columns], rows, gap)


def _style(stage: MemoryPart) -> str:
    return "red" if stage.share > 1 else "yellow" if stage.share > NEARLY_FULL else "green"


def _below(plan: PlanPart, hidden: Sequence[MemoryPart]) -> Iterator[RenderableType]:
    """The stages that are not shown; the layers of all if they are not alike."""
    if hidden:
        low, high = (gib(f(stage.peak_bytes for stage in hidden)) for f in (min, max))
        where = f"at {low}" if low == high else f"between {low} and {high}"
        what = "stage peaks" if len(hidden) == 1 else "stages peak"
        yield Text(f"  {len(hidden)} more {what} {where} GiB", style="dim")
    layers = "" if plan.is_mixed else layers_words(plan.strategy)  # said with the pipeline
    if layers:
        yield Padding(Text(layers, style="dim"), (0, 0, 0, 2))


def _telling_stages(stages: Sequence[MemoryPart]) -> list[MemoryPart]:
    """All stages if they are few, else the first, the last, and the fullest of each GPU type."""
    if len(stages) <= STAGES_SHOWN:
        return list(stages)
    fullest = [
        max((s for s in stages if s.gpu == gpu), key=lambda stage: stage.share)
        for gpu in dict.fromkeys(stage.gpu for stage in stages)
    ]
    return [stage for stage in stages if stage in (stages[0], *fullest, stages[-1])]
