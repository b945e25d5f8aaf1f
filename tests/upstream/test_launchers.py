"""What launchers write, read by SkyPilot, by the models of JobSet and TrainJob, and by Ray."""

from __future__ import annotations

import ast
import copy
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from launched import H100, KEEPING, Nodes, any_nodes, job, job_on, launch_of, with_offer, with_spot
from upstream.client import Driver, RefusedError

from astrarium.catalog.prices import offers
from astrarium.export.features import Feature
from astrarium.export.launchers.skypilot import CATALOG, accelerator
from astrarium.export.target import find_target, refusals
from astrarium.plans.job import Job

few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def manifest(one: Job, name: str) -> dict[str, Any]:
    data = yaml.safe_load(launch_of("kubernetes", one).files[name])
    assert isinstance(data, dict)
    return data


def task_text(one: Job) -> str:
    return launch_of("skypilot", one).files["task.yaml"]


@few
@given(any_nodes)
def test_skypilot_reads_the_nodes_of_the_plan(skypilot: Driver, nodes: Nodes) -> None:
    one = job_on(nodes)
    twins = len({accelerator(gpu) + str(gpus) for gpu, _, gpus in nodes}) < len(nodes)
    assert bool(refusals(one, find_target("skypilot"))) == twins
    read = skypilot.ask(text=task_text(one))
    assert read["name"] == "llama-3-8b"
    assert read["is_group"] == (len(one.nodes) > 1)
    found = [(task["num_nodes"], task["resources"]["accelerators"]) for task in read["tasks"]]
    assert found == [(number, {accelerator(gpu): gpus}) for gpu, number, gpus in nodes]


def test_skypilot_reads_offers_and_spot(skypilot: Driver) -> None:
    offer = next(o for o in offers(H100, ["aws"]) if o.gpus == 8 and o.source == CATALOG)
    pool = {"cloud": "aws", "instance": offer.instance, "price_origin": CATALOG}
    one = with_spot(with_offer(job("alike"), region="us-east-1", **pool), {H100: 16})
    text = task_text(one)
    (task,) = skypilot.ask(schema=text)
    assert task["resources"] == {
        "infra": "aws/us-east-1",
        "instance_type": offer.instance,
        "use_spot": True,
        "network_tier": "best",
    }
    kept = with_spot(job("alike"), {H100: 16})
    mounted = launch_of("skypilot", kept, KEEPING).files["task.yaml"]
    (task,) = skypilot.ask(schema=mounted)
    assert task["file_mounts"]["${CHECKPOINTS}"]["source"] == "${BUCKET}"
    with pytest.raises(RefusedError, match="BUCKET"):
        skypilot.ask(text=mounted)
    with pytest.raises(RefusedError, match="instance_typ"):
        skypilot.ask(schema=text.replace("instance_type:", "instance_typ:"))


def test_skypilot_refuses_what_it_does_not_know(skypilot: Driver) -> None:
    for case in ("alike", "mixed"):
        wrong = task_text(job(case)).replace("num_nodes:", "num_node:")
        with pytest.raises(RefusedError, match="num_node"):
            skypilot.ask(text=wrong)


@few
@given(any_nodes)
def test_jobsets_are_read_with_the_nodes_of_the_plan(kubernetes: Driver, nodes: Nodes) -> None:
    one = job_on(nodes)
    written = manifest(one, "jobset.yaml")
    read = kubernetes.ask(object=written)
    jobs = [part["template"]["spec"] for part in read["spec"]["replicatedJobs"]]
    pods = [part["template"]["spec"] for part in jobs]
    limits = [pod["containers"][0]["resources"]["limits"] for pod in pods]
    assert [
        (part["completions"], *limit.values()) for part, limit in zip(jobs, limits, strict=True)
    ] == [(number, gpus) for _, number, gpus in nodes]
    first_nodes = [int(pod["containers"][0]["env"][0]["value"]) for pod in pods]
    counts = [group.nodes for group in one.nodes]
    assert first_nodes == [sum(counts[:index]) for index in range(len(counts))]
    assert read == {**written, "metadata": read["metadata"]}  # nothing was dropped


def test_trainjobs_are_read_with_the_nodes_of_the_plan(kubernetes: Driver) -> None:
    written = manifest(job("alike"), "trainjob.yaml")
    read = kubernetes.ask(object=written)
    assert read["spec"] == written["spec"]
    trainer = read["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)


@pytest.mark.parametrize("name", ["jobset.yaml", "trainjob.yaml"])
def test_keys_that_kubernetes_does_not_know_are_noticed(kubernetes: Driver, name: str) -> None:
    written = manifest(job("alike"), name)
    wrong = copy.deepcopy(written)
    wrong["spec"]["numNode"] = 2
    with pytest.raises(RefusedError, match="numNode"):
        kubernetes.ask(object=wrong)


@few
@given(any_nodes)
def test_ray_reads_the_nodes_of_the_plan(ray: Driver, nodes: Nodes) -> None:
    one = job_on(nodes)
    if refusals(one, find_target("ray")):
        assert len({group.gpus_per_node for group in one.nodes}) > 1
        assert refusals(one, find_target("ray"))[0].feature is Feature.UNEQUAL_NODES
        return
    tree = ast.parse(launch_of("ray", one).files["start_ray.py"])
    assigned = next(node for node in tree.body if isinstance(node, ast.Assign))
    read = ray.ask(config={"use_gpu": True, **ast.literal_eval(assigned.value)})
    assert read["num_workers"] == one.num_nodes
    assert read["total_resources"]["GPU"] == sum(group.gpus for group in one.nodes)
    assert read["placement_strategy"] == "STRICT_SPREAD"
    assert len(read["label_selector"]) == one.num_nodes
