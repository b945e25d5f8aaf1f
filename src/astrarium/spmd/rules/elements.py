"""Axes of operators that work element by element, or along one dimension at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from astrarium.spmd.rules.notation import WHOLE, Call, Operand, Pattern, divisible, pattern_of
from astrarium.spmd.rules.products import given, notation
from astrarium.spmd.rules.views import Describe, at, kept

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
ALONG_ONE: Final = (
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "logcumsumexp",
    "cumprod",
    "glu",
)


def _broadcast(
    linear: Callable[[Call], tuple[int, ...] | None] = lambda call: None, term: str = "..."
) -> Callable[[Call], Pattern]:
    """Operands that are broadcast; `linear` says in which of them the result is linear."""

    def describe(call: Call) -> Pattern:
        terms = ", ".join(term for _ in call.operands)
        return pattern_of(f"{terms} -> ...", call.operands, call.shape, linear(call))

    return describe


_element_wise = _broadcast()


def _of_two(call: Call) -> tuple[int, ...] | None:
    """A sum of two tensors is linear in both together; with a number added it is not."""
    return () if len(call.operands) == 2 else None


def _by_number(call: Call) -> tuple[int, ...] | None:
    """Linear by numbers alone: parts that cancel out are large by divisors that are nearly zero."""
    return (0,) if len(call.operands) == 1 else None


def _with_zeros(call: Call) -> tuple[int, ...] | None:
    """Linear where what is filled in is zero."""
    value = call.get(2, "value", 1.0)
    return (0,) if not isinstance(value, Operand) and value == 0 else None


def _where(call: Call) -> Pattern:
    """Choosing is linear in both tensors together; with a number in place of one it is not."""
    linear = () if len(call.operands) == 3 else None
    return pattern_of("..., +..., +... -> ...", call.operands, call.shape, linear)


def _reduction(summed: str | None, position: int = 1) -> Callable[[Call], Pattern]:
    """A reduction of some dimensions: a sum is partial over them; others need them whole."""

    def describe(call: Call) -> Pattern:
        dims, rank = at(position, "dim", None)(call), call.operands[0].rank
        stay = len(call.shape) == rank  # with length 1
        whole = dims if summed is None else ()
        names = tuple(WHOLE if d in whole else str(d) for d in range(rank))
        result = tuple(WHOLE if d in dims else str(d) for d in range(rank) if stay or d not in dims)
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


def of_images(call: Call, names: str, others: str = "c") -> Pattern:
    """Images and channels by name, whole in space; the other operands are vectors of channels."""
    terms = "".join(f", {others}" for _ in call.operands[1:])
    rest = "_" * (len(call.shape) - 2)
    return pattern_of(f"{names}{rest}{terms} -> {names}{rest}", call.operands, call.shape)


def _weight_norm(call: Call) -> Pattern:
    """Rows along one dimension, each of its own length."""
    rank, dim = call.operands[0].rank, call.dim(call.get(2, "dim", 0))
    names = tuple("o" if d == dim else WHOLE for d in range(rank))
    shapes = [operand.shape for operand in call.operands]
    return divisible(Pattern((names, names), names), shapes, call.shape)


def _pooling(space: int, linear: bool) -> Callable[[Call], Pattern]:
    text = f"...{'_' * space} -> ...{'_' * space}"
    return notation(text, (0,) if linear else None)


DESCRIBED: Final[dict[str, Describe]] = {
    **dict.fromkeys((*ELEMENT_WISE, *DRAWN), _element_wise),
    **dict.fromkeys(LINEAR, _broadcast(lambda call: (0,))),
    **dict.fromkeys(ALONG_ONE, kept(at(1, "dim", -1), linear=())),
    **dict.fromkeys(("add", "sub"), _broadcast(_of_two, "+...")),
    "mul": notation("..., ... -> ...", (0, 1)),
    **dict.fromkeys(("div", "true_divide"), _broadcast(_by_number)),
    "where": _where,
    "masked_fill": _broadcast(_with_zeros),
    "cumsum": kept(at(1, "dim", -1)),
    "sum": _reduction(""),
    "mean": _reduction(GLOBAL_MEAN),
    **dict.fromkeys(
        ("amax", "amin", "var", "std", "logsumexp", "prod", "all", "any", "argmax", "argmin"),
        _reduction(None),
    ),
    **dict.fromkeys(("max", "min"), _extreme),
    "layer_norm": _normalised,
    "rms_norm": _normalised,
    "group_norm": lambda call: of_images(call, "n_", "_"),
    # Channels of images, each by itself; statistics that are kept are refused before.
    "instance_norm": lambda call: of_images(call, "nc"),
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
