"""Checkpoints of plans whose nodes may be taken away: where they go, and how often.

A plan with spot nodes counts on them: it must go on from the last one whenever it starts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from astrarium.plans.job import Job

CHECKPOINTS: Final = "CHECKPOINTS"  # the variable that names the folder
MEANING: Final = "a folder for checkpoints that all nodes see and that outlives them"
USUAL_SECONDS: Final = 3600.0  # between two, where the plan counts no interruptions


def has_spot(job: Job) -> bool:
    return job.plan.run is not None and any(job.plan.run.spot_gpus.values())


def iterations_between(job: Job) -> int:
    """Iterations from one checkpoint to the next, as the plan counts."""
    counted = job.plan.run.checkpoint_interval_seconds if job.plan.run else None
    return max(round((counted or USUAL_SECONDS) / job.plan.iteration_seconds), 1)


def checkpoint_variables(job: Job) -> Mapping[str, str]:
    """What the user has to set beside the variables of the software."""
    return {CHECKPOINTS: MEANING} if has_spot(job) else {}
