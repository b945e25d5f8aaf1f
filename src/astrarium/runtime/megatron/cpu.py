"""Lets megatron-core run on a CPU, where it asks for CUDA by name.

Tensors are made on the CPU, streams do nothing, and the random states of the GPU are those of the
CPU. The patches stay for the life of the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

FACTORIES = ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")


def run_without_gpu() -> None:
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _replace_tensor_methods()
    _replace_streams()
    _replace_random_states()
    _replace_host_copies()
    _replace_uneven_collectives()
    torch.compiler.set_stance("force_eager")  # compiling takes longer than a few small steps


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(factory)
    def made(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the factory's own
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return made


def _replace_tensor_methods() -> None:
    named = torch.Tensor.type

    def type_on_gpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        given = named(self, *args, **kwargs)
        # Optimizers tell formats by names such as torch.cuda.FloatTensor.
        return given if args or kwargs else given.replace("torch.", "torch.cuda.")

    def itself(self: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        return self

    torch.Tensor.type = type_on_gpu
    torch.Tensor.cuda = itself
    torch.nn.Module.cuda = itself


class _Stream:
    """A queue of work that is always done."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...

    def wait_event(self, _: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *_: object) -> _Stream:
        return self


def _replace_streams() -> None:
    stream = _Stream()
    torch.cuda.Stream = _Stream
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = lambda *_: stream
    torch.cuda.default_stream = lambda *_: stream
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda: None


def _replace_random_states() -> None:
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    random._get_cuda_rng_state = lambda **_: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, **_: torch.set_rng_state(state)


def _replace_host_copies() -> None:
    """Counts that a GPU would copy to the host are there already, but are wanted as arrays."""
    from megatron.core.transformer.moe import token_dispatcher

    def on_host(tensor: Any, as_numpy: bool = False, **_: object) -> Any:  # noqa: ANN401
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = on_host


def _replace_uneven_collectives() -> None:
    """Parts of unequal size, which experts divided by etp exchange and gloo refuses."""
    gather, scatter = torch.distributed.all_gather, torch.distributed.reduce_scatter

    def all_gather(parts: list[Any], own: Any, group: Any = None, **options: Any) -> Any:  # noqa: ANN401
        if len({part.shape for part in parts}) == 1:
            return gather(parts, own, group=group, **options)
        for rank, part in enumerate(parts):
            if rank == torch.distributed.get_rank(group):
                part.copy_(own)
            torch.distributed.broadcast(part, group=group, group_src=rank)
        return None

    def reduce_scatter(own: Any, parts: list[Any], group: Any = None, **options: Any) -> Any:  # noqa: ANN401
        if len({part.shape for part in parts}) == 1:
            return scatter(own, parts, group=group, **options)
        for rank, part in enumerate(parts):
            summed = part.contiguous().clone()
            torch.distributed.reduce(summed, group=group, group_dst=rank)
            if rank == torch.distributed.get_rank(group):
                own.copy_(summed)
        return None

    torch.distributed.all_gather = all_gather
    torch.distributed.reduce_scatter = reduce_scatter
