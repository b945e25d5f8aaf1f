"""What you have beside the answer, and what would change it, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.plans.document import (
    ComparePart,
    Plan,
    PlanDocument,
    Run,
    SensitivityPart,
    from_dict,
    to_dict,
)
from astrarium.report.plan.compare import causes_words, compare_section, saved_words
from astrarium.report.plan.sensitivity import neighbour_lines, sensitivity_section
from astrarium.search.planner import predict
from astrarium.strategy.document import strategy_from_dict

DAY = 86400.0
GPU = "H100-SXM5-80GB"


def words_of(parts: list[RenderableType], width: int = 100) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return " ".join(capture.get().split())


def run_of(days: float, usd: float, kwh: float, plan: Plan) -> Plan:
    run = Run({"train": days * DAY}, 1.0, {}, 0.0, None, kwh, None)
    return replace(plan, train_seconds=days * DAY, usd_total=usd, run=run)


def beside(document: PlanDocument, own: Plan, best: Plan) -> PlanDocument:
    def saved(first: float | None, second: float | None) -> float | None:
        return None if first is None or second is None else first - second

    part = ComparePart(
        document.cluster,
        own,
        "",
        saved(own.train_seconds, best.train_seconds),
        saved(own.usd_total, best.usd_total),
        saved(own.run.kwh if own.run else None, best.run.kwh if best.run else None),
    )
    return replace(document, plans=(best, *document.plans[1:]), compare=part)


@pytest.mark.parametrize(
    ("own", "best", "expected"),
    [
        (
            (20.0, 1000.0, 500.0),
            (10.0, 600.0, 400.0),
            "plan 1 saves 10.0 days (50.0 %), $400 (40.0 %) and 100 kWh (20.0 %)",
        ),
        (
            (20.0, 1000.0, 500.0),
            (25.0, 600.0, 500.0),
            "plan 1 saves $400 (40.0 %), and takes 5.00 days (25.0 %) more",
        ),
        (
            (20.0, 1000.0, 500.0),
            (20.0, 1500.0, 500.0),
            "plan 1 takes $500 (50.0 %) more than yours",
        ),
        (
            (20.0, 1000.0, 500.0),
            (20.0, 1000.0, 500.0),
            "plan 1 saves nothing: yours is as good",
        ),
    ],
)
def test_what_is_saved_is_said(
    document: PlanDocument,
    own: tuple[float, float, float],
    best: tuple[float, float, float],
    expected: str,
) -> None:
    yours, answer = (run_of(*figures, document.plans[0]) for figures in (own, best))
    compared = beside(document, replace(yours, rank=0), answer)
    assert compared.compare is not None
    assert saved_words(yours, answer, compared.compare) == expected
    text = words_of(list(compare_section(compared, compared.compare)))
    assert expected in text
    for head in ("yours", "plan 1 saves", "GPUs", "strategy", "tokens/s", "money", "energy"):
        assert head in text


def test_a_loss_survives_a_file(document: PlanDocument) -> None:
    yours, answer = run_of(1, 1, 1, document.plans[0]), run_of(2, 2, 2, document.plans[0])
    compared = beside(document, yours, answer)
    assert compared.compare is not None
    assert compared.compare.saved_usd == -1
    assert from_dict(to_dict(compared)) == compared


def test_plans_that_are_not_told_apart_are_named_so(document: PlanDocument) -> None:
    best = run_of(20.0, 1000.0, 500.0, document.plans[0])
    said = "the predicted times are too close to tell the two apart"
    for days, told in ((20.2, False), (23.0, True)):
        yours = run_of(days, 1000.0, 500.0, document.plans[0])
        slower = {cause: s * days / 20 for cause, s in yours.breakdown_seconds.items()}
        took = yours.iteration_seconds * days / 20
        yours = replace(yours, iteration_seconds=took, breakdown_seconds=slower)
        compared = beside(document, yours, best)
        assert compared.compare is not None
        assert (said not in words_of(list(compare_section(compared, compared.compare)))) == told


def change(what: str, factor: float | None, **others: float) -> SensitivityPart:
    then = None if factor is None else 2 * factor
    gpus = {} if factor is None else {GPU: 8}
    return SensitivityPart(what, GPU, factor, 2.0, then, gpus, others.get("unchanged_to"))


def test_stages_are_shown_where_nothing_else_differs(document: PlanDocument) -> None:
    best = document.plans[0]
    one, *others = best.strategy.stages
    shorter = replace(one, layers=(one.layers[0], one.layers[1] - 1))
    own = replace(best, strategy=replace(best.strategy, stages=(shorter, *others)))

    def rows(yours: Plan) -> str:
        made = beside(document, yours, best)
        assert made.compare is not None
        return words_of([*compare_section(made, made.compare)])

    assert "stages" not in rows(best)
    assert "stages" in rows(own)


def test_changes_come_nearest_first_and_the_rest_is_counted(document: PlanDocument) -> None:
    parts = [change("price", 1 + n / 10) for n in range(15, 0, -1)]
    text = words_of(list(sensitivity_section(document, parts, 100)))
    assert text.index("+10.0 %") < text.index("+20.0 %") < text.index("x 2.0")
    assert "3 more changes are farther away; --json has all" in text
    assert "x 2.5" not in text


def test_what_changes_nothing_is_said(document: PlanDocument) -> None:
    parts = [
        change("network", None, unchanged_to=16.0),
        change("network", None, unchanged_to=1 / 16),
    ]
    text = words_of(list(sensitivity_section(document, parts, 100)))
    assert "unchanged with a network up to 16 times today's: H100" in text
    assert "unchanged with a network down to 1/16 of today's: H100" in text
    assert "no price matters: time decides, and there is no budget" in text


def test_without_any_plan_that_is_said(document: PlanDocument) -> None:
    part = replace(change("price", 1.2), gpus_then={})
    text = words_of(list(sensitivity_section(document, [part], 100)))
    assert "none: no plan keeps the limits" in text


def test_neighbours_are_those_on_the_front(make_front: Callable[..., PlanDocument]) -> None:
    faster, cheaper = neighbour_lines(make_front(5))
    assert faster.startswith("$9,546 (18.9 %) more buys 11.1 h (50.0 %) less: plan 2, 512 x H100")
    assert cheaper.startswith("22.2 h (100.0 %) more saves $8,027 (15.9 %): plan 3, ")
    assert list(neighbour_lines(make_front(5, priced=False))) == []


KEYS = {"tp": 8, "sequence_parallel": True, "overlap_p2p": False}
RECOMPUTED = {"none": {}, "full": {"recompute": "full"}}


def test_the_causes_that_differ_most_are_named() -> None:
    workload, cluster = Workload(load_model("llama-3-8b"), 8192, 64), parse_gpus("h100:8")
    (lean, full) = (
        predict(
            workload,
            cluster,
            strategy_from_dict(
                KEYS | RECOMPUTED[recompute], where="test", gpus=8, global_batch=64, layers=32
            ),
        )
        for recompute in ("none", "full")
    )
    words = causes_words(full, lean)
    assert "Recomputation" in words or "recomputation" in words
    assert "less" in words
    assert "more" not in words
    assert causes_words(lean, lean) == ""
