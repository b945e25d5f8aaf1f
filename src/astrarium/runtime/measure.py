"""Times iterations on the cores of this machine, one core for each rank.

Nothing is scaled down: the model is trained as the plan says, so it has to be small. Ranks keep
to a core each, with one thread; memory that they free stays theirs, as giving it back and asking
for it again would be timed instead of the training. Where the plan says that a rank has a share
of a core, it is held back to that (`slowed`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from astrarium.calibrate.cores import physical_cores
from astrarium.cluster import Cluster
from astrarium.errors import InputError
from astrarium.runtime.job import Device, RankResult, TrainingJob
from astrarium.runtime.launch import launch
from astrarium.runtime.shapes import shape_of
from astrarium.runtime.slowed import slowed
from astrarium.strategy.types import Strategy

WARM_UP_STEPS: Final = 2
TIMED_STEPS: Final = 5
TIMEOUT_SECONDS: Final = 600.0
JOBS_FILE: Final = "jobs.json"
# Of glibc: blocks of any size come from memory that the process keeps.
_KEEP_MEMORY: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
}


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one iteration: the median over steps, the shortest and the longest."""

    seconds: float
    low: float
    high: float


def jobs_seconds(
    jobs: Sequence[TrainingJob],
    shares: Sequence[float],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Timed]:
    """Do the jobs one after another on as many ranks as there are shares of cores."""
    import msgspec

    cores = _cores(len(shares))
    timed = [replace(job, steps=WARM_UP_STEPS + TIMED_STEPS) for job in jobs]
    environment = {
        "DEVICE": Device.CPU.value,
        "CORES": ",".join(map(str, cores)),
        **_KEEP_MEMORY,
    }
    answers = launch(
        {JOBS_FILE: msgspec.json.encode(timed)},
        len(shares),
        environment=environment,
        timeout_seconds=timeout_seconds,
        beside=partial(slowed, shares=shares),
    )
    results = [
        msgspec.convert(answer["result"], RankResult)
        for rank in answers
        for answer in rank
        if "result" in answer
    ]
    return [_timed([r for r in results if r.job == number]) for number in range(len(jobs))]


def _timed(ranks: Sequence[RankResult]) -> Timed:
    """An iteration lasts until the last rank is done."""
    steps = zip(*(rank.steps[WARM_UP_STEPS:] for rank in ranks), strict=True)
    seconds = [max(step.seconds for step in of_ranks) for of_ranks in steps]
    return Timed(statistics.median(seconds), min(seconds), max(seconds))


def _cores(ranks: int) -> list[int]:
    cores = physical_cores()
    if ranks > len(cores):
        raise InputError(
            f"the plan has {ranks} ranks, but this machine {len(cores)} cores, and every rank that"
            " is measured needs one of its own; plan for fewer"
        )
    return cores[:ranks]


def shares_of(cluster: Cluster, strategy: Strategy) -> list[float]:
    """The share of a core that each rank has, in the order of ranks."""
    whole = {pool.name: pool for pool in cluster.pools}
    if len(whole) == 1:
        return [cluster.pools[0].gpu.share] * strategy.gpus
    shares: list[float] = []
    for stage in sorted(strategy.stages, key=lambda stage: stage.rank):
        for name, gpus in stage.pools:
            shares += [whole[name].gpu.share] * gpus
    return shares
