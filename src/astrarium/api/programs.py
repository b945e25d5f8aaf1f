"""What `astrarium.synthesize` returns: a program document that can be kept and run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from astrarium.errors import InputError
from astrarium.value import Value

if TYPE_CHECKING:
    import torch
    from torch import nn

    from astrarium.runtime.spmd.job import ProgramRun
    from astrarium.runtime.spmd.train import Make, Trainer
    from astrarium.spmd.program import ProgramDocument

StrPath = str | os.PathLike[str]


class Program(Value, frozen=True):
    """One program for all devices; `document` is what `--json` prints, typed."""

    document: ProgramDocument

    @property
    def ranks(self) -> int:
        """Devices that it is for, one process each."""
        return self.document.ranks

    @property
    def iteration_seconds(self) -> float:
        """Of a training step, predicted."""
        return self.document.program.seconds

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Memory of every device, predicted."""
        return tuple(part.peak_bytes for part in self.document.memory)

    @property
    def speedups(self) -> dict[str, float]:
        """How many times as long each fixed way to divide the work takes."""
        own = self.iteration_seconds
        return {name: seconds / own for name, seconds in self.document.baselines.items()}

    def pieces(self, axis: str) -> tuple[int, ...]:
        """Granules of an axis by rank, such as those of "batch"; of the outermost level."""
        axes = self.document.program.axes
        if axis not in axes.names:
            raise InputError(f"no axis is called '{axis}'; axes: {', '.join(axes.names)}")
        row = self.document.program.divisions[0].granules[axes.names.index(axis)]
        return tuple(map(int, row))

    def to_dict(self) -> dict[str, Any]:
        """The document as plain data, ready for JSON."""
        from astrarium.spmd.program import to_dict

        return to_dict(self.document)

    def save(self, path: StrPath) -> Path:
        """Write the program file; returns it."""
        from astrarium.spmd.program import save_program

        save_program(self.document, Path(path))
        return Path(path)

    def run(
        self,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        steps: int = 4,
        checkpoint: StrPath | None = None,
        resume: StrPath | None = None,
        share_gpus: bool = False,
        timeout_seconds: float = 600.0,
    ) -> ProgramRun:
        """Train on this machine, one process for each rank, beside a single process."""
        from astrarium.api import readers
        from astrarium.api.flags import as_keyword
        from astrarium.errors import naming
        from astrarium.runtime.spmd.job import ProgramSettings, run_program

        with naming(as_keyword):
            return run_program(
                self.document,
                device=readers.choice("runtime.job:Device")("device", device),
                settings=ProgramSettings(
                    steps=steps,
                    load=None if resume is None else os.fspath(resume),
                    save=None if checkpoint is None else os.fspath(checkpoint),
                    share_gpus=share_gpus,
                ),
                timeout_seconds=timeout_seconds,
            )

    def trainer(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | Make,
        *,
        device: str | torch.device | None = None,
        clip_norm: float | None = None,
        autocast: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        seed: int | None = None,
    ) -> Trainer:
        """Train a module as the program says, in a script that torchrun starts, one rank each.

        The optimizer is one of the module's parameters, or a function that makes one of pairs of
        their names and themselves. Without a device it is that of the parameters.
        """
        from astrarium.runtime.spmd.train import HowTrained, start_trainer

        used = self.document.source.seed if seed is None else seed
        how = HowTrained(used, clip_norm, autocast, scaler)
        return start_trainer(self.document, module, optimizer, device, how)

    def __repr__(self) -> str:
        source = self.document.source
        return f"<Program of {source.factory}: {self.ranks} ranks, {self.iteration_seconds:.3g} s>"


def load_program(path: StrPath) -> Program:
    """The program of a file; InputError says what is wrong with it."""
    from astrarium.spmd.program import load_program as load

    return Program(load(Path(path)))
