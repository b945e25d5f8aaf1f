"""The nearest expressible plan: valid, fitting, the fastest of those tried, and told as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from exported_plans import document

from astrarium.export.features import Feature
from astrarium.export.megatron import TARGET
from astrarium.export.nearest import nearest
from astrarium.export.program import Program
from astrarium.export.result import Refused
from astrarium.export.target import Target, refusals
from astrarium.plans.job import Job, job_of


def lacking(*features: Feature) -> Target:
    return Target(
        name="poor",
        title="Poor",
        version="1",
        program=lambda job: Program("Poor 1", "poor.py"),
        lacks=dict.fromkeys(features, "it cannot"),
    )


def planned(gpus: str = "h100:16", **strategy: Any) -> Job:
    return job_of(document("llama-3-8b", gpus, strategy, seq_length=4096))


INTERLEAVED: Mapping[str, Any] = {"tp": 2, "pp": 4, "virtual_stages": 2}


@pytest.mark.parametrize(
    ("features", "strategy", "changed"),
    [
        ([Feature.VIRTUAL_STAGES], INTERLEAVED, "virtual_stages 2 -> 1"),
        ([Feature.PIPELINE], INTERLEAVED, "pp 4 -> 1"),
        ([Feature.TENSOR_PARALLEL], INTERLEAVED, "tp 2 -> 1"),
        ([Feature.SEQUENCE_PARALLEL], {"tp": 4}, "sequence_parallel on -> off"),
        ([Feature.ZERO_3], {"tp": 1, "zero_stage": 3}, "zero_stage 3 -> "),
        (
            [Feature.RECOMPUTE_SOME],
            {"tp": 4, "recompute": "full", "recompute_method": "block", "recompute_layers": 2},
            "recompute full block 2 -> ",
        ),
        ([Feature.OVERLAP_TENSOR], {"tp": 4}, "overlap.tp on -> off"),
        ([Feature.CONTEXT_PARALLEL], {"tp": 2, "cp": 4}, "cp 4 -> 1"),
    ],
)
def test_what_is_lacking_is_given_up(
    features: list[Feature], strategy: dict[str, Any], changed: str
) -> None:
    one, target = planned(**strategy), lacking(*features)
    assert refusals(one, target)
    found = nearest(one, [target])
    assert found is not None
    assert not refusals(found.job, target)
    assert found.job.plan.fits
    assert any(change.startswith(changed) for change in found.changed), found.changed
    assert found.job.strategy.gpus == one.strategy.gpus
    assert found.job.strategy.sequences == one.workload.global_batch
    assert found.rank is None


def test_uneven_stages_become_equal() -> None:
    stages = [{"layers": [0, 12]}, {"layers": [12, 32]}]
    one = planned(tp=4, pp=2, stages=stages)
    found = nearest(one, [lacking(Feature.UNEVEN_STAGES)])
    assert found is not None
    held = {s.last_layer - s.first_layer for s in found.job.strategy.stages}
    assert len(held) == 1


def test_stages_of_unlike_degrees_become_alike() -> None:
    fast, slow = "H100-SXM5-80GB", "A100-SXM4-80GB"
    stages = [
        {"layers": [0, 20], "pools": {fast: 8}, "tp": 2, "dp": 4, "micro_batch": 1},
        {"layers": [20, 32], "pools": {slow: 8}, "tp": 4, "dp": 2, "micro_batch": 2},
    ]
    one = planned("h100:8,a100:8", tp=2, pp=2, dp=4, stages=stages)
    (why,) = refusals(one, TARGET)
    assert why.feature is Feature.UNLIKE_STAGES
    found = nearest(one, [TARGET])
    assert found is not None
    assert not found.job.strategy.has_unlike_stages
    assert found.slower > 0.5
    message = Refused(TARGET, (why,), found).message(1)
    assert "cannot express plan 1" in message
    assert "--nearest" in message


def test_types_of_gpus_are_taken_apart() -> None:
    one = planned("h100:8,a100:8", tp=4, pp=2)
    found = nearest(one, [lacking(Feature.MIXED_GPUS)])
    assert found is not None
    assert found.job.plan.gpus == {"H100-SXM5-80GB": 8}


def test_a_plan_of_the_document_is_preferred_if_faster() -> None:
    one, other = planned(**INTERLEAVED), planned(tp=4, pp=1)
    both = (one.plan, replace(other.plan, rank=2))
    one = replace(one, document=replace(one.document, plans=both))
    found = nearest(one, [lacking(Feature.VIRTUAL_STAGES)])
    assert found is not None
    made = nearest(planned(**INTERLEAVED), [lacking(Feature.VIRTUAL_STAGES)])
    assert made is not None
    assert found.slower <= made.slower
    assert found.rank == (2 if found.slower < made.slower else None)


def test_there_may_be_none() -> None:
    """Neither for another model, nor where nothing else fits."""
    one = planned(**INTERLEAVED)
    refusing = replace(lacking(Feature.VIRTUAL_STAGES), model_refused=lambda job: "no")
    assert nearest(one, [refusing]) is None
    everything = lacking(Feature.VIRTUAL_STAGES, Feature.ZERO_0, Feature.ZERO_1, Feature.ZERO_2)
    assert nearest(one, [everything]) is None
    why = refusals(one, everything)
    assert "choose another target" in Refused(everything, why, None).message(1)
