"""What a frozen teacher or reference adds in time and memory, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astrarium
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.layouts import CostModel
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.adapters import Adapters, Finetune
from astrarium.model.frozen import Beside, Role
from astrarium.model.workload import Workload
from astrarium.plans.job import job_of
from astrarium.search.planner import predict
from astrarium.strategy.columns import Degrees
from astrarium.strategy.estimate import Plan
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, Strategy

SMALL, LARGE = load_model("llama-3.1-8b"), load_model("llama-3.1-70b")
TEACHER = Beside(LARGE, Role.TEACHER, "llama-3.1-70b")
REFERENCE = Beside(SMALL, Role.REFERENCE, "llama-3.1-8b")


def priced(beside: Beside | None, runtime: str = "megatron", **changes: Any) -> Plan:
    given = {"tp": 8, "pp": 1, "dp": 2, "cp": 1, "micro_batch": 2, "num_micro_batches": 4}
    adapters = changes.pop("adapters", None)
    workload = Workload(SMALL, 4096, 16, beside=beside, adapters=adapters)
    beside_work = Overlap(p2p=False, tp=False)
    strategy = Strategy(**{**given, "overlap": beside_work, **changes})
    return predict(workload, parse_gpus("h100:16"), strategy, runtime=find_runtime(runtime))


def bytes_of(plan: Plan, cause: str, stage: int = 0) -> float:
    return plan.memory[stage].by_cause[cause]


def test_the_reference_takes_one_more_forward_pass_and_its_weights() -> None:
    alone, both = priced(None), priced(REFERENCE)
    seconds = alone.breakdown_seconds, both.breakdown_seconds
    assert seconds[1]["forward"] == pytest.approx(2 * seconds[0]["forward"], rel=1e-6)
    for cause in ("backward", "optimizer", "gradient_reduction"):
        assert seconds[1][cause] == pytest.approx(seconds[0][cause], rel=0.01), cause
    weights = bytes_of(both, "weights") - bytes_of(alone, "weights")
    assert weights == pytest.approx(bytes_of(alone, "weights"), rel=1e-6)
    for cause in ("gradients", "optimizer"):
        assert bytes_of(both, cause) == bytes_of(alone, cause), cause
    # Nothing is kept of its pass: log-probabilities are a number a token.
    assert bytes_of(both, "activations") == bytes_of(alone, "activations")


def test_the_teacher_keeps_its_logits() -> None:
    alone, both = priced(None), priced(TEACHER)
    padded = 126 * 128 * 8  # multiples of 128 on each of 8 GPUs
    logits = 2 * 4096 * padded / 8 * find_runtime("megatron").logit_bytes
    kept = bytes_of(both, "activations") - bytes_of(alone, "activations")
    assert kept == pytest.approx(logits)
    weights = bytes_of(both, "weights") - bytes_of(alone, "weights")
    assert weights == pytest.approx(2 * LARGE.parameters / 8, rel=1e-3)
    as_if_trained = predict(
        Workload(LARGE, 4096, 16),
        parse_gpus("h100:16"),
        replace(both.strategy, stages=()),
    )
    added = both.breakdown_seconds["forward"] - alone.breakdown_seconds["forward"]
    assert added == pytest.approx(as_if_trained.breakdown_seconds["forward"], rel=1e-6)


def test_recomputation_does_not_repeat_the_frozen_pass() -> None:
    full = Recompute(Granularity.FULL, Method.UNIFORM, 1)
    again = [priced(one, recompute=full).breakdown_seconds for one in (None, TEACHER)]
    assert again[1]["recompute"] == pytest.approx(again[0]["recompute"], rel=1e-6)


def test_a_pipeline_holds_it_in_the_proportions_of_the_trained_model() -> None:
    alone, both = (priced(one, tp=4, pp=4, dp=1, num_micro_batches=8) for one in (None, TEACHER))
    more = [bytes_of(both, "weights", s) - bytes_of(alone, "weights", s) for s in range(4)]
    table = 2 * 128_256 * 8192 / 4
    layers = 2 * LARGE.blocks[0].parameters * 80 / 4 / 4
    assert more == pytest.approx([layers + table, layers, layers, layers + table], rel=1e-3)


def test_zero_3_divides_its_weights_and_gathers_them_once() -> None:
    keys: dict[str, Any] = {"runtime": "fsdp", "tp": 1, "dp": 16, "zero_stage": 3}
    keys |= {"micro_batch": 1, "num_micro_batches": 1}
    alone, both = priced(None, **keys), priced(TEACHER, **keys)
    weights = bytes_of(both, "weights") - bytes_of(alone, "weights")
    assert weights == pytest.approx(2 * LARGE.parameters / 16, rel=1e-3)
    model = CostModel(
        Workload(SMALL, 4096, 16, beside=TEACHER),
        parse_gpus("h100:16").pools[0],
        find_runtime("fsdp"),
    )
    one = np.ones(1, np.int64)
    columns: dict[str, Any] = {field: one for field in Degrees.__struct_fields__}
    columns |= {"dp": 16 * one, "sequence_parallel": np.zeros(1, bool)}
    columns |= {"pipeline_inside": np.zeros(1, bool)}
    degrees = Degrees(**columns)
    shards = model.shard_costs(degrees)
    gathers = {}
    for name in ("with", "without"):
        layers = shards.layers
        if name == "without":
            none = np.zeros_like(layers.once_dense)
            layers = replace(layers, once_dense=none)
        priced_ = model.layouts(degrees, one, 0 * one, replace(shards, layers=layers))
        gathers[name] = priced_.messages.in_layers.gather.max()
    assert gathers["with"] < 0.6 * gathers["without"]


def test_adapters_share_the_weights_of_their_own_base() -> None:
    keys: dict[str, Any] = {"runtime": "fsdp", "tp": 1, "dp": 16, "zero_stage": 3}
    keys |= {"micro_batch": 2, "num_micro_batches": 1, "adapters": Adapters(Finetune.LORA)}
    given = {**keys, "dp": 8, "tp": 1}
    workload = Workload(SMALL, 4096, 16, adapters=Adapters(Finetune.LORA), beside=REFERENCE)
    assert workload.shares_weights
    strategy = Strategy(
        **{k: v for k, v in given.items() if k not in ("runtime", "adapters")}, pp=1, cp=1
    )
    alone, both = (
        predict(one, parse_gpus("h100:8"), strategy, runtime=find_runtime("fsdp"))
        for one in (replace(workload, beside=None), workload)
    )
    assert bytes_of(both, "weights") == bytes_of(alone, "weights")
    assert both.breakdown_seconds["forward"] > 1.8 * alone.breakdown_seconds["forward"]
    assert not replace(workload, beside=TEACHER).shares_weights


def test_flops_count_the_forward_pass() -> None:
    alone, both = (Workload(SMALL, 4096, 16, beside=one) for one in (None, TEACHER))
    assert both.flops_per_token - alone.flops_per_token == LARGE.flops_per_token(4096) / 3


ASKED: dict[str, Any] = {"gpus": "h100:16", "global_batch": 64, "seq_length": 4096}


def test_pairs_stay_in_one_micro_batch() -> None:
    found = astrarium.plan("llama-3.1-8b", reference="llama-3.1-8b", **ASKED)
    assert found.document.search is not None
    assert all(plan.strategy.micro_batch % 2 == 0 for plan in found.document.plans)
    with pytest.raises(InputError, match="splits pairs"):
        astrarium.predict("llama-3.1-8b", "tp=8,micro_batch=1", reference="llama-3.1-8b", **ASKED)
    with pytest.raises(InputError, match="global_batch 63 is odd"):
        astrarium.plan("llama-3.1-8b", reference="gpt2-small", **{**ASKED, "global_batch": 63})


def test_what_was_never_measured_has_a_wider_interval() -> None:
    both, alone = priced(TEACHER), priced(None)
    wide, usual = (
        [end / plan.iteration_seconds for end in plan.interval_seconds] for plan in (both, alone)
    )
    assert wide[0] < usual[0] / 1.1
    assert wide[1] > usual[1] * 1.1


def test_a_plan_keeps_its_frozen_model() -> None:
    found = astrarium.plan("llama-3.1-8b", teacher="llama-3.1-70b", **ASKED)
    document = found.document
    assert (document.workload.teacher, document.workload.reference) == ("llama-3.1-70b", None)
    job = job_of(document)
    beside = job.workload.beside
    assert beside is not None
    assert (beside.role, beside.model.blocks) == (Role.TEACHER, LARGE.blocks)
    again = predict(job.workload, job.cluster, job.strategy, runtime=job.runtime)
    assert again.iteration_seconds == found.best.iteration_seconds


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"teacher": "llama-3.1-70b", "reference": "llama-3.1-8b"}, "teacher and reference"),
        ({"teacher": "mixtral-8x7b"}, "8 in a layer, Llama-3.1-8B has 0"),
        ({"teacher": "bert-large"}, "is of kind encoder"),
        ({"reference": "llama-9"}, "llama-9"),
    ],
)
def test_what_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        astrarium.plan("llama-3.1-8b", **given, **ASKED)


@pytest.mark.parametrize("target", ["megatron", "accelerate", "torchtitan", "deepspeed"])
def test_exports_refuse_it_by_name(target: str, tmp_path: Path) -> None:
    found = astrarium.plan("llama-3.1-8b", teacher="llama-3.2-1b", **ASKED)
    with pytest.raises(InputError, match=r"teacher llama-3\.2-1b: no files are written"):
        found.best.export(target, tmp_path / "out")
