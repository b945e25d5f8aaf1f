"""The lines at the top of every exported file: its purpose and the prediction."""

from __future__ import annotations

from astrarium import __version__
from astrarium.catalog.runtimes import find_runtime
from astrarium.plans.job import Job
from astrarium.units import format_bytes, format_count, format_seconds, format_usd


def header_lines(job: Job, software: str) -> tuple[str, ...]:
    """The header without comment signs; `software` is what the file was written for."""
    work, size = job.workload, format_count(job.model.parameters)
    return (
        f"Written by Astrarium {__version__} for {software}.",
        f"{job.model.name}, {size} parameters, on {gpus_words(job)}; {work.global_batch} sequences"
        f" of {work.seq_length} tokens an iteration, {work.precision}.",
        *predicted_lines(job),
    )


def gpus_words(job: Job) -> str:
    return " + ".join(f"{count} x {gpu}" for gpu, count in job.plan.gpus.items())


def predicted_lines(job: Job) -> tuple[str, ...]:
    """Time, memory and money as they were predicted."""
    plan = job.plan
    low, high = map(format_seconds, plan.interval_seconds)
    fullest = plan.fullest
    return (
        f"Predicted: {format_seconds(plan.iteration_seconds)} an iteration ({low} to {high}),"
        f" {format_count(plan.tokens_per_second)} tokens/s;",
        f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.capacity_bytes)} on the"
        f" fullest GPU ({fullest.gpu}, stage {fullest.stage});",
        f"{_money(job)}.",
    )


def _money(job: Job) -> str:
    plan = job.plan
    if plan.usd_per_hour is None:
        return "no price known"
    hourly = f"{format_usd(plan.usd_per_hour)} an hour"
    if plan.usd_total is None or plan.train_seconds is None:
        return hourly
    run = f"{format_usd(plan.usd_total)} for the run of {format_seconds(plan.train_seconds)}"
    return f"{hourly}, {run}"


def commented(lines: tuple[str, ...], sign: str = "#") -> str:
    return "".join(f"{sign} {one_line(line)}".rstrip() + "\n" for line in lines)


def one_line(text: str) -> str:
    """The text on one line: a name with a line break must not end a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


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
