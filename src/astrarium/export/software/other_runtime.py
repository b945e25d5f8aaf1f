"""What a plan would take under other software than it was priced for, in words."""

from __future__ import annotations

from astrarium.catalog.runtimes import find_runtime
from astrarium.plans.job import Job
from astrarium.units import format_bytes, format_seconds


def estimate_note(job: Job, runtime: str, title: str) -> str:
    """The same strategy priced for another runtime, beside the figures of the plan."""
    from astrarium.search.planner import predict

    if runtime in job.plan.runtimes:
        return f"The plan was made for this runtime: its figures are for {title}."
    plan = predict(job.workload, job.cluster_in_use, job.strategy, runtime=find_runtime(runtime))
    low, high = map(format_seconds, plan.interval_seconds)
    fits = "" if plan.fits else ", which does not fit"
    return (
        f"The plan was made for {job.runtime.title}. `astrarium plan --runtime {runtime}` plans for"
        f" {title}, under which the same strategy is expected to take"
        f" {format_seconds(plan.iteration_seconds)} an iteration ({low} to {high}) and"
        f" {format_bytes(plan.peak_bytes)} on the fullest GPU{fits}."
    )
