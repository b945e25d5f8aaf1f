"""Jobs done by real ranks, and how their losses compare with those of a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from typing import Protocol, TypeVar

from astrarium.errors import InputError
from astrarium.runtime.job import JOBS_FILE, Device, RankResult, TrainingJob
from astrarium.runtime.launch import Answer, Beside, Listener, launch
from astrarium.value import Value

PACKAGES = {"torch": "torch", "megatron.core": "megatron-core"}
CHECKED = "0.16.1"  # the megatron-core whose inner parts are replaced by name
INSTALL = "pip install 'astrarium[run]'"
PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
PROBE_SECONDS = 120.0
# How far losses and norms of gradients may be apart, relative to their size. fp32 sums in another
# order differ in the seventh digit, bf16 in the third; training widens that by each step.
TOLERANCE = {Device.CPU: 1e-4, Device.CUDA: 2e-2}

EMPTY: Mapping[str, str] = {}
T = TypeVar("T")

Progress = Callable[[str, int, int], None]  # what is done, steps so far, steps in all


class Comparison(Value, frozen=True):
    """The result of one process, and the distance of the ranks from it.

    `largest_difference` is that of losses, absolute; `equal` says that all losses and all norms of
    gradients agree within the tolerance. What is no number never agrees.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    largest_difference: float
    tolerance: float
    equal: bool


def versions() -> dict[str, str]:
    """The installed versions of what runs need; InputError names what is missing."""
    missing = [name for module, name in PACKAGES.items() if not is_there(module)]
    if missing:
        raise InputError(
            f"running a plan needs {' and '.join(missing)}, which is not installed; {INSTALL}"
        )
    return {name: version_of(name) for name in PACKAGES.values()}


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent
        return False


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def visible_gpus() -> int:
    """GPUs that torch can use here; asked in a process of its own, as torch is slow to import."""
    import subprocess
    import sys

    asked = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, timeout=PROBE_SECONDS, check=False
    )
    return int(asked.stdout) if asked.returncode == 0 else 0


def counted(names: Sequence[str], steps: int, progress: Progress) -> Listener:
    """A listener that reports the steps of jobs of these names."""
    done = 0

    def heard(rank: int, answer: Answer) -> None:
        nonlocal done
        if rank == 0 and "step" in answer:
            done += 1
            progress(names[answer["step"]["job"]], done, steps)

    return heard


def results_of(
    answers: Iterable[Iterable[Answer]], kind: type[T], jobs: int
) -> list[tuple[T, ...]]:
    """The results of each job, rank by rank."""
    import msgspec

    found: list[list[T]] = [[] for _ in range(jobs)]
    for answer in chain(*answers):
        if "result" in answer:
            found[answer["result"]["job"]].append(msgspec.convert(answer["result"], kind))
    return list(map(tuple, found))


def run_jobs(
    jobs: Sequence[TrainingJob],
    device: Device,
    *,
    timeout_seconds: float,
    progress: Progress = lambda what, done, total: None,
    environment: Mapping[str, str] = EMPTY,
    beside: Beside = lambda pids: nullcontext(),
) -> list[tuple[RankResult, ...]]:
    """Do jobs one after another in one set of processes; of each, the results rank by rank."""
    import msgspec

    answers = launch(
        {JOBS_FILE: msgspec.json.encode(list(jobs))},
        max(job.ranks for job in jobs),
        environment={"DEVICE": device.value, **environment},
        timeout_seconds=timeout_seconds,
        listener=counted([job.name for job in jobs], sum(job.steps for job in jobs), progress),
        beside=beside,
    )
    return results_of(answers, RankResult, len(jobs))


def compared(
    ranks: Sequence[RankResult], alone: Sequence[RankResult], device: Device
) -> Comparison:
    """The ranks' losses and norms of gradients beside those of the single process."""
    reference, tolerance = alone[0], TOLERANCE[device]
    losses = list(zip(mean_losses(ranks), reference.losses, strict=True))
    norms = zip(ranks[0].gradient_norms, reference.gradient_norms, strict=True)
    return Comparison(
        losses=reference.losses,
        gradient_norms=reference.gradient_norms,
        largest_difference=max(abs(ours - theirs) for ours, theirs in losses),
        tolerance=tolerance,
        equal=all(abs(a - b) <= tolerance * abs(b) for a, b in (*losses, *norms)),
    )


def mean_losses(ranks: Sequence[RankResult]) -> tuple[float, ...]:
    """The loss of every step, over all ranks that know it: those of the last stage."""
    known = [rank.losses for rank in ranks if rank.losses]
    return tuple(sum(of_step) / len(known) for of_step in zip(*known, strict=True))


class _Timed(Protocol):
    @property
    def step_seconds(self) -> tuple[float, ...]: ...


def step_seconds(ranks: Sequence[_Timed]) -> tuple[float, ...]:
    """Seconds of every step, as long as its slowest rank took."""
    return tuple(map(max, zip(*(rank.step_seconds for rank in ranks), strict=True)))
