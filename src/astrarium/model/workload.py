"""A workload: a model, its sequence length and batch, and how much of it is trained."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from astrarium.errors import InputError
from astrarium.model.adapters import Adapters, adapter_parameters, finetuned_flops_per_token
from astrarium.model.blocks import Block, Model
from astrarium.model.frozen import Beside, check_beside
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.model.lengths import Draws, Lengths


class Precision(StrEnum):
    """Number format of the matrix products.

    Weights and activations are kept in 16 bits; in fp32, what processors train in, everything is
    in 32. fp8 scales tensors, mxfp8 every 32 elements; fp4 is NVFP4: 4 bits, a scale of 8 bits for
    16 elements.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    FP4 = "fp4"
    FP32 = "fp32"

    @property
    def dtype(self) -> str:
        """The arithmetic of the products."""
        return "fp8" if self is Precision.MXFP8 else self.value

    @property
    def is_microscaled(self) -> bool:
        """Whether a few elements share a scale, which Blackwell's tensor cores apply."""
        return self in (Precision.MXFP8, Precision.FP4)

    @property
    def element_bytes(self) -> int:
        return 4 if self is Precision.FP32 else 2


class Numerics(StrEnum):
    """Formats of sums over many tokens: strict keeps gradients and Adam's moments in 32 bits."""

    STRICT = "strict"
    REDUCED = "reduced"  # both in bf16; the master weights stay in 32 bits


class ExpertMessages(StrEnum):
    """The way of tokens to experts on other ranks, and back."""

    ALLTOALL = "alltoall"  # a copy for each expert, while nothing else runs
    OVERLAPPED = "overlapped"  # the same, beside the passes of another micro-batch
    DEEPEP = "deepep"  # DeepEP: a copy for each node, where it is handed on
    DEEPEP_OVERLAPPED = "deepep-overlapped"

    @property
    def is_overlapped(self) -> bool:
        return self in (ExpertMessages.OVERLAPPED, ExpertMessages.DEEPEP_OVERLAPPED)

    @property
    def is_deepep(self) -> bool:
        return self in (ExpertMessages.DEEPEP, ExpertMessages.DEEPEP_OVERLAPPED)


class Workload(Value, frozen=True):
    """`global_batch` counts sequences; `tokens` is the length of the whole run, if stated."""

    model: Model
    seq_length: int
    global_batch: int
    tokens: int | None = None
    precision: Precision = Precision.BF16
    numerics: Numerics = Numerics.STRICT
    # Tokens of the busiest rank of experts over the mean; those of one rank are all its own.
    expert_imbalance: float = 1.0
    expert_messages: ExpertMessages = ExpertMessages.ALLTOALL
    optimizer: str = "adamw"  # a name of `catalog/optimizers.py`
    adapters: Adapters | None = None  # beside frozen weights; None: all weights train
    lengths: Lengths | None = None  # of the sequences; None: all are of `seq_length`
    beside: Beside | None = None  # a frozen model that sees the same sequences

    def __post_init__(self) -> None:
        for name in ("seq_length", "global_batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.expert_imbalance < 1:
            raise InputError(f"expert_imbalance is {self.expert_imbalance}; it must be at least 1")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"tokens is {self.tokens}; it must be at least 1")
        if self.numerics is Numerics.REDUCED and self.optimizer != "adamw":
            raise InputError(
                f"reduced numerics are about moments of Adam in bf16, and the optimizer is"
                f" {self.optimizer}; leave one of them out",
                "optimizer",
            )
        if self.lengths is not None:
            check_lengths(self.model)
        if self.beside is not None:
            check_beside(self.model, self.beside)

    @property
    def draws(self) -> Draws | None:
        """The sequences, where their lengths are stated."""
        return None if self.lengths is None else self.lengths.draws(self.seq_length)

    @property
    def packed(self) -> bool:
        """Whether sequences fill rows of `seq_length`, each attending to itself."""
        return self.lengths is not None and self.lengths.packed

    @property
    def shares_weights(self) -> bool:
        """Whether the frozen model is the trained one without its adapters."""
        if self.beside is None or self.adapters is None or not self.beside.pairs:
            return False
        one, other = self.model, self.beside.model
        return (one.embedding, one.blocks, one.head) == (other.embedding, other.blocks, other.head)

    @property
    def of_beside(self) -> Workload | None:
        """The frozen model on the same sequences, as if it trained; products are of 16 bits.

        Adapters stay where weights are shared: those of 4 bits are made 16-bit ones again.
        """
        if self.beside is None:
            return None
        narrow = self.precision is Precision.FP8 or self.precision.is_microscaled
        return replace(
            self,
            model=self.beside.model,
            adapters=self.adapters if self.shares_weights else None,
            precision=Precision.BF16 if narrow else self.precision,
            beside=None,
        )

    @property
    def tokens_per_iteration(self) -> int:
        """Without padding."""
        if self.draws is None or self.packed:
            return self.seq_length * self.global_batch
        return round(self.draws.mean * self.global_batch)

    @property
    def flops_per_iteration(self) -> float:
        return self.flops_per_token * self.tokens_per_iteration

    @property
    def flops_per_token(self) -> float:
        length = self.seq_length if self.draws is None else max(round(self.draws.seen), 1)
        beside = 0.0 if self.beside is None else self.beside.model.flops_per_token(length) / 3
        if self.adapters is None:
            return self.model.flops_per_token(length) + beside
        return finetuned_flops_per_token(self.model, self.adapters, length) + beside

    @property
    def trained_parameters(self) -> int:
        if self.adapters is None:
            return self.model.parameters - sum(one.parameters for one in self.model.frozen_front)
        return adapter_parameters(self.model, self.adapters)

    @property
    def iterations(self) -> float | None:
        return None if self.tokens is None else self.tokens / self.tokens_per_iteration


def check_lengths(model: Model) -> None:
    """Refuse unequal lengths where layers do not all see the same tokens."""
    blocks = [kind for kind in model.kinds if isinstance(kind, Block) and not kind.seq_length]
    if model.architecture != "decoder" or len(blocks) < len(model.kinds):
        raise InputError(
            f"unequal lengths are modelled of decoders alone, and {model.name} is of kind"
            f" {model.architecture} or has layers with lengths of their own; leave them out",
            "lengths",
        )


class Ramp(Value, frozen=True):
    """From `start` sequences to the global batch, in steps of `increment`, over `samples`."""

    start: int
    increment: int
    samples: int

    def check(self, global_batch: int) -> None:
        """Refuse what Megatron refuses, or divides by zero for."""
        for name in ("start", "increment", "samples"):
            if getattr(self, name) < 1:
                raise InputError(f"the ramp's {name} must be at least 1")
        if self.start >= global_batch:
            raise InputError(
                f"the ramp's start, {self.start:,}, must be below the global batch,"
                f" {global_batch:,}"
            )
        if (global_batch - self.start) % self.increment:
            raise InputError(
                f"steps of {self.increment:,} do not lead from {self.start:,} to the global batch,"
                f" {global_batch:,}"
            )


class Evaluation(Value, frozen=True):
    """After `every` iterations, `iterations` forward passes over a global batch."""

    every: int
    iterations: int

    def passes(self, num_iterations: int) -> int:
        return num_iterations // self.every * self.iterations
