"""Our search against people who tuned their runs by hand: part of docs/accuracy.md.

For every published strategy of the tables that experts chose, the same workload is searched on the
same GPUs under the same runtime. Where the runtime is that of 2021, the search may use only what
that software could do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from page import strategy_text, table
from recipes import Change, release
from recipes import changes as recipe_changes

from astrarium.cluster import Cluster
from astrarium.cost.layouts import CostModel
from astrarium.report.wording import time_cause
from astrarium.search.outcome import DEFAULT_FIT_CHANCE, KeptFree, Limits, Objective
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import with_margin
from astrarium.search.recommended import (
    NEAR_TIE_CHANCE,
    RECOMMENDED_CHANCE,
    chance,
    unmeasured,
)
from astrarium.search.rules import overlaps_named, user_rules
from astrarium.search.single.engine import Search
from astrarium.search.space import Space
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules
from astrarium.validate.metrics import Scoring, time_scores
from astrarium.validate.predictions import Prediction
from astrarium.validate.scenario import Scenario

SOURCES = ("Megatron-SC21", "Megatron-Core-r", "Megatron-Bridge", "NeMo")
RUNS = "-run"  # how sources of runs end that no constant was fitted to
LISTED = 20  # plans that are searched for, to find the expert's rank among them
MUCH_BETTER = 1.15
EARLIER, EARLIER_CHANCE = 1.03, 2 / 3  # what ended the near-tie before 2026-11-19
EVEN = 0.5  # the chance that one of two plans is faster if ours is no faster than the expert's
ROOM = KeptFree(DEFAULT_FIT_CHANCE)  # as `astrarium plan` leaves it
ASSUMED = r"taken for|assumed|derived"  # in notes, of what the source does not state
CAUSES_SHOWN = 3
GIB = 2**30
SMALL_GAIN = 0.01  # of an iteration; causes below it are not worth a word
# What `astrarium plan` does not recommend, as nobody measured it.
NOT_MEASURED = ("$offload_optimizer", "$zero_stage == 3 && $experts > 0")
# What Megatron-LM could not do in 2024 (Megatron-Core 0.8, NeMo 24.07), as rules that drop
# strategies.
OF_2024 = (
    "$zero_stage > 1",
    "$split != 'even'",
    "$recompute_granularity == 'selective' && $recompute_modules != 'core_attn'",
)
IN_2024 = r"Megatron-Core-r|NeMo|Nemotron|Falcon"
# What it could not do in January 2023, when MegaScale's authors took their baseline (285068c8).
OF_2023 = (
    *OF_2024,
    "$cp > 1",
    "$overlap_grad_reduce",
    "$overlap_param_gather",
    "$overlap_tp",
    "$overlap_p2p",
)
IN_2023 = r"MegaScale"
# What it could not do in 2021.
OF_2021 = (
    *OF_2023,
    "$sequence_parallel",
    "$zero_stage > 0",
    "$offload_optimizer",
    "$recompute_granularity == 'selective'",
    "$recompute_method == 'block'",
)
# Of studies that recompute throughout, and count that work as throughput (SC'21, section 5.1).
RECOMPUTED = ("$recompute_granularity != 'full'",)
ALWAYS_RECOMPUTED = "Megatron-SC21"
# What an expert's software would have had to do otherwise, by the cause of time that it saves.
TRAFFIC = {
    "tp_communication": "less tensor parallelism",
    "cp_communication": "fewer ranks share a sequence",
    "gradient_reduction": "fewer replicas, or smaller parts, exchange gradients",
    "parameter_gather": "fewer replicas, or smaller parts, exchange weights",
    "zero_communication": "weights gathered less often",
    "optimizer": "fewer parameters on a rank",
}

TEXT = """## Against experts

Strategies that people chose by hand and ran, and what the search would choose for the same model,
batch and GPUs, with what their software could do: no uneven stages, no ZeRO 2 or 3 and no
recomputation of single modules before 2025, no overlap and no context parallelism in January 2023
(MegaScale's baseline), and in 2021 none of sequence parallelism and ZeRO either. Megatron-LM's
study of 2021 recomputes all layers and counts that as throughput (arXiv 2104.04473, section 5.1,
equation 3), so plans beside it do, too. *Rank*:
how many strategies are predicted to be faster than the expert's, plus one; "tied" if the fastest
of them [cannot be told](commands.md#recommended-and-fastest) from the expert's. *Claimed*:
predicted throughput of our fastest plan over the predicted throughput of the expert's strategy,
which takes the error of the prediction out of the comparison as far as both share it. *By*: what
ours does otherwise, by the cause of time that saves most. A star marks experts' strategies that are
predicted not to fit: they use what is not modelled (offload of activations, weights or activations
kept in 8 bits, tensors freed early). *In*: the measured time lies in the predicted interval.
Sources that end with "-run" are runs of large models
([table](../benchmarks/accuracy/large_runs.csv)); no constant was fitted to them. Plans that do what
[nobody has measured](commands.md#recommended-and-fastest) are left out, as they are not
recommended, and so are plans whose chance to fit is below 95 %. A dagger marks rows with a choice
that the source does not state (a micro-batch, recomputation) and that was assumed: they do not
count in the near-tie.
"""

SUMMARY = """Of {runs} configurations that ran, {fit} are predicted to fit; of {timed} with a
time, {inside} lie in their interval. Of {stated} whose choices are all stated, **{tied} are in the
near-tie of ours** ({share:.0f} %, goal 80 %): the 80 % interval of the predicted ratio holds 1. If
all of them were as fast as ours, about four of five would be. In {surely} the odds that ours is
really faster are below 3 to 1. By the narrower near-tie of earlier versions, with odds below 2 to 1
and at most 3 % between them, it is {strictly}. {near} are predicted within 5 % of ours, {close}
within 10 %, {much} more than {claim:.0f} % slower
([each with what explains it](#where-ours-claims-more-than-15-)). What ours do otherwise where they
are outside the near-tie:

{classes}

The error of predicted ratios comes from sweeps and, where no sweep varies a thing (experts, hosts,
ZeRO 3), from recipes that their authors changed (second table). Experts' choices are good, not
optimal. Their own later recipes gained by the same means as ours: larger micro-batches (Qwen3-235B
on B300 +84 %), experts inside a node (GPT-OSS on B200 and B300 +71 and +80 %), a shorter pipeline
with fewer experts' ranks (DeepSeek-V3 on GB300 +17 %). Recipes in the source of Megatron-Bridge
that have no published time yet go the same way: DeepSeek-V3 on B300 with 8 stages in place of 16,
Qwen3-235B on 64 GB200 and GB300 without tensor parallelism, on GB200 with ep 8 in place of 64.
"""

CHANGED = """### Recipes that their authors changed

NVIDIA's recipes for the same model, GPUs and number format, in two releases with different
strategies. Measured is the gain in tokens per second that both releases print, which contains what
the software gained in between. {right} of {all} changes are predicted in the right direction; the
median of measured gains is {measured:.0f} %, of predicted ones {predicted:.0f} %.
"""

CLAIMS = """What changes most, in seconds of an iteration, and what was measured of the mechanism.
Nobody measured our plans themselves. Rows with a dagger are left out: their claims are beside an
assumption of ours. Of {explained} of the {all} mechanisms something was measured.
"""
# What was measured of the mechanism behind a claim, by model, GPUs, type and number format.
EVIDENCE: Final[dict[tuple[str, int | None, str, str], str]] = {
    ("GPT 18.4B", 256, "A100-80GB", "fp16"): "in the near-tie, whose errors of tensor parallelism"
    " come from sweeps over tp",
    ("GPT OSS 120B", 64, "B200", "BF16"): "its authors changed this recipe to EP 8: +71 %",
    ("Qwen3_235B_a22B", 256, "H100-80GB", "FP8-CS"): "experts inside a node gained GPT-OSS 71 and"
    " 80 % on B200 and B300; the chance is that of a near-tie",
    ("Nemotron-22B", 64, "H100-80GB", "FP8"): "its head weighs as much as three layers, six in 16"
    " bits. GPT3-20B of the same table runs without a pipeline, tp 2 and dp 32, as ours, at 736"
    " TFLOP/s a GPU, Nemotron-22B with its pipeline at 536: +37 %",
    ("Qwen3_235B_a22B", 64, "GB300", "FP8-MX"): "its authors' later recipe has neither tp nor"
    " micro-batches of 1; a pipeline and fewer ranks of experts gained DeepSeek-V3 17 % on GB300",
    ("LLAMA3_70B", 64, "GB200", "NVFP4"): "in the near-tie; its authors' recipe for 8 bits on these"
    " GPUs is ours",
    (
        "DeepSeekV3",
        256,
        "B300",
        "FP8-MX",
    ): "its authors' later recipe has 8 stages; micro-batches"
    " of 2 in place of 1 gained Qwen3-235B 84 % there",
    ("Qwen3_235B_a22B", 256, "B200", "FP8-MX"): "micro-batches of 2 in place of 1 gained it 84 % on"
    " B300",
    ("Qwen3_30B_a3B", 16, "H100-80GB", "FP8-CS"): "with micro-batches of 2 it ran 16 % faster"
    " (25.09); the rest is an error, as with 1 it is predicted 13 % too slow",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One expert's strategy, measured and predicted, and our first plan."""

    prediction: Prediction
    measured: float | None
    faster: int  # plans predicted to be faster
    first: Plan | None  # the fastest

    @property
    def fits(self) -> bool:
        assert self.prediction.plan is not None
        return self.prediction.plan.fits

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        plan = self.prediction.plan
        assert plan is not None
        low, high = plan.interval_seconds
        return self.measured is not None and low <= self.measured <= high

    @property
    def tied(self) -> bool:
        """Whether our fastest plan cannot be told from the expert's."""
        return self.chance < NEAR_TIE_CHANCE

    @property
    def chance(self) -> float:
        """The chance that our fastest plan is really faster than the expert's."""
        plan, scenario = self.prediction.plan, self.prediction.scenario
        assert plan is not None
        assert scenario is not None
        if self.faster == 0 or self.first is None:
            return EVEN
        experts = scenario.workload.model.max_experts > 0
        return chance(self.first, plan, experts=experts)

    @property
    def is_stated(self) -> bool:
        """Whether the source states all choices of the expert."""
        return not re.search(ASSUMED, self.prediction.row.notes)

    @property
    def saved(self) -> dict[str, float]:
        """Seconds that our plan takes less than the expert's, by cause."""
        plan, first = self.prediction.plan, self.first
        assert plan is not None
        assert first is not None
        ours = first.breakdown_seconds
        return {cause: seconds - ours[cause] for cause, seconds in plan.breakdown_seconds.items()}

    @property
    def mechanism(self) -> str:
        """What our plan does otherwise, by the cause of time that saves most."""
        plan, first, saved = self.prediction.plan, self.first, self.saved
        assert plan is not None
        assert first is not None
        cause = max(saved, key=saved.__getitem__)
        return _mechanism(plan.strategy, first.strategy, cause)

    @property
    def evidence(self) -> str | None:
        """What was measured of the mechanism."""
        row = self.prediction.row
        return EVIDENCE.get((row.model, row.num_gpus, row.gpu, row.precision))

    @property
    def claimed(self) -> float:
        """Throughput of our first plan over that of the expert's strategy, both predicted."""
        assert self.prediction.plan is not None
        if self.first is None:
            return 1.0
        return self.prediction.plan.iteration_seconds / self.first.iteration_seconds


def experts_part(predictions: Sequence[Prediction]) -> str:
    """The section of the page."""
    compared = [_compare(*case) for case in _cases(predictions)]
    timed = [one for one in compared if one.measured is not None]
    stated = [one for one in compared if one.is_stated]
    claims = [one for one in stated if one.claimed > MUCH_BETTER and one.first is not None]
    percent = 100 * (MUCH_BETTER - 1)
    summary = SUMMARY.format(
        runs=len(compared),
        fit=sum(one.fits for one in compared),
        timed=len(timed),
        inside=sum(one.inside for one in timed),
        stated=len(stated),
        tied=sum(one.tied for one in stated),
        share=100 * sum(one.tied for one in stated) / len(stated),
        surely=sum(one.chance < RECOMMENDED_CHANCE for one in stated),
        strictly=sum(one.chance < EARLIER_CHANCE and one.claimed <= EARLIER for one in stated),
        near=sum(one.claimed <= 1.05 for one in stated),
        close=sum(one.claimed <= 1.1 for one in stated),
        classes="\n".join(_classes(compared)),
        much=sum(one.claimed > MUCH_BETTER for one in stated),
        claim=percent,
    )
    lines = [TEXT, summary, *_table(compared), *_changed_part(predictions)]
    if claims:
        title = f"### Where ours claims more than {percent:.0f} %\n"
        explained = sum(one.evidence is not None for one in claims)
        lines += [title, CLAIMS.format(explained=explained, all=len(claims)), *map(_claim, claims)]
    return "\n".join(lines) + "\n"


def _mechanism(theirs: Strategy, ours: Strategy, cause: str) -> str:
    """What saves time of this cause."""
    if cause == "recompute":
        return "activations kept that the expert computes again"
    if cause == "ep_communication":
        fewer = ours.ep < theirs.ep
        return "experts spread over fewer ranks" if fewer else "fewer tokens leave their GPU"
    if cause in ("forward", "backward", "host"):
        return _faster_passes(theirs, ours)
    if cause.startswith("pipeline"):
        return _shorter_waits(theirs, ours)
    return TRAFFIC.get(cause, "see the strategies")


def _faster_passes(theirs: Strategy, ours: Strategy) -> str:
    if ours.micro_batch / ours.cp > theirs.micro_batch / theirs.cp:
        return "larger micro-batches: larger products, fewer launches"
    if ours.pp < theirs.pp or ours.split != theirs.split:
        return "the stage with the head holds less"
    return "less tensor parallelism" if ours.tp < theirs.tp else "products of better shapes"


def _shorter_waits(theirs: Strategy, ours: Strategy) -> str:
    if ours.pp < theirs.pp:
        return "a shorter pipeline"
    more = ours.virtual_stages > theirs.virtual_stages
    return "more virtual stages" if more else "more micro-batches in the pipeline"


def _classes(compared: Sequence[Comparison]) -> list[str]:
    """What ours do otherwise where the expert's plan is outside the near-tie, with its rows."""
    outside = [one for one in compared if one.is_stated and not one.tied and one.first is not None]
    claims: dict[str, list[float]] = {}
    for one in outside:
        claims.setdefault(one.mechanism, []).append(100 * (one.claimed - 1))
    order = sorted(claims, key=lambda name: -len(claims[name]))
    return [
        f"- {len(claims[name])} times {name} (median claim {median(claims[name]):.0f} %,"
        f" largest {max(claims[name]):.0f} %)"
        for name in order
    ]


def _changed_part(predictions: Sequence[Prediction]) -> list[str]:
    changes = [one for one in recipe_changes(predictions) if not one.kept]
    right = sum((one.measured > 1) == (one.predicted > 1) for one in changes)
    text = CHANGED.format(
        right=right,
        all=len(changes),
        measured=100 * (median(one.measured for one in changes) - 1),
        predicted=100 * (median(one.predicted for one in changes) - 1),
    )
    heads = ["model", "GPUs", "before", "after", "measured", "predicted"]
    return [text, *table(heads, map(_change_cells, changes))]


def _change_cells(one: Change) -> list[str]:
    row, cells = one.before.row, []
    for prediction in (one.before, one.after):
        assert prediction.plan is not None
        assert prediction.scenario is not None
        said = strategy_text(prediction.plan, prediction.scenario)
        cells.append(f"{release(prediction)}: {said}")
    gains = [f"{100 * (gain - 1):+.0f} %" for gain in (one.measured, one.predicted)]
    return [row.model, f"{row.num_gpus} {row.gpu} {row.precision}", *cells, *gains]


def _cases(predictions: Sequence[Prediction]) -> list[tuple[Prediction, float | None]]:
    """The fastest measured strategy of every workload that experts ran, and runs without a time."""
    untimed = [
        (one, None)
        for one in predictions
        if one.row.source.endswith(RUNS) and one.plan is not None and not one.row.iter_time_s
    ]
    return [*_timed_cases(predictions), *untimed]


def _timed_cases(predictions: Sequence[Prediction]) -> list[tuple[Prediction, float]]:
    best: dict[tuple[object, ...], tuple[Prediction, float]] = {}
    for score in time_scores(predictions, Scoring.ALL):
        row, scenario = score.prediction.row, score.prediction.scenario
        assert scenario is not None
        chosen = row.source.startswith(SOURCES) or row.source.endswith(RUNS)
        if not chosen or "SFT" in row.notes:
            continue
        if "ZeRO-3" in row.framework:  # the baseline of those experts, not their choice
            continue
        work = scenario.workload
        name = row.model.partition(" (")[0].replace("_", "-").lower()
        key = (
            name,
            scenario.pool.gpu.name,
            row.num_gpus,
            row.global_batch,
            work.seq_length,
            work.precision,
            row.source.startswith("NeMo"),
        )
        if key not in best or score.measured < best[key][1]:
            best[key] = (score.prediction, score.measured)
    return list(best.values())


def _compare(prediction: Prediction, measured: float | None) -> Comparison:
    assert prediction.scenario is not None
    assert prediction.plan is not None
    scenario = prediction.scenario
    experts = scenario.workload.model.max_experts > 0
    plans = [
        plan
        for plan in _search(scenario, prediction.row.global_batch or 1, _of_then(prediction))
        if not unmeasured(plan, experts=experts)
    ]
    theirs = prediction.plan.iteration_seconds
    faster = sum(plan.iteration_seconds < theirs * (1 - 1e-9) for plan in plans)
    return Comparison(prediction, measured, faster, plans[0] if plans else None)


def _of_then(prediction: Prediction) -> tuple[str, ...]:
    """What the expert's software could not do, or the expert did not want."""
    scenario = prediction.scenario
    assert scenario is not None
    if prediction.row.source.startswith(ALWAYS_RECOMPUTED):
        return OF_2021 + RECOMPUTED
    if scenario.runtime.name == "megatron-2021":
        return OF_2021
    if re.match(IN_2023, prediction.row.source):
        return OF_2023
    return OF_2024 if re.match(IN_2024, prediction.row.source) else ()


def _search(scenario: Scenario, global_batch: int, of_then: Sequence[str]) -> tuple[Plan, ...]:
    workload = replace(scenario.workload, global_batch=global_batch)
    roomy = with_margin(workload, Cluster((scenario.pool,)), ROOM, scenario.runtime)
    (pool,) = roomy.pools
    model = CostModel(workload, pool, scenario.runtime)
    rules = user_rules((*NOT_MEASURED, *of_then))
    result = Search(
        model,
        Space(
            model.workload,
            pool,
            model.planner,
            exact=True,
            expanded_overlaps=overlaps_named(rules),
        ),
        objective=Objective.THROUGHPUT,
        runtime_rules=megatron_rules(),
        user_rules=rules,
        limits=Limits(),
        top=LISTED,
    ).run()
    return estimate(model, [found.strategy for found in result.found])


def _table(compared: Sequence[Comparison]) -> list[str]:
    heads = [
        "source",
        "model",
        "GPUs",
        "expert's strategy",
        "measured tokens/s/GPU",
        "predicted",
        "in",
        "rank",
        "our fastest plan",
        "predicted tokens/s/GPU",
        "claimed",
        "by",
    ]
    return table(heads, map(_cells, compared))


def _cells(one: Comparison) -> list[str]:
    prediction = one.prediction
    scenario, plan, row = prediction.scenario, prediction.plan, prediction.row
    assert scenario is not None
    assert plan is not None
    gpus = plan.strategy.gpus
    tokens = (row.global_batch or 1) * scenario.workload.seq_length / gpus
    rank = f"> {LISTED}" if one.faster >= LISTED else str(one.faster + 1)
    rank += ", tied" if one.tied else ""
    ours, reached = "none fits", ""
    if one.first is not None:
        ours = strategy_text(one.first, scenario)
        reached = f"{tokens / one.first.iteration_seconds:,.0f}"
    return [
        row.source,
        row.model,
        f"{gpus} {row.gpu} {scenario.workload.precision}",
        strategy_text(plan, scenario)
        + ("" if plan.fits else " *")
        + ("" if one.is_stated else " †"),
        f"{tokens / one.measured:,.0f}" if one.measured else "",
        f"{tokens / plan.iteration_seconds:,.0f}",
        ("yes" if one.inside else "no") if one.measured else "",
        rank,
        ours,
        reached,
        f"{100 * (one.claimed - 1):+.0f} %" if one.first is not None else "",
        "" if one.tied or one.first is None else one.mechanism,
    ]


def _claim(one: Comparison) -> str:
    """What our plan does differently, by what it saves and what it pays."""
    plan, first = one.prediction.plan, one.first
    assert plan is not None
    assert first is not None
    causes = one.saved
    worth = SMALL_GAIN * plan.iteration_seconds
    ordered = sorted(causes.items(), key=lambda item: -abs(item[1]))[:CAUSES_SHOWN]
    saved = [f"{time_cause(c).title} -{s:.2g} s" for c, s in ordered if s > worth]
    paid = [f"{time_cause(c).title} +{-s:.2g} s" for c, s in ordered if s < -worth]
    row = one.prediction.row
    fullest = max(first.memory, key=lambda stage: stage.peak_bytes / stage.capacity_bytes)
    full = f"{fullest.peak_bytes / GIB:.0f} of {fullest.capacity_bytes / GIB:.0f} GiB in use"
    return (
        f"- {row.model} on {plan.strategy.gpus} {row.gpu}, {100 * (one.claimed - 1):+.0f} %:"
        f" {', '.join([*saved, *paid])} of {plan.iteration_seconds:.3g} s;"
        f" {one.mechanism}, with {full}. Measured: {one.evidence or 'nothing like it'}."
    )
