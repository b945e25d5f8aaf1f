"""Frozen layers at the front of a model, and a frozen model beside the trained one.

No gradient reaches the layers of a frozen front, such as a vision tower: they only have a forward
pass, and keep 16-bit weights alone. Not modelled: frozen layers behind others that train, which
pass gradients on; recomputation, which is counted as if it redid their forward pass.

The teacher of a distillation or the reference of DPO has a forward pass over the sequences of every
micro-batch, on the same GPUs. Sequences of preference training come in pairs, one chosen and one
rejected; each counts as a sequence.
"""

from __future__ import annotations

from dataclasses import replace as replaced
from enum import StrEnum

from astrarium.errors import InputError, did_you_mean, flag
from astrarium.model.blocks import Block, Model
from astrarium.value import Value, replace


def with_frozen_front(model: Model, name: str) -> Model:
    """The model with all layers of this name, its first ones, and their input frozen."""
    blocks = model.blocks
    called = [block.name == name or block.name.startswith(f"{name}-") for block in blocks]
    number = sum(called)
    if not number or number == len(blocks) or not all(called[:number]):
        _refuse(model, name)
    if model.embedding.vocab:
        raise InputError(
            f"{flag('freeze')} {name}: the token table of {model.name} is before these layers, and"
            " stays trained: gradients would pass through them, which is not modelled",
            "freeze",
        )
    front = []
    for block in blocks[:number]:
        if not isinstance(block, Block):
            raise InputError(
                f"{flag('freeze')} {name}: a layer of {model.name} is known by its totals alone,"
                " so that its backward pass cannot be left out",
                "freeze",
            )
        front.append(replace(block, frozen=True))
    behind, extra = blocks[number], model.embedding.other_parameters
    if isinstance(behind, Block):  # a projector has the final norm of a tower, and unused weights
        ends = tuple(norm for norm in behind.norms if norm.name.startswith(f"{name}_"))
        if ends:
            rest = tuple(norm for norm in behind.norms if norm not in ends)
            extra += behind.extra_parameters
            behind = replace(behind, norms=rest, extra_parameters=0)
            front[0] = replace(front[0], norms=(*front[0].norms, *ends))
    front[0] = replace(front[0], extra_parameters=front[0].extra_parameters + extra)
    return replaced(
        model,
        blocks=(*front, behind, *blocks[number + 1 :]),
        embedding=replace(model.embedding, other_parameters=0),
    )


def _refuse(model: Model, name: str) -> None:
    first = model.blocks[0].name.partition("-")[0]
    names = [block.name.partition("-")[0] for block in model.blocks]
    able = [first] if names[-1] != first else []
    hint = did_you_mean(name, able)
    has = (
        f"; it has {first}"
        if able
        else f": all its layers train, or adapters ({flag('finetune')} lora)"
    )
    raise InputError(
        f"{flag('freeze')} {name}: {model.name} does not begin with layers of that name{hint}{has}",
        "freeze",
    )


class Role(StrEnum):
    """The purpose of a frozen model; the names of its flags."""

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
