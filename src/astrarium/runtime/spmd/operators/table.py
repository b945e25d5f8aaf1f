"""Operators on the pieces of tensors that one device has.

Mostly as it stands: a rule is chosen so that the operator on pieces gives a piece. What differs:
sizes among the arguments are those of the piece; dropout looks at places in the whole tensor; rules
with a `local` name have a version of their own; and pieces may be empty, which not every operator
takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import Context, OperatorRun
from astrarium.runtime.spmd.operators.layers import LOCAL as LAYERS
from astrarium.runtime.spmd.operators.layers import experts, recurrent
from astrarium.runtime.spmd.operators.losses import LOCAL as LOSSES
from astrarium.runtime.spmd.operators.norms import LOCAL as NORMS
from astrarium.runtime.spmd.operators.positions import attention, drawn, dropout
from astrarium.spmd.graph import GETITEM, Node
from astrarium.spmd.rules import (
    EXPERTS,
    GLOBAL_MEAN,
    MASKED_EMBEDDING,
    RECURRENT,
    ShardRule,
    operator_name,
)

# Operators with several results take empty pieces as they are, or have versions for them.
SEVERAL: Final = frozenset(
    ("split", "split_with_sizes", "chunk", "unbind", "topk", "sort", "max", "min", "batch_norm",
     *RECURRENT)
)  # fmt: skip


def run_local(
    node: Node,
    rules: Sequence[ShardRule],
    inputs: Sequence[Any],
    shape: Sequence[int],
    context: Context,
) -> Any:  # noqa: ANN401  a tensor, or several
    """Run a node on a device's pieces of its inputs; `shape` is that of its piece of the result."""
    run = OperatorRun(node, tuple(rules), _cast(node, inputs), tuple(shape), context)
    if node.op == GETITEM:
        return inputs[0][node.args[1]]
    wanted = {rule.local for rule in rules}
    for name, version in LOCAL.items():
        if name in wanted:
            return version(run)
    operator = operator_name(node.op)
    if 0 in run.shape and operator not in SEVERAL:
        return _nothing(run)
    special = SPECIAL.get(operator)
    return special(run) if special else _plain(run)


def _cast(node: Node, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs in the format that a node computes in; double precision is left alone."""
    if not node.computed_in:
        return tuple(inputs)
    dtype = getattr(torch, node.computed_in)
    return tuple(x.to(dtype) if x.is_floating_point() and x.itemsize < 8 else x for x in inputs)


def _plain(run: OperatorRun) -> Any:  # noqa: ANN401
    args, kwargs = run.arguments()
    namespace, name, overload = run.node.op.split(".")
    found = getattr(torch.ops, namespace)
    if not name.startswith("__"):
        name = name.rstrip("_")  # never in place: others may read the same values
    return getattr(getattr(found, name), overload)(*args, **kwargs)


class _Nothing(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """Zeros that depend on no input; zero gradients come back, as other devices wait."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.like = [(x.shape, x.dtype) if x.is_floating_point() else None for x in inputs]
        return torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        zeros = (
            None if like is None else gradient.new_zeros(like[0], dtype=like[1])
            for like in ctx.like
        )
        return (None, None, None, *zeros)


def _nothing(run: OperatorRun) -> Tensor:
    dtype = getattr(torch, run.node.dtype)
    return _Nothing.apply(run.shape, dtype, run.context.device, *run.inputs)


def _convolution(run: OperatorRun) -> Tensor:
    """Without input channels torch refuses; the sum over none of them is zero, plus the bias."""
    if run.inputs[0].numel():
        return _plain(run)
    zeros = _nothing(run)
    if len(run.inputs) < 3:
        return zeros
    space = run.inputs[1].dim() - 2
    return zeros + run.inputs[2].view(-1, *(1,) * space)


def _batch_norm(run: OperatorRun) -> Any:  # noqa: ANN401  a tensor, or several
    """In training with the statistics that it is to keep, which are results of their own."""
    args, kwargs = run.arguments()
    mean, variance, training = args[3:6]
    if not training or mean is None:
        return _nothing(run) if 0 in run.shape else _plain(run)
    new = mean.clone(), variance.clone()
    if 0 in run.shape:
        return _nothing(run), *new
    return torch.ops.aten.batch_norm.default(*args[:3], *new, *args[5:], **kwargs), *new


def _recurrent(run: OperatorRun) -> Any:  # noqa: ANN401  several tensors
    """A recurrent layer; an empty sequence has no states."""
    if 0 not in run.shape:
        return recurrent(run)
    args, _ = run.arguments()
    states = [args[1]] if isinstance(args[1], Tensor) else args[1]
    nothing = _nothing(run)
    empty = nothing.reshape(-1).sum()  # depends on every input, so that gradients come back
    return nothing, *(state.detach() + empty for state in states)


def _experts(run: OperatorRun) -> Tensor:
    """Without an expert, or a number to multiply, all is zero."""
    return experts(run) if run.inputs[0].numel() and run.inputs[1].numel() else _nothing(run)


def _attention(run: OperatorRun) -> Tensor:
    args, kwargs = run.arguments()
    chance = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    return attention(run) if chance else _plain(run)


def _one_hot(run: OperatorRun) -> Tensor:
    """The number of classes must not depend on those that occur here."""
    return torch.nn.functional.one_hot(run.inputs[0], run.node.shape[-1])


def _repeat_interleave(run: OperatorRun) -> Tensor:
    """The size of the whole result may be among the arguments."""
    args, kwargs = run.arguments()
    kwargs.pop("output_size", None)
    return torch.ops.aten.repeat_interleave.self_int(*args[:3], **kwargs)


def _masked_embedding(run: OperatorRun) -> Tensor:
    """Look up the words whose rows are here; zeros for the others, who have their own."""
    args, kwargs = run.arguments()
    weight, words = args[:2]
    start, stop = run.input_pieces(0)[0]
    if start == stop:
        return _nothing(run)
    own = (words >= start) & (words < stop)
    padding = args[2] if len(args) > 2 else kwargs.get("padding_idx", -1)
    # The row of padding has no gradient, where it is.
    own_padding = padding - start if start <= padding < stop else -1
    found = torch.embedding(weight, (words - start).masked_fill(~own, 0), own_padding)
    return found.masked_fill(~own[..., None], 0.0)


def _global_mean(run: OperatorRun) -> Tensor:
    """This device's share of a mean: its sum, by the number of elements of all."""
    args, kwargs = run.arguments()
    x, *others = args
    whole = run.whole_input(0)
    dims = others[0] if others else kwargs.get("dim")
    count = math.prod(whole[d] for d in dims) if dims else math.prod(whole)
    if x.dtype.itemsize <= 2 and kwargs.get("dtype") is None:
        kwargs["dtype"] = torch.float32  # sums may be beyond what 16 bits can hold
    total = torch.sum(x, *others, **kwargs)
    return (total / count).to(getattr(torch, run.node.dtype))


LOCAL: Final[dict[str, Callable[[OperatorRun], Tensor]]] = {
    **LOSSES,
    **LAYERS,
    **NORMS,
    MASKED_EMBEDDING: _masked_embedding,
    GLOBAL_MEAN: _global_mean,
}


def _reshaped(run: OperatorRun) -> Tensor:
    return run.inputs[0].reshape(run.shape)


def _expanded(run: OperatorRun) -> Tensor:
    return run.inputs[0].expand(run.shape)


SPECIAL: Final[dict[str, Callable[[OperatorRun], Any]]] = {
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze",
         "_reshape_alias"),
        _reshaped,
    ),
    "expand": _expanded,
    "broadcast_to": _expanded,
    "dropout": dropout,
    "feature_dropout": dropout,
    **dict.fromkeys(("rand", "rand_like", "randn", "randn_like", "bernoulli"), drawn),
    "scaled_dot_product_attention": _attention,
    "batch_norm": _batch_norm,
    **dict.fromkeys(RECURRENT, _recurrent),
    EXPERTS: _experts,
    **{f"conv{way}{k}d": _convolution for way in ("", "_transpose") for k in (1, 2, 3)},
    "one_hot": _one_hot,
    "repeat_interleave": _repeat_interleave,
}  # fmt: skip
