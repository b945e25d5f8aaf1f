"""A trainer of the user's module, on the rank that torchrun started."""

from __future__ import annotations

import atexit
import os

import torch
from torch import distributed, nn

from astrarium.errors import InputError
from astrarium.runtime.job import Device
from astrarium.runtime.spmd.execute import take_place
from astrarium.runtime.spmd.model import MadeModule
from astrarium.runtime.spmd.train.optimizers import Make
from astrarium.runtime.spmd.train.trainer import HowTrained, Trainer, tell_when_failing
from astrarium.spmd.capture import called, load_factory
from astrarium.spmd.graph import CONSTANT, PARAMETER, Graph
from astrarium.spmd.program import ProgramDocument, SourcePart


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
    """A program does not know what its module has and does not use; the factory does.

    It may be absent where the module is trained: then only what the program knows was compared.
    """
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
