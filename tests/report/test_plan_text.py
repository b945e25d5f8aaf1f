"""Text output: the key facts are there, at any width, without colours and without overflow."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from astrarium.plans.document import (
    ChoicePart,
    Plan,
    PlanDocument,
    Stage,
    StageMemory,
)
from astrarium.report.plan import text as plan_text
from astrarium.report.plan.stages import memory_table

WIDTHS = (80, 100, 120, 160)


def text(parts: Iterable[RenderableType], width: int = 80) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part)
    return stream.getvalue()


def words(shown: str) -> str:
    """The text with all blanks alike, so that line breaks do not matter."""
    return " ".join(shown.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(document: PlanDocument, width: int) -> None:
    for report in (plan_text.plan_report, plan_text.prediction_report):
        shown = text(report(document, width), width)
        assert max(map(len, shown.splitlines())) <= width
        assert "\x1b" not in shown
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "fact",
    [
        "Llama-2-70B: 68.98B parameters, 80 layers",
        '64 x H100-SXM5-80GB ("h100")',
        "8 nodes of 8",
        "$4.00 per GPU and hour (median over clouds; some catalog, 2026-08-21)",
        "--seq-length not given: 4,096 taken",
        "tp pp vpp cp ep dp micro recompute ZeRO",
        "1 4 4 2 1 1 4 1 attention 1",
        "10.0 s 9.1-11.0 s 419,430 50.0 % 80.0/80.0 $256 2.78 $711",
        "tensor-parallel communication 1.00 s 10.0 %",
        "optimizer step 10.0 ms 0.1 %",
        "1,000,000 strategies considered in 125 ms, 5,000 priced; proved optimal",
        "900,000 proved no better",
        "4,000 do not fit in memory",
        "heads by tp 80,000, $tp > 8 10,000",
    ],
)
def test_a_plan_shows(document: PlanDocument, width: int, fact: str) -> None:
    assert fact in words(text(plan_text.plan_report(document, width), width))


def test_why_the_others_fell_out_is_told_in_words(document: PlanDocument) -> None:
    assert document.search is not None
    search = replace(document.search, rejected={"slower": 5_998, "budget": 12})
    shown = words(text([plan_text.search_summary(search)]))
    assert "5,998 not as good as those listed" in shown
    assert "12 over the budget" in shown


def test_an_unproved_search_says_so(document: PlanDocument) -> None:
    assert document.search is not None
    search = replace(document.search, optimal=False, bound_gap=0.02)
    shown = words(text([plan_text.search_summary(search)]))
    assert "not proved optimal: at most 2.0 % from the best" in shown


def test_memory_stands_against_capacity(document: PlanDocument) -> None:
    shown = text([memory_table(document.plans[0], 80)])
    assert "of 80.0" in shown
    stage = next(line for line in shown.splitlines() if line.split()[:1] == ["3"])
    assert words(stage).startswith("3 20 4.0 8.0 6.0 45.0 1.0 1.0 65.0 81 %")
    assert stage.rstrip().endswith("\N{FULL BLOCK}" * 8 + "\N{LIGHT SHADE}" * 2)


def many_stages(plan: Plan, count: int) -> Plan:
    memory = tuple(
        replace(plan.memory[0], stage=i, peak_bytes=(70.0 - abs(i - 2)) * 2**30)
        for i in range(count)
    )
    return replace(plan, memory=memory)


def stages_shown(shown: str) -> list[str]:
    first = [line.split()[0] for line in shown.splitlines() if line.strip()]
    return [word for word in first if word.isdigit()]


def test_of_many_stages_the_telling_ones_are_shown(document: PlanDocument) -> None:
    plan = many_stages(document.plans[0], 16)
    shown = text([memory_table(plan, 80)])
    assert "13 more stages peak between 58.0 and 69.0 GiB" in shown
    assert stages_shown(shown.rpartition("13 more")[0]) == ["0", "2", "15"]
    every = text([memory_table(plan, 80, every_stage=True)])
    assert stages_shown(every) == [str(i) for i in range(16)]


def test_a_plan_that_does_not_fit_cannot_be_overlooked(overfull: PlanDocument) -> None:
    shown = text(plan_text.prediction_report(overfull, 80))
    expected = "DOES NOT FIT: stage 0 needs 92.0 of 80.0 GiB on H100-SXM5-80GB, 12.0 too much\n"
    assert expected in shown.replace(" \n", "\n")


@pytest.mark.parametrize(
    ("fits", "sure", "says"),
    [
        (True, 0.999, "FITS: stage 0 has 0.0 GiB to spare (chance >99 %)"),
        (True, 0.62, "to spare (chance 62 %)"),
        (False, 0.001, "DOES NOT FIT: stage 0 needs 92.0 of 80.0 GiB on H100-SXM5-80GB, 12.0 too"
            " much (chance to fit <1 %)"),
        (False, 0.63, "NOT SURE whether it fits: stage 0 needs 92.0 of 80.0 GiB on H100-SXM5-80GB,"
            " 12.0 too much; such predictions are often too high, and the chance to fit is 63 %"),
    ],
)  # fmt: skip
def test_a_verdict_has_its_chance(
    document: PlanDocument, overfull: PlanDocument, fits: bool, sure: float, says: str
) -> None:
    plan = replace((document if fits else overfull).plans[0], fit_chance=sure)
    assert says in words(text([plan_text.verdict(plan)]))


def test_without_tokens_there_is_no_total(document: PlanDocument) -> None:
    plan = replace(document.plans[0], train_seconds=None, usd_total=None)
    shown = words(text([plan_text.strategies_table([plan], document.cluster, 80)]))
    assert "days" not in shown
    assert "$256" in shown


def test_without_a_price_the_way_to_one_is_shown(document: PlanDocument) -> None:
    pool = replace(document.cluster.pools[0], usd_per_gpu_hour=None)
    assert "usd_per_gpu_hour in a cluster file" in plan_text.price_words(pool)
    plan = replace(document.plans[0], usd_per_hour=None, usd_total=None)
    assert "no price" in text([plan_text.strategies_table([plan], document.cluster, 80)])


def test_counts_and_types_that_were_chosen_get_columns(document: PlanDocument) -> None:
    cluster = document.cluster
    all_used = words(text([plan_text.strategies_table(document.plans, cluster, 80)]))
    assert "# tp" in all_used
    fewer = [replace(plan, gpus={"H100-SXM5-80GB": 32}) for plan in document.plans]
    assert "# GPUs tp" in words(text([plan_text.strategies_table(fewer, cluster, 80)]))
    mixed = replace(cluster, pools=cluster.pools * 2, gpus=128)
    shown = words(text([plan_text.strategies_table(fewer, mixed, 80)]))
    assert "# type GPUs tp" in shown
    assert "1 H100-SXM5-80GB 32 4 4 2" in shown


def test_terminals_without_unicode_get_ascii(document: PlanDocument) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=stream, width=80)
    for part in plan_text.plan_report(document, 80):
        console.print(part)
    stream.flush()
    shown = stream.buffer.getvalue().decode("ascii")
    assert "########.." in shown


def test_commands_can_be_copied() -> None:
    typed = ["plan", "my model", "--gpus", "h100:64", "--global-batch", "1024", "--rule", "$tp > 8"]
    shown = text(plan_text.next_steps(typed, None, 60), 60)
    joined = words(shown.replace("\\\n", " "))
    assert "astrarium plan 'my model' --gpus h100:64" in joined
    assert "--rule '$tp > 8' --out DIR" in joined
    assert "astrarium export DIR/plan.json --to megatron --out DIR" in joined
    after = text(plan_text.next_steps(typed, Path("here/plan.json"), 80))
    assert "astrarium explain here/plan.json" in after
    assert "astrarium export here/plan.json --to megatron --out here" in after


def test_a_plan_that_nothing_runs_is_not_exported() -> None:
    for written in (None, Path("here/plan.json")):
        shown = text(plan_text.next_steps(["plan", "x"], written, 80, runtimes=()))
        assert "Keep and explain the best plan" in shown
        assert "astrarium explain" in shown
        assert "export" not in shown


def test_a_bar_is_never_longer_than_its_width(document: PlanDocument) -> None:
    stage: StageMemory = replace(document.plans[0].memory[0], peak_bytes=200 * 2**30)
    plan = replace(document.plans[0], memory=(stage,))
    shown = text([memory_table(plan, 80)])
    assert "\N{FULL BLOCK}" * 10 in shown
    assert "\N{FULL BLOCK}" * 11 not in shown


def extreme(document: PlanDocument) -> PlanDocument:
    """Hours, millions of dollars an hour, a million GPUs, six digits of layers."""
    plan = document.plans[0]
    stages = tuple(Stage("g", (i * 123456, (i + 1) * 123456), 1, i, 0, {}) for i in range(4))
    full = replace(plan.memory[0], peak_bytes=12345 * 2**30, activations=12000 * 2**30)
    strategy = replace(plan.strategy, tp=1024, pp=1024, dp=1048576, ep=1024, stages=stages)
    plan = replace(
        plan,
        gpus={"H100-SXM5-80GB": 1048576},
        strategy=strategy,
        iteration_seconds=123456.0,
        interval_seconds=(100000.0, 160000.0),
        usd_per_hour=1234567.0,
        usd_total=1.2e12,
        train_seconds=1e10,
        memory=(full, *plan.memory[1:]),
        fits=False,
    )
    return replace(document, plans=(plan, plan))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_broken_or_cut(document: PlanDocument, width: int) -> None:
    long = extreme(document)
    for report in (plan_text.plan_report, plan_text.prediction_report):
        shown = text(report(long, width), width)
        assert max(map(len, shown.splitlines())) <= width
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown
        for whole in ("27.8-44.4 h", "115,740.7", "12,345", "$1.235M", "123,456", "$1.2T"):
            assert whole in shown
    assert "1,048,576" in text(plan_text.plan_report(long, width), width)


@pytest.mark.parametrize(
    ("seconds", "likely"),
    [(161.4, "2.02-3.54 min"), (0.5, "376-658 ms"), (10.0, "7.5-13.2 s"), (4e5, "3.48-6.09 days")],
)
def test_an_interval_has_the_unit_of_its_iteration(
    document: PlanDocument, seconds: float, likely: str
) -> None:
    bounds = (0.752 * seconds, 1.316 * seconds)
    plan = replace(document.plans[0], iteration_seconds=seconds, interval_seconds=bounds)
    assert likely in text([plan_text.strategies_table([plan], document.cluster, 80)])


def test_models_with_experts_show_their_degrees_even_if_one(document: PlanDocument) -> None:
    workload = replace(document.workload, active_parameters=10**9)
    with_experts = replace(document, workload=workload)
    assert "vpp cp ep etp dp" in words(text(plan_text.plan_report(with_experts, 80)))
    assert "etp" not in text(plan_text.plan_report(document, 80))
    assert "ep 1, etp 1" in words(text(plan_text.prediction_report(with_experts, 80)))


def test_layers_are_listed_where_stages_differ(document: PlanDocument) -> None:
    plan = document.plans[0]
    assert "model order" not in text([memory_table(plan, 80)])
    bounds = [0, 1, *range(3, 60, 2), 60, 61]
    pairs = enumerate(pairwise(bounds))
    stages = tuple(Stage("g", pair, 1, i % 4, i // 4, {}) for i, pair in pairs)
    uneven = replace(plan.strategy, virtual_stages=8, stages=stages[::-1])
    shown = words(text([memory_table(replace(plan, strategy=uneven), 80)]))
    assert "layers of the 32 stages in model order, 8 on a rank: 1, 2 x 29, 1, 1" in shown


def test_one_more_rule_is_singular(document: PlanDocument) -> None:
    assert document.search is not None
    reasons = {"a": 4, "b": 3, "c": 2, "d": 1}
    shown = words(text([plan_text.search_summary(replace(document.search, reasons=reasons))]))
    assert "and 1 more rule" in shown
    assert "more rules" not in shown


def test_the_price_of_a_gpu_agrees_with_that_of_all(document: PlanDocument) -> None:
    pool = replace(document.cluster.pools[0], usd_per_gpu_hour=3.995)
    assert plan_text.price_words(pool).startswith("$3.995 per GPU")
    assert plan_text.price_words(replace(pool, usd_per_gpu_hour=4.0)).startswith("$4.00 per GPU")


def test_narrow_tables_keep_what_tells_plans_apart(document: PlanDocument) -> None:
    fewer = [replace(plan, gpus={"H100-SXM5-80GB": 32}) for plan in document.plans]
    mixed = replace(document.cluster, pools=document.cluster.pools * 2, gpus=128)
    shown = text([plan_text.strategies_table(fewer, mixed, 60)])
    heads = [line for line in shown.splitlines() if line.startswith("#")]
    of_choices = [line for line in heads if {"tp", "dp", "recompute", "ZeRO"} & {*line.split()}]
    assert "ZeRO" in " ".join(of_choices)
    assert len(of_choices) > 1
    assert all(line.split()[:3] == ["#", "type", "GPUs"] for line in of_choices)


def test_a_fastest_plan_that_is_not_listed_nor_faster_is_not_spoken_of() -> None:
    choice = ChoicePart(
        recommended=1, fastest=None, near_tie=(1,), slower=0.0004, chance=0.5, why=("simpler",)
    )
    assert plan_text.choice_words(choice) == ""
    listed = replace(choice, fastest=2)
    assert "0.0 % slower than plan 2, the fastest" in plan_text.choice_words(listed)
    assert "0.1 % slower than the fastest" in plan_text.choice_words(replace(choice, slower=0.001))


def test_no_table_of_a_narrow_terminal_is_a_single_column(document: PlanDocument) -> None:
    """What does not fit below each other is shared out evenly."""
    clouds = tuple(replace(pool, cloud="some-cloud") for pool in document.cluster.pools)
    others = tuple(replace(pool, name=f"{pool.name} of lambda", cloud="lambda") for pool in clouds)
    cluster = replace(document.cluster, pools=(*clouds, *others), gpus=document.cluster.gpus + 1)
    shown = text([plan_text.strategies_table(document.plans, cluster, 80)])
    heads = [line.split() for line in shown.splitlines() if line.startswith("#")]
    repeated = {"#", "cloud", "type", "GPUs"}
    assert len(heads) > 1
    assert all(len(set(head) - repeated) > 1 for head in heads)
