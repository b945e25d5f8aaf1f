"""`astrarium run`: a plan becomes a job, the job runs, and what came of it is one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from typing import Any

from astrarium.catalog.optimizers import ADAMW
from astrarium.catalog.runtimes import DEFAULT, Runtime
from astrarium.errors import InputError
from astrarium.plans.job import Job
from astrarium.runtime.execute import (
    CHECKED,
    Comparison,
    Progress,
    compared,
    is_there,
    mean_losses,
    run_jobs,
    step_seconds,
    version_of,
    versions,
    visible_gpus,
)
from astrarium.runtime.job import Device, RankResult, Software
from astrarium.runtime.scaled.job import SHARDING, ScaledJob, as_planned, scaled
from astrarium.strategy.document import strategy_to_dict
from astrarium.value import Value

SCHEMA = "astrarium.run/1"
TRAINED_BY = {
    Software.FSDP2: "torch's fully_shard and AdamW",
    Software.DEEPSPEED: "ZeRO of DeepSpeed and AdamW of torch",
}
PRECISION = {Device.CPU: "fp32", Device.CUDA: "bf16"}


class RunLimits(Value, frozen=True):
    ranks: int
    steps: int
    timeout_seconds: float


class RankPart(Value, frozen=True):
    """One process: where it is along the axes, on which pools its stage is, what it used."""

    rank: int
    places: dict[str, int]
    pools: tuple[str, ...]
    layers: int
    parameters: int
    peak_bytes: int
    mean_step_seconds: float


class PlanRun(Value, frozen=True):
    """A run and its results; `single_process` is null if one process cannot do it alone."""

    schema: str
    model: str
    plan_rank: int
    device: str
    precision: str
    versions: dict[str, str]
    planned_gpus: int
    ranks: int
    strategy: dict[str, Any]
    layout: str
    changes: tuple[dict[str, str], ...]
    notes: tuple[str, ...]
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    single_process: Comparison | None
    step_seconds: tuple[float, ...]
    processes: tuple[RankPart, ...]

    @property
    def is_finite(self) -> bool:
        """Whether all losses and norms of gradients are numbers."""
        return all(map(isfinite, (*self.losses, *self.gradient_norms)))

    @property
    def is_equal(self) -> bool:
        return self.is_finite and (self.single_process is None or self.single_process.equal)


def run_plan(job: Job, device: Device, limits: RunLimits, progress: Progress) -> PlanRun:
    """Execute a plan, scaled down to the processes there are."""
    installed = versions()
    made, whole = _made(job, device, limits)
    if made.job.software is Software.DEEPSPEED:
        installed["deepspeed"] = version_of("deepspeed")
    jobs = [made.job] if whole else [made.job.alone(), made.job]
    results = run_jobs(jobs, device, timeout_seconds=limits.timeout_seconds, progress=progress)
    ranks = results[-1]
    return PlanRun(
        schema=SCHEMA,
        model=job.model.name,
        plan_rank=job.plan.rank,
        device=device.value,
        precision=PRECISION[device],
        versions=installed,
        planned_gpus=job.world_size,
        ranks=made.job.ranks,
        strategy=strategy_to_dict(made.job.strategy),
        layout=made.job.layout,
        changes=tuple(asdict(change) for change in made.changes),
        notes=(*made.notes, *_notes(job, made.job.software, device, installed)),
        losses=mean_losses(ranks),
        gradient_norms=ranks[0].gradient_norms,
        single_process=None if whole else compared(ranks, results[0], device),
        step_seconds=step_seconds(ranks),
        processes=tuple(_process(rank, made) for rank in ranks),
    )


def _made(job: Job, device: Device, limits: RunLimits) -> tuple[ScaledJob, bool]:
    """The job, and whether it is the plan in full size, with all the GPUs it asks for."""
    most = limits.ranks
    if device is Device.CUDA:
        gpus = visible_gpus()
        if gpus == 0:
            raise InputError("--device cuda: torch sees no GPU here; use --device cpu")
        if gpus >= job.world_size:
            return as_planned(job.workload, job.strategy, limits.steps), True
        most = min(most, gpus)
    rules = _rules_run(job.runtime, device)
    return scaled(job.workload, job.strategy, most, limits.steps, rules), False


def _rules_run(runtime: Runtime, device: Device) -> str:
    """The planned runtime's rules if it runs here; else Megatron's, as on GPUs (fp32 copies)."""
    missing = SHARDING.get(runtime.program) is Software.DEEPSPEED and not is_there("deepspeed")
    return DEFAULT if missing or device is Device.CUDA else runtime.program


def _notes(
    job: Job, software: Software, device: Device, installed: dict[str, str]
) -> Iterator[str]:
    if software is not Software.MEGATRON:
        yield f"{TRAINED_BY[software]} train it; megatron-core only builds its layers"
    elif not job.runtime.parses_as_megatron:
        yield f"planned for {job.runtime.name}; megatron-core runs the same degrees in its own way"
    if SHARDING.get(job.runtime.program) is Software.DEEPSPEED and "deepspeed" not in installed:
        yield "ZeRO of DeepSpeed itself runs once it is installed: pip install deepspeed"
    if job.workload.optimizer != ADAMW:
        yield f"updates with AdamW, not with {job.workload.optimizer} as planned"
    if job.workload.adapters is not None:
        yield f"trains all weights, not {job.workload.adapters.kind} as planned"
    if job.workload.beside is not None:
        yield f"trains without the {job.workload.beside.role} as planned"
    if job.workload.lengths is not None:
        yield "trains on sequences of one length, not of those planned"
    planned = job.workload.precision.value
    if device is Device.CUDA and planned != PRECISION[device]:
        yield f"computes in {PRECISION[device]}, not in {planned} as planned"
    if installed["megatron-core"] != CHECKED:
        yield f"checked with megatron-core {CHECKED}; installed is {installed['megatron-core']}"


def _process(rank: RankResult, made: ScaledJob) -> RankPart:
    own = [stage for stage in made.job.strategy.stages if stage.pipeline_rank == rank.where["pp"]]
    return RankPart(
        rank=rank.rank,
        places=rank.where,
        pools=tuple(own[0].pools) if own else (),
        layers=sum(stage.num_layers for stage in own),
        parameters=rank.parameters,
        peak_bytes=rank.peak_bytes,
        mean_step_seconds=sum(rank.step_seconds) / len(rank.step_seconds),
    )
