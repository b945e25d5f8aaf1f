"""A rank in its own size: which ranks are tried, and that its bytes are those predicted."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from astrarium.cluster import parse_gpus
from astrarium.model.load import model_of_config
from astrarium.model.workload import Workload
from astrarium.plans.job import Job, job_of
from astrarium.report.plan.document import document_of_prediction
from astrarium.report.runs import dry_report
from astrarium.runtime import dry
from astrarium.runtime.dry import SCHEMA, DryRun, DryStage, distinct_stages, dry_run
from astrarium.runtime.job import Device
from astrarium.runtime.launch import LateError, RankError
from astrarium.search.planner import predict
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Stage, Strategy

LAYERS = 8
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


UNLIKE = [
    {"gpu": "H200", "layers": layers, "devices": 4} for layers in ([0, 1], [1, 3], [3, 6], [6, 8])
]


def job(config: dict[str, Any], gpus: str, **keys: Any) -> Job:
    cluster, workload = (
        parse_gpus(gpus),
        Workload(model_of_config(config, "small", "small"), 64, 32),
    )
    asked = strategy_from_dict(
        keys, where="test", gpus=cluster.num_gpus, global_batch=32, layers=LAYERS
    )
    plan = predict(workload, cluster, asked)
    return job_of(document_of_prediction(workload, cluster, plan, "small", ()))


def split(*sizes: int) -> Strategy:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    stages = tuple(
        Stage("", (end - size, end), 1, rank, 0)
        for rank, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )
    return Strategy(pp=len(sizes), stages=stages)


@pytest.mark.parametrize(
    ("sizes", "tried"),
    [
        ((8,), {0: ()}),
        ((4, 4), {0: (), 1: ()}),
        ((2, 2, 2, 2), {0: (), 1: (2,), 3: ()}),
        ((3, 2, 1, 2), {0: (), 1: (), 2: (), 3: ()}),
        ((2, 3, 1, 3, 1, 2), {0: (), 1: (3,), 2: (4,), 5: ()}),
    ],
)
def test_one_rank_of_each_sort_is_tried(
    sizes: tuple[int, ...], tried: dict[int, tuple[int, ...]]
) -> None:
    assert dict(distinct_stages(split(*sizes), [0] * sum(sizes))) == tried


def test_stages_with_layers_of_other_kinds_are_tried_apart() -> None:
    """As in models that begin with dense layers and go on with experts."""
    dense_then_sparse = (0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1)
    tried = dict(distinct_stages(split(2, 2, 2, 2, 2, 2), dense_then_sparse))
    assert tried == {0: (), 1: (), 2: (), 3: (4,), 5: ()}


def test_stages_on_other_gpus_are_tried_apart() -> None:
    alike = split(2, 2, 2, 2, 2, 2)
    pools = [
        ("h100", "a"),
        ("h100", "a"),
        ("h100", "a"),
        ("h200", "b"),
        ("h200", "b"),
        ("h200", "c"),
    ]
    stages = tuple(
        replace(stage, gpu=gpu, pools={pool: 1})
        for stage, (gpu, pool) in zip(alike.stages, pools, strict=True)
    )
    tried = dict(distinct_stages(replace(alike, stages=stages), [0] * 12))
    assert tried == {0: (), 1: (2,), 3: (4,), 5: ()}


@pytest.mark.usefixtures("warm")
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
@pytest.mark.parametrize(
    ("config", "gpus", "keys"),
    [
        (LLAMA, "h200:16", {"tp": 2, "pp": 2}),
        (MIXTRAL, "h200:16", {"pp": 2, "ep": 4, "virtual_stages": 2}),
    ],
    ids=["dense", "experts"],
)
def test_a_rank_alone_holds_what_is_predicted(
    config: dict[str, Any], gpus: str, keys: dict[str, int]
) -> None:
    """On a CPU weights have four bytes, and are their own master copies."""
    tried = dry_run(job(config, gpus, **keys), Device.CPU, timeout_seconds=120)
    assert sum(1 + len(stage.like) for stage in tried.stages) == keys["pp"]
    for stage in tried.stages:
        found, expected = stage.allocated_bytes, stage.predicted_bytes
        assert found is not None
        assert found["weights"] == pytest.approx(2 * expected["weights"], rel=0.01)
        assert found["gradients"] == pytest.approx(expected["gradients"], rel=0.01)
        # Two moments of four bytes; on a GPU a master copy is the third.
        assert found["optimizer"] == pytest.approx(expected["optimizer"] * 2 / 3, rel=0.01)
        assert (stage.predicted_seconds, stage.measured_seconds) == (None, None)
    assert any("other GPUs" in note for note in tried.notes)


def test_all_stages_together_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = 0.0, []

    def take_40_seconds(*_: object, timeout_seconds: float, **__: object) -> list[object]:
        nonlocal now
        given.append(timeout_seconds)
        if timeout_seconds < 40.0:
            raise LateError("late")
        now += 40.0
        return [(None,)]

    monkeypatch.setattr(dry, "monotonic", lambda: now)
    monkeypatch.setattr(dry, "run_jobs", take_40_seconds)
    monkeypatch.setattr(dry, "versions", dict)
    with pytest.raises(RankError, match="not done after 100 s with 4 sorts of stages"):
        dry_run(job(LLAMA, "h200:16", pp=4, stages=UNLIKE), Device.CPU, timeout_seconds=100.0)
    assert given == [100.0, 60.0, 20.0]


def shown(run: DryRun) -> str:
    console = Console(file=StringIO(), width=140)
    for part in dry_report(run, 140):
        console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_report_shows_what_was_found_and_what_did_not_fit() -> None:
    gib = 2.0**30
    causes = {"weights": gib, "gradients": 2 * gib, "optimizer": 3 * gib, "activations": 4 * gib}
    fits = DryStage(0, "H200", 4, (1, 2), causes, {**causes, "activations": 2 * gib}, 1.0, 0.8)
    full = DryStage(3, "H200", 4, (), causes, None, 1.0, None)
    run = DryRun(SCHEMA, "small", 1, 8, "NVIDIA H200", "megatron-local", {}, 8, ("few",), (fits,))
    text = shown(run)
    assert "0, 1, 2" in text
    assert "10.0 GiB / 8.00 GiB" in text
    assert "+25.0%" in text
    assert "stage 0 has the largest error: +25.0%" in text
    text = shown(replace(run, stages=(fits, full)))
    assert "Out of memory here: stage 3" in text
    assert "too much" in text
