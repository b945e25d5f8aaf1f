"""The Ray script, run with a stand-in for Ray that calls every worker in turn."""

from __future__ import annotations

import ast
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launched import Bench, check_ranks, job, launch_of, written

from astrarium.catalog import find_gpu
from astrarium.export.features import Feature
from astrarium.export.launchers.ray import scaling as ray_scaling
from astrarium.export.result import Exported, lines
from astrarium.export.target import find_target, refusals
from astrarium.plans.job import Job

STAND_IN = """
import os, sys, types

RANK = 0
LABELS = os.environ["LABELS"].split(",")

class ScalingConfig:
    def __init__(self, **given):
        assert given.pop("use_gpu") is True
        self.__dict__ |= given

class TorchTrainer:
    def __init__(self, function, *, train_loop_config, torch_config, scaling_config):
        self.function, self.workers = function, scaling_config.num_workers
        self.config = train_loop_config
    def fit(self):
        global RANK
        for RANK in range(self.workers):
            os.chdir("/")  # Ray moves its workers, too
            self.function(self.config)

context = types.SimpleNamespace(
    get_world_rank=lambda: RANK,
    get_node_labels=lambda: dict(
        zip(["ray.io/accelerator-type", "astrarium.pool"], LABELS[RANK].split("/"))
    ),
)
get_runtime_context = lambda: context
util = types.SimpleNamespace(get_node_ip_address=lambda: f"10.0.0.{RANK}")
train = types.ModuleType("ray.train")
train.get_context, train.ScalingConfig = get_runtime_context, ScalingConfig
collective = types.ModuleType("ray.train.collective")
collective.broadcast_from_rank_zero = lambda value: "10.0.0.0"
torch = types.ModuleType("ray.train.torch")
torch.TorchTrainer, torch.TorchConfig = TorchTrainer, dict
for module in (train, collective, torch):
    sys.modules[module.__name__] = module
"""


def scaling(case: str) -> dict[str, Any]:
    """What the script hands to ScalingConfig."""
    tree = ast.parse(launch_of("ray", job(case)).files["start_ray.py"])
    assigned = next(node for node in tree.body if isinstance(node, ast.Assign))
    value = ast.literal_eval(assigned.value)
    assert isinstance(value, dict)
    return value


def selectors(one: Job) -> list[dict[str, str]]:
    found: list[dict[str, str]] = ray_scaling(one)["label_selector"]
    return found


def start(case: str, labels: str, folder: Path) -> Bench:
    bench = Bench(folder)
    out = written("ray", job(case), folder / "out")
    (folder / "ray.py").write_text(STAND_IN)
    given = {"PYTHONPATH": str(folder), "LABELS": labels, "TRAINER_PATH": "/opt/trainer"}
    bench.run(sys.executable, str(out / "start_ray.py"), cwd=folder, **given)
    return bench


@pytest.mark.parametrize(("case", "labels"), [("alike", "H100,H100"), ("mixed", "A100,H100,H100")])
def test_workers_are_nodes_in_rank_order(case: str, labels: str, tmp_path: Path) -> None:
    check_ranks(job(case), start(case, labels, tmp_path).starts(), "10.0.0.0")
    asked = scaling(case)
    assert asked["num_workers"] == job(case).num_nodes
    assert asked["resources_per_worker"] == {"GPU": 8}
    assert [s["ray.io/accelerator-type"] for s in asked["label_selector"]] == labels.split(",")


def test_a_node_of_another_pool_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"node 0: its label .* is H100, not A100"):
        start("mixed", "H100,A100,H100", tmp_path)


def test_unequal_nodes_are_refused() -> None:
    (refusal,) = refusals(job("unequal"), find_target("ray"))
    assert refusal.feature is Feature.UNEQUAL_NODES
    assert "nodes with 8 and 4 GPUs in use" in str(refusal)


def test_pools_of_one_type_are_told_apart_by_labels(tmp_path: Path) -> None:
    bench = start("twins", "H100/fast-racks,H100/slow", tmp_path)
    check_ranks(job("twins"), bench.starts(), "10.0.0.0")
    assert any("ray start --labels" in note for note in launch_of("ray", job("twins")).notes)


def test_a_node_of_the_twin_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"astrarium.pool is slow, not fast-racks"):
        start("twins", "H100/slow,H100/fast-racks", tmp_path)


def test_types_that_ray_does_not_tell_apart_have_labels() -> None:
    one = job("mixed")
    small = replace(one.nodes[1].pool, gpu=find_gpu("a100-40gb"))
    twins = replace(one, nodes=(one.nodes[0], replace(one.nodes[1], pool=small)))
    assert one.nodes[0].pool.name == "A100-SXM4-80GB"
    found = [selector["astrarium.pool"] for selector in selectors(twins)]
    assert found == ["a100-sxm4-80gb", "h100-sxm5-80gb", "h100-sxm5-80gb"]
    assert all("astrarium.pool" not in selector for selector in selectors(one))
    known = launch_of("ray", job("alike")).command
    assert '{"env_vars": {"TRAINER_PATH": "<trainer_path>"}}' in known


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_command_is_never_broken_inside_quotes(width: int) -> None:
    command = """ray job submit --env '{"env_vars": {"A": "<a b>"}}' -- python "x y" z\\ z"""
    done = Exported("ray", "2", "", 1, "out", command=command)
    shown = next(line for line in lines(done, width) if "ray job" in line)
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(command)
