"""What pools and links contribute: from the document alone, and in line with the cost model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plan_documents import text
from small import small_model

from astrarium.cluster import Cluster, Link, parse_gpus
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.plans.document import PlanDocument, from_dict, load_document, to_dict
from astrarium.report.explain.terms import (
    compare,
    explain,
    losses,
    passes_seconds,
    pool_shares,
    slowest_link,
)
from astrarium.report.explain.text import comparison_report, explanation_report
from astrarium.report.plan import text as plan_text
from astrarium.report.plan.document import document_of_prediction
from astrarium.report.tables import runs
from astrarium.report.wording import pipeline_words, short_types
from astrarium.search.planner import predict
from astrarium.strategy.types import LayerSplit, Overlap, Reach, Stage, Strategy

WORKLOAD = Workload(small_model(8), seq_length=1024, global_batch=16)
FAST, SLOW = parse_gpus("h100:8,a100:16").pools
CLUSTER = Cluster(
    (replace(FAST, name="fast"), replace(SLOW, name="slow")), (Link(("fast", "slow"), 1e9, 2e-5),)
)


def strategy(
    layers: tuple[int, ...], pools: tuple[str, ...], *, tp: int = 4, virtual: int = 1
) -> Strategy:
    """Stages of so many layers in model order, on the pools of their ranks."""
    pp, first, stages = len(pools), 0, []
    for chunk, held in enumerate(layers):
        devices = {pools[chunk % pp]: tp}
        stages.append(Stage("", (first, first + held), tp, chunk % pp, chunk // pp, devices))
        first += held
    return Strategy(
        tp=tp,
        pp=pp,
        num_micro_batches=16,
        virtual_stages=virtual,
        sequence_parallel=True,
        split=LayerSplit.FREE,
        overlap=Overlap(p2p=virtual > 1),
        stages=tuple(stages),
    )


MIXED = strategy((3, 2, 1, 1, 1), ("fast", "fast", "slow", "slow", "slow"))
INTERLEAVED = strategy((1,) * 8, ("fast", "fast", "slow", "slow"), virtual=2)
STRADDLING = Strategy(tp=4, pp=2, dp=3, num_micro_batches=4, overlap=Overlap(p2p=False))
STRADDLED = Workload(small_model(8), seq_length=1024, global_batch=12)


def document(
    given: Strategy, cluster: Cluster = CLUSTER, workload: Workload = WORKLOAD
) -> PlanDocument:
    given = replace(given, sequence_parallel=given.tp > 1)
    made = document_of_prediction(workload, cluster, predict(workload, cluster, given), "small")
    return from_dict(json.loads(json.dumps(to_dict(made))))


@pytest.mark.parametrize("given", [MIXED, INTERLEAVED])
def test_the_shares_of_pools_make_the_whole(given: Strategy) -> None:
    made = document(given)
    (plan,) = made.plans
    fast, slow = pool_shares(plan, made.cluster)
    assert fast.speed + slow.speed == pytest.approx(1.0)
    assert fast.work + slow.work == pytest.approx(1.0)
    assert fast.price is not None
    assert slow.price is not None
    assert fast.price + slow.price == pytest.approx(1.0)
    assert fast.layers + slow.layers == 8
    assert (fast.gpus, fast.of_gpus, slow.of_gpus) == (8, 8, 16)
    assert fast.speed / fast.gpus > slow.speed / slow.gpus
    assert 0 < slow.busy <= 1


@pytest.mark.parametrize("given", [MIXED, INTERLEAVED])
def test_a_link_costs_what_predicting_without_it_saves(given: Strategy) -> None:
    made = document(given)
    found = slowest_link(made.plans[0], made.cluster)
    assert found is not None
    assert (found.link, found.pools) == (Reach.POOLS, ("fast", "slow"))
    assert found.after_stages == ((1,) if given is MIXED else (1, 3))
    assert found.bytes_per_second == 1e9
    times = []
    for bandwidth in (1e9, 4e9):
        cluster = replace(CLUSTER, links=(Link(("fast", "slow"), bandwidth, 2e-5),))
        times.append(document(given, cluster).plans[0].iteration_seconds)
    assert (
        found.without_seconds
        < times[1]
        < times[0]
        == pytest.approx(found.without_seconds + found.seconds)
    )


@pytest.mark.parametrize("given", [MIXED, INTERLEAVED])
def test_stored_times_make_the_iteration(given: Strategy) -> None:
    (plan,) = document(given).plans
    after = max(stage.after_seconds for stage in plan.stage_seconds)
    assert passes_seconds(plan) + after == pytest.approx(plan.iteration_seconds, rel=1e-9)
    for stage in plan.stage_seconds:
        assert sum(stage.chunk_forward_seconds) == pytest.approx(stage.forward_seconds)
        assert sum(stage.chunk_backward_seconds) == pytest.approx(stage.backward_seconds)


def test_a_link_that_takes_no_time_costs_nothing() -> None:
    """The walk over stored stages is the one that predicted: taking links out changes nothing."""
    made = document(MIXED)
    (plan,) = made.plans
    free = replace(
        plan, stage_seconds=tuple(replace(stage, send_seconds=0.0) for stage in plan.stage_seconds)
    )
    found = slowest_link(free, made.cluster)
    assert found is not None
    assert found.seconds == 0.0
    assert found.without_seconds == plan.iteration_seconds


@pytest.mark.parametrize(
    ("given", "workload"), [(MIXED, WORKLOAD), (INTERLEAVED, WORKLOAD), (STRADDLING, STRADDLED)]
)
def test_losses_add_up_to_the_iteration(given: Strategy, workload: Workload) -> None:
    (plan,) = document(given, workload=workload).plans
    found = losses(plan)
    assert sum(loss.seconds for loss in found) == pytest.approx(plan.iteration_seconds)
    assert found[0].seconds == plan.ideal_seconds
    speed = sum(1.0 / stage.model_seconds for stage in plan.stage_seconds)
    assert plan.ideal_seconds == pytest.approx(plan.strategy.num_micro_batches / speed)
    # Ends and layers do not run faster by the same factor: a stage may have what suits it best.
    assert all(loss.share > -1e-3 for loss in found)


def test_a_tied_table_is_a_price_of_the_link_between_its_ends() -> None:
    tied = replace(WORKLOAD, model=load_model("gpt2"))
    given = strategy((6, 6), ("fast", "slow"))
    made = document(replace(given, tp=4), workload=tied)
    (plan,) = made.plans
    found = slowest_link(plan, made.cluster)
    assert found is not None
    assert found.tied_seconds > 0
    assert found.tied_seconds == pytest.approx(losses(plan)[-1].seconds)
    assert found.seconds > found.tied_seconds
    shown = text(explanation_report(made, explain(plan, made.cluster), 100), 100)
    assert "of it for the table that both ends hold" in shown
    assert "tied table" in shown
    (other,) = document(MIXED).plans
    assert losses(other)[-1].seconds == 0.0


def test_equal_stages_of_one_pool_lose_little_but_the_bubble() -> None:
    given = replace(STRADDLING, pp=4, dp=2, stages=(), num_micro_batches=8)
    (plan,) = document(given, parse_gpus("h100:32")).plans
    by_cause = {loss.cause: loss.share for loss in losses(plan)}
    assert by_cause["unequal_stages"] < 0.1  # the head
    assert by_cause["pipeline_bubble"] > 0.1
    assert [stage.link for stage in plan.stage_seconds] == [*[Reach.NODES] * 3, Reach.NOWHERE]
    assert plan.stage_seconds[-1].send_seconds == 0.0


def test_a_stage_on_two_pools_counts_for_both() -> None:
    made = document(STRADDLING, workload=STRADDLED)
    (plan,) = made.plans
    fast, slow = pool_shares(plan, made.cluster)
    assert (fast.stages, slow.stages) == ((0,), (0, 1))
    assert fast.work + slow.work == pytest.approx(1.0)
    assert pipeline_words(plan) == (
        "1 stage over 8 of fast and 4 of slow [0-3], 1 stage A100 [4-7]"
    )
    shown = text(explanation_report(made, explain(plan, made.cluster), 80), 80)
    assert "a stage on several pools is listed with each" in shown
    assert "0 fast+slow 4" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_the_explanation_of_a_mixed_plan(width: int) -> None:
    made = document(MIXED)
    shown = text(explanation_report(made, explain(made.plans[0], made.cluster), width), width)
    for fact in (
        "pipeline: 2 stages H100 [0-2, 3-4], 3 stages A100 [5-7 by 1]",
        "fast H100-SXM5-80GB 8 of 8 0-1 5",
        "slow A100-SXM4-80GB 12 of 16 2-4 3",
        "between pools",
        "2-3 A100 1",
        "Slowest link: between fast and slow, 1 GB/s per node, after stage 1",
        "without it an iteration would take",
        "Against an ideal machine with the summed speed",
        "unequal stages",
    ):
        assert fact in shown


@pytest.mark.parametrize("width", [80, 120])
def test_tables_of_a_mixed_plan(width: int) -> None:
    made = document(MIXED)
    predicted = text(plan_text.prediction_report(made, width), width)
    assert "pipeline: 2 stages H100 [0-2, 3-4], 3 stages A100" in predicted
    assert "0 H100 3" in predicted
    planned = text(plan_text.plan_report(made, width), width)
    assert "1 8 H100 + 12 A100 4 5 1 1 1 1" in planned
    assert "1 2 stages H100 [0-2, 3-4], 3 stages A100 [5-7 by 1]" in planned


def test_memory_is_shown_against_each_gpu() -> None:
    cluster = parse_gpus("h100:8,v100:16")
    given = strategy((3, 2, 1, 1, 1), tuple(cluster.pools[i].name for i in (0, 0, 1, 1, 1)))
    shown = text(plan_text.prediction_report(document(given, cluster), 120), 120)
    assert "peak of" in shown
    assert "79.2" in shown
    assert "31.7" in shown


def test_a_pool_that_is_left_out() -> None:
    given = strategy((4, 4), ("slow", "slow"))
    made = document(given)
    explained = explain(made.plans[0], made.cluster)
    assert explained.pools[0].gpus == 0
    assert explained.slowest_link is None
    assert "fast H100-SXM5-80GB 0 of 8 - 0 - - - -" in text(
        explanation_report(made, explained, 120), 120
    )


def test_uneven_stages_of_one_pool_are_explained() -> None:
    given = strategy((3, 3, 1, 1), ("H100-SXM5-80GB",) * 4)
    made = document(given, parse_gpus("h100:16"))
    explained = explain(made.plans[0], made.cluster)
    assert explained.pools == ()
    shown = text(explanation_report(made, explained, 100), 100)
    assert "Time of every stage" in shown
    assert "unequal stages" in shown
    assert "Slowest link: between nodes of H100-SXM5-80GB" in shown


def test_a_comparison_names_the_pipelines() -> None:
    one, other = document(MIXED), document(strategy((4, 4), ("fast", "slow")))
    compared = compare((one, one.plans[0]), (other, other.plans[0]))
    assert compared.choices["pipeline"][1] == "1 stage H100 [0-3], 1 stage A100 [4-7]"
    assert "1 stage H100 [0-3]" in text(comparison_report(compared, ("a", "b")), 120)


def test_older_files_are_explained_without() -> None:
    written = to_dict(document(MIXED))
    del written["plans"][0]["ideal_seconds"], written["plans"][0]["stage_seconds"]
    made = from_dict(written)
    explained = explain(made.plans[0], made.cluster)
    assert (explained.pools, explained.slowest_link, explained.losses) == ((), None, ())
    assert "What limits it" in text(explanation_report(made, explained, 80), 80)


def test_short_names_tell_types_apart() -> None:
    assert short_types(["H100-SXM5-80GB", "A100-SXM4-80GB"]) == {
        "H100-SXM5-80GB": "H100",
        "A100-SXM4-80GB": "A100",
    }
    alike = short_types(["A100-SXM4-80GB", "A100-SXM4-40GB", "L4-24GB", "L40-48GB"])
    assert list(alike.values()) == ["A100-80GB", "A100-40GB", "L4", "L40"]
    assert short_types(["a", "a-b-a", "a-a-b"]) == {name: name for name in ("a", "a-b-a", "a-a-b")}


def test_numbers_in_a_row_are_joined() -> None:
    assert runs([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert runs([]) == ""


def test_a_file_whose_stages_do_not_match(tmp_path: Path) -> None:
    written = to_dict(document(MIXED))
    written["plans"][0]["stage_seconds"] = written["plans"][0]["stage_seconds"][:2]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(InputError, match="2 entries of stage_seconds for 5 pipeline ranks"):
        load_document(path)
    written = to_dict(document(INTERLEAVED))
    written["plans"][0]["stage_seconds"][3]["chunk_forward_seconds"] = [0.1]
    path.write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(InputError, match="stage 3: expected 2 entries of chunk_forward_seconds"):
        load_document(path)
