"""Names and sentences for causes of time and memory, for options and rejections.

Every cause of the cost model has an entry here; a test checks it. Documents of other versions may
hold other causes, which are shown by their key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from astrarium.plans.document import Plan
from astrarium.strategy.types import (
    Granularity,
    Method,
    Reach,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)
from astrarium.value import Value

SHORTEST_RUN = 3  # equal numbers in a row that are written once, with their count
PRICE_DECIMALS = 5  # as many as the catalog's medians have


class TimeKind(StrEnum):
    """The kind of work or waiting in a part of the iteration."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    WAITING = "waiting"


class TimeCause(Value, frozen=True):
    """A part of the iteration: its name, what it covers, and what would make it smaller.

    `switch` names the overlap that hides it; it is advised only where it is off.
    """

    title: str
    meaning: str
    kind: TimeKind
    remedy: str = ""
    switch: str = ""


class ReportTexts(Value, frozen=True):
    """The texts of `data/words.json`; names are followed by meanings."""

    time: dict[str, TimeCause]
    memory: dict[str, tuple[str, str]]
    rejections: dict[str, str]
    losses: dict[str, tuple[str, str]]  # why an iteration is slower than on the ideal machine
    run: dict[str, str]
    program: dict[str, tuple[str, str]]
    host: dict[str, str]  # seconds that `calibrate` measured
    modules: dict[RecomputeModule, str]
    # Columns of tables of groups: head, figure of `Metrics`, its format, and what goes first.
    validation_time: list[tuple[str, str, str, int]]
    validation_memory: list[tuple[str, str, str, int]]
    validation_sweeps: list[tuple[str, str, str, int]]


WORDS = msgspec.json.decode(
    (Path(__file__).parent / "data" / "words.json").read_bytes(), type=ReportTexts
)


def time_cause(key: str) -> TimeCause:
    return WORDS.time.get(key, TimeCause(key.replace("_", " "), "", TimeKind.WAITING))


def remedy(key: str, strategy: Strategy) -> str:
    """A remedy for a cause, beyond what the strategy already does; "" if there is none."""
    cause = time_cause(key)
    if not cause.switch or getattr(strategy.overlap, cause.switch):
        return cause.remedy
    return f"{cause.remedy}, or overlap_{cause.switch}"


def rejection(key: str) -> str:
    return WORDS.rejections.get(key, key)


def rule_words(key: str) -> str:
    """A rule's name as words; a rule of the user is shown as written."""
    return key.replace("_", " ") if key.replace("_", "").isalnum() else key


def recompute_words(recompute: Recompute) -> str:
    if recompute.granularity is Granularity.NONE:
        return "none"
    if recompute.granularity is Granularity.SELECTIVE:
        return ", ".join(WORDS.modules.get(module, module.value) for module in recompute.modules)
    if recompute.method is Method.BLOCK:
        plural = "" if recompute.layers == 1 else "s"
        return f"{recompute.layers} layer{plural} per chunk"
    if recompute.layers > 1:
        return f"all, in groups of {recompute.layers}"
    return "all layers"


def unit_price(amount: float | None) -> str:
    """The price of one GPU, unrounded: it is a factor of other figures."""
    if amount is None:
        return "-"
    whole, _, digits = f"{amount:,.{PRICE_DECIMALS}f}".partition(".")
    return f"${whole}.{digits.rstrip('0'):0<2}"


def zero_words(strategy: Strategy) -> str:
    groups = f" in {strategy.shard_groups} groups" if strategy.shard_groups > 1 else ""
    return f"{strategy.zero_stage}{groups}{' + host' if strategy.offload_optimizer else ''}"


def strategy_words(strategy: Strategy, *, experts: bool = False) -> str:
    """A strategy in one line, without degrees of 1, except ep and etp with experts."""
    names = {
        "tp": strategy.tp,
        "pp": strategy.pp,
        "vpp": strategy.virtual_stages,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "etp": strategy.etp,
        "dp": strategy.dp,
    }
    always = ("ep", "etp") if experts else ()
    degrees = [f"{name} {n}" for name, n in names.items() if n > 1 or name in always]
    parts = [
        *degrees,
        f"micro-batch {strategy.micro_batch} x {strategy.num_micro_batches}",
        f"ZeRO {zero_words(strategy)}",
        f"recompute {recompute_words(strategy.recompute)}",
    ]
    return ", ".join(parts)


# A name ends with its first number; what follows are words.
_WORDS_OF_TYPE: Final = re.compile(r"^((?:[A-Za-z]+-)*\w*\d\w*)(?=-|$)|-")


def short_types(names: Iterable[str]) -> dict[str, str]:
    """GPU types by the fewest words that distinguish them: H100, RTX-4090, A100-40GB."""
    whole = {name: [word for word in _WORDS_OF_TYPE.split(name) if word] for name in names}
    short: dict[str, str] = {}
    for name, (first, *rest) in whole.items():
        kin = [words for words in whole.values() if words[0] == first]
        telling = [word for word in rest if not all(word in words for words in kin)]
        short[name] = "-".join([first, *telling])
    return short if len(set(short.values())) == len(short) else {name: name for name in whole}


def gpus_words(gpus: Mapping[str, int], short: Mapping[str, str]) -> str:
    """GPUs by type: 8 H100 + 16 A100."""
    return " + ".join(f"{count:,} {short.get(name, name)}" for name, count in gpus.items())


def pipeline_words(plan: Plan) -> str:
    """The GPU types along the pipeline with the layers of their stages, in model order.

    Such as: 2 stages H100 [0-8, 9-17], 4 stages A100 [18-25 by 4, 26-31 by 3]
    """
    strategy, short = plan.strategy, short_types(plan.gpus)
    ranks = sorted((s for s in strategy.stages if s.chunk == 0), key=lambda s: s.pipeline_rank)
    parts = []
    for gpus, run in groupby(ranks, key=lambda stage: _types_words(plan, stage, short)):
        stages = list(run)
        held = (
            _ranges_words([stage.layers for stage in stages])
            if strategy.virtual_stages == 1
            else _held_words(plan, [stage.pipeline_rank for stage in stages])
        )
        plural = "" if len(stages) == 1 else "s"
        parts.append(f"{len(stages)} stage{plural} {gpus} [{held}]")
    return ", ".join(parts)


def _types_words(plan: Plan, stage: Stage, short: Mapping[str, str]) -> str:
    """The GPUs of a stage: their type, or their pool where that says more."""
    if len(stage.pools) < 2:
        named = len(plan.pools) > len(plan.gpus)
        return next(iter(stage.pools)) if named else short.get(stage.gpu, stage.gpu)
    return "over " + " and ".join(f"{count:,} of {name}" for name, count in stage.pools.items())


def _ranges_words(ranges: Sequence[tuple[int, int]]) -> str:
    """Runs of layers, the last included; equal ones in a row joined: none, 0-8, 9-20 by 4."""
    shown = []
    for count, run in groupby(ranges, key=lambda layers: layers[1] - layers[0]):
        several = list(run)
        if not count:
            shown += ["none" if len(several) == 1 else f"none x {len(several)}"]
        elif len(several) >= SHORTEST_RUN:
            shown.append(f"{several[0][0]}-{several[-1][1] - 1} by {count}")
        else:
            shown += [f"{first}-{last - 1}" if count > 1 else f"{first}" for first, last in several]
    return ", ".join(shown)


def _held_words(plan: Plan, ranks: Sequence[int]) -> str:
    layers = layers_of_stages(plan)
    counts = [layers[rank] for rank in ranks]
    return f"{runs_words(counts)} layers in {plan.strategy.virtual_stages} parts each"


def stage_gpus(plan: Plan) -> dict[int, str]:
    """The GPU type of every pipeline rank, in short; the pools of one that lies on several."""
    types, pools = short_types(plan.gpus), short_types(plan.pools)
    return {
        stage.pipeline_rank: types.get(stage.gpu, stage.gpu)
        if len(stage.pools) < 2
        else "+".join(pools[name] for name in stage.pools)
        for stage in plan.strategy.stages
    }


def layers_of_stages(plan: Plan) -> dict[int, int]:
    """The number of layers on each pipeline rank, over all its chunks."""
    layers: dict[int, int] = {}
    for stage in plan.strategy.stages:
        first, last = stage.layers
        layers[stage.pipeline_rank] = layers.get(stage.pipeline_rank, 0) + last - first
    return layers


LINKS: Mapping[Reach, str] = {
    Reach.NOWHERE: "",
    Reach.DOMAIN: "inside a domain",
    Reach.NODES: "between nodes",
    Reach.POOLS: "between pools",
}


def link_words(link: Reach, pools: Sequence[str]) -> str:
    """The link of a transfer: between fast and slow."""
    if link is Reach.NODES:
        return f"between nodes of {pools[0]}"
    if link is Reach.POOLS:
        return f"between {' and '.join(pools)}"
    return LINKS[link]


def layers_words(strategy: Strategy) -> str:
    """The numbers of layers of the stages in model order; "" if all are equal."""
    counts = layer_counts(strategy)
    if len(set(counts)) < 2:
        return ""
    each = f", {strategy.virtual_stages} on a rank" if strategy.virtual_stages > 1 else ""
    return f"layers of the {len(counts)} stages in model order{each}: {runs_words(counts)}"


def layer_counts(strategy: Strategy) -> list[int]:
    """Layers of every stage, virtual ones by themselves, in model order."""
    return [last - first for first, last in sorted(stage.layers for stage in strategy.stages)]


def runs_words(numbers: Sequence[int]) -> str:
    """Numbers with runs of three and more joined: 1, 2 x 29, 1, 1."""
    runs = [(number, len(list(run))) for number, run in groupby(numbers)]
    return ", ".join(
        f"{number} x {length}" if length >= SHORTEST_RUN else ", ".join([str(number)] * length)
        for number, length in runs
    )


def switches_words(strategy: Strategy) -> str:
    switches = {
        "sequence parallel": strategy.sequence_parallel,
        "stages of a replica side by side": strategy.pipeline_inside,
        "gradient reduction overlapped": strategy.overlap.grad_reduce,
        "parameter gather overlapped": strategy.overlap.param_gather,
        "pipeline messages overlapped": strategy.overlap.p2p,
        "tensor-parallel messages overlapped": strategy.overlap.tp,
        "optimizer in host memory": strategy.offload_optimizer,
    }
    return ", ".join(name for name, on in switches.items() if on) or "none"
