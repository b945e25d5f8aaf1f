"""SkyPilot's tasks: what is rented, and the numbers that nodes start with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched import (
    CASES,
    KEEPING,
    PROGRAM,
    Bench,
    check_ranks,
    job,
    launch_of,
    with_offer,
    with_spot,
    written,
)

from astrarium.api.calls import predict
from astrarium.catalog import find_gpu, gpus
from astrarium.catalog.prices import offers
from astrarium.export.features import Feature
from astrarium.export.launchers.skypilot import CATALOG, CLOUDS, accelerator
from astrarium.export.nearest import nearest
from astrarium.export.target import find_target, refusals, target_names
from astrarium.plans.job import Job, job_of

H100 = "H100-SXM5-80GB"


def documents(one: Job) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(launch_of("skypilot", one).files["task.yaml"]))


def tasks(one: Job) -> list[dict[str, Any]]:
    found = documents(one)
    return found[1:] if len(one.nodes) > 1 else found


@pytest.mark.parametrize("case", CASES)
def test_there_is_a_task_for_each_sort_of_node(case: str) -> None:
    one = job(case)
    found = tasks(one)
    assert [task["num_nodes"] for task in found] == [group.nodes for group in one.nodes]
    asked = [task["resources"]["accelerators"] for task in found]
    assert asked == [f"{accelerator(g.pool.gpu.name)}:{g.gpus_per_node}" for g in one.nodes]
    assert len({task["name"] for task in found}) == len(found)
    if len(one.nodes) > 1:
        assert documents(one)[0] == {"name": "llama-3-8b", "execution": "parallel"}


@pytest.mark.parametrize("case", [case for case in CASES if case != "one-node"])
def test_nodes_are_numbered_in_rank_order(case: str, tmp_path: Path) -> None:
    bench, one = Bench(tmp_path), job(case)
    folder = written("skypilot", one, tmp_path / "out")
    for task in tasks(one):
        for node in range(task["num_nodes"]):
            sky = {
                "SKYPILOT_NODE_RANK": str(node),
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
                "SKYPILOT_JOBGROUP_NAME": "group",
            }
            bench.run("bash", "-c", task["run"], cwd=folder, **task["envs"], **sky)
    address = f"{tasks(one)[0]['name']}-0.group" if len(one.nodes) > 1 else "10.0.0.1"
    check_ranks(one, bench.starts(), address)


def test_what_is_rented_is_what_the_prices_are_of() -> None:
    offer = next(o for o in offers(H100, ["gcp"]) if o.gpus == 8 and o.source == CATALOG)
    pool = {"cloud": "gcp", "instance": offer.instance, "region": "us", "price_origin": CATALOG}
    one = with_offer(job("alike"), **pool)
    (task,) = tasks(one)
    assert task["resources"] == {
        "infra": "gcp",
        "instance_type": offer.instance,
        "network_tier": "best",
        "use_spot": False,
    }
    assert any("class `us`" in note for note in launch_of("skypilot", one).notes)
    placed = with_offer(one, region="us-central1", price_origin="contract.csv")
    assert tasks(placed)[0]["resources"] == {
        "infra": "gcp/us-central1",
        "accelerators": "H100:8",
        "network_tier": "best",
        "use_spot": False,
    }


def test_spot_nodes_are_asked_for() -> None:
    spot = with_spot(job("alike"), {H100: 16})
    assert refusals(spot, find_target("skypilot")) == ()
    assert tasks(spot)[0]["resources"]["use_spot"] is True
    commands = [launch_of("skypilot", one).command for one in (spot, job("alike"))]
    given = " task.yaml --env TRAINER_PATH=<trainer_path>"
    assert commands == [f"sky jobs launch{given}", f"sky launch{given}"]


def test_spot_nodes_go_on_from_a_checkpoint_in_a_bucket(tmp_path: Path) -> None:
    spot = with_spot(job("alike"), {H100: 16})
    launch = launch_of("skypilot", spot, KEEPING)
    assert launch.command.endswith(" --env TRAINER_PATH=<trainer_path> --env BUCKET=<bucket>")
    (task,) = yaml.safe_load_all(launch.files["task.yaml"])
    envs = {"TRAINER_PATH": "/opt/trainer", "CHECKPOINTS": "/checkpoints", "BUCKET": None}
    assert task["envs"] == envs
    assert task["file_mounts"] == {"${CHECKPOINTS}": {"source": "${BUCKET}", "mode": "MOUNT"}}
    kept = "written to CHECKPOINTS after every 300 iterations, as the plan counts"
    assert any(kept in note for note in launch.notes)
    bench = Bench(tmp_path)
    (tmp_path / "launch.sh").write_text(launch.files["launch.sh"])
    (tmp_path / "launch.sh").chmod(0o755)
    sky = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
    given = {"TRAINER_PATH": "/opt/trainer", "CHECKPOINTS": "/my bucket"}
    bench.run("bash", "-c", task["run"], "run", "--more", cwd=tmp_path, **sky, **given)
    (start,) = bench.starts()
    kept_words = ["--keep", "/my bucket", "--every", "300"]
    assert start.words[1:] == [*PROGRAM.arguments, *kept_words, "--mock-data", "--more"]


@pytest.mark.parametrize("name", [n for n in target_names() if not find_target(n).is_launcher])
def test_software_that_keeps_no_checkpoints_has_no_spot_nodes(name: str) -> None:
    spot = with_spot(job("alike"), {H100: 16})
    found = {refusal.feature for refusal in refusals(spot, find_target(name))}
    assert (Feature.SPOT in found) == (name != "megatron")


@pytest.mark.parametrize(("case", "gpus"), [("alike", {H100: 8}), ("mixed", {H100: 16})])
def test_spot_nodes_beside_others_are_refused(case: str, gpus: dict[str, int]) -> None:
    (refusal,) = refusals(with_spot(job(case), gpus), find_target("skypilot"))
    assert refusal.feature is Feature.SPOT_BESIDE
    assert "all spot or none" in str(refusal)


def refused(one: Job) -> str:
    """The only refusal: of its nodes."""
    (refusal,) = refusals(one, find_target("skypilot"))
    assert refusal.feature is Feature.NODES
    return str(refusal)


def test_what_cannot_be_rented_is_refused() -> None:
    assert refused(with_offer(job("alike"), cloud="coreweave")).startswith(
        f"{H100} of coreweave: it does not rent from coreweave"
    )
    one = job("mixed")
    pools = [
        replace(g, pool=replace(g.pool, cloud=c))
        for g, c in zip(one.nodes, ("aws", "gcp"), strict=True)
    ]
    apart = refused(replace(one, nodes=tuple(pools)))
    assert apart.startswith(f"A100-SXM4-80GB and {H100} of aws and gcp: tasks of a job group")
    unnamed = with_offer(job("alike"), gpu=find_gpu("Titan-RTX-24GB"))
    assert "its name for Titan-RTX-24GB is not known" in refused(unnamed)
    assert "the pools Fast racks and slow it would rent the same" in refused(job("twins"))


def test_the_nearest_of_nodes_that_cannot_be_rented_together_is_one_pool() -> None:
    one = job("mixed")
    clouds = {"A100-SXM4-80GB": "aws", H100: "gcp"}
    pools = tuple(replace(p, cloud=clouds[p.name]) for p in one.cluster.pools)
    cluster = replace(one.cluster, pools=pools)
    found = predict(
        "llama-3-8b", {"tp": 4, "pp": 3}, cluster=cluster, seq_length=4096, global_batch=96
    )
    target = find_target("skypilot")
    made = nearest(job_of(found.document), [target])
    assert made is not None
    assert len(made.job.gpu_types) == 1
    assert not refusals(made.job, target)


def test_the_clouds_are_those_of_the_price_book() -> None:
    from astrarium.catalog.prices import cloud_names

    assert set(cloud_names()) >= CLOUDS
    known = [gpu.name for gpu in gpus() if gpu.name.startswith(("A100", "H100", "H200", "V100-"))]
    assert {accelerator(name) for name in known} <= {
        "A100",
        "A100-80GB",
        "H100",
        "H200",
        "V100",
        "V100-32GB",
    }
