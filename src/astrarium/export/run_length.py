"""How long a planned run is in iterations, and what it does beside training."""

from __future__ import annotations

from dataclasses import asdict
from math import ceil
from typing import Final

from astrarium.cost.training_run import Evaluation, Ramp, schedule_of
from astrarium.plans.job import Job

TRIAL_ITERATIONS: Final = 100  # where the plan does not say for how many tokens to train


def is_trial(job: Job) -> bool:
    """Whether the plan states no number of tokens."""
    return job.workload.tokens is None


def samples(job: Job) -> int:
    """Sequences of the whole run."""
    work = job.workload
    if work.tokens is None:
        return TRIAL_ITERATIONS * work.global_batch
    return ceil(work.tokens / work.seq_length)


def iterations(job: Job) -> int:
    """Iterations of the whole run, those of a growing batch among them; or those of a trial."""
    ramp = ramp_of(job)
    if ramp is None:
        wanted = job.workload.iterations
        return TRIAL_ITERATIONS if wanted is None else ceil(wanted)
    schedule = schedule_of(samples(job), job.workload.global_batch, ramp)
    return schedule.num_iterations + ceil(schedule.left_over / job.workload.global_batch)


def ramp_of(job: Job) -> Ramp | None:
    """How the batch grows; not in a trial, which would end before."""
    search = job.document.search
    if is_trial(job) or search is None or search.rampup_batch is None:
        return None
    return Ramp(**asdict(search.rampup_batch))


def evaluation_of(job: Job) -> Evaluation | None:
    search = job.document.search
    if search is None or search.evaluation is None:
        return None
    return Evaluation(**asdict(search.evaluation))
