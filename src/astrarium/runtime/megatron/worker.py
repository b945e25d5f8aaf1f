"""One rank: `python -m astrarium.runtime.megatron.worker FOLDER`, with RANK and DEVICE set.

Does the jobs of FOLDER/jobs.json one after another; ranks that a job does not need wait. Answers go
to standard output, one JSON object per line: `step`, `result`, or `failed` with a traceback.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from astrarium.calibrate.measure.cores import stay_on
from astrarium.runtime.answers import LOOPBACK, leave_with_parent, own_output, peak_bytes, say
from astrarium.runtime.job import JOBS_FILE, Device, RankResult, Software, TrainingJob

if TYPE_CHECKING:
    from astrarium.runtime.megatron.training import JobTraining

TRAININGS = {
    Software.MEGATRON: ("training", "RankTraining"),
    Software.FSDP2: ("sharded", "ShardedTraining"),
    Software.DEEPSPEED: ("zero", "DeepSpeedTraining"),
}


def main() -> None:
    """Do all jobs; leave with code 1 where one fails."""
    leave_with_parent()
    answers = own_output()
    try:
        _work(Path(sys.argv[1]), answers)
    except BaseException:
        import traceback

        say(answers, failed=traceback.format_exc(), at=time.monotonic())
        os._exit(1)  # threads of the communication library may wait for ranks that are gone
    os._exit(0)


def _work(folder: Path, answers: TextIO) -> None:
    import msgspec

    rank, device = int(os.environ["RANK"]), Device(os.environ["DEVICE"])
    if "CORES" in os.environ:  # before any thread is started
        stay_on(int(os.environ["CORES"].split(",")[rank]))
    jobs = msgspec.json.decode((folder / JOBS_FILE).read_bytes(), type=list[TrainingJob])
    import warnings

    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    if device is Device.CPU:
        from astrarium.runtime.megatron.cpu import run_without_gpu

        run_without_gpu()
    else:
        torch.cuda.set_device(rank)
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
    for number, job in enumerate(jobs):
        gc.freeze()  # what is imported need not be looked through after every job
        if rank < job.ranks:
            store = f"file://{folder}/store-{number}"
            result = _trained(job, number, rank, (device, store), answers)
            gc.collect()  # modules and their hooks refer to each other
            say(answers, result=result)


def _trained(
    job: TrainingJob, number: int, rank: int, place: tuple[Device, str], answers: TextIO
) -> RankResult:
    import torch

    from astrarium.runtime.megatron.training import forget_groups, make_groups

    device, store = place
    if device is Device.CUDA:
        torch.cuda.reset_peak_memory_stats()
    _meet_others(job, rank, device, store)
    try:
        make_groups(job, device)
        training = _training(job, device)
        losses, norms, times = [], [], []
        for step in range(job.steps):
            loss, norm, seconds = training.step()
            norms.append(norm)
            times.append(seconds)
            if loss is not None:
                losses.append(loss)
            say(answers, step={"job": number, "step": step, "loss": loss})
        return RankResult(
            job=number,
            rank=rank,
            losses=tuple(losses),
            gradient_norms=tuple(norms),
            step_seconds=tuple(times),
            peak_bytes=peak_bytes(device),
            parameters=training.parameters,
            where=training.where,
            held_bytes=training.held_bytes(),
            gpu=torch.cuda.get_device_name() if device is Device.CUDA else "",
        )
    finally:
        forget_groups()
        torch.distributed.destroy_process_group()
        gc.collect()  # buffers and hooks hold each other


def _training(job: TrainingJob, device: Device) -> JobTraining:
    from importlib import import_module

    module, name = TRAININGS[job.software]
    made: JobTraining = getattr(import_module(f"astrarium.runtime.megatron.{module}"), name)(
        job, device
    )
    return made


def _meet_others(job: TrainingJob, rank: int, device: Device, store: str) -> None:
    """Join the other ranks, or only pretend that there are any."""
    from torch import distributed

    if job.alone_at is None:
        backend = "gloo" if device is Device.CPU else "nccl"
        distributed.init_process_group(backend, store, world_size=job.ranks, rank=rank)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group(
        "fake", store=FakeStore(), world_size=job.strategy.gpus, rank=job.first_rank_alone
    )
    # What experts elsewhere were sent is not known, so nothing can be exchanged for it.
    distributed.all_to_all_single = lambda *_, **__: None


if __name__ == "__main__":
    main()
