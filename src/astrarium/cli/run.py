"""`astrarium run`: execute a plan with the real megatron-core, scaled down where need be."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from astrarium.api import readers
from astrarium.cli import output
from astrarium.cli.shell import command, typed
from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.plans.job import Job
    from astrarium.runtime.job import Device
    from astrarium.runtime.plan_run import RunLimits
    from astrarium.strategy.types import Strategy

MOST_RANKS = 64
NOT_EQUAL = 1  # the exit code where losses differ or are no numbers


class RunMode(StrEnum):
    """The purpose of a run, in the words of its flags."""

    COMPARE = "without --dry and --measure"
    DRY = "with --dry"
    MEASURE = "with --measure on cores"
    MEASURE_GPU = "with --measure --device cuda"


# Flags that not all modes take, by mode.
TAKES = {
    RunMode.COMPARE: frozenset({"steps", "ranks"}),
    RunMode.DRY: frozenset[str](),
    RunMode.MEASURE: frozenset({"profile"}),
    RunMode.MEASURE_GPU: frozenset[str](),
}


@command("run")
def run(
    ctx: click.Context,
    *,
    plan: str,
    dry: bool,
    measure: bool,
    json: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Execute a scaled-down plan with megatron-core, or a program.

    One process per rank trains a small model with the strategy of the plan, or the model of the
    program. A single process trains the same model. The exit code is 1 if the losses differ or are
    not numbers.
    """
    from astrarium.cli import programs
    from astrarium.plans.document import load_document
    from astrarium.plans.job import job_of
    from astrarium.runtime.job import Device
    from astrarium.runtime.plan_run import RunLimits

    if programs.is_program(plan):
        programs.run(ctx, plan, {**values, "measure": measure, "json": json}, typed(ctx))
        return
    programs.check_not_typed(plan, typed(ctx))
    where = values["device"] or (Device.CUDA if dry else Device.CPU)
    mode = _mode(where, dry=dry, measure=measure)
    _check_flags(mode, typed(ctx))
    ranks, seconds = readers.count(MOST_RANKS)("ranks", values["ranks"]), values["timeout"]
    limits = RunLimits(ranks, values["steps"], seconds)
    job = job_of(load_document(Path(plan)), values["rank"], plan)
    if mode in (RunMode.DRY, RunMode.MEASURE_GPU):
        flag = "--dry" if mode is RunMode.DRY else "--measure --device cuda"
        _try_stages(job, where, seconds, flag=flag, json=json)
        return
    if mode is RunMode.MEASURE:
        _measure(job, values["profile"], seconds, json=json)
        return
    if not _compare(job, where, limits, json=json):
        ctx.exit(NOT_EQUAL)


def _compare(job: Job, device: Device, limits: RunLimits, *, json: bool) -> bool:
    """Train scaled down, beside a single process; whether the two are equal."""
    from astrarium.report.runs import execution_report
    from astrarium.runtime.plan_run import run_plan

    with output.bar("starting processes") as progress:
        done = run_plan(job, device, limits, progress)
    output.answer(done, lambda width: execution_report(done, width), json=json)
    return done.is_equal


def _mode(device: Device, *, dry: bool, measure: bool) -> RunMode:
    if dry and measure:
        raise InputError("--dry and --measure are both given; keep one")
    if measure:
        return RunMode.MEASURE if device.value == "cpu" else RunMode.MEASURE_GPU
    return RunMode.DRY if dry else RunMode.COMPARE


def _check_flags(mode: RunMode, given: Collection[str]) -> None:
    """Refuse flags that would be of no effect."""
    for flag in sorted(frozenset[str]().union(*TAKES.values()) - TAKES[mode]):
        if flag in given:
            able = " or ".join(other for other in RunMode if flag in TAKES[other])
            raise InputError(f"--{flag}: only {able}; it has no effect {mode}")


def _try_stages(job: Job, device: Device, timeout_seconds: float, *, flag: str, json: bool) -> None:
    from astrarium.report.runs import dry_report
    from astrarium.runtime.dry import dry_run
    from astrarium.runtime.job import Device

    if device is Device.CPU:
        raise InputError("--dry builds ranks in full size on a GPU; leave --device cpu out")
    with output.bar("starting processes") as progress:
        done = dry_run(job, device, timeout_seconds=timeout_seconds, progress=progress, flag=flag)
    output.answer(done, lambda width: dry_report(done, width), json=json)


def _measure(job: Job, profile: str | None, seconds: float, *, json: bool) -> None:
    """Time iterations of the plan on cores beside its prediction."""
    from msgspec import to_builtins

    from astrarium.report.runs import measured_report
    from astrarium.runtime.measure import measure_plan

    predict = None if profile is None else _predictor(job, profile)
    with output.bar("starting processes") as progress:
        done = measure_plan(job, predict, seconds, progress)
    data = {**to_builtins(done), "error": done.error}
    output.answer(data, lambda _: measured_report(done), json=json)


def _predictor(job: Job, profile: str) -> Callable[[Strategy], float]:
    """Seconds of an iteration of the plan's job under a strategy, by a profile."""
    from astrarium.api import request
    from astrarium.calibrate.fit.profile import with_measured_cores
    from astrarium.search import planner

    used = request.used_profile(profile)
    if used.header is None:
        raise InputError(f"--profile {profile}: --measure takes the profile of a processor")
    cluster = with_measured_cores(job.cluster, used.header)

    def seconds(strategy: Strategy) -> float:
        plan = planner.predict(job.workload, cluster, strategy, tuning=used.tuning)
        return plan.iteration_seconds

    return seconds
