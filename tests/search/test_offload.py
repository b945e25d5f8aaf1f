"""Activations in host memory as a choice: where all that fits recomputes, and copies are fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from small import small_model

import astrarium
from astrarium.catalog.gpus import find_gpu
from astrarium.catalog.runtimes import OFFLOADS, find_runtime, offloaded_layers, offloading
from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost.layouts import CostModel
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.export.folder import folder_of
from astrarium.export.nearest import nearest
from astrarium.export.target import find_target, refusals
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.plans.job import job_of
from astrarium.search import offload, planner
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import Planned, predict
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, Strategy

ALONE = Strategy(micro_batch=1, num_micro_batches=8, overlap=Overlap(p2p=False, tp=False))
LAYERS = 32


def long(runtime: str | None = None) -> astrarium.Plans:
    return astrarium.plan(
        "llama-3.1-8b", gpus="h100:8", seq_length=262144, global_batch=8, runtime=runtime
    )


def of_8b(runtime: str, gpus: str = "h100:1", seq_length: int = 4096) -> Plan:
    workload = Workload(load_model("llama-3.1-8b"), seq_length, 8)
    (pool,) = parse_gpus(gpus).pools
    return estimate(CostModel(workload, pool, find_runtime(runtime)), [ALONE])[0]


def test_copies_take_the_place_of_recomputation() -> None:
    answer, plain = long(), long("megatron")
    assert plain.best.breakdown_seconds["recompute"] > 0.1 * plain.best.iteration_seconds
    assert answer.best.runtimes[0] in OFFLOADS
    assert answer.best.strategy.pp == 1
    assert answer.best.strategy.recompute.granularity is Granularity.NONE
    assert answer.best.fits
    assert answer.best.iteration_seconds < 0.9 * plain.best.iteration_seconds
    assert any("--cpu-offloading-num-layers" in note for note in answer.document.notes)


def test_nothing_more_is_searched_where_little_is_recomputed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    found = planner.plan

    def counted(*given: object, **named: object) -> Planned:
        asked.append(named["runtime"])
        return found(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("astrarium.api.planning.plan", counted)
    astrarium.plan("llama-2-7b", gpus="a100:8", seq_length=4096, global_batch=64)
    assert len(asked) == 1


def test_memory_of_nodes_limits_it() -> None:
    workload = Workload(load_model("llama-3.1-8b"), seq_length=262144, global_batch=8)
    (pool,) = parse_gpus("h100:8").pools
    small = Cluster((replace(pool, host_memory=2**36),))

    def answered(cluster: Cluster) -> Planned:
        def of(name: str) -> Planned:
            return planner.plan(workload, cluster, runtime=find_runtime(name))

        return offload.with_offload(
            workload, cluster, lambda: of("megatron"), lambda runtime: of(runtime.name)
        )

    assert answered(Cluster((pool,))).plans[0].runtimes[0] in OFFLOADS
    assert answered(small).plans[0].runtimes[0] == "megatron"


def test_it_is_the_way_out_where_nothing_else_fits() -> None:
    workload = Workload(small_model(), seq_length=2048, global_batch=16)
    cluster = parse_gpus("h100:8")

    def fails() -> Planned:
        raise NoFeasiblePlanError("nothing fits")

    found = offload.with_offload(
        workload, cluster, fails, lambda runtime: planner.plan(workload, cluster, runtime=runtime)
    )
    assert found.plans[0].runtimes[0] in OFFLOADS
    assert any("nothing fits without" in note for note in found.notes)


def test_memory_goes_to_the_host_and_time_to_slow_links() -> None:
    """By shares: a quarter of the activations each; hidden on the chip's own link, not on PCIe."""
    names = ["megatron", *OFFLOADS]
    kept = [of_8b(name).memory[0].activations for name in names]
    steps = [one - other for one, other in pairwise(kept)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    on_pcie = [of_8b(name).iteration_seconds for name in names]
    assert on_pcie == sorted(on_pcie)
    assert on_pcie[-1] > 1.1 * on_pcie[0]
    on_chip = [of_8b(name, "gh200:1").iteration_seconds for name in names]
    assert on_chip[1] == pytest.approx(on_chip[0])
    assert find_gpu("gh200").bandwidth_to_host > 5 * find_gpu("h100").bandwidth_to_host
    # Attention over long sequences hides what is linear in their length.
    slower = [of_8b(name, seq_length=65536).iteration_seconds for name in names]
    assert slower[-1] / slower[0] < on_pcie[-1] / on_pcie[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"recompute": Recompute(Granularity.FULL, Method.UNIFORM, 1)}, "not both"),
        ({"pp": 2, "dp": 4}, "not moved to host memory in a pipeline"),
    ],
)
def test_what_megatron_refuses_is_refused(changes: dict[str, object], why: str) -> None:
    workload = Workload(load_model("gpt2"), 1024, 64)
    strategy = replace(ALONE, **{"dp": 8, "micro_batch": 1, "num_micro_batches": 8, **changes})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=why):
        predict(
            workload, parse_gpus("h100:8"), strategy, runtime=find_runtime("megatron-offload-50")
        )


def test_exports_are_read_back_and_others_refuse(tmp_path: Path) -> None:
    found = long()
    job = job_of(found.document)
    target = find_target("megatron")
    script = folder_of(job, target, target).files["launch.sh"]
    moved = offloaded_layers(find_runtime(found.best.runtimes[0]), LAYERS)
    assert f"--cpu-offloading-num-layers {moved}" in script
    path = tmp_path / "launch.sh"
    path.write_text(script)
    read = astrarium.predict(None, str(path), gpus="h100")
    assert read.best.runtimes == found.best.runtimes
    assert read.best.iteration_seconds == pytest.approx(job.plan.iteration_seconds)
    for name in ("bridge", "torchtitan", "accelerate", "deepspeed"):
        assert any(
            "activations on the host" in str(one) for one in refusals(job, find_target(name))
        )


def test_the_nearest_plan_without_it_recomputes() -> None:
    job = job_of(long().document)
    found = nearest(job, (find_target("bridge"),))
    assert found is not None
    assert found.job.strategy.recompute.granularity is not Granularity.NONE
    assert found.job.runtime.name not in OFFLOADS


@pytest.mark.parametrize(("moved", "name"), [(1, 25), (11, 25), (13, 50), (16, 50), (31, 75)])
def test_other_numbers_of_layers_are_read_as_the_nearest(moved: int, name: int) -> None:
    assert offloading(moved, LAYERS) == f"megatron-offload-{name}"
