"""One rank of a program.

- `python -m astrarium.runtime.spmd.worker FOLDER`, with RANK and DEVICE set: the programs of a
  folder that `astrarium.runtime.spmd.job` made;
- `torchrun ... -m astrarium.runtime.spmd.worker program.json --steps 10`: on any number of hosts.

Answers go to standard output, one JSON object per line: `step`, then `result` or `failed`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from astrarium.calibrate.measure.cores import stay_on
from astrarium.errors import InputError
from astrarium.runtime.answers import LOOPBACK, leave_with_parent, own_output, peak_bytes, say
from astrarium.runtime.execute import TOLERANCE
from astrarium.runtime.job import Device
from astrarium.runtime.spmd.job import (
    PROGRAM_FILE,
    SETTINGS_FILE,
    Difference,
    ProgramSettings,
    RankReport,
    loss_differences,
)

if TYPE_CHECKING:
    import torch

    from astrarium.runtime.spmd.alone import Trained
    from astrarium.runtime.spmd.model import MadeModule
    from astrarium.runtime.spmd.train import Step
    from astrarium.spmd.program import ProgramDocument

NEGLIGIBLE = 1e-3  # of the largest number of all gradients, or of all buffers


@dataclass(frozen=True, slots=True)
class RankTask:
    """The task of this rank, and its way to meet the others."""

    documents: tuple[ProgramDocument, ...]
    settings: ProgramSettings
    device: Device
    store: str


def main() -> None:
    """Do all programs; leave with code 1 where one fails."""
    is_ours = len(sys.argv) == 2 and Path(sys.argv[1]).is_dir()
    if is_ours:
        leave_with_parent()
    answers = own_output()
    try:
        _work(_task_of_folder(Path(sys.argv[1])) if is_ours else _task_of_flags(), answers)
    except SystemExit as left:  # flags that cannot be read, which is said
        os._exit(int(left.code or 0))
    except BaseException as error:
        import traceback

        # What is wrong with the input is said by the message alone.
        said = str(error) if isinstance(error, InputError) else traceback.format_exc()
        if is_ours:
            say(answers, failed=said, at=time.monotonic())
        else:
            sys.stderr.write(f"Error: {said}\n")
            sys.stderr.flush()
        os._exit(1)  # threads of the communication library may wait for ranks that are gone
    os._exit(0)


def _task_of_folder(folder: Path) -> RankTask:
    import msgspec

    from astrarium.spmd.program import load_program

    settings = msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=ProgramSettings)
    documents = tuple(
        load_program(folder / PROGRAM_FILE.format(number=number))
        for number in range(settings.programs)
    )
    if "CORES" in os.environ:  # before any thread is started
        stay_on(int(os.environ["CORES"].split(",")[int(os.environ["RANK"])]))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
    return RankTask(documents, settings, Device(os.environ["DEVICE"]), f"file://{folder}/store")


def _task_of_flags() -> RankTask:
    """For torchrun: the program and settings are named on the command line."""
    from astrarium.spmd.program import load_program

    usual = ProgramSettings()
    parser = argparse.ArgumentParser(prog="astrarium.runtime.spmd.worker")
    parser.add_argument("program", type=Path)
    parser.add_argument("--steps", type=int, default=usual.steps)
    parser.add_argument("--learning-rate", type=float, default=usual.learning_rate)
    parser.add_argument("--clip-norm", type=float)
    parser.add_argument("--no-compare", dest="compare", action="store_false")
    parser.add_argument("--load", help="a checkpoint to go on from")
    parser.add_argument("--save", help="where to write a checkpoint at the end")
    parser.add_argument(
        "--share-gpus", action="store_true", help="more ranks than GPUs on a host, over gloo"
    )
    parser.add_argument("--device", type=Device, default=Device.CPU)
    given = vars(parser.parse_args())
    if "RANK" not in os.environ:
        raise InputError("RANK is not set; start this with torchrun, or use `astrarium run`")
    document, device = load_program(given.pop("program")), given.pop("device")
    return RankTask((document,), ProgramSettings(**given), device, "env://")


def _work(task: RankTask, answers: TextIO) -> None:
    import warnings

    warnings.filterwarnings("ignore")
    import torch
    from torch import distributed

    from astrarium.runtime.spmd.train import device_of

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for document in task.documents:
        if world != document.ranks:
            raise InputError(f"{world} ranks were started, but the program is for {document.ranks}")
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    share = task.settings.share_gpus
    device = device_of(task.device, rank, share=share)
    # NCCL does not take two ranks of one GPU; gloo sends what lies there through the processor.
    backend = "gloo" if task.device is Device.CPU or share else "nccl"
    distributed.init_process_group(backend, task.store, world_size=world, rank=rank)
    runs = [_Run(document, number, task, device) for number, document in enumerate(task.documents)]
    if task.settings.compare:
        for run in runs:
            run.compare()
    shares = []
    for _ in range(task.settings.rounds):
        for run in runs:
            run.train(answers)
        if task.settings.watch_seconds:
            shares.append(_share(task.settings.watch_seconds))
    for run in runs:
        run.judge()
        run.save()
        if task.store != "env://" or rank == 0:
            say(answers, result=replace(run.report(), shares=tuple(shares)))
    distributed.barrier()
    distributed.destroy_process_group()


def _share(seconds: float) -> float:
    """The share of a core that this process gets when all ranks want theirs."""
    from torch import distributed

    distributed.barrier()
    began, worked = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        pass
    return (time.process_time() - worked) / (time.perf_counter() - began)


class _Run:
    """One program on this rank."""

    def __init__(
        self, document: ProgramDocument, number: int, task: RankTask, device: torch.device
    ) -> None:
        from astrarium.runtime.spmd.execute import take_place
        from astrarium.runtime.spmd.model import make_model
        from astrarium.runtime.spmd.train import HowTrained, Recipe, Trainer

        self.document, self.number, self.settings = document, number, task.settings
        program, settings, source = document.program, task.settings, document.source
        self.rank, self.tolerance = int(os.environ["RANK"]), TOLERANCE[task.device]
        model = make_model(source)
        self.batches = [
            {name: tensor.to(device) for name, tensor in batch.items()}
            for batch in model.batches(program.graph, program.micro_batches)
        ]
        self.recipe = Recipe(source.optimizer, settings.learning_rate, clip_norm=settings.clip_norm)
        self.trainer = Trainer(
            program,
            model,
            self.recipe.make,
            take_place(program.mesh, self.rank),
            device,
            batch=source.batch,
            how=HowTrained(source.seed, settings.clip_norm),
        )
        self.training = self.trainer.training
        self.inputs = [self.training.cut(batch) for batch in self.batches]
        if settings.load is not None:
            self.trainer.load(settings.load)
        self.steps: list[Step] = []
        # Only whoever compares still needs the whole module.
        self.model = model if self.rank == 0 and settings.compare else None
        self.reference: Trained | None = None
        self.exact: Trained | None = None
        self.gradients: Difference | None = None
        self.buffers: Difference | None = None
        self.peak_bytes = 0  # while it trains

    def compare(self) -> None:
        """Train the module alone, and compare gradients of the first step with its."""
        _, gradients = self.training.gradients(self.inputs)
        if self.model is not None:
            self.reference, self.model = self._alone(self.model), None
        whole = {}
        for node, piece in gradients.items():
            found = self.training.interpreter.gathered(node, piece)
            if self.reference is not None:
                name = self.document.program.graph.nodes[node].target
                whole[name] = found.view_as(self.reference.gradients[name])
        if self.reference is not None:
            self.gradients = self._worst(whole, "gradients")
            self.reference = replace(self.reference, gradients={})  # they take memory

    def _worst(self, found: dict[str, torch.Tensor], what: str) -> Difference:
        """The distance of tensors from the module's, and its part that is rounding."""
        from astrarium.runtime.spmd.alone import worst_difference

        expected = getattr(self.reference, what)
        worst = worst_difference(found, expected, negligible=NEGLIGIBLE)
        if worst.largest <= self.tolerance or not self._find_exact():
            return worst
        return worst_difference(found, expected, getattr(self.exact, what), NEGLIGIBLE)

    def _find_exact(self) -> bool:
        """Train the module in double precision; False if it wants its own."""
        import torch

        from astrarium.runtime.spmd.model import make_model

        if self.exact is None:
            with suppress(RuntimeError):
                self.exact = self._alone(make_model(self.document.source), torch.float64)
        return self.exact is not None

    def _alone(self, model: MadeModule, dtype: torch.dtype | None = None) -> Trained:
        from astrarium.runtime.spmd.alone import ModuleAlone

        training, seed = self.training, self.document.source.seed
        alone = ModuleAlone(model, self.recipe, training.interpreter.device, seed, dtype)
        if self.settings.load is not None:
            alone.load(Path(self.settings.load))
        return alone.train(self.batches, self.settings.steps * self.settings.rounds)

    def judge(self) -> None:
        """Compare losses, and buffers as the last step leaves them."""
        if self.reference is None:
            return
        state = {name: self.training.buffers[name] for name in self.document.program.graph.state}
        if state:
            self.buffers = self._worst(state, "buffers")
        losses = loss_differences(_of(self.steps, "loss"), self.reference.losses)
        if not max(losses) <= self.tolerance:
            self._find_exact()

    def train(self, answers: TextIO) -> None:
        """Some steps; all ranks begin each of them together."""
        import torch
        from torch import distributed

        kind = Device(self.training.interpreter.device.type)
        if kind is Device.CUDA:  # what the comparison took is not the program's
            torch.cuda.reset_peak_memory_stats()
        for _ in range(self.settings.steps):
            distributed.barrier()
            step = self.training.step(self.inputs)
            self.steps.append(step)
            if self.rank == 0:
                at = {"job": self.number, "step": len(self.steps) - 1}
                say(answers, step={**at, "loss": step.loss, "seconds": step.seconds})
        self.peak_bytes = max(self.peak_bytes, peak_bytes(kind))

    def save(self) -> None:
        if self.settings.save is not None:
            self.trainer.save(self.settings.save)

    def report(self) -> RankReport:
        return RankReport(
            job=self.number,
            rank=self.rank,
            losses=_of(self.steps, "loss"),
            step_seconds=_of(self.steps, "seconds"),
            update_seconds=_of(self.steps, "update_seconds"),
            parameters=sum(piece.numel() for piece in self.training.parameters.values()),
            peak_bytes=self.peak_bytes,
            reference_losses=self.reference.losses if self.reference else (),
            exact_losses=self.exact.losses if self.exact else (),
            gradients=self.gradients,
            buffers=self.buffers,
        )


def _of(steps: Sequence[Step], what: str) -> tuple[float, ...]:
    return tuple(getattr(step, what) for step in steps)


if __name__ == "__main__":
    main()
