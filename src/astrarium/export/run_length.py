"""The length of a planned run in iterations, its ramp, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

from astrarium.cost.training_run import Evaluation, Ramp, schedule_of
from astrarium.plans.job import Job

TRIAL_ITERATIONS: Final = 100  # of a plan without a number of tokens


def is_trial(job: Job) -> bool:
    """Whether the plan states no number of tokens."""
    return job.workload.tokens is None


def samples(job: Job) -> int:
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
    """The growth of the batch; none in a trial, which would end before."""
    search = job.document.search
    return None if is_trial(job) or search is None else search.rampup_batch


def evaluation_of(job: Job) -> Evaluation | None:
    search = job.document.search
    return None if search is None else search.evaluation


SMOKE_ITERATIONS: Final = 20  # of a try with SMOKE=1
# Every run keeps checkpoints and goes on from the last one at every start. A plan with spot nodes
# counts on them, so the user has to say where; a trial without tokens keeps some only if asked to.
CHECKPOINTS: Final = "CHECKPOINTS"  # the variable that names the folder
FOLDER: Final = "checkpoints"  # its value beside the launch script, where nothing is said
MEANING: Final = "a folder for checkpoints that all nodes see and that outlives them"
USUAL_SECONDS: Final = 3600.0  # between two, where the plan counts no interruptions
MOST_APART: Final = 10**9  # iterations


def has_spot(job: Job) -> bool:
    return job.plan.run is not None and any(job.plan.run.spot_gpus.values())


def iterations_between(job: Job) -> int:
    """Iterations from one checkpoint to the next, as the plan counts."""
    counted = job.plan.run.checkpoint_interval_seconds if job.plan.run else None
    return max(round(min((counted or USUAL_SECONDS) / job.plan.iteration_seconds, MOST_APART)), 1)


def usual_folder(job: Job) -> str:
    """The folder of checkpoints where the user names none; "" keeps none."""
    return "" if is_trial(job) or has_spot(job) else FOLDER


def kept_note(job: Job) -> str:
    """A note on checkpoints and short tries, for the user."""
    usual = f"`{FOLDER}` beside launch.sh" if usual_folder(job) else "none"
    return (
        f"Every {iterations_between(job)} iterations a checkpoint is written to the folder"
        f" {CHECKPOINTS} ({usual} unless you name one), which all nodes must see. Every start"
        f" continues from the last one. An empty {CHECKPOINTS} writes none. SMOKE=1 runs"
        f" {SMOKE_ITERATIONS} iterations and writes nothing."
    )


def checkpoint_variables(job: Job) -> Mapping[str, str]:
    """Variables that the user sets beside those of the software."""
    return {CHECKPOINTS: MEANING} if has_spot(job) else {}
