"""`astrarium run --dry`: one GPU builds and trains the shard of each sort of stage in turn.

The process is one rank of the plan with the plan's own model, but its messages go nowhere. So its
tensors are those of the real run, byte for byte, and its seconds those of a run whose messages take
no time. The prediction beside it assumes the same, and the installed software (megatron-core
without TransformerEngine).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from time import monotonic

from astrarium.catalog import find_gpu
from astrarium.catalog.optimizers import ADAMW
from astrarium.catalog.runtimes import ReportedMemory, find_runtime
from astrarium.cost.tuning import Tuning
from astrarium.errors import InputError
from astrarium.plans.job import Job
from astrarium.runtime.execute import Progress, run_jobs, versions, visible_gpus
from astrarium.runtime.job import Device, RankResult, TrainingJob
from astrarium.runtime.launch import LateError, RankError
from astrarium.runtime.scaled.job import as_planned
from astrarium.search.planner import predict
from astrarium.strategy.estimate import StageMemory, StageSeconds
from astrarium.strategy.types import Strategy
from astrarium.validate.predictions import reported_bytes
from astrarium.value import Value

SCHEMA = "astrarium.dry/1"
RUNTIME = "megatron-local"
STEPS = 3  # the first one allocates what stays
OUT_OF_MEMORY = "OutOfMemoryError"  # torch's name for it
HELD = ("weights", "gradients", "optimizer")
NO_MESSAGES = Tuning(intra_link=0.0, inter_link=0.0)


class DryStage(Value, frozen=True):
    """One stage: bytes by cause and seconds of one iteration, predicted and found.

    Nothing was found where the GPU here ran out of memory. Seconds are null too where it is of
    another type than the plan's.
    """

    stage: int
    gpu: str
    layers: int
    like: tuple[int, ...]  # stages that hold the same
    predicted_bytes: dict[str, float]
    allocated_bytes: dict[str, float] | None
    predicted_seconds: float | None
    measured_seconds: float | None

    @property
    def predicted_peak(self) -> float:
        return sum(self.predicted_bytes.values())

    @property
    def allocated_peak(self) -> float | None:
        return None if self.allocated_bytes is None else sum(self.allocated_bytes.values())

    @property
    def peak_error(self) -> float | None:
        """By how much of it the peak was misjudged."""
        found = self.allocated_peak
        return None if found is None else self.predicted_peak / found - 1


class DryRun(Value, frozen=True):
    """The stages that were tried, the GPU and the results."""

    schema: str
    model: str
    plan_rank: int
    planned_gpus: int
    gpu: str
    runtime: str
    versions: dict[str, str]
    num_micro_batches: int
    notes: tuple[str, ...]
    stages: tuple[DryStage, ...]


def dry_run(
    job: Job,
    device: Device,
    *,
    timeout_seconds: float,
    progress: Progress = lambda *_: None,
    flag: str = "--dry",
) -> DryRun:
    """Try every sort of stage of a plan on one GPU; `flag` is how it was asked for."""
    deadline = monotonic() + timeout_seconds
    installed = versions()
    if device is Device.CUDA and not visible_gpus():
        raise InputError(
            f"{flag} builds a rank of the plan in its own size, and torch sees no GPU here; without"
            f" {flag} the plan runs scaled down on the CPU"
        )
    if job.workload.adapters is not None or job.workload.optimizer != ADAMW:
        raise InputError(
            f"{flag} trains all weights with AdamW, and the plan does not; without {flag} it runs"
            " scaled down, which says so"
        )
    made = as_planned(job.workload, job.strategy, STEPS)
    few = _fewer_batches(made.job.strategy)
    chosen = dict(distinct_stages(few, job.model.kind_of_layer))
    jobs = [
        replace(made.job, name=f"stage {stage}", strategy=few, alone_at=stage) for stage in chosen
    ]
    # Each in a process of its own: nothing of one is left in the next one's memory.
    try:
        results = [_tried(one, device, deadline - monotonic(), progress) for one in jobs]
    except LateError:
        raise RankError(
            f"not done after {timeout_seconds:g} s with {len(jobs)} sorts of stages, one after"
            " another; give more time with --timeout"
        ) from None
    gpu = next((result.gpu for result in results if result), "")
    why_no_seconds = _why_no_seconds(gpu, few)
    notes = [*made.notes, *([why_no_seconds] if why_no_seconds else [])]
    if few != made.job.strategy:
        notes.append(
            f"{few.num_micro_batches} of {job.strategy.num_micro_batches} micro-batches: as many as"
            " it takes to fill the pipeline"
        )
    predicted = _predicted(job, few)
    return DryRun(
        schema=SCHEMA,
        model=job.model.name,
        plan_rank=job.plan.rank,
        planned_gpus=job.world_size,
        gpu=gpu,
        runtime=RUNTIME,
        versions=installed,
        num_micro_batches=few.num_micro_batches,
        notes=tuple(notes),
        stages=tuple(
            _stage(one, result, predicted[stage], like, timed=not why_no_seconds)
            for (stage, like), one, result in zip(chosen.items(), jobs, results, strict=True)
        ),
    )


def _tried(
    job: TrainingJob, device: Device, timeout_seconds: float, progress: Progress
) -> RankResult | None:
    """The result of a stage; None if the memory here does not suffice."""
    try:
        return run_jobs([job], device, timeout_seconds=timeout_seconds, progress=progress)[0][0]
    except RankError as error:
        if OUT_OF_MEMORY in str(error):
            return None
        raise


def _why_no_seconds(gpu: str, strategy: Strategy) -> str:
    if not _is_type(gpu, [stage.gpu for stage in strategy.stages]):
        return f"seconds are left out: the plan is for other GPUs than {gpu or 'this one'}"
    if strategy.cp > 1:
        return "seconds are left out: attention over context ranks is TransformerEngine's"
    return ""


def distinct_stages(
    strategy: Strategy, kind_of_layer: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The first, and so fullest, rank of every kind of content, and those that are like it."""
    ranks: dict[tuple[object, ...], list[int]] = {}
    for rank in range(strategy.pp):
        own = [stage for stage in strategy.stages if stage.pipeline_rank == rank]
        layers = tuple(tuple(kind_of_layer[one.first_layer : one.last_layer]) for one in own)
        places = tuple((stage.gpu, *stage.pools.items()) for stage in own)
        key = (layers, places, rank == 0, rank == strategy.pp - 1)
        ranks.setdefault(key, []).append(rank)
    for alike in ranks.values():
        yield alike[0], tuple(alike[1:])


def _fewer_batches(strategy: Strategy) -> Strategy:
    """Twice through the pipeline: every rank holds as much as it ever does."""
    enough = 2 * strategy.pp
    return replace(strategy, num_micro_batches=min(strategy.num_micro_batches, enough))


def _predicted(job: Job, few: Strategy) -> list[tuple[StageMemory, StageSeconds]]:
    """Bytes and seconds of every stage; the batch is that of the fewer micro-batches."""
    asked = replace(
        job.strategy,
        num_micro_batches=few.num_micro_batches,
        zero_stage=few.zero_stage,
        recompute=few.recompute,
        offload_optimizer=False,
        overlap=few.overlap,
    )
    workload = replace(job.workload, global_batch=asked.sequences)
    runtime = find_runtime(RUNTIME)
    plan = predict(workload, job.cluster, asked, runtime=runtime, tuning=NO_MESSAGES)
    return list(zip(plan.memory, plan.stage_seconds, strict=True))


def _stage(
    job: TrainingJob,
    result: RankResult | None,
    predicted: tuple[StageMemory, StageSeconds],
    like: tuple[int, ...],
    *,
    timed: bool,
) -> DryStage:
    memory, seconds = predicted
    own = [stage for stage in job.strategy.stages if stage.pipeline_rank == seconds.stage]
    held = {cause: memory.by_cause[cause] for cause in HELD}
    peak = reported_bytes(memory, find_runtime(RUNTIME), ReportedMemory.ALLOCATED)
    batches = job.strategy.num_micro_batches
    iteration = batches * seconds.pass_seconds + seconds.after_seconds
    return DryStage(
        stage=seconds.stage,
        gpu=seconds.gpu,
        layers=sum(stage.num_layers for stage in own),
        like=like,
        predicted_bytes=_with_rest(held, peak),
        allocated_bytes=_with_rest(result.held_bytes, result.peak_bytes) if result else None,
        predicted_seconds=iteration if timed else None,
        measured_seconds=median(result.step_seconds[1:]) if result and timed else None,
    )


def _with_rest(held: Mapping[str, float], peak: float) -> dict[str, float]:
    """Bytes that stay, and those that come and go."""
    return {**held, "activations": peak - sum(held.values())}


def _is_type(name: str, planned: Sequence[str]) -> bool:
    """Whether a GPU, as CUDA calls it, is of the one type that the plan is for."""
    try:
        return {find_gpu(name).name} == set(planned)
    except InputError:
        return False
