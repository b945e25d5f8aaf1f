"""A plan file is enough: model, strategy and nodes come back from it, and edits are noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster import Cluster, parse_gpus
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.plans.document import PlanDocument, document_of_content, from_dict, to_dict
from astrarium.plans.job import Job, NodeGroup, job_of, nodes_of
from astrarium.report.plan.document import document_of_prediction
from astrarium.search.planner import predict
from astrarium.strategy.document import strategy_from_dict


def document_of(model: str, gpus: str, **keys: Any) -> PlanDocument:
    cluster, workload = parse_gpus(gpus), Workload(load_model(model), 2048, 64)
    asked = strategy_from_dict(
        keys, where="test", gpus=cluster.num_gpus, global_batch=64, layers=workload.model.num_layers
    )
    return document_of_prediction(workload, cluster, predict(workload, cluster, asked), model, ())


def nodes(job: Job) -> list[tuple[str, int, int]]:
    return [(group.pool.gpu.name, group.nodes, group.gpus_per_node) for group in job.nodes]


def test_everything_comes_back_from_the_document() -> None:
    document = document_of("llama-3-8b", "h100:16", tp=4, pp=2)
    job = job_of(from_dict(json.loads(json.dumps(to_dict(document)))))
    assert (job.strategy.tp, job.strategy.pp, job.strategy.dp) == (4, 2, 2)
    assert [(s.first_layer, s.last_layer) for s in job.strategy.stages] == [(0, 16), (16, 32)]
    assert job.model.parameters == load_model("llama-3-8b").parameters
    assert job.model.name == load_model("llama-3-8b").name
    assert job.config["model_type"] == "llama"
    assert nodes(job) == [("H100-SXM5-80GB", 2, 8)]
    assert (job.world_size, job.num_nodes) == (16, 2)


def test_nodes_of_a_mixed_plan_stand_in_the_order_of_the_pipeline() -> None:
    fast, slow = (pool.name for pool in parse_gpus("h100:8,a100:8").pools)
    stages = [
        {"layers": [0, 12], "pools": {slow: 8}},
        {"layers": [12, 32], "pools": {fast: 8}},
    ]
    job = job_of(document_of("llama-3-8b", "h100:8,a100:8", tp=4, pp=2, stages=stages))
    assert nodes(job) == [("A100-SXM4-80GB", 1, 8), ("H100-SXM5-80GB", 1, 8)]


def test_a_pool_may_come_again_behind_another() -> None:
    fast, slow = (pool.name for pool in parse_gpus("h100:16,a100:8").pools)
    cuts = ((0, 12, fast), (12, 20, slow), (20, 32, fast))
    stages = [{"layers": [a, b], "pools": {name: 8}} for a, b, name in cuts]
    job = job_of(document_of("llama-3-8b", "h100:16,a100:8", tp=4, pp=3, stages=stages))
    assert [name for name, _, _ in nodes(job)] == [fast, slow, fast]


def test_ranks_of_a_node_are_neighbours() -> None:
    fast, slow = (pool.name for pool in parse_gpus("h100:8,a100:4").pools)
    cuts = ((0, 12, fast), (12, 20, slow), (20, 32, fast))
    stages = [{"layers": [a, b], "pools": {name: 4}} for a, b, name in cuts]
    document = document_of("llama-3-8b", "h100:8,a100:4", tp=4, pp=3, stages=stages)
    with pytest.raises(InputError, match="are not neighbours and share a node"):
        job_of(document)


def test_a_node_in_part_is_a_group_of_its_own() -> None:
    job = job_of(document_of("llama-3-8b", "h100:8", tp=4))
    pool = replace(job.cluster.pools[0], nodes=3)
    part = replace(
        job.plan,
        gpus={pool.gpu.name: 20},
        strategy=replace(job.plan.strategy, dp=5, stages=()),
    )
    assert list(nodes_of(part, Cluster((pool,)))) == [NodeGroup(pool, 2, 8), NodeGroup(pool, 1, 4)]


def edited(document: PlanDocument, change: Callable[[dict[str, Any]], object]) -> PlanDocument:
    data = json.loads(json.dumps(to_dict(document)))
    change(data)
    return from_dict(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["plans"][0]["strategy"].update(tp=3), "tp 3 x pp 2 x cp 1 x dp 2"),
        (lambda d: d["plans"][0]["strategy"]["stages"][0].update(layers=[0, 15]), "must cover"),
        (lambda d: d["plans"][0]["strategy"].update(num_micro_batches=7), "num_micro_batches is 7"),
        (
            lambda d: d["plans"][0]["strategy"].update(tp=1, dp=8, num_micro_batches=8),
            "Megatron would refuse",
        ),
        (lambda d: d["workload"]["model_config"].update(hidden_size=2048), "parameters is 8,030"),
        (lambda d: d["workload"]["model_config"].update(model_type="lama"), "did you mean"),
        (lambda d: d["workload"].update(model="m\nreboot"), "workload.model: 'm\\nreboot' holds"),
        (
            lambda d: d["cluster"]["pools"][0].update(name="p\rx"),
            "cluster.pools[0].name: 'p\\rx' holds",
        ),
    ],
)
def test_what_was_edited_into_nonsense_is_refused(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    document = edited(document_of("llama-3-8b", "h100:16", tp=4, pp=2), change)
    with pytest.raises(InputError, match=r"^plan\.json: ") as refused:
        job_of(document, where="plan.json")
    assert message in str(refused.value)


def test_an_unknown_precision_is_refused_when_a_plan_is_read() -> None:
    data = json.loads(json.dumps(to_dict(document_of("llama-3-8b", "h100:16", tp=4, pp=2))))
    data["plans"][0]["precision"] = "fp12"
    with pytest.raises(InputError, match=r"^plan\.json: plans\[0\]\.precision: .*got 'fp12'"):
        document_of_content(data, "plan.json")


FAST, SLOW = (pool.name for pool in parse_gpus("h100:8,a100:8").pools)


def with_layers(*layers: list[int]) -> Callable[[dict[str, Any]], object]:
    """An edit of a plan into stages that are not those of a named split."""

    def change(data: dict[str, Any]) -> None:
        strategy = data["plans"][0]["strategy"]
        strategy["split"] = "free"
        for stage, held in zip(strategy["stages"], layers, strict=True):
            stage["layers"] = held

    return change


@pytest.mark.parametrize(
    "layers",
    [
        [[0, 20], [16, 32]],  # overlap
        [[0, 12], [16, 32]],  # gap
        [[0, 32], [33, 32]],
        [[0, 20], [20, 16]],
        [[0, 16], [16, 33]],  # more layers than there are
        [[0, 16], [16, 31]],
    ],
)
def test_stages_that_do_not_hold_every_layer_once_are_refused(layers: list[list[int]]) -> None:
    document = document_of("llama-3-8b", "h100:8,a100:8", tp=4, pp=2)
    with pytest.raises(InputError, match=r"^plan\.json: ") as refused:
        job_of(edited(document, with_layers(*layers)), where="plan.json")
    assert "must cover all 32 layers" in str(refused.value)


@pytest.mark.parametrize("layers", [[[0, 32], [32, 32]], [[0, 0], [0, 32]]])
def test_stages_may_hold_the_embedding_or_the_head_alone(layers: list[list[int]]) -> None:
    document = document_of("llama-3-8b", "h100:8,a100:8", tp=4, pp=2)
    job = job_of(edited(document, with_layers(*layers)))
    assert [[s.first_layer, s.last_layer] for s in job.strategy.stages] == layers


def on_nodes(
    each: int, gpus: dict[str, int], stages: list[dict[str, int]]
) -> list[tuple[str, int]]:
    """GPUs in the order of ranks, of a plan with these stages on nodes of so many GPUs."""
    known = {name: parse_gpus(f"{name}:8").pools[0] for name in gpus}
    cluster = Cluster(
        tuple(replace(known[n], nodes=gpus[n] // each, gpus_per_node=each) for n in gpus)
    )
    cuts = [32 * stage // len(stages) for stage in range(len(stages) + 1)]
    written = [
        {"layers": [a, b], "pools": {known[name].name: n for name, n in pools.items()}}
        for a, b, pools in zip(cuts, cuts[1:], stages, strict=False)
    ]
    keys = {"tp": 2, "pp": len(stages), "stages": written}
    workload, total = Workload(load_model("llama-3-8b"), 2048, 64), cluster.num_gpus
    asked = strategy_from_dict(keys, where="test", gpus=total, global_batch=64, layers=32)
    plan = predict(workload, cluster, asked)
    job = job_of(document_of_prediction(workload, cluster, plan, "llama-3-8b", ()))
    assert sum(group.nodes for group in job.nodes) == total // each
    return [(name, count * used) for name, count, used in nodes(job)]


@pytest.mark.parametrize("each", [4, 6, 12])
@pytest.mark.parametrize("order", [("h100", "a100"), ("a100", "h100")])
def test_ranks_of_a_stage_on_two_pools_go_on_where_the_stage_before_ended(
    order: tuple[str, str], each: int
) -> None:
    stages = [{"h100": 8}, dict.fromkeys(order, 4), {"a100": 8}]
    found = on_nodes(each, dict.fromkeys(order, 12), stages)
    assert found == [(FAST, 12), (SLOW, 12)]


@pytest.mark.parametrize("order", [("h100", "a100"), ("a100", "h100")])
def test_the_first_stage_ends_on_the_pool_of_the_second(order: tuple[str, str]) -> None:
    gpus = {name: {"h100": 12, "a100": 4}[name] for name in order}
    assert on_nodes(4, gpus, [dict.fromkeys(order, 4), {"h100": 8}]) == [(SLOW, 4), (FAST, 12)]


def test_an_older_file_loads_its_model_again(tmp_path: Path) -> None:
    document = document_of("llama-3-8b", "h100:16", tp=4, pp=2)
    old = replace(document, workload=replace(document.workload, model_config=None))
    assert job_of(old).model.parameters == document.workload.parameters
    gone = replace(old.workload, model_as_given=str(tmp_path / "config.json"))
    with pytest.raises(InputError, match="does not hold the model's config, and no such file"):
        job_of(replace(old, workload=gone))


def test_modules_that_are_recomputed_come_back() -> None:
    document = document_of(
        "llama-3-8b",
        "h100:16",
        tp=4,
        pp=2,
        recompute_modules=["layernorm", "mlp"],
        recompute="selective",
    )
    recompute = job_of(document).strategy.recompute
    assert [module.value for module in recompute.modules] == ["layernorm", "mlp"]
