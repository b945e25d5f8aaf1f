"""Axes of operators that work element by element, or along one dimension at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from astrarium.spmd.rules.call import Call, Operand
from astrarium.spmd.rules.notation import WHOLE, Pattern, divisible, pattern_of
from astrarium.spmd.rules.products import given, notation

GLOBAL_MEAN: Final = "global mean"

# One argument, or several that are broadcast; not linear.
ELEMENT_WISE: Final = (
    "abs", "acos", "asin", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh",
    "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "floor_divide", "fmod",
    "full_like", "ge", "gelu", "gt", "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf",
    "isnan", "le", "leaky_relu", "log", "log10", "log1p", "log2", "log_sigmoid", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "lt", "maximum", "minimum", "mish", "ne",
    "nan_to_num", "ones_like", "pow", "reciprocal", "relu", "relu6", "remainder", "round",
    "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square",
    "tan", "tanh", "threshold", "trunc", "zeros_like", "__and__", "__or__", "__xor__", "rsub",
    "addcdiv", "addcmul", "fill",
)  # fmt: skip
# Element by element too: numbers that follow from places alone, or from nothing.
DRAWN: Final = ("bernoulli", "empty_like", "rand_like", "randn_like")
# Linear in the first argument; the others are numbers.
LINEAR: Final = (
    "alias", "clone", "contiguous", "detach", "dropout", "feature_dropout", "lift_fresh_copy",
    "neg", "positive", "to", "_to_copy",
)  # fmt: skip
# They need the dimension named by their second argument whole.
ALONG_ONE: Final = ("softmax", "_softmax", "log_softmax", "_log_softmax", "logcumsumexp", "cumprod")


def _element_wise(call: Call) -> Pattern:
    terms = ", ".join("..." for _ in call.operands)
    return pattern_of(f"{terms} -> ...", call.operands, call.shape)


def _linear(call: Call) -> Pattern:
    return pattern_of("... -> ...", call.operands[:1], call.shape, (0,))


def _sum_of_two(call: Call) -> Pattern:
    """A sum of two tensors is linear in both together; with a number added it is not."""
    terms = ", ".join("+..." for _ in call.operands)
    linear = () if len(call.operands) == 2 else None
    return pattern_of(f"{terms} -> ...", call.operands, call.shape, linear)


def _quotient(call: Call) -> Pattern:
    """Linear by numbers alone: parts that cancel out are large by divisors that are nearly zero."""
    linear = (0,) if len(call.operands) == 1 else None
    terms = ", ".join("..." for _ in call.operands)
    return pattern_of(f"{terms} -> ...", call.operands, call.shape, linear)


def _where(call: Call) -> Pattern:
    """Choosing is linear in both tensors together; with a number in place of one it is not."""
    linear = () if len(call.operands) == 3 else None
    return pattern_of("..., +..., +... -> ...", call.operands, call.shape, linear)


def _masked_fill(call: Call) -> Pattern:
    """Linear where what is filled in is zero."""
    value = call.get(2, "value", 1.0)
    linear = (0,) if not isinstance(value, Operand) and value == 0 else None
    text = ", ".join("..." for _ in call.operands)
    return pattern_of(f"{text} -> ...", call.operands, call.shape, linear)


def _along_one(call: Call, linear: tuple[int, ...] | None = None) -> Pattern:
    return along(call, (call.dim(call.get(1, "dim", -1)),), linear)


def along(call: Call, dims: tuple[int, ...], linear: tuple[int, ...] | None = None) -> Pattern:
    """The same axes before and after, of which these must be whole."""
    names = tuple(WHOLE if d in dims else str(d) for d in range(call.operands[0].rank))
    partial = () if linear is None else (frozenset({0}),)
    # Other tensors of the operator (what `diff` prepends) have the same axes.
    others = tuple(names for _ in call.operands)
    shapes = [operand.shape for operand in call.operands]
    return divisible(Pattern(others, names, partial), shapes, call.shape)


def reduced(call: Call, position: int) -> tuple[tuple[int, ...], bool]:
    """The dimensions that a reduction takes away, and whether they stay with length 1."""
    rank = call.operands[0].rank
    dims = call.get(position, "dim")
    if isinstance(dims, bool):  # the second argument of `var` and `std` without dimensions
        dims = None
    dims = (dims,) if isinstance(dims, int) else dims
    found = tuple(call.dim(d) for d in dims) if dims else tuple(range(rank))
    return found, len(call.shape) == rank


def _reduction(summed: str | None, position: int = 1) -> Callable[[Call], Pattern]:
    """A reduction of some dimensions: a sum is partial over them; others need them whole."""

    def describe(call: Call) -> Pattern:
        dims, kept = reduced(call, position)
        rank = call.operands[0].rank
        whole = dims if summed is None else ()
        names = tuple(WHOLE if d in whole else str(d) for d in range(rank))
        result = tuple(WHOLE if d in dims else str(d) for d in range(rank) if kept or d not in dims)
        partial = () if summed is None else (frozenset({0}),)
        pattern = Pattern((names,), result, partial, summed=summed or "")
        return divisible(pattern, [call.operands[0].shape], call.shape)

    return describe


def _extreme(call: Call) -> Pattern:
    """The larger of two tensors, or the largest along a dimension."""
    return _element_wise(call) if len(call.operands) == 2 else _reduction(None)(call)


def _normalised(call: Call) -> Pattern:
    """Norms over the last dimensions: those and the weights are whole."""
    axes = "_" * len(call.args[1])
    return pattern_of(
        f"...{axes}, {axes}, {axes} -> ...{axes}", given(call.args[:1] + call.args[2:]), call.shape
    )


def _group_norm(call: Call) -> Pattern:
    names = ("n",) + (WHOLE,) * (len(call.shape) - 1)
    others = tuple((WHOLE,) * operand.rank for operand in call.operands[1:])
    shapes = [operand.shape for operand in call.operands]
    return divisible(Pattern((names, *others), names), shapes, call.shape)


def _instance_norm(call: Call) -> Pattern | None:
    """Channels of images, each by itself; statistics that are kept are refused before."""
    terms = "".join(", c" for _ in call.operands[1:])
    rest = "_" * (len(call.shape) - 2)
    return pattern_of(f"nc{rest}{terms} -> nc{rest}", call.operands, call.shape)


def _weight_norm(call: Call) -> Pattern:
    """Rows along one dimension, each of its own length."""
    rank, dim = call.operands[0].rank, call.dim(call.get(2, "dim", 0))
    names = tuple("o" if d == dim else WHOLE for d in range(rank))
    shapes = [operand.shape for operand in call.operands]
    return divisible(Pattern((names, names), names), shapes, call.shape)


def _pooling(space: int, linear: bool) -> Callable[[Call], Pattern]:
    text = f"...{'_' * space} -> ...{'_' * space}"
    return notation(text, (0,) if linear else None)


DESCRIBED: Final[dict[str, Callable[[Call], Pattern | None]]] = {
    **dict.fromkeys((*ELEMENT_WISE, *DRAWN), _element_wise),
    **dict.fromkeys(LINEAR, _linear),
    **dict.fromkeys(ALONG_ONE, _along_one),
    "add": _sum_of_two,
    "sub": _sum_of_two,
    "mul": notation("..., ... -> ...", (0, 1)),
    "div": _quotient,
    "true_divide": _quotient,
    "where": _where,
    "masked_fill": _masked_fill,
    "glu": _along_one,
    "cumsum": lambda call: _along_one(call, (0,)),
    "sum": _reduction(""),
    "mean": _reduction(GLOBAL_MEAN),
    **dict.fromkeys(
        ("amax", "amin", "var", "std", "logsumexp", "prod", "all", "any", "argmax", "argmin"),
        _reduction(None),
    ),
    **dict.fromkeys(("max", "min"), _extreme),
    "layer_norm": _normalised,
    "rms_norm": _normalised,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "_weight_norm": _weight_norm,
    "linalg_vector_norm": _reduction(None, 2),
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), _pooling(2, True)
    ),
    **dict.fromkeys(("upsample_nearest1d", "upsample_linear1d"), _pooling(1, True)),
    **dict.fromkeys(("upsample_nearest3d", "upsample_trilinear3d"), _pooling(3, True)),
    **{f"max_pool{k}d": _pooling(k, False) for k in (1, 2, 3)},
    **{f"avg_pool{k}d": _pooling(k, True) for k in (1, 2, 3)},
    **{f"adaptive_avg_pool{k}d": _pooling(k, True) for k in (1, 2, 3)},
}
