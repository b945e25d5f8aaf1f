"""Training a module with a program, in the user's own loop: one process for each rank.

`astrarium.load_program(path).trainer(module, optimizer=...)` makes a trainer on each rank of a
script that torchrun starts (`start_trainer`); `astrarium run` uses the same.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader

from astrarium.errors import AstrariumError, InputError
from astrarium.runtime.job import Device
from astrarium.runtime.spmd.execute import Gradients, Interpreter, Peers, RankPlace, take_place
from astrarium.runtime.spmd.model import MadeModule
from astrarium.runtime.spmd.train.optimizers import Make
from astrarium.runtime.spmd.train.rows import Batch, RankRows, RowSampler, loader_of, read_in_pieces
from astrarium.runtime.spmd.train.training import Step, Training
from astrarium.spmd.capture import called, load_factory, taken_apart
from astrarium.spmd.graph import CONSTANT, PARAMETER, Graph
from astrarium.spmd.program import (
    DeviceProgram,
    ProgramDocument,
    SourcePart,
    evaluating,
    other_in_evaluation,
)

if TYPE_CHECKING:
    from astrarium.runtime.spmd.train.checkpoint import Stateful


KEY: Final = "astrarium/failed"
# In what libraries say when another rank is gone.
GONE: Final = ("connection closed", "connection reset", "connection refused", "broken pipe", "nccl",
               "socket", "timed out")  # fmt: skip


class PeerError(AstrariumError):
    """Another rank failed; the message is what it said."""


@contextmanager
def together(rank: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, PeerError):
            raise
        if not _is_of_peers(error):
            _tell(rank, error)
            raise
        raise PeerError(_first_failure("") or "another rank is gone without a word") from None


def tell_when_failing(rank: int) -> None:
    """Tell the others also what fails outside of what ranks do together."""
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, PeerError):
            _tell(rank, error)
        before(kind, error, trace)

    sys.excepthook = tell


def _tell(rank: int, error: BaseException) -> None:
    _first_failure(f"rank {rank} failed: {type(error).__name__}: {error}")


def _first_failure(said: str) -> str:
    """The message of the first rank that failed: `said`, if it is this one."""
    if not distributed.is_initialized():
        return said
    try:
        store = distributed.distributed_c10d._get_default_store()
        return bytes(store.compare_set(KEY, "", said)).decode()
    except Exception:  # whoever held the store is gone
        return said


def _is_of_peers(error: Exception) -> bool:
    """Whether an exchange failed: the cause is elsewhere."""
    text = str(error).lower()
    return any(word in text for word in GONE)


StrPath = str | os.PathLike[str]
SAFETENSORS: Final = "safetensors"


@dataclass(frozen=True, slots=True)
class HowTrained:
    """Choices of the user beside the optimizer."""

    seed: int = 0  # of dropout
    clip_norm: float | None = None  # gradients are scaled down to this norm of all of them
    autocast: torch.dtype | None = None  # 16 bits, where torch's autocast has them
    scaler: torch.amp.GradScaler | None = None  # of float16; None: one with usual settings

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise InputError(f"clip_norm is {self.clip_norm}; give a norm above 0, or none")

    def scaler_on(self, device: torch.device) -> torch.amp.GradScaler | None:
        if self.autocast is torch.float16 and self.scaler is None:
            return torch.amp.GradScaler(device.type)
        return self.scaler


USUAL: Final = HowTrained()


@dataclass(frozen=True, slots=True)
class _FromFirst(Mapping[str, Tensor]):
    """Tensors as the first rank has them: others may have drawn theirs otherwise.

    Each is sent when it is looked up, by all ranks in one order, so that one at a time is whole.
    """

    own: Mapping[str, Tensor]
    everyone: Peers
    device: torch.device

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.own[name]
        if self.everyone.count == 1:
            return tensor
        sent = torch.empty_like(tensor, device=self.device, memory_format=torch.contiguous_format)
        if self.everyone.index == 0:
            sent.copy_(tensor)
        flat = sent.view(torch.uint8) if sent.dtype == torch.bool else sent
        distributed.broadcast(flat, self.everyone.rank_of(0), group=self.everyone.group)
        return sent

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


class Trainer:
    """One rank of a training: its rows of the data, its pieces of the model, its optimizer.

    Every method but those that only tell something is called by all ranks together.
    """

    def __init__(
        self,
        program: DeviceProgram,
        model: MadeModule,
        optimizer: torch.optim.Optimizer | Make,
        place: RankPlace,
        device: torch.device,
        *,
        batch: int,
        how: HowTrained = USUAL,
    ) -> None:
        # Weights are here in pieces: who has no other use for the module need not keep it.
        self._module = weakref.ref(model.module)
        self._program, self._place = read_in_pieces(program), place
        graph = program.graph
        if how.autocast is not None:
            from astrarium.runtime.spmd.train.autocast import under_autocast

            graph = under_autocast(graph, how.autocast, device)
        interpreter = Interpreter(replace(self._program, graph=graph), place, device)
        self._rows = RankRows(interpreter, batch // program.micro_batches)
        self._aliases = model.aliases(program.graph)
        with together(place.rank):
            rest = _FromFirst(model.rest(program.graph), place.everyone, device)
            self._rest = {name: rest[name].cpu() for name in rest}
            self.training = Training(
                interpreter,
                _FromFirst(model.state(program.graph), place.everyone, device),
                optimizer,
                how.seed,
                clip_norm=how.clip_norm,
                scaler=how.scaler_on(device),
                parameters=dict(model.module.named_parameters()),
            )

    # What it tells.

    @property
    def module(self) -> nn.Module:
        """The one that was given, with weights as they were then; `gather` brings it up to date."""
        found = self._module()
        if found is None:
            raise InputError(
                "the module is gone, and this needs it; keep it, or use trainer.state_dict()"
            )
        return found

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Over this rank's pieces: schedules of learning rates take it."""
        return self.training.optimizer

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The scaler of gradients in 16 bits."""
        return self.training.scaler

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def steps_done(self) -> int:
        return self.training.steps_done

    @property
    def batches_done(self) -> int:
        """Batches of all steps: more than steps, where gradients are accumulated."""
        return self.training.passes_done // self._program.micro_batches

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of a whole batch that `step` takes on this rank."""
        return self._rows.own

    def own_rows(self, batch: Batch) -> dict[str, Tensor]:
        """This rank's rows of a whole batch; inputs that have no rows stay whole."""
        return self._rows.of(batch)

    def sampler(
        self, dataset: Sized, *, shuffle: bool = False, seed: int = 0, training: bool = True
    ) -> RowSampler:
        """This rank's `batch_sampler`; in training it goes on after the batches that are done."""
        done: Callable[[], int] = (lambda: self.batches_done) if training else (lambda: 0)
        return RowSampler(len(dataset), self._rows, done, shuffle=shuffle, seed=seed)

    def loader(
        self,
        dataset: Sized,
        *,
        shuffle: bool = False,
        seed: int = 0,
        training: bool = True,
        **settings: Any,  # noqa: ANN401  of torch's loader
    ) -> DataLoader[Any]:
        """A loader of torch with this sampler, and its other settings."""
        sampler = self.sampler(dataset, shuffle=shuffle, seed=seed, training=training)
        return loader_of(dataset, sampler, **settings)

    # What all ranks do together.

    def step(self, *batches: Batch) -> Step:
        """One step of the optimizer on this rank's rows; several batches are accumulated."""
        if not batches:
            raise InputError("step() has no batch; give it this rank's rows of one or more")
        with together(self.rank):
            return self.training.step([p for batch in batches for p in self._rows.pieces(batch)])

    def evaluate(self, *batches: Batch) -> float:
        """The mean loss of batches in evaluation mode; nothing is changed."""
        if not batches:
            raise InputError("evaluate() has no batch; give it this rank's rows of one or more")
        with together(self.rank):
            interpreter = self._evaluating
            losses: list[float] = []
            for pieces in (pieces for batch in batches for pieces in self._rows.pieces(batch)):
                context = interpreter.context(self.training.seed, len(losses))
                sources = self.training.sources(pieces)
                run = interpreter.forward(sources, context, Gradients())
                losses.append(float(interpreter.loss(run)))
            return sum(losses) / len(losses)

    @cached_property
    def _evaluating(self) -> Interpreter:
        """The program outside of training; InputError if the module does something else there."""
        from astrarium.spmd.capture import capture

        graph = self._program.graph
        inputs = {
            node.target: torch.empty(node.shape, dtype=getattr(torch, node.dtype), device="meta")
            for node in self._rows.inputs.values()
        }
        found = taken_apart(capture(self.module, inputs, training=False))
        other = other_in_evaluation(graph, found)
        if other:
            raise InputError(
                f"{type(self.module).__name__} computes something else in evaluation mode than in"
                f" training, {other}, and a program has the one alone; evaluate the module itself:"
                " trainer.gather() gives the first rank the weights"
            )
        training = self.training.interpreter
        return Interpreter(evaluating(training.program), self._place, training.device)

    def state_dict(self) -> dict[str, Tensor]:
        """The state dict of the whole module, on the first rank; the others get none."""
        nodes, is_first = self._program.graph.nodes, self.rank == 0
        now = {name: self.training.buffers.get(name, x) for name, x in self._rest.items()}
        state = {name: tensor.cpu() for name, tensor in now.items()}
        with together(self.rank):
            for node, piece in self.training.parameters.items():
                whole = self.training.interpreter.gathered(node, piece)
                if is_first:
                    state[nodes[node].target] = whole.reshape(nodes[node].stored_shape).cpu()
        state.update({name: state[target] for name, target in self._aliases.items() if is_first})
        return state if is_first else {}

    def gather(self) -> nn.Module:
        """Give the first rank's module the weights and buffers of all; the module."""
        state = self.state_dict()
        if state:
            self.module.load_state_dict(state)
        return self.module

    def save(self, folder: StrPath, **others: Stateful) -> None:
        """Write a checkpoint, also of what else has a state: `scheduler=scheduler`."""
        from astrarium.runtime.spmd.train import checkpoint  # torch's part of it takes a second

        with together(self.rank):
            checkpoint.save(Path(folder), self.training, self._rest, self._aliases, others)

    def load(self, folder: StrPath, **others: Stateful) -> None:
        """Go on from a checkpoint, of this or another program of the same module."""
        from astrarium.runtime.spmd.train import checkpoint  # torch's part of it takes a second

        with together(self.rank):
            checkpoint.load(Path(folder), self.training, self._rest, others)

    def save_safetensors(self, path: StrPath) -> None:
        """Write the weights and buffers of the whole module, on the first rank."""
        try:
            from safetensors.torch import save_model
        except ImportError as error:
            raise InputError(
                f"{SAFETENSORS} must be installed for this: pip install {SAFETENSORS}"
            ) from error
        module, target = self.gather(), Path(path)
        if self.rank == 0:
            unfinished = target.with_name(target.name + ".unfinished")
            target.parent.mkdir(parents=True, exist_ok=True)
            save_model(module, str(unfinished))
            unfinished.rename(target)


def start_trainer(
    document: ProgramDocument,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | Make,
    device: str | torch.device | None,
    how: HowTrained,
) -> Trainer:
    """Meet the other ranks, unless the script did, and divide the module among them."""
    program = document.program
    check_module(document.source, program.graph, module)
    used = torch.device(device) if device is not None else next(module.parameters()).device
    rank = meet(document.ranks, used)
    tell_when_failing(rank)
    return Trainer(
        program,
        MadeModule(module.train(), {}),
        optimizer,
        take_place(program.mesh, rank),
        _current(used) if used.index is not None else device_of(Device(used.type), rank),
        batch=document.source.batch,
        how=how,
    )


def _current(device: torch.device) -> torch.device:
    """A device that the user named; messages of torch itself go over the current one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def meet(ranks: int, device: torch.device) -> int:
    """This rank among as many as the program is for."""
    if not distributed.is_initialized():
        if "RANK" not in os.environ:
            raise InputError(
                "RANK is not set; start the script with torchrun, one process for each of the"
                f" program's {ranks} ranks"
            )
        distributed.init_process_group("gloo" if device.type == "cpu" else "nccl")
        atexit.register(_leave)
    if distributed.get_world_size() != ranks:
        raise InputError(
            f"{distributed.get_world_size()} ranks were started, but the program is for {ranks}"
        )
    return int(distributed.get_rank())


def _leave() -> None:
    """End the group that was made here: threads of it must not outlive the interpreter."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def device_of(kind: Device, rank: int, *, share: bool = False) -> torch.device:
    """The device of this rank, maybe one of several's; InputError if its host has none for it."""
    if kind is Device.CPU:
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", rank))
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if share and there:
        number %= there
    if number >= there:
        raise InputError(
            f"rank {rank} is number {number + 1} on its host, where torch can use {there} GPUs;"
            " start fewer ranks there, or use --device cpu"
        )
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def check_module(source: SourcePart, graph: Graph, module: nn.Module) -> None:
    """Refuse a module that is not the one that the program was made from."""
    state = MadeModule(module, {}).state(graph)  # which refuses other names and shapes
    parameters = dict(module.named_parameters())
    for node in graph.nodes:
        if node.op not in (PARAMETER, CONSTANT) or not node.target:
            continue
        dtype = str(state[node.target].dtype).removeprefix("torch.")
        if dtype != node.dtype:
            raise InputError(
                f"{node.target!r} is {dtype} in the module, and {node.dtype} in the program; cast"
                " the module, or synthesise the program again"
            )
        found = parameters.get(node.target)
        if found is not None and found.requires_grad != (node.op == PARAMETER):
            now, then = ("trained", "frozen") if found.requires_grad else ("frozen", "trained")
            raise InputError(
                f"parameter {node.target!r} is {now} in the module, and {then} in the program;"
                " change requires_grad, or synthesise the program again"
            )
    _check_against_factory(source, module)


def _check_against_factory(source: SourcePart, module: nn.Module) -> None:
    """Compare with the factory, if it is there: it knows what the module does not use."""
    try:
        with torch.device("meta"):
            made, _ = load_factory(source.factory)(batch=source.batch, **source.sizes)
    except InputError:
        return
    name, expected, found = called(source.factory, source.sizes), _shapes(made), _shapes(module)
    for tensor in sorted(expected.keys() ^ found.keys()):
        has, lacks = ("the module", name) if tensor in found else (name, "the module")
        raise InputError(
            f"{has} has {tensor!r}, and {lacks} has not; give the module that the program was made"
            " from, or synthesise the program again"
        )


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tuple(tensor.shape) for name, tensor in named}
