"""Plans as text: header, best strategies, memory by stage, time by cause, what the search did.

Functions return rich renderables for a given width and print nothing; nothing is cut off.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from astrarium.plans.document import (
    ChoicePart,
    ClusterPart,
    Plan,
    PlanDocument,
    PoolPart,
    SearchPart,
    WorkloadPart,
)
from astrarium.report import tables, wording
from astrarium.report.plan.stages import FULL_NAMES, memory_table
from astrarium.strategy.estimate import TWINS
from astrarium.units import DAY, HOUR, format_count, format_rate, format_seconds

NOTHING = 5e-4  # a share of the iteration that is written as 0.0 %
SMALL_SHARE = 0.005  # causes below this share of the iteration are summed up
REASONS_SHOWN = 3
LEAST_GAP = 0.001  # the smallest gap that is shown as a number
EXPERT_MESSAGES = {
    "overlapped": ", tokens sent to experts beside another micro-batch",
    "deepep": ", tokens sent to experts by DeepEP",
    "deepep-overlapped": ", tokens sent to experts by DeepEP beside another micro-batch",
}
ADAPTERS: Mapping[str | None, str] = {"lora": "LoRA", "qlora": "QLoRA", "dora": "DoRA"}
CERTAIN = 0.995  # chance above which more digits say nothing
EVEN = 0.5
MANY_POOLS = 6  # beyond which only those in use are described
KEY_HEADS = ("trains", "runtime", "cloud", "type", "GPUs")  # columns that distinguish plans
# Targets of `astrarium export` by runtime; others are Megatron's relatives.
EXPORTED_TO = {
    "megatron-bridge": "bridge",
    "torchtitan": "torchtitan",
    "torchtitan-eager": "torchtitan",
    "torchtune": "torchtune",
    "fsdp": "accelerate",
    "deepspeed": "deepspeed",
}


def plan_report(document: PlanDocument, width: int) -> Iterator[RenderableType]:
    """Everything `astrarium plan` shows about its result."""
    best, listed = document.plans[0], document.listed
    used = {pool for plan in listed for pool in plan.pools}
    trains = {plan.finetune for plan in listed}
    yield header(document.workload, document.cluster, document.notes, used, trains)
    yield tables.title("Best strategies" if len(listed) > 1 else "Best strategy")
    experts = document.workload.has_experts
    yield strategies_table(listed, document.cluster, width, experts=experts)
    if document.choice is not None and (words := choice_words(document.choice)):
        yield ""
        yield tables.indented(words)
    if twins := "; ".join(filter(None, map(twins_words, listed))):
        yield ""
        yield tables.indented(f"Equal within {tables.percent(TWINS)}: {twins}.")
    yield from pipelines(listed)
    if document.compare is not None:
        from astrarium.report.plan.compare import compare_section

        yield from compare_section(document, document.compare)
    if len(document.pareto) > 1:  # otherwise there is nothing to choose, nor to import
        from astrarium.report.front.table import front_section

        yield from front_section(document, width)
    if document.sensitivity is not None:
        from astrarium.report.plan.sensitivity import sensitivity_section

        yield from sensitivity_section(document, document.sensitivity, width)
    if best.run is not None:
        from astrarium.report.plan.run import run_section

        yield tables.title(f"The run of plan {best.rank}")
        yield from run_section(best, best.run, document.cluster, width)
    yield tables.title(f"Memory of plan {best.rank}: GiB on each GPU of a stage")
    yield memory_table(best, width)
    yield tables.title(f"Where the {format_seconds(best.iteration_seconds)} of an iteration go")
    yield time_table(best, width)
    if document.search is not None:
        yield tables.title("Search")
        yield search_summary(document.search)


def prediction_report(document: PlanDocument, width: int) -> Iterator[RenderableType]:
    """One strategy: whether it fits, time, money, memory and where the time goes."""
    plan = document.plans[0]
    trains = {plan.finetune}
    yield header(document.workload, document.cluster, document.notes, trains=trains)
    yield ""
    yield verdict(plan)
    words = wording.strategy_words(plan.strategy, experts=document.workload.has_experts)
    yield tables.indented(words)
    if plan.is_mixed:
        yield tables.indented(f"pipeline: {wording.pipeline_words(plan)}")
    yield tables.indented(f"switched on: {wording.switches_words(plan.strategy)}")
    yield ""
    yield tables.indented(results_table(document.plans, width - 2))
    yield tables.title("Memory: GiB on each GPU of a stage")
    yield memory_table(plan, width)
    yield tables.title(f"Where the {format_seconds(plan.iteration_seconds)} of an iteration go")
    yield time_table(plan, width)


def header(
    workload: WorkloadPart,
    cluster: ClusterPart,
    notes: Sequence[str] = (),
    used: Collection[str] = (),
    trains: Collection[str | None] = (),
) -> RenderableType:
    """Model, training, cluster and price, with what the user's names stand for.

    Of very many pools only those in use are described. `trains`: `finetune` of the plans shown.
    """
    return tables.labelled(facts(workload, cluster, notes, used, trains), style="dim")


def facts(
    workload: WorkloadPart,
    cluster: ClusterPart,
    notes: Sequence[str],
    used: Collection[str],
    trains: Collection[str | None] = (),
) -> Iterator[tuple[str, str]]:
    """The lines of the header: what each is about, and its text."""
    active = ""
    if workload.active_parameters != workload.parameters:
        active = f" ({format_count(workload.active_parameters)} active)"
    yield (
        "model",
        f"{workload.model}: {format_count(workload.parameters)} parameters{active},"
        f" {workload.layers} layers{_prediction_words(workload.mtp_layers)}",
    )
    tokens = "" if workload.tokens is None else f"; {format_count(workload.tokens)} tokens in all"
    reduced = ", gradients and moments in bf16 instead of fp32 (--numerics reduced)"
    states = "" if workload.numerics == "strict" else reduced
    factor = workload.expert_imbalance
    uneven = f", {factor:g} times the mean load on the busiest experts" if factor > 1 else ""
    uneven += EXPERT_MESSAGES.get(workload.expert_messages, "")
    optimizer = "Adam" if workload.optimizer == "adamw" else f"optimizer {workload.optimizer}"
    adapters = _adapters_words(workload, set(trains))
    yield (
        "training",
        f"{workload.global_batch:,} {_rows_words(workload)} tokens an iteration,"
        f" {workload.precision}, {optimizer}{states}{adapters}{uneven}{tokens}",
    )
    pools = cluster.pools
    if used and len(pools) > MANY_POOLS:
        yield "clusters", _many_words(pools)
        pools = tuple(pool for pool in pools if pool.name in used)
    for pool in pools:
        yield "cluster", pool_words(pool)
        yield "price", price_words(pool)
    for note in notes:
        yield "note", note


def _rows_words(workload: WorkloadPart) -> str:
    """The unit of a batch, and its length."""
    length = f"{workload.seq_length:,}"
    if workload.reference is not None and workload.lengths is None:
        return f"sequences (pairs) of {length}"
    if workload.lengths is None:
        return f"sequences of {length}"
    return f"packed rows of {length}" if workload.packed else f"sequences of up to {length}"


def _prediction_words(layers: int) -> str:
    """Layers that predict further tokens."""
    if not layers:
        return ""
    each = "the last predicts" if layers == 1 else f"the last {layers} predict"
    return f", of which {each} a further token (MTP)"


def _adapters_words(workload: WorkloadPart, trains: Collection[str | None]) -> str:
    """The adapters, named by their kind where all plans have one; "" where none has any."""
    if workload.lora_rank is None or trains == {None}:
        return ""
    kind = f"{ADAPTERS.get(next(iter(trains)), '')} ".lstrip() if len(trains) == 1 else ""
    on = ", ".join(workload.lora_modules)
    return f", {kind}adapters of rank {workload.lora_rank} on {on}"


def _many_words(pools: Sequence[PoolPart]) -> str:
    types = len({pool.gpu for pool in pools})
    clouds = list(dict.fromkeys(pool.cloud for pool in pools if pool.cloud))
    of = f" of {', '.join(clouds)}" if clouds else ""
    most = max(pool.gpus for pool in pools)
    return (
        f"{len(pools):,} offers{of}: {types} GPU types, up to {most:,} of each; here are those that"
        " the plans below use"
    )


def pool_words(pool: PoolPart) -> str:
    alias = "" if pool.gpu_as_given == pool.gpu else f' ("{pool.gpu_as_given}")'
    nodes = f"{pool.nodes:,} node{'s' if pool.nodes > 1 else ''} of {pool.gpus_per_node}"
    links = f"{pool.intra_node_link} {format_rate(pool.intra_node_bytes_per_second)} per GPU"
    if pool.nodes > 1:
        links += f", {pool.network} {format_rate(pool.inter_node_bytes_per_second)} per node"
        if pool.oversubscription > 1.0:
            part = f"1/{pool.oversubscription:g} of it"
            links += f", {part} between blocks of {pool.block_nodes:,} nodes"
    return (
        f"{pool.gpus:,} x {pool.gpu}{alias}, {tables.gib(pool.memory_bytes_per_gpu)} GiB each;"
        f" {nodes}; {links}"
    )


def price_words(pool: PoolPart) -> str:
    if pool.usd_per_gpu_hour is None:
        own = f"--price {pool.gpu_as_given}=USD, or usd_per_gpu_hour in a cluster file,"
        return f"none known for {pool.gpu}; {own} sets one"
    return f"{wording.unit_price(pool.usd_per_gpu_hour)} per GPU and hour ({pool.price_source})"


def verdict(plan: Plan) -> RenderableType:
    """Whether a strategy fits, and how surely, as a prominent line."""
    stage, lacks = plan.fullest, lacking_words(plan)
    surely = "" if plan.fit_chance is None else chance(plan.fit_chance)
    if plan.fits:
        free = f"stage {stage.stage} has {tables.gib(stage.free_bytes)} GiB to spare"
        return Text(f"FITS: {free}{surely and f' (chance {surely})'}", style="bold green")
    if plan.fit_chance is not None and plan.fit_chance > EVEN:
        why = f"such predictions are often too high, and the chance to fit is {surely}"
        return Text(f"NOT SURE whether it fits: {lacks}; {why}", style="bold yellow")
    return Text(f"DOES NOT FIT: {lacks}{surely and f' (chance to fit {surely})'}", "bold red")


def lacking_words(plan: Plan) -> str:
    """By how much the fullest stage does not fit."""
    stage = plan.fullest
    needs, has, lacks = map(tables.gib, (stage.peak_bytes, stage.capacity_bytes, -stage.free_bytes))
    return f"stage {stage.stage} needs {needs} of {has} GiB on {stage.gpu}, {lacks} too much"


def strategies_table(
    plans: Sequence[Plan], cluster: ClusterPart, width: int, *, experts: bool = False
) -> RenderableType:
    """The plans: their choices and results, in one table if the width allows."""
    rank = tables.Field("#", [str(plan.rank) for plan in plans], right=True)
    what, gives = choices(plans, cluster, experts), results(plans)
    together = [rank, *what, *gives]
    if tables.fits(together, width, tables.GAP):
        return _tables([together])
    # The columns that distinguish plans come first in each part of the table.
    key = [rank, *(field for field in what if field.head in KEY_HEADS)]
    others = [field for field in what if field.head not in KEY_HEADS]
    return _tables([*_packed(key, others, width), *_packed([rank], gives, width)])


def pipelines(plans: Sequence[Plan]) -> Iterator[RenderableType]:
    """The order of GPU types along the pipelines that have several, with the layers of stages."""
    mixed = [plan for plan in plans if plan.is_mixed]
    if not mixed:
        return
    yield tables.title("Pipelines: GPUs in order, and the layers of their stages")
    yield tables.labelled(
        [(str(plan.rank), wording.pipeline_words(plan)) for plan in mixed], right=True
    )


def results_table(plans: Sequence[Plan], width: int) -> RenderableType:
    return _tables(_packed([], results(plans), width))


def _tables(groups: Sequence[Sequence[tables.Field]]) -> RenderableType:
    """Tables below each other; of several plans the first is in bold."""
    parts: list[RenderableType] = []
    for fields in groups:
        rows = len(fields[0].cells)
        parts += [tables.table(fields, styles=["bold"] * (rows > 1) + [""] * (rows - 1)), ""]
    return Group(*parts[:-1])


def _packed(
    first: Sequence[tables.Field], fields: Sequence[tables.Field], width: int
) -> list[list[tables.Field]]:
    """Fields in as few groups as the width allows, even ones; each begins with `first`."""
    groups = _filled(first, fields, width)
    while len(groups) > 1:
        widest = max(tables.width_of(group, tables.GAP) for group in groups)
        if widest > width or len(narrower := _filled(first, fields, widest - 1)) > len(groups):
            break
        groups = narrower
    return groups


def _filled(
    first: Sequence[tables.Field], fields: Sequence[tables.Field], width: int
) -> list[list[tables.Field]]:
    groups = [[*first]]
    for field in fields:
        if len(groups[-1]) > len(first) and not tables.fits(
            [*groups[-1], field], width, tables.GAP
        ):
            groups.append([*first])
        groups[-1].append(field)
    return groups


def choices(plans: Sequence[Plan], cluster: ClusterPart, experts: bool) -> list[tables.Field]:
    """Choices of a plan; GPUs only where they differ, etp for all models with experts."""

    def of(head: str, text: Callable[[Plan], str], *, prose: bool = False) -> tables.Field:
        return tables.Field(head, [text(plan) for plan in plans], right=not prose, prose=prose)

    fields = [
        of("tp", lambda p: str(p.strategy.tp)),
        of("pp", lambda p: str(p.strategy.pp)),
        of("vpp", lambda p: str(p.strategy.virtual_stages)),
        of("cp", lambda p: str(p.strategy.cp)),
        of("ep", lambda p: str(p.strategy.ep)),
        of("dp", lambda p: f"{p.strategy.dp:,}"),
        of("micro", lambda p: str(p.strategy.micro_batch)),
        of("recompute", lambda p: wording.recompute_words(p.strategy.recompute), prose=True),
        of("ZeRO", lambda p: wording.zero_words(p.strategy)),
    ]
    if experts or any(plan.strategy.etp > 1 for plan in plans):
        fields.insert(5, of("etp", lambda p: str(p.strategy.etp)))
    if len({plan.runtimes for plan in plans}) > 1:
        fields.insert(0, of("runtime", lambda p: ", ".join(p.runtimes), prose=True))
    if len({plan.finetune for plan in plans}) > 1:
        fields.insert(0, of("trains", lambda p: p.finetune or "full", prose=True))
    if len({plan.precision for plan in plans}) > 1:
        fields.append(of("format", lambda p: p.precision or ""))
    if any(plan.is_mixed for plan in plans):
        types = wording.short_types(pool.gpu for pool in cluster.pools)
        return [of("GPUs", lambda p: wording.gpus_words(p.gpus, types), prose=True), *fields]
    if any(plan.num_gpus != cluster.gpus for plan in plans):
        fields.insert(0, of("GPUs", lambda p: f"{p.num_gpus:,}"))
    if len(cluster.pools) > 1:
        fields.insert(0, of("type", lambda p: ", ".join(p.gpus), prose=True))
    clouds = {pool.name: pool.cloud for pool in cluster.pools if pool.cloud}
    if len(set(clouds.values())) > 1:
        fields.insert(0, of("cloud", lambda p: ", ".join(clouds[n] for n in p.pools)))
    return fields


def results(plans: Sequence[Plan]) -> list[tables.Field]:
    """Figures of a plan; the run's length and price only where tokens were stated."""
    texts: dict[str, Callable[[Plan], str]] = {
        "iteration": lambda p: format_seconds(p.iteration_seconds),
        "likely": lambda p: tables.interval(p.interval_seconds, p.iteration_seconds),
        "tokens/s": lambda p: format_count(p.tokens_per_second),
        "MFU": lambda p: tables.percent(p.mfu),
        "GiB, fits": _peak,
        "$/h": lambda p: tables.dollars(p.usd_per_hour),
    }
    if all(plan.train_seconds is not None for plan in plans):
        is_long = any((plan.train_seconds or 0) >= DAY for plan in plans)
        head, unit, digits = ("days", DAY, 1) if is_long else ("hours", HOUR, 2)
        texts[head] = lambda p: f"{(p.train_seconds or 0) / unit:,.{digits}f}"
        texts["in all"] = lambda p: tables.dollars(p.usd_total)
    return [
        tables.Field(head, [text(p) for p in plans], right=True) for head, text in texts.items()
    ]


def choice_words(choice: ChoicePart) -> str:
    """The reason why the first plan is recommended, and its cost; "" if there is none."""
    slower = tables.percent(choice.slower)
    if not choice.why or (choice.fastest is None and slower == tables.percent(0.0)):
        return ""
    fastest = "the fastest" if choice.fastest is None else f"plan {choice.fastest}, the fastest"
    return (
        f"Plan {choice.recommended} is recommended: {', '.join(choice.why)}. Predicted"
        f" {slower} slower than {fastest}, which is too little to tell them apart"
        f" (the odds are {100 * choice.chance:.0f} to {100 * (1 - choice.chance):.0f})."
    )


def twins_words(plan: Plan) -> str:
    """The settings that could differ without changing the time of a plan; "" if there are none."""
    virtual = {twin.virtual_stages for twin in plan.twins if twin.cp == plan.strategy.cp}
    parts = []
    if virtual:
        virtual.add(plan.strategy.virtual_stages)
        parts.append(f"with {min(virtual)} to {max(virtual)} virtual stages")
    others = {twin.cp: twin for twin in plan.twins if twin.cp != plan.strategy.cp}
    parts += [
        f"with cp {twin.cp}, dp {twin.dp:,}, micro-batch {twin.micro_batch}"
        for twin in others.values()
    ]
    return f"plan {plan.rank} {' or '.join(parts)}" if parts else ""


def chance(share: float) -> str:
    """A chance in whole per cent; 0 and 100 % are never shown."""
    if share < 1 - CERTAIN:
        return "<1 %"
    return ">99 %" if share > CERTAIN else f"{100 * share:.0f} %"


def _peak(plan: Plan) -> str:
    """The fullest stage, and the chance that all stages fit."""
    stage = plan.fullest
    if plan.fit_chance is None:
        return f"{tables.gib(stage.peak_bytes)}/{tables.gib(stage.capacity_bytes)}"
    return f"{tables.gib(stage.peak_bytes)} {chance(plan.fit_chance)}"


def time_table(plan: Plan, width: int) -> RenderableType:
    """The causes of an iteration's time, largest first; small ones summed up."""
    total = plan.iteration_seconds
    ranked = sorted(plan.breakdown_seconds.items(), key=lambda item: -item[1])
    large = [(wording.time_cause(key).title, s) for key, s in ranked if s / total >= SMALL_SHARE]
    rest = [(wording.time_cause(key).title, s) for key, s in ranked if 0 < s / total < SMALL_SHARE]
    if len(rest) > 1:
        rest = [(f"{len(rest)} smaller causes", sum(seconds for _, seconds in rest))]
    rest = [(name, seconds) for name, seconds in rest if seconds / total >= NOTHING]
    return tables.shares_table([*large, *rest], total, 40 if width >= FULL_NAMES else 20)


def search_summary(search: SearchPart) -> RenderableType:
    """The size of the space, and why strategies were rejected."""
    rows = [(f"    {count:,}", wording.rejection(key)) for key, count in search.rejected.items()]
    below = map(tables.indented, reasons(search))
    return Group(tables.indented(search_words(search)), tables.labelled(rows, right=True), *below)


def search_words(search: SearchPart) -> str:
    """The number of strategies considered, and whether the best is proved optimal."""
    proof = "proved optimal under the cost model"
    if not search.optimal:
        gap = tables.percent(max(search.bound_gap, LEAST_GAP))
        proof = f"not proved optimal: at most {gap} from the best"
    aside = f"; not searched: {search.left_out}" if search.left_out else ""
    return (
        f"{search.space:,} strategies considered in {format_seconds(search.seconds)},"
        f" {search.evaluated:,} priced; {proof}{aside}"
    )


def reasons(search: SearchPart) -> Iterator[str]:
    """A line on the rules that dropped most, where any did."""
    if not search.reasons:
        return
    ranked = sorted(search.reasons.items(), key=lambda item: -item[1])
    shown = [f"{wording.rule_words(rule)} {count:,}" for rule, count in ranked[:REASONS_SHOWN]]
    more = len(ranked) - len(shown)
    others = f", and {more} more rule{'s' if more > 1 else ''}" if more > 0 else ""
    yield f"rules that dropped most: {', '.join(shown)}{others}"


def next_steps(
    arguments: Sequence[str],
    written: Path | None,
    width: int,
    *,
    runtimes: Sequence[str] = ("megatron",),
    files: Sequence[str] = (),
) -> Iterator[RenderableType]:
    """Commands to keep, explain and export the best plan; `files` have been written."""
    folder = "DIR" if written is None else str(written.parent)
    yield tables.title(
        f"Keep{', explain and export' if runtimes else ' and explain'} the best plan"
    )
    for file in files:
        yield Text(f"  {file} is written", style="dim")
    if written is None:
        yield copyable(["astrarium", *arguments, "--out", folder], width)
    else:
        yield Text(f"  {written} is written", style="dim")
    plan = f"{folder}/plan.json" if written is None else str(written)
    yield copyable(["astrarium", "explain", plan], width)
    for runtime in runtimes[:1]:
        target = EXPORTED_TO.get(runtime, "megatron")
        to = ["--to", target, "--out", f"{folder}/{target}"]
        yield copyable(["astrarium", "export", plan, *to], width)


def copyable(words: Sequence[str], width: int) -> Text:
    """A command that can be copied, broken with backslashes where the line ends."""
    lines = ["  "]
    for word in (shlex.quote(word) for word in words):
        if len(lines[-1]) + len(word) + len(" \\") > width and lines[-1].strip():
            lines[-1] += "\\"
            lines.append("      ")
        lines[-1] += word + " "
    return Text("\n".join(lines), style="cyan", no_wrap=True, overflow="ignore")
