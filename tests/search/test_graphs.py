"""CUDA graphs as a choice: taken where a host holds GPUs up, and never where it does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest

import astrarium
from astrarium.catalog.runtimes import GRAPHS, find_runtime
from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.export.folder import folder_of
from astrarium.export.target import find_target, refusals
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.plans.document import to_dict
from astrarium.plans.job import job_of
from astrarium.search import planner
from astrarium.search.planner import predict
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, Strategy


def small(runtime: str | None = None) -> astrarium.Plans:
    return astrarium.plan("gpt2", gpus="h100:8", seq_length=1024, global_batch=64, runtime=runtime)


def test_launch_bound_layers_are_captured() -> None:
    answer = small()
    plain = small("megatron")
    assert plain.best.runtimes == ("megatron",)
    assert answer.best.runtimes == (GRAPHS,)
    assert any("--cuda-graph-impl local" in note for note in answer.document.notes)
    assert answer.best.iteration_seconds < plain.best.iteration_seconds
    assert answer.best.strategy.pp == 1
    assert answer.best.strategy.recompute.granularity is not Granularity.FULL
    assert all(plan.strategy.zero_stage < 2 for plan in answer)


@pytest.mark.parametrize(
    ("model", "gpus"),
    [("llama-3.2-1b", "h100:1"), ("gpt2", "mi300x:1"), ("qwen1.5-moe-a2.7b", "h200:4")],
)
def test_nothing_is_searched_where_it_cannot_matter(
    model: str, gpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not launch-bound, not measured on these GPUs, or layers with experts."""
    asked = []
    found = planner.plan

    def counted(*given: object, **named: object) -> planner.Planned:
        asked.append(named["runtime"])
        return found(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("astrarium.api.planning.plan", counted)
    astrarium.plan(model, gpus=gpus, seq_length=4096, global_batch=64)
    assert {runtime.name for runtime in asked} == {"megatron"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"recompute": Recompute(Granularity.FULL, Method.UNIFORM, 1)}, "not recomputed whole"),
        ({"zero_stage": 3}, "no place for"),
    ],
)
def test_what_graphs_cannot_hold_is_refused(changes: dict[str, object], why: str) -> None:
    workload = Workload(load_model("gpt2"), 1024, 64)
    strategy = Strategy(dp=8, micro_batch=8, overlap=Overlap(p2p=False, tp=False), **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=why):
        predict(workload, parse_gpus("h100:8"), strategy, runtime=find_runtime(GRAPHS))


def test_their_export_is_read_back_and_others_refuse(tmp_path: Path) -> None:
    job = job_of(small().document)
    target = find_target("megatron")
    script = folder_of(job, target, target).files["launch.sh"]
    assert "--cuda-graph-impl local" in script
    path = tmp_path / "launch.sh"
    path.write_text(script)
    read = astrarium.predict(None, str(path), gpus="h100")
    assert read.best.runtimes == (GRAPHS,)
    assert read.best.iteration_seconds == pytest.approx(job.plan.iteration_seconds)
    assert to_dict(read.document)["plans"][0]["fits"]
    for name in ("bridge", "torchtitan", "accelerate"):
        assert any("CUDA graphs" in str(one) for one in refusals(job, find_target(name)))
