"""A frozen model beside the trained one: the teacher of a distillation, the reference of DPO.

It only has a forward pass, over the sequences of every micro-batch, on the same GPUs. Sequences of
preference training come in pairs, one chosen and one rejected; each counts as a sequence.
"""

from __future__ import annotations

from enum import StrEnum

from astrarium.errors import InputError, flag
from astrarium.model.blocks import Block, Model
from astrarium.value import Value


class Role(StrEnum):
    """What a frozen model is for; the names of its flags."""

    TEACHER = "teacher"  # its logits are in the loss
    REFERENCE = "reference"  # its log-probabilities are


class Beside(Value, frozen=True):
    """A frozen model, what it is for, and the name that was given."""

    model: Model
    role: Role
    name: str

    @property
    def pairs(self) -> bool:
        """Whether sequences are pairs, which stay in one micro-batch."""
        return self.role is Role.REFERENCE


def check_beside(trained: Model, beside: Beside) -> None:
    """Refuse models for which this is not modelled."""
    role, name = beside.role.value, beside.model.name
    where = f"{flag(role)} {name}"
    for model in (trained, beside.model):
        blocks = [one for one in model.kinds if isinstance(one, Block) and not one.seq_length]
        if model.architecture != "decoder" or len(blocks) < len(model.kinds):
            raise InputError(
                f"{where}: frozen models are modelled beside decoders, and are decoders;"
                f" {model.name} is of kind {model.architecture} or has layers with lengths of their"
                " own",
                role,
            )
    if beside.model.max_experts not in (0, trained.max_experts):
        raise InputError(
            f"{where}: its experts are divided as those of the trained model; it has"
            f" {beside.model.max_experts} in a layer, {trained.name} has {trained.max_experts}."
            " Choose a model with as many, or without experts",
            role,
        )
