"""Times iterations on the cores of this machine, one core for each rank.

The model is trained as the plan says, so it has to be small. Ranks keep their freed memory, so that
the allocator is not timed. A rank with a share of a core is held back to it: SIGSTOP and SIGCONT
stop and continue a process several hundred times a second, with all its threads.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Event, Thread
from typing import Any, Final

from astrarium.calibrate.measure.cores import physical_cores
from astrarium.cluster import Cluster
from astrarium.errors import InputError
from astrarium.plans.job import Job
from astrarium.runtime.execute import Progress, run_jobs, step_seconds, versions
from astrarium.runtime.job import Device, TrainingJob
from astrarium.runtime.scaled.job import as_planned
from astrarium.strategy.document import strategy_to_dict
from astrarium.strategy.types import Strategy
from astrarium.value import Value

SCHEMA: Final = "astrarium.measured/1"

WARM_UP_STEPS: Final = 2
TIMED_STEPS: Final = 5
TIMEOUT_SECONDS: Final = 600.0
# Of glibc: blocks of any size come from memory that the process keeps.
KEEP_MEMORY: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
}


class Timed(Value, frozen=True):
    """Seconds of one iteration: the median over steps, the shortest and the longest."""

    seconds: float
    low: float
    high: float


class MeasuredRun(Value, frozen=True):
    """A plan that was run unchanged, with the time of its iterations."""

    schema: str
    model: str
    plan_rank: int
    versions: dict[str, str]
    strategy: dict[str, Any]
    layout: str
    shares_of_cores: tuple[float, ...]  # by rank
    notes: tuple[str, ...]
    predicted_seconds: float
    measured_seconds: float
    measured_range_seconds: tuple[float, float]

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1.0


def jobs_seconds(
    jobs: Sequence[TrainingJob],
    shares: Sequence[float],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    progress: Progress = lambda what, done, total: None,
) -> list[Timed]:
    """Do the jobs one after another, with a rank for each share of a core."""
    cores = ",".join(map(str, cores_for(len(shares))))
    results = run_jobs(
        [replace(job, steps=WARM_UP_STEPS + TIMED_STEPS) for job in jobs],
        Device.CPU,
        timeout_seconds=timeout_seconds,
        progress=progress,
        environment={"CORES": cores, **KEEP_MEMORY},
        beside=partial(slowed, shares=shares),
    )
    return [_timed(step_seconds(ranks)[WARM_UP_STEPS:]) for ranks in results]


def _timed(seconds: Sequence[float]) -> Timed:
    return Timed(statistics.median(seconds), min(seconds), max(seconds))


def cores_for(ranks: int) -> list[int]:
    """A core for each rank; InputError if there are too few."""
    cores = physical_cores()
    if ranks > len(cores):
        raise InputError(
            f"the plan has {ranks} ranks, but this machine {len(cores)} cores, and every rank that"
            " is measured needs one of its own; plan for fewer"
        )
    return cores[:ranks]


def measure_plan(
    job: Job,
    predict: Callable[[Strategy], float] | None,
    timeout_seconds: float,
    progress: Progress,
) -> MeasuredRun:
    """Train as planned, a core for each rank; `predict` gives seconds of what is run."""
    installed = versions()
    strangers = {pool.gpu.name for pool in job.cluster.pools if not pool.gpu.is_processor}
    if strangers:
        raise InputError(
            f"--measure: the plan is for {', '.join(sorted(strangers))}, and its times are not"
            " those of a processor; make one for cores: --gpus cpu:2 --profile FILE, FILE of"
            " `astrarium calibrate --device cpu`"
        )
    shares = shares_of(job.cluster, job.strategy)
    planned = as_planned(job.workload, job.strategy, TIMED_STEPS)
    run = planned.job.strategy
    notes = planned.notes
    if run != _without_idle_overlap(job.strategy):
        if predict is None:
            raise InputError(
                f"--measure: {'; '.join(notes)}; the plan's estimate is of another run: give"
                " --profile FILE, which predicts the one that runs, or plan again"
            )
        notes = (*notes, "the prediction is of the run, not of the plan")
    expected = job.plan.iteration_seconds if predict is None else predict(run)
    (timed,) = jobs_seconds(
        [planned.job], shares, timeout_seconds=timeout_seconds, progress=progress
    )
    return MeasuredRun(
        schema=SCHEMA,
        model=job.model.name,
        plan_rank=job.plan.rank,
        versions=installed,
        strategy=strategy_to_dict(run),
        layout=planned.job.layout,
        shares_of_cores=tuple(shares),
        notes=notes,
        predicted_seconds=expected,
        measured_seconds=timed.seconds,
        measured_range_seconds=(timed.low, timed.high),
    )


def _without_idle_overlap(strategy: Strategy) -> Strategy:
    """The same strategy: without tensor parallelism its overlap means nothing."""
    hides = strategy.overlap.tp and strategy.tp > 1
    return replace(strategy, overlap=replace(strategy.overlap, tp=hides))


def shares_of(cluster: Cluster, strategy: Strategy) -> list[float]:
    """The share of a core that each rank has, in the order of ranks."""
    shares = {pool.name: pool.gpu.share for pool in cluster.pools}
    if len(shares) == 1:
        return [*shares.values()] * strategy.gpus
    first = sorted((s for s in strategy.stages if s.chunk == 0), key=lambda s: s.pipeline_rank)
    by_stage = [[shares[n] for n, gpus in s.pools.items() for _ in range(gpus)] for s in first]
    if not strategy.pipeline_inside:
        return [share for stage in by_stage for share in stage]
    each = strategy.tp * strategy.cp
    return [
        share
        for replica in range(strategy.dp)
        for stage in by_stage
        for share in stage[replica * each : (replica + 1) * each]
    ]


PERIOD_SECONDS: Final = 0.004


@contextmanager
def slowed(
    pids: Sequence[int], shares: Sequence[float], period: float = PERIOD_SECONDS
) -> Iterator[None]:
    """Give each process its share of the time for as long as the `with` block lasts."""
    done = Event()
    threads = [
        Thread(target=_hold_back, args=(pid, share, period, done.is_set), daemon=True)
        for pid, share in zip(pids, shares, strict=True)
        if share < 1.0
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _hold_back(pid: int, share: float, period: float, is_done: Callable[[], bool]) -> None:
    """Stop and continue at times fixed beforehand: a late turn does not delay the next."""
    began, turn = time.perf_counter(), 0
    with suppress(ProcessLookupError):
        while not is_done():
            os.kill(pid, signal.SIGSTOP)
            _sleep_until(began + (turn + 1.0 - share) * period)
            os.kill(pid, signal.SIGCONT)
            turn += 1
            _sleep_until(began + turn * period)
        os.kill(pid, signal.SIGCONT)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
