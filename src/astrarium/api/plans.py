"""Answers of the package's functions: the plans of a document, and programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from msgspec.structs import asdict

from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.plans.document import PLAN_FILE, PlanDocument, to_dict
from astrarium.strategy import estimate
from astrarium.value import Value

if TYPE_CHECKING:
    import torch
    from torch import nn

    from astrarium.operations.stragglers import Steadiness
    from astrarium.runtime.spmd.job import ProgramRun
    from astrarium.runtime.spmd.train import Make, Trainer
    from astrarium.spmd.program import ProgramDocument


StrPath = str | os.PathLike[str]


class Plan(estimate.Plan, frozen=True, kw_only=True):
    """A strategy with its estimate: what the document holds of it, and what starts it."""

    document: PlanDocument

    @property
    def peak_bytes(self) -> float:
        """Memory on the GPU that is fullest for its size."""
        return self.fullest.peak_bytes

    def export(
        self,
        to: str,
        out: StrPath,
        *,
        program: str | None = None,
        nearest: bool = False,
        force: bool = False,
    ) -> Path:
        """Write what starts the plan into a folder, as `astrarium export` does.

        `to` is training software or a launcher, which starts `program`, by default Megatron. What
        the target cannot express is refused with InputError, or, with `nearest`, the nearest plan
        that it can express is written. A folder that holds something is left alone unless `force`
        is set.
        """
        from astrarium.api.exporting import export
        from astrarium.api.flags import as_keyword
        from astrarium.errors import naming

        with naming(as_keyword):
            place = self.document, self.rank, to, Path(out)
            export(*place, program=program, nearest=nearest, force=force)
        return Path(out)

    def __hash__(self) -> int:
        return hash((self.rank, self.iteration_seconds, self.tokens_per_second))

    def __repr__(self) -> str:
        gpus = ", ".join(f"{number} x {gpu}" for gpu, number in self.gpus.items())
        s = self.strategy
        degrees = f"tp={s.tp}, pp={s.pp}, dp={s.dp}"
        return f"<Plan {self.rank}: {gpus}, {degrees}, {self.iteration_seconds:.3g} s>"


@dataclass(frozen=True, slots=True)
class Plans(Sequence[Plan]):
    """The plans of a document, the best first; `document` is what `--json` prints."""

    document: PlanDocument

    @property
    def best(self) -> Plan:
        """The first; NoFeasiblePlanError if the document holds none."""
        if not self.document.plans:
            raise NoFeasiblePlanError(self.document.error or "the document holds no plans")
        return self[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions, and other facts about the answer."""
        return self.document.notes

    @property
    def pareto(self) -> tuple[Plan, ...]:
        """The plans of the front of time against money: none beats another in both."""
        return tuple(self._plan(self.document.plans[point.plan]) for point in self.document.pareto)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Plan, ...]: ...
    def __getitem__(self, index: int | slice) -> Plan | tuple[Plan, ...]:
        if isinstance(index, slice):
            return tuple(map(self._plan, self.document.listed[index]))
        return self._plan(self.document.listed[index])

    def __len__(self) -> int:
        return len(self.document.listed)

    def __iter__(self) -> Iterator[Plan]:
        return map(self._plan, self.document.listed)

    def _plan(self, plan: estimate.Plan) -> Plan:
        return Plan(**asdict(plan), document=self.document)

    def under_stragglers(self, speeds: str = "spread") -> tuple[Steadiness, ...]:
        """The plans with GPUs and nodes that are slow and break, as `plan --stragglers` shows them.

        `speeds` are as the flag takes them: "spread", or such as "gpu=2%,nodes=0.1%:1.5".
        """
        from astrarium.api import readers
        from astrarium.api.operations import under_stragglers
        from astrarium.cost.training_run import RunTerms

        read = readers.stragglers("speeds", speeds)
        return under_stragglers(self.document, read, RunTerms()).plans

    def to_dict(self) -> dict[str, Any]:
        """The document as plain data, ready for JSON."""
        return to_dict(self.document)

    def save(self, path: StrPath) -> Path:
        """Write the document to a .json file, or as plan.json into a folder; returns the file."""
        import json

        from astrarium.documents import make_folder, write_atomic

        target = Path(path)
        if target.suffix.lower() != ".json":
            make_folder(target)
            target /= PLAN_FILE
        write_atomic(target, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        return target

    def __hash__(self) -> int:
        return hash((self.document.workload.model, *self))

    def __repr__(self) -> str:
        return f"<Plans: {len(self)} for {self.document.workload.model}>"


def load(path: StrPath) -> Plans:
    """The plans of a plan.json, or of the folder of one; InputError says what is wrong with it."""
    from astrarium.plans.document import load_document

    return Plans(load_document(Path(path)))


class Program(Value, frozen=True):
    """One program for all devices; `document` is what `--json` prints, typed."""

    document: ProgramDocument

    @property
    def ranks(self) -> int:
        """Devices that it is for, one process each."""
        return self.document.ranks

    @property
    def iteration_seconds(self) -> float:
        """Predicted seconds of a training step."""
        return self.document.program.seconds

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Memory of every device, predicted."""
        return tuple(part.peak_bytes for part in self.document.memory)

    @property
    def speedups(self) -> dict[str, float]:
        """The time of each fixed way to divide the work, as a multiple of this program's."""
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
