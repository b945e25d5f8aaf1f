"""Explanations and comparisons, from documents alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
from plan_documents import text

from astrarium.plans.document import PlanDocument
from astrarium.report.explain.terms import PlanComparison, compare, explain
from astrarium.report.explain.text import comparison_report, explanation_report


def test_the_terms_make_the_whole(document: PlanDocument) -> None:
    explained = explain(document.plans[0], document.cluster)
    assert sum(term.share for term in explained.time) == pytest.approx(1.0)
    assert sum(term.bytes for term in explained.memory) == document.plans[0].fullest.peak_bytes
    assert [term.cause for term in explained.time][:2] == ["backward", "forward"]
    assert "recompute" not in {term.cause for term in explained.time}


def test_what_binds(document: PlanDocument, overfull: PlanDocument) -> None:
    binds = " | ".join(explain(document.plans[0], document.cluster).binds)
    assert "compute binds: 80.1 % of the iteration; communication 10.0 %, waiting 9.9 %" in binds
    assert "largest overhead is the tensor-parallel communication: 1.00 s, 10.0 %" in binds
    assert "stage 0 is the fullest" in binds
    assert "12.0 GiB too much: the plan does not fit" in " ".join(
        explain(overfull.plans[0], overfull.cluster).binds
    )


def test_the_busiest_stage_is_told_from_the_mean(document: PlanDocument) -> None:
    """A breakdown is that of one stage: the others wait longer."""
    from astrarium.strategy.estimate import StageSeconds
    from astrarium.strategy.types import Reach

    passes = (1.0, 2.0, (1.0,), (2.0,), 0.0, 3.0, 0.0)
    stages = tuple(
        StageSeconds(i, "gpu", {}, *passes, Reach.NOWHERE, (), share)
        for i, share in enumerate((0.90, 0.99, 0.90, 0.93))
    )
    binds = explain(replace(document.plans[0], stage_seconds=stages), document.cluster).binds
    assert "stage 1, the busiest; on average the 4 stages wait 7.0 % of the iteration" in binds[1]


def test_a_bubble_can_bind(document: PlanDocument) -> None:
    plan = document.plans[0]
    waiting = replace(plan, breakdown_seconds={"forward": 2.0, "pipeline_bubble": 8.0})
    explained = explain(waiting, document.cluster)
    assert explained.binds[0].startswith("waiting binds: 80.0 %")
    assert explained.remedies[0].startswith("pipeline bubble: more micro-batches")


def test_a_plan_that_waits_for_its_host_is_called_launch_bound(document: PlanDocument) -> None:
    plan = document.plans[0]
    whole = plan.iteration_seconds
    waiting = replace(plan, breakdown_seconds={"forward": 0.8 * whole, "host": 0.2 * whole})
    lines = [line for line in explain(waiting, document.cluster).binds if "launch-bound" in line]
    assert len(lines) == 1
    assert "CUDA graphs, or a larger micro-batch, would gain up to" in lines[0]
    assert "20.0 %" in lines[0]
    little = replace(plan, breakdown_seconds={"forward": 0.96 * whole, "host": 0.04 * whole})
    assert "launch-bound" not in " ".join(explain(little, document.cluster).binds)


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_shows_every_term(document: PlanDocument, width: int) -> None:
    shown = text(
        explanation_report(document, explain(document.plans[0], document.cluster), width), width
    )
    for fact in (
        "What limits it",
        "Time: 10.0 s an iteration",
        "backward 5.00 s 50.0 %",
        "activations 60.0 GiB 75.0 %",
        "Memory of every stage",
        "$256.00 per hour for 64 GPUs",
        "What would improve it",
    ):
        assert fact in shown


def compared(document: PlanDocument) -> PlanComparison:
    return compare((document, document.plans[0]), (document, document.plans[1]))


def test_a_comparison_holds_what_differs(document: PlanDocument) -> None:
    result = compared(document)
    assert result.context == {}
    assert result.choices == {"pp": ("4", "2"), "dp": ("4", "8")}
    by_name = {difference.name: difference for difference in result.results}
    assert by_name["iteration_seconds"].change == pytest.approx(0.1)
    assert {difference.name for difference in result.time} == {
        "forward",
        "backward",
        "tp_communication",
        "pipeline_bubble",
        "optimizer",
    }


def test_workloads_that_differ_are_pointed_out(document: PlanDocument) -> None:
    longer = replace(document, workload=replace(document.workload, seq_length=8192))
    result = compare((document, document.plans[0]), (longer, longer.plans[0]))
    assert result.context == {"sequence length": ("4,096", "8,192")}
    assert "not of one workload" in text(comparison_report(result, ("a", "b")))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"model": "GPT"}, "model"),
        ({"parameters": 1}, "parameters"),
        ({"layers": 1}, "layers"),
        ({"global_batch": 8}, "global batch"),
        ({"tokens": None}, "tokens"),
        ({"precision": "fp8"}, "precision"),
    ],
)
def test_every_difference_of_workloads_is_shown(
    document: PlanDocument, changed: dict[str, Any], name: str
) -> None:
    other = replace(document, workload=replace(document.workload, **changed))
    result = compare((document, document.plans[0]), (other, other.plans[0]))
    assert list(result.context) == [name]
    shown = text(comparison_report(result, ("a", "b")))
    assert all(value in shown for value in result.context[name])


def test_clusters_and_searches_that_differ_are_shown(document: PlanDocument) -> None:
    pool = replace(document.cluster.pools[0], inter_node_bytes_per_second=5e10, gpus=128)
    cluster = replace(document.cluster, pools=(replace(pool, usd_per_gpu_hour=1.0),))
    other = replace(document, cluster=cluster, search=None)
    context = compare((document, document.plans[0]), (other, other.plans[0])).context
    assert set(context) == {"cluster", "network", "price per GPU", "objective", "mode"}


@pytest.mark.parametrize("width", [80, 120])
def test_the_comparison_as_text(document: PlanDocument, width: int) -> None:
    shown = text(comparison_report(compared(document), ("a.json", "b.json")), width)
    assert "A: a.json, plan 1" in shown
    assert "iteration 10.0 s 11.0 s +1.00 s +10.0 %" in shown
    assert "pp 4 2" in shown
    assert "weights 4.00 GiB 4.00 GiB same" in shown


def test_a_cause_that_appears_has_no_relative_change(document: PlanDocument) -> None:
    plan = document.plans[0]
    more = replace(plan, breakdown_seconds={**plan.breakdown_seconds, "recompute": 1.0})
    result = compare((document, plan), (document, more))
    recompute = next(d for d in result.time if d.name == "recompute")
    assert recompute.change is None
    json.dumps(asdict(result), allow_nan=False)
    back = compare((document, more), (document, replace(plan, breakdown_seconds={"forward": 1.0})))
    assert "recompute" in {difference.name for difference in back.time}
    assert "recomputation 0 s 1.00 s +1.00 s" in text(comparison_report(result, ("a", "b")))


def test_explaining_needs_neither_search_nor_numpy() -> None:
    code = "import sys, astrarium.report.explain.text; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(process.stdout.split())
    assert loaded.isdisjoint({"numpy", "astrarium.search.planner", "astrarium.cost.step"})
