"""Plans as text: header, best strategies, memory by stage, time by cause, what the search did.

Functions return rich renderables for a given width and print nothing. Narrow terminals get the
strategies in two tables, wide ones in one; nothing is cut off.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from astrarium.report.bars import Bar
from astrarium.report.document import (
    MEMORY_KEYS,
    ClusterPart,
    MemoryPart,
    PlanDocument,
    PlanPart,
    PoolPart,
    SearchPart,
    WorkloadPart,
)
from astrarium.report.layout import DAY, dollars, gib, new_table, percent, title
from astrarium.report.words import (
    recompute_words,
    rejection,
    rule_words,
    strategy_words,
    switches_words,
    time_cause,
    zero_words,
)
from astrarium.units import format_count, format_rate, format_seconds, format_usd

GAP = 2  # blanks between columns
FULL_NAMES = 112  # columns from which the causes of memory are written out
STAGES_SHOWN = 8
SMALL_SHARE = 0.005  # causes below this share of the iteration are summed up
REASONS_SHOWN = 3
NEARLY_FULL = 0.95

_SHORT_CAUSES = ("weights", "grads", "optim", "activ", "work", "reserve")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of strategies: its head and the text of a plan."""

    head: str
    text: Callable[[PlanPart], str]
    left: bool = False


def plan_report(document: PlanDocument, width: int) -> Iterator[RenderableType]:
    """Everything `astrarium plan` shows about its result."""
    best = document.plans[0]
    yield header(document.workload, document.cluster, document.notes)
    yield title("Best strategies" if len(document.plans) > 1 else "Best strategy")
    yield strategies_table(document.plans, document.cluster, width)
    yield title(f"Memory of plan {best.rank}: GiB on each GPU of a stage")
    yield memory_table(best, width)
    yield title(f"Where the {format_seconds(best.iteration_seconds)} of an iteration go")
    yield time_table(best, width)
    if document.search is not None:
        yield title("Search")
        yield search_summary(document.search)


def prediction_report(document: PlanDocument, width: int) -> Iterator[RenderableType]:
    """One strategy: whether it fits, time, money, memory and where the time goes."""
    plan = document.plans[0]
    yield header(document.workload, document.cluster, document.notes)
    yield ""
    yield verdict(plan)
    yield Padding(Text(strategy_words(plan.strategy)), (0, 0, 0, 2))
    yield Padding(Text(f"switched on: {switches_words(plan.strategy)}"), (0, 0, 1, 2))
    yield Padding(_columns_table(_results(document.plans), document.plans), (0, 0, 0, 2))
    yield title("Memory: GiB on each GPU of a stage")
    yield memory_table(plan, width)
    yield title(f"Where the {format_seconds(plan.iteration_seconds)} of an iteration go")
    yield time_table(plan, width)


def header(
    workload: WorkloadPart, cluster: ClusterPart, notes: Sequence[str] = ()
) -> RenderableType:
    """Model, training, cluster and price, with what the user's names stand for."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _facts(workload, cluster, notes):
        grid.add_row(label, Text(text))
    return grid


def _facts(
    workload: WorkloadPart, cluster: ClusterPart, notes: Sequence[str]
) -> Iterator[tuple[str, str]]:
    active = ""
    if workload.active_parameters != workload.parameters:
        active = f" ({format_count(workload.active_parameters)} active)"
    yield (
        "model",
        f"{workload.model}: {format_count(workload.parameters)} parameters{active},"
        f" {workload.layers} layers",
    )
    tokens = "" if workload.tokens is None else f"; {format_count(workload.tokens)} tokens in all"
    yield (
        "training",
        f"{workload.global_batch:,} sequences of {workload.seq_length:,} tokens an iteration,"
        f" {workload.precision}, Adam{tokens}",
    )
    for pool in cluster.pools:
        yield "cluster", pool_words(pool)
        yield "price", price_words(pool)
    for note in notes:
        yield "note", note


def pool_words(pool: PoolPart) -> str:
    alias = "" if pool.gpu_as_given == pool.gpu else f' ("{pool.gpu_as_given}")'
    nodes = f"{pool.nodes:,} node{'s' if pool.nodes > 1 else ''} of {pool.gpus_per_node}"
    links = f"{pool.intra_node_link} {format_rate(pool.intra_node_bytes_per_second)} per GPU"
    if pool.nodes > 1:
        links += f", {pool.network} {format_rate(pool.inter_node_bytes_per_second)} per node"
    return (
        f"{pool.gpus:,} x {pool.gpu}{alias}, {gib(pool.memory_bytes_per_gpu)} GiB each;"
        f" {nodes}; {links}"
    )


def price_words(pool: PoolPart) -> str:
    if pool.usd_per_gpu_hour is None:
        return f"none known for {pool.gpu}; usd_per_gpu_hour in a cluster file sets one"
    return f"{format_usd(pool.usd_per_gpu_hour)} per GPU and hour ({pool.price_source})"


def verdict(plan: PlanPart) -> RenderableType:
    """Whether a strategy fits, as a line that cannot be overlooked."""
    stage = plan.fullest
    if plan.fits:
        free = f"stage {stage.stage} has {gib(stage.free_bytes)} GiB to spare"
        return Text(f"FITS: {free}", style="bold green")
    needs = f"{gib(stage.peak_bytes)} of {gib(stage.capacity_bytes)} GiB on {stage.gpu}"
    return Text(
        f"DOES NOT FIT: stage {stage.stage} needs {needs}, {gib(-stage.free_bytes)} too much",
        style="bold red",
    )


def strategies_table(plans: Sequence[PlanPart], cluster: ClusterPart, width: int) -> RenderableType:
    """The plans: what to set, and what it gives; one table or two, as the width allows."""
    rank = Column("#", lambda p: str(p.rank))
    choices, results = _choices(plans, cluster), _results(plans)
    together = [rank, *choices, *results]
    if _natural_width(together, plans) <= width:
        return _columns_table(together, plans)
    first, second = ([rank, *columns] for columns in (choices, results))
    return Group(_columns_table(first, plans), "", _columns_table(second, plans))


def _choices(plans: Sequence[PlanPart], cluster: ClusterPart) -> list[Column]:
    """What a plan sets; type and number of GPUs only where the cluster leaves a choice."""
    columns = [
        Column("tp", lambda p: str(p.strategy.tp)),
        Column("pp", lambda p: str(p.strategy.pp)),
        Column("vpp", lambda p: str(p.strategy.virtual_stages)),
        Column("cp", lambda p: str(p.strategy.cp)),
        Column("ep", lambda p: str(p.strategy.ep)),
        Column("dp", lambda p: f"{p.strategy.dp:,}"),
        Column("micro", lambda p: str(p.strategy.micro_batch)),
        Column("recompute", lambda p: recompute_words(p.strategy.recompute), left=True),
        Column("ZeRO", lambda p: zero_words(p.strategy)),
    ]
    if any(plan.strategy.etp > 1 for plan in plans):
        columns.insert(5, Column("etp", lambda p: str(p.strategy.etp)))
    if any(plan.num_gpus != cluster.gpus for plan in plans):
        columns.insert(0, Column("GPUs", lambda p: f"{p.num_gpus:,}"))
    if len(cluster.pools) > 1:
        columns.insert(0, Column("type", lambda p: ", ".join(p.gpus), left=True))
    return columns


def _results(plans: Sequence[PlanPart]) -> list[Column]:
    """What a plan gives; the run's length and price only where tokens were stated."""
    columns = [
        Column("iteration", lambda p: format_seconds(p.iteration_seconds)),
        Column("likely", _interval),
        Column("tokens/s", lambda p: format_count(p.tokens_per_second)),
        Column("MFU", lambda p: percent(p.mfu)),
        Column("memory GiB", lambda p: _peak(p.fullest)),
        Column("$/h", lambda p: dollars(p.usd_per_hour)),
    ]
    if all(plan.train_seconds is not None for plan in plans):
        columns.append(Column("days", lambda p: f"{(p.train_seconds or 0) / DAY:,.1f}"))
        columns.append(Column("in all", lambda p: dollars(p.usd_total)))
    return columns


def _interval(plan: PlanPart) -> str:
    low, high = plan.interval_seconds
    digits = 1 if high >= 10 else 2 if high >= 1 else 3
    return f"{low:,.{digits}f}-{high:,.{digits}f} s"


def _peak(stage: MemoryPart) -> str:
    return f"{gib(stage.peak_bytes)}/{gib(stage.capacity_bytes)}"


def _natural_width(columns: Sequence[Column], plans: Sequence[PlanPart]) -> int:
    """Characters that a table needs if nothing is to be broken."""
    texts = [[column.head, *map(column.text, plans)] for column in columns]
    return sum(max(map(len, column)) + GAP for column in texts)


def _columns_table(columns: Sequence[Column], plans: Sequence[PlanPart]) -> Table:
    table = new_table(GAP)
    for column in columns:
        table.add_column(column.head, justify="left" if column.left else "right", overflow="fold")
    for plan in plans:
        style = "bold" if plan is plans[0] and len(plans) > 1 else None
        table.add_row(*(Text(column.text(plan)) for column in columns), style=style)
    return table


def memory_table(plan: PlanPart, width: int, *, every_stage: bool = False) -> RenderableType:
    """Bytes by cause on the stages of a plan; of many stages the telling ones, unless all."""
    full = width >= FULL_NAMES
    table = new_table(GAP if full else 1)
    for head in ("stage", "layers", *(MEMORY_KEYS if full else _SHORT_CAUSES), "peak", ""):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column(f"of {gib(plan.memory[0].capacity_bytes)}", justify="left", no_wrap=True)
    shown = plan.memory if every_stage else _telling_stages(plan.memory)
    layers = layers_of_stages(plan)
    for stage in shown:
        style = "red" if stage.share > 1 else "yellow" if stage.share > NEARLY_FULL else "green"
        table.add_row(
            str(stage.stage),
            str(layers.get(stage.stage, "")),
            *(gib(getattr(stage, cause)) for cause in MEMORY_KEYS),
            Text(gib(stage.peak_bytes), style="bold"),
            f"{100 * stage.share:.0f} %",
            Bar(stage.share, 16 if full else 10, style),
        )
    hidden = [stage for stage in plan.memory if stage not in shown]
    if not hidden:
        return table
    low, high = (gib(f(stage.peak_bytes for stage in hidden)) for f in (min, max))
    where = f"at {low}" if low == high else f"between {low} and {high}"
    return Group(table, Text(f"  {len(hidden)} more stages peak {where} GiB", style="dim"))


def _telling_stages(stages: Sequence[MemoryPart]) -> list[MemoryPart]:
    """All stages if they are few, else the first, the fullest and the last."""
    if len(stages) <= STAGES_SHOWN:
        return list(stages)
    fullest = max(stages, key=lambda stage: stage.share)
    return [stage for stage in stages if stage in (stages[0], fullest, stages[-1])]


def layers_of_stages(plan: PlanPart) -> dict[int, int]:
    """How many layers each pipeline rank holds, over all of its chunks."""
    layers: dict[int, int] = {}
    for stage in plan.strategy.stages:
        first, last = stage.layers
        layers[stage.pipeline_rank] = layers.get(stage.pipeline_rank, 0) + last - first
    return layers


def time_table(plan: PlanPart, width: int) -> RenderableType:
    """The causes of an iteration's time, largest first; small ones summed up."""
    total = plan.iteration_seconds
    ranked = sorted(plan.breakdown_seconds.items(), key=lambda item: -item[1])
    large = [(time_cause(key).title, s) for key, s in ranked if s / total >= SMALL_SHARE]
    rest = [(time_cause(key).title, s) for key, s in ranked if 0 < s / total < SMALL_SHARE]
    if len(rest) > 1:
        rest = [(f"{len(rest)} smaller causes", sum(seconds for _, seconds in rest))]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    for name, seconds in [*large, *rest]:
        share = seconds / total
        bar = Bar(share, 40 if width >= FULL_NAMES else 20)
        grid.add_row(f"  {name}", format_seconds(seconds), percent(share), bar)
    return grid


def search_summary(search: SearchPart) -> RenderableType:
    """How many strategies there are, and why all but the listed fell out."""
    proof = "proved optimal under the cost model"
    if not search.optimal:
        proof = f"not proved optimal: at most {percent(search.bound_gap)} from the best"
    first = Text(
        f"{search.space:,} strategies considered in {format_seconds(search.seconds)},"
        f" {search.evaluated:,} priced; {proof}"
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for key, count in search.rejected.items():
        grid.add_row(f"    {count:,}", rejection(key))
    return Group(Padding(first, (0, 0, 0, 2)), grid, *_reasons(search))


def _reasons(search: SearchPart) -> Iterator[RenderableType]:
    """The rules that dropped most."""
    if not search.reasons:
        return
    ranked = sorted(search.reasons.items(), key=lambda item: -item[1])
    shown = [f"{rule_words(rule)} {count:,}" for rule, count in ranked[:REASONS_SHOWN]]
    more = len(ranked) - len(shown)
    others = f", and {more} more rules" if more > 0 else ""
    yield Padding(Text(f"rules that dropped most: {', '.join(shown)}{others}"), (0, 0, 0, 2))


def next_steps(
    arguments: Sequence[str], written: Path | None, width: int
) -> Iterator[RenderableType]:
    """The commands that turn the winner into a launch configuration."""
    folder = "DIR" if written is None else str(written.parent)
    yield title("Export the best plan")
    if written is None:
        yield _command(["astrarium", *arguments, "--out", folder], width)
    else:
        yield Text(f"  {written} is written", style="dim")
    plan = f"{folder}/plan.json" if written is None else str(written)
    yield _command(["astrarium", "export", plan, "--to", "megatron", "--out", folder], width)


def _command(words: Sequence[str], width: int) -> Text:
    """A command that can be copied, broken with backslashes where the line ends."""
    lines = ["  "]
    for word in (shlex.quote(word) for word in words):
        if len(lines[-1]) + len(word) + len(" \\") > width and lines[-1].strip():
            lines[-1] += "\\"
            lines.append("      ")
        lines[-1] += word + " "
    return Text("\n".join(lines), style="cyan", no_wrap=True, overflow="ignore")
