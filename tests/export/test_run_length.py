"""The batch may grow and evaluations may come between: targets say both, or refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exported_plans import document

from astrarium.cost.training_run import schedule_of
from astrarium.export.features import Feature
from astrarium.export.run_length import TRIAL_ITERATIONS, iterations
from astrarium.export.software import bridge, megatron
from astrarium.export.target import find_target, refusals
from astrarium.plans.document import Evaluation, Ramp, SearchPart
from astrarium.plans.job import Job, job_of

SEQUENCE, BATCH, SAMPLES = 2048, 64, 100_000
RAMP = Ramp(16, 16, 30_000)


def job(*, tokens: int | None = SAMPLES * SEQUENCE, ramp: Ramp | None = RAMP) -> Job:
    """A plan on one GPU type whose search had a ramp and evaluations."""
    predicted = document("llama-3-8b", "h100:8", {"tp": 8}, tokens=tokens)
    search = SearchPart(
        objective="throughput",
        mode="exact",
        seconds=1.0,
        space=1,
        evaluated=1,
        rejected={},
        reasons={},
        optimal=True,
        bound_gap=0.0,
        rampup_batch=ramp,
        evaluation=Evaluation(100, 7),
    )
    return job_of(replace(predicted, search=search))


def test_megatron_grows_the_batch_and_evaluates() -> None:
    flags = megatron.flags(job())
    assert flags["rampup-batch-size"] == [16, 16, 30_000]
    assert flags["train-samples"] == SAMPLES
    assert (flags["eval-interval"], flags["eval-iters"]) == (100, 7)
    assert "train-iters" not in flags


def test_bridge_counts_the_iterations_of_the_ramp() -> None:
    keys = bridge.overrides(job())
    schedule = schedule_of(SAMPLES, BATCH, Ramp(16, 16, 30_000))
    assert schedule.left_over > 0
    assert keys["train.train_iters"] == schedule.num_iterations + 1
    assert schedule.num_iterations > SAMPLES / BATCH
    assert keys["train.rampup_batch_size"] == [16, 16, 30_000]
    assert (keys["validation.eval_interval"], keys["validation.eval_iters"]) == (100, 7)


def test_without_either_nothing_is_said() -> None:
    plain = job_of(document("llama-3-8b", "h100:8", {"tp": 8}))
    flags = megatron.flags(plain)
    assert (flags["train-iters"], flags["eval-iters"]) == (TRIAL_ITERATIONS, 0)
    assert flags.keys().isdisjoint({"rampup-batch-size", "train-samples", "eval-interval"})


def test_a_trial_ends_before_the_ramp() -> None:
    assert iterations(job(tokens=None)) == TRIAL_ITERATIONS


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "accelerate"])
def test_others_refuse(target: str) -> None:
    lacking = {refusal.feature for refusal in refusals(job(), find_target(target))}
    assert {Feature.RAMP, Feature.EVALUATION} <= lacking
    fixed = {refusal.feature for refusal in refusals(job(ramp=None), find_target(target))}
    assert Feature.RAMP not in fixed
