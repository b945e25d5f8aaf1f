"""Operators with arguments of drawn sizes: what the rules of each are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astrarium.spmd.rules import EXPERTS
from astrarium.spmd.rules.elements import ELEMENT_WISE

Arguments = tuple[list[Any], dict[str, Any]]


@dataclass
class Sizes:
    """Lengths of dimensions, and tensors of random values."""

    random: np.random.Generator
    b: int = 3  # batch
    s: int = 4  # sequence
    h: int = 2  # heads
    d: int = 3  # of a head
    i: int = 4
    o: int = 5

    def x(self, *shape: int) -> Tensor:
        """With a gradient."""
        return self.fixed(*shape).requires_grad_()

    def fixed(self, *shape: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.random.standard_normal(shape)))

    def positive(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.random.uniform(0.1, 0.9, shape)).requires_grad_()

    def index(self, below: int, *shape: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.random.integers(0, below, shape)))

    def mask(self, *shape: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.random.random(shape) < 0.6))

    def order(self, *shape: int) -> Tensor:
        """Values that all differ, with a gradient."""
        count = int(np.prod(shape))
        values = self.random.permutation(count).astype(np.float64)
        return torch.from_numpy(values.reshape(shape)).requires_grad_()


Build = Callable[[Sizes], list[Any]]
CASES: dict[str, tuple[str, Callable[[Sizes], Arguments]]] = {}


def _case(name: str, op: str, build: Build, **kwargs: Any) -> None:
    CASES[name] = (f"aten.{op}", lambda z: (build(z), kwargs))


# Products.
_case("linear", "linear.default", lambda z: [z.x(z.b, z.s, z.i), z.x(z.o, z.i), z.x(z.o)])
_case("linear without bias", "linear.default", lambda z: [z.x(z.b, z.i), z.x(z.o, z.i)])
_case("linear of an input", "linear.default", lambda z: [z.fixed(z.b, z.i), z.x(z.o, z.i)])
_case("linear, frozen", "linear.default", lambda z: [z.x(z.b, z.i), z.fixed(z.o, z.i)])
_case("mm", "mm.default", lambda z: [z.x(z.b, z.i), z.x(z.i, z.o)])
_case("bmm", "bmm.default", lambda z: [z.x(z.b, z.s, z.i), z.x(z.b, z.i, z.o)])
_case("mv", "mv.default", lambda z: [z.x(z.b, z.i), z.x(z.i)])
_case("dot", "dot.default", lambda z: [z.x(z.i), z.x(z.i)])
_case("matmul", "matmul.default", lambda z: [z.x(z.b, z.h, z.s, z.i), z.x(z.h, z.i, z.o)])
_case("matmul by a matrix", "matmul.default", lambda z: [z.x(z.b, z.s, z.i), z.x(z.i, z.o)])
_case("matmul by a vector", "matmul.default", lambda z: [z.x(z.b, z.s, z.i), z.x(z.i)])
_case("matmul of a vector", "matmul.default", lambda z: [z.x(z.i), z.x(z.b, z.i, z.o)])
_case("matmul of two matrices", "matmul.default", lambda z: [z.x(z.s, z.i), z.x(z.i, z.o)])
_case("addmm", "addmm.default", lambda z: [z.x(z.o), z.x(z.b, z.i), z.x(z.i, z.o)])
_case("addmm of a matrix", "addmm.default", lambda z: [z.x(z.b, z.o), z.x(z.b, z.i), z.x(z.i, z.o)])
_case("addmm, scaled", "addmm.default", lambda z: [z.x(z.o), z.x(z.b, z.i), z.x(z.i, z.o)],
      beta=0.5, alpha=2.0)  # fmt: skip
_case("baddbmm", "baddbmm.default",
      lambda z: [z.x(z.b, 1, z.o), z.x(z.b, z.s, z.i), z.x(z.b, z.i, z.o)])  # fmt: skip
_case(
    "einsum", "einsum.default", lambda z: ["bsh,bth->bst", [z.x(z.b, z.s, z.i), z.x(z.b, z.o, z.i)]]
)
_case("dispatch", "einsum.default",
      lambda z: ["bsec,bsd->becd", [z.x(z.b, z.s, z.o, z.h), z.x(z.b, z.s, z.d)]])  # fmt: skip
_case("experts", "einsum.default",
      lambda z: ["becd,edf->becf", [z.x(z.b, z.o, z.h, z.d), z.x(z.o, z.d, z.i)]])  # fmt: skip
_case("combine", "einsum.default",
      lambda z: ["bsec,becd->bsd", [z.x(z.b, z.s, z.o, z.h), z.x(z.b, z.o, z.h, z.d)]])  # fmt: skip
_case(
    "einsum without result", "einsum.default", lambda z: ["ij, jk", [z.x(z.b, z.i), z.x(z.i, z.o)]]
)
_case("einsum with dots", "einsum.default",
      lambda z: ["...i,oi->...o", [z.x(z.b, z.s, z.i), z.x(z.o, z.i)]])  # fmt: skip
_case(
    "einsum of a diagonal",
    "einsum.default",
    lambda z: ["ii,ij->ij", [z.x(z.i, z.i), z.x(z.i, z.o)]],
)
_case("einsum of three", "einsum.default",
      lambda z: ["bi,ij,bj->b", [z.x(z.b, z.i), z.x(z.i, z.o), z.x(z.b, z.o)]])  # fmt: skip
_case("conv1d", "conv1d.default", lambda z: [z.x(z.b, z.i, 6), z.x(z.o, z.i, 3), z.x(z.o)])
_case("conv2d", "conv2d.default",
      lambda z: [z.x(z.b, z.i, 4, 5), z.x(z.o, z.i, 3, 3), z.x(z.o), [1, 1], [1, 1]])  # fmt: skip
_case("conv2d without bias", "conv2d.default", lambda z: [z.x(z.b, z.i, 4, 4), z.x(z.o, z.i, 2, 2)])
_case(
    "conv2d of an image",
    "conv2d.default",
    lambda z: [z.x(z.i, 4, 4), z.x(z.o, z.i, 2, 2), z.x(z.o)],
)
_case("conv2d, depthwise", "conv2d.default",
      lambda z: [z.x(z.b, z.i, 4, 4), z.x(z.i, 1, 2, 2), z.x(z.i), [1], [0], [1], z.i])  # fmt: skip
_case(
    "conv3d", "conv3d.default", lambda z: [z.x(z.b, z.i, 3, 3, 3), z.x(z.o, z.i, 2, 2, 2), z.x(z.o)]
)


def _enlarged(z: Sizes, dims: int) -> list[Any]:
    return [z.x(z.b, z.i, *[3] * dims), z.x(z.i, z.o, *[2] * dims), z.x(z.o)]


def _experts(z: Sizes, turned: bool) -> Arguments:
    matrices = z.x(z.h, z.i, z.o) if turned else z.x(z.h, z.o, z.i)
    return [z.x(z.b * z.s, z.i), matrices, z.index(z.h, z.b * z.s), z.h, turned], {}


CONV_FORMS = {1: "default", 2: "input", 3: "input"}
for _dims in CONV_FORMS:
    _case(f"conv_transpose{_dims}d", f"conv_transpose{_dims}d.{CONV_FORMS[_dims]}",
          partial(_enlarged, dims=_dims))  # fmt: skip
_case("conv_transpose2d in groups", "conv_transpose2d.input",
      lambda z: [z.x(z.b, 2 * z.i, 3, 3), z.x(2 * z.i, z.o, 2, 2), z.x(2 * z.o),
                 [2], [1], [1], 2])  # fmt: skip
for _turned in (False, True):
    CASES[f"experts{', turned' * _turned}"] = (EXPERTS, partial(_experts, turned=_turned))


def _heads(z: Sizes, keys: int | None = None) -> list[Tensor]:
    keys = z.h if keys is None else keys
    return [
        z.x(z.b, z.h * keys if keys != z.h else z.h, z.s, z.d),
        z.x(z.b, keys, z.o, z.d),
        z.x(z.b, keys, z.o, z.i),
    ]


ATTENTION = "scaled_dot_product_attention.default"
_case("attention", ATTENTION, _heads)
_case("attention, causal", ATTENTION, lambda z: [*_heads(z), None, 0.0, True])
_case("attention, scaled", ATTENTION, _heads, scale=0.3)
_case("attention, masked", ATTENTION, lambda z: [*_heads(z), z.mask(z.b, 1, z.s, z.o)])
_case("attention, mask of rows", ATTENTION, lambda z: [*_heads(z), z.mask(z.s, z.o)])
_case("attention, bias", ATTENTION, lambda z: [*_heads(z), z.x(1, z.h, z.s, z.o)])
CASES["attention, mask by name"] = (
    f"aten.{ATTENTION}",
    lambda z: (_heads(z), {"attn_mask": z.fixed(z.b, z.h, 1, z.o)}),
)
_case("attention, grouped", ATTENTION, lambda z: _heads(z, 3), enable_gqa=True)
_case("attention, one key head", ATTENTION, lambda z: _heads(z, 1), enable_gqa=True)
_case("attention without batch", ATTENTION,
      lambda z: [z.x(z.h, z.s, z.d), z.x(z.h, z.o, z.d), z.x(z.h, z.o, z.i)])  # fmt: skip
_case("embedding", "embedding.default", lambda z: [z.x(z.o, z.i), z.index(z.o, z.b, z.s)])
_case(
    "embedding, padded", "embedding.default", lambda z: [z.x(z.o, z.i), z.index(z.o, z.b, z.s), 1]
)

# Element by element.
SCALARS: dict[str, list[Any]] = {
    "pow": [2.0], "eq": [0.3], "ne": [0.3], "lt": [0.3], "le": [0.3], "gt": [0.3], "ge": [0.3],
    "clamp": [0.2, 0.6], "clamp_min": [0.4], "clamp_max": [0.5], "clip": [0.2, 0.6],
    "threshold": [0.4, 0.1], "fmod": [0.3], "remainder": [0.3], "full_like": [2.0], "rsub": [1.0],
    "floor_divide": [0.3], "fill": [2.0],
}  # fmt: skip
OVERLOADS = {
    "pow": "Tensor_Scalar", "fmod": "Scalar", "remainder": "Scalar", "rsub": "Scalar",
    "eq": "Scalar", "ne": "Scalar", "lt": "Scalar", "le": "Scalar", "gt": "Scalar", "ge": "Scalar",
    "floor_divide": "Scalar", "fill": "Scalar",
}  # fmt: skip
WORDS = ("and", "or", "xor")
BINARY = ("atan2", "maximum", "minimum", "logical_and", "logical_or", "logical_xor")
WHOLE_NUMBERS = ("bitwise_not", *(f"bitwise_{w}" for w in WORDS), *(f"__{w}__" for w in WORDS))
THREE = ("addcdiv", "addcmul")


def _add_element_wise(name: str) -> None:
    if name in WHOLE_NUMBERS:
        overload = "default" if name == "bitwise_not" else "Tensor"
        one = lambda z: [z.index(9, z.b, z.i)]  # noqa: E731
        two = lambda z: [z.index(9, z.b, z.i), z.index(9, z.i)]  # noqa: E731
        _case(name, f"{name}.{overload}", one if name == "bitwise_not" else two)
    elif name in BINARY:
        _case(name, f"{name}.default", lambda z: [z.x(z.b, z.s, z.i), z.x(z.s, 1)])
    elif name in THREE:
        _case(name, f"{name}.default",
              lambda z: [z.x(z.b, z.i), z.x(z.i), z.positive(z.b, 1)])  # fmt: skip
    else:
        overload = OVERLOADS.get(name, "default")
        others = SCALARS.get(name, [])
        trained = name != "floor_divide"  # it has no gradient
        values = Sizes.positive if trained else Sizes.fixed
        _case(name, f"{name}.{overload}", lambda z: [values(z, z.b, z.s), *others])


for _name in ELEMENT_WISE:
    _add_element_wise(_name)
for _name in ("add", "sub", "mul", "div"):
    _case(_name, f"{_name}.Tensor", lambda z: [z.x(z.b, z.s, z.i), z.positive(z.s, 1)])
    _case(f"{_name} by a number", f"{_name}.Tensor", lambda z: [z.x(z.b, z.s), 2.0])
_case("add, scaled", "add.Tensor", lambda z: [z.x(z.b, z.s), z.x(z.b, z.s)], alpha=0.5)
_case("add of an input", "add.Tensor", lambda z: [z.x(z.b, z.s), z.fixed(z.s)])
_case("mul of inputs", "mul.Tensor", lambda z: [z.fixed(z.b, z.s), z.fixed(z.s)])
_case("mul by itself", "mul.Tensor", lambda z: [z.x(z.b), z.x(1)])
_case("true_divide", "true_divide.Tensor", lambda z: [z.x(z.b, z.s), z.positive(z.s)])
_case("comparison", "le.Tensor", lambda z: [z.x(z.b, z.s), z.x(z.b, 1)])
_case("where", "where.self", lambda z: [z.mask(z.s), z.x(z.b, z.s), z.x(z.b, 1)])
_case("where, a number", "where.ScalarOther", lambda z: [z.mask(z.b, z.s), z.x(z.b, z.s), 1.0])
_case("masked_fill", "masked_fill.Scalar", lambda z: [z.x(z.b, z.s), z.mask(z.s), -1.0])
_case("masked_fill by zero", "masked_fill.Scalar", lambda z: [z.x(z.b, z.s), z.mask(z.s), 0.0])
for _name in ("alias", "clone", "contiguous", "detach", "neg", "positive", "lift_fresh_copy"):
    _case(_name, f"{_name}.default", lambda z: [z.x(z.b, z.s, z.i)])
_case("to", "to.dtype", lambda z: [z.x(z.b, z.s), torch.float64])
_case("_to_copy", "_to_copy.default", lambda z: [z.x(z.b, z.s)])
_case("to whole numbers", "to.dtype", lambda z: [z.x(z.b, z.s), torch.int64])

# Along dimensions.
for _name in ("softmax", "log_softmax"):
    _case(_name, f"{_name}.int", lambda z: [z.x(z.b, z.s, z.i), -1])
    _case(f"_{_name}", f"_{_name}.default", lambda z: [z.x(z.b, z.s, z.i), 1, False])
for _name in ("cumsum", "cumprod", "logcumsumexp"):
    _case(_name, f"{_name}.default", lambda z: [z.x(z.b, z.s, z.i), 1])
_case("sum", "sum.default", lambda z: [z.x(z.b, z.s)])
_case("sum of one", "sum.dim_IntList", lambda z: [z.x(z.b, z.s, z.i), [1]])
_case("sum of two", "sum.dim_IntList", lambda z: [z.x(z.b, z.s, z.i), [0, -1], True])
_case("sum of whole numbers", "sum.dim_IntList", lambda z: [z.index(5, z.b, z.s), [0]])
_case("mean", "mean.default", lambda z: [z.x(z.b, z.s)])
_case("mean of one", "mean.dim", lambda z: [z.x(z.b, z.s, z.i), [-1], True])
_case("mean of two", "mean.dim", lambda z: [z.x(z.b, z.s, z.i), [1, 2]])
for _name in ("amax", "amin"):
    _case(_name, f"{_name}.default", lambda z: [z.order(z.b, z.s, z.i), [1]])
for _name in ("var", "std"):
    _case(_name, f"{_name}.correction", lambda z: [z.x(z.b, z.s, 3), [2]], correction=1)
    _case(f"{_name} of all", f"{_name}.default", lambda z: [z.x(z.b, 3), True])
_case("logsumexp", "logsumexp.default", lambda z: [z.x(z.b, z.s, z.i), [1], True])
_case("prod", "prod.dim_int", lambda z: [z.x(z.b, z.s, z.i), 1])
_case("all", "all.dim", lambda z: [z.mask(z.b, z.s), 1])
_case("any", "any.dim", lambda z: [z.mask(z.b, z.s), 0, True])
for _name in ("argmax", "argmin"):
    _case(_name, f"{_name}.default", lambda z: [z.order(z.b, z.s, z.i), -1])
for _name in ("max", "min"):
    _case(_name, f"{_name}.dim", lambda z: [z.order(z.b, z.s, z.i), 1])
    _case(f"{_name} of all", f"{_name}.default", lambda z: [z.order(z.b, z.s)])
    _case(f"{_name} of two", f"{_name}.other", lambda z: [z.order(z.b, z.s), z.fixed(z.s)])
_case("layer_norm", "layer_norm.default", lambda z: [z.x(z.b, z.s, z.i), [z.i], z.x(z.i), z.x(z.i)])
_case("layer_norm of two", "layer_norm.default", lambda z: [z.x(z.b, z.s, z.i), [z.s, z.i]])
_case("rms_norm", "rms_norm.default", lambda z: [z.x(z.b, z.s, z.i), [z.i], z.x(z.i), 1e-5])
_case("group_norm", "group_norm.default",
      lambda z: [z.x(z.b, 2 * z.i, 3), 2, z.x(2 * z.i), z.x(2 * z.i)])  # fmt: skip
_case("batch_norm", "batch_norm.default", lambda z: [
    z.x(z.b, z.i, 3), z.x(z.i), z.x(z.i), z.fixed(z.i), z.positive(z.i).detach(),
    False, 0.1, 1e-5, False])  # fmt: skip
_case("batch_norm in training", "batch_norm.default", lambda z: [
    z.x(z.b, z.i, 3), z.x(z.i), z.x(z.i), None, None, True, 0.1, 1e-5, False])  # fmt: skip


_case("batch_norm with statistics", "batch_norm.default", lambda z: [
    z.x(z.b + 1, z.i, 3), z.x(z.i), z.x(z.i), z.fixed(z.i), z.positive(z.i).detach(),
    True, 0.1, 1e-5, False])  # fmt: skip
_case("batch_norm of rows", "batch_norm.default", lambda z: [
    z.x(z.b + 1, z.i), None, None, None, None, True, 0.1, 1e-5, False])  # fmt: skip
_case("instance_norm", "instance_norm.default", lambda z: [
    z.x(z.b, z.i, 4), z.x(z.i), z.x(z.i), None, None, True, 0.1, 1e-5, False])  # fmt: skip
_case("rms_norm without weight", "rms_norm.default", lambda z: [z.x(z.b, z.s, z.i), [z.i]])
_case("log_softmax of a row", "log_softmax.int", lambda z: [z.x(z.o), 0])
_case("linalg_vector_norm", "linalg_vector_norm.default",
      lambda z: [z.x(z.b, z.s, z.i), 2, [-1], True])  # fmt: skip
_case("_weight_norm", "_weight_norm.default", lambda z: [z.x(z.o, z.i, 2), z.x(z.o, 1, 1), 0])
_case("glu", "glu.default", lambda z: [z.x(z.b, z.s, 2 * z.i), -1])


def _larger(z: Sizes, dims: int, corners: bool) -> list[Any]:
    return [z.x(z.b, z.i, *[3] * dims), [5] * dims, *([False] if corners else []), None]


for _mode, _dims in (("nearest", 1), ("nearest", 2), ("nearest", 3), ("linear", 1),
                     ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)):  # fmt: skip
    _case(f"upsample_{_mode}{_dims}d", f"upsample_{_mode}{_dims}d.vec",
          partial(_larger, dims=_dims, corners=_mode != "nearest"))  # fmt: skip
_case("pixel_shuffle", "pixel_shuffle.default", lambda z: [z.x(z.b, 4 * z.i, z.s, 3), 2])
_case("pixel_unshuffle", "pixel_unshuffle.default", lambda z: [z.x(z.b, z.i, 2 * z.s, 4), 2])
_case("im2col of one image", "im2col.default",
      lambda z: [z.x(z.i, 4, 4), [3, 3], [1, 1], [1, 1], [1, 1]])  # fmt: skip
_case("im2col", "im2col.default",
      lambda z: [z.x(z.b, z.i, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1]])  # fmt: skip


def _recurrent(z: Sizes, gates: int, states: int, layers: int = 1, batch_first: bool = True,
               ways: int = 1) -> list[Any]:  # fmt: skip
    """Arguments of a recurrent operator."""
    first = [z.s, z.b] if not batch_first else [z.b, z.s]
    started = [z.x(layers * ways, z.b, z.d) for _ in range(states)]
    weights = []
    for layer in range(layers):
        inner = z.i if layer == 0 else ways * z.d
        for _ in range(ways):
            weights += [z.x(gates * z.d, inner), z.x(gates * z.d, z.d), z.x(gates * z.d),
                        z.x(gates * z.d)]  # fmt: skip
    return [z.x(*first, z.i), started if states > 1 else started[0], weights, True, layers, 0.0,
            True, ways == 2, batch_first]  # fmt: skip


_case("lstm", "lstm.input", lambda z: _recurrent(z, 4, 2))
_case("lstm, both ways", "lstm.input", lambda z: _recurrent(z, 4, 2, 2, False, 2))
_case("gru", "gru.input", lambda z: _recurrent(z, 3, 1, 2))
_case("rnn_tanh", "rnn_tanh.input", lambda z: _recurrent(z, 1, 1))
_case("rnn_relu", "rnn_relu.input", lambda z: _recurrent(z, 1, 1, 1, False))


def _add_pooling(kind: str, values: Callable[..., Tensor], dims: int, *space: int) -> None:
    _case(f"{kind}_pool{dims}d", f"{kind}_pool{dims}d.default",
          lambda z: [values(z, z.b, z.i, *space), [2] * dims])  # fmt: skip


for _kind, _values in (("max", Sizes.order), ("avg", Sizes.x), ("adaptive_avg", Sizes.x)):
    _add_pooling(_kind, _values, 1, 6)
    _add_pooling(_kind, _values, 2, 4, 6)
    _add_pooling(_kind, _values, 3, 4, 4, 2)

# Moving elements.
_case("heads apart", "view.default", lambda z: [z.x(z.b, z.s, z.h * z.d), [z.b, z.s, z.h, z.d]])
_case("heads together", "reshape.default", lambda z: [z.x(z.b, z.s, z.h, z.d), [z.b, z.s, -1]])
_case("tokens in a row", "_unsafe_view.default", lambda z: [z.x(z.b, z.s, z.i), [-1, z.i]])
_case("other lengths", "view.default", lambda z: [z.x(4 * z.b, 3 * z.s), [6 * z.b, 2 * z.s]])
_case("view with ones", "view.default", lambda z: [z.x(1, z.b, z.s), [z.b, 1, z.s, 1]])
_case("_reshape_alias", "_reshape_alias.default",
      lambda z: [z.x(z.b, z.s), [z.b * z.s], [1]])  # fmt: skip
_case("flatten", "flatten.using_ints", lambda z: [z.x(z.b, z.s, z.i, z.o), 1, 2])
_case("unflatten", "unflatten.int", lambda z: [z.x(z.b, z.h * z.d), 1, [z.h, z.d]])
_case("unsqueeze", "unsqueeze.default", lambda z: [z.x(z.b, z.s), -1])
_case("squeeze", "squeeze.dim", lambda z: [z.x(z.b, 1, z.s), 1])
_case("squeeze all", "squeeze.default", lambda z: [z.x(z.b, 1, z.s)])
_case("transpose", "transpose.int", lambda z: [z.x(z.b, z.s, z.i), 1, -1])
_case("t", "t.default", lambda z: [z.x(z.b, z.s)])
_case("mT", "mT.default", lambda z: [z.x(z.b, z.s, z.i)])
_case("permute", "permute.default", lambda z: [z.x(z.b, z.s, z.i), [2, 0, 1]])
_case("expand", "expand.default", lambda z: [z.x(1, z.s, 1), [z.b, z.i, z.s, z.o]])
_case("broadcast_to", "broadcast_to.default", lambda z: [z.x(z.s, 1), [z.b, z.s, z.o]])
_case("repeat", "repeat.default", lambda z: [z.x(z.b, z.s), [2, 1, 3]])
_case("repeat_interleave", "repeat_interleave.self_int", lambda z: [z.x(z.b, z.h, z.s), 3, 1])
_case("slice", "slice.Tensor", lambda z: [z.x(z.b, z.i + 2), 1, 1, 2**63 - 1])
_case("slice of all", "slice.Tensor", lambda z: [z.x(z.b, z.i), 1, 0, 2**63 - 1])
_case("narrow", "narrow.default", lambda z: [z.x(z.b, z.i + 2), 1, 1, 2])
_case("pad", "pad.default", lambda z: [z.x(z.b, z.s, z.i), [1, 2, 0, 1]])
_case("pad with a number", "pad.default", lambda z: [z.x(z.b, z.s), [0, 1], "constant", -100.0])
_case("constant_pad_nd", "constant_pad_nd.default", lambda z: [z.x(z.b, z.s), [0, 1], 2.0])
_case("select", "select.int", lambda z: [z.x(z.b, z.s, z.i), 1, 0])
_case("unbind", "unbind.int", lambda z: [z.x(z.b, 3, z.i), 1])
_case("cat", "cat.default", lambda z: [[z.x(z.b, z.s, z.i), z.x(z.b, 1, z.i)], 1])
_case("concat", "concat.default", lambda z: [[z.x(z.b, z.s), z.x(z.b, z.i)], -1])
_case("stack", "stack.default", lambda z: [[z.x(z.b, z.s), z.x(z.b, z.s)], -1])
_case("split", "split.Tensor", lambda z: [z.x(z.b, z.s, 3 * z.d), z.d, 2])
_case("split_with_sizes", "split_with_sizes.default", lambda z: [z.x(z.b, 5), [2, 3], 1])
_case("chunk", "chunk.default", lambda z: [z.x(z.b, 4), 2, 1])
_case("roll", "roll.default", lambda z: [z.x(z.b, z.s), [1], [1]])
_case("roll all", "roll.default", lambda z: [z.x(z.b, z.s), [1]])
_case("flip", "flip.default", lambda z: [z.x(z.b, z.s), [1]])
_case("diff", "diff.default", lambda z: [z.x(z.b, z.s + 1), 1, -1, z.x(z.b, 1)])
_case("tril", "tril.default", lambda z: [z.x(z.b, z.s, z.s)])
_case("triu", "triu.default", lambda z: [z.x(z.b, z.s, z.s), 1])
_case("gather", "gather.default", lambda z: [z.x(z.b, z.s), 1, z.index(z.s, z.b, z.i)])
_case("gather of fewer", "gather.default", lambda z: [z.x(z.b + 1, z.s), 1, z.index(z.s, z.b, z.i)])
_case("index_select", "index_select.default", lambda z: [z.x(z.b, z.s, z.o), 1, z.index(z.s, z.i)])
_case("index", "index.Tensor", lambda z: [z.x(z.b, z.s, z.i), [None, z.index(z.s, z.o, 1)]])
_case("index by two", "index.Tensor",
      lambda z: [z.x(z.b, z.s, z.i), [z.index(z.b, z.o, 1), z.index(z.s, z.d)]])  # fmt: skip
_case("index by two apart", "index.Tensor",
      lambda z: [z.x(z.b, z.s, z.i), [z.index(z.b, z.o), None, z.index(z.i, 1)]])  # fmt: skip
_case("scatter", "scatter.value", lambda z: [z.x(z.b, z.s), 1, z.index(z.s, z.b, 1), 2.0])
_case("scatter_add", "scatter_add.default",
      lambda z: [z.x(z.b, z.s), 1, z.index(z.s, z.b, z.i), z.x(z.b, z.i)])  # fmt: skip
_case("index_add", "index_add.default",
      lambda z: [z.x(z.b, z.o, z.i), 1, z.index(z.o, z.s), z.x(z.b, z.s, z.i)],
      alpha=0.5)  # fmt: skip
_case("select_scatter", "select_scatter.default",
      lambda z: [z.x(z.b, z.s, z.i), z.x(z.b, z.i), 1, 0])  # fmt: skip
_case("slice_scatter", "slice_scatter.default",
      lambda z: [z.x(z.b, z.s + 1, z.i), z.x(z.b, z.s, z.i), 1, 1, 2**63 - 1])  # fmt: skip
_case("unfold", "unfold.default", lambda z: [z.x(z.b, z.s + 2, z.i), 1, 2, 1])
_case("one_hot", "one_hot.default", lambda z: [z.index(z.o, z.b, z.s), z.o])
_case("topk", "topk.default", lambda z: [z.order(z.b, z.s, 4), 2])
_case("sort", "sort.default", lambda z: [z.order(z.b, z.s, z.i), 1])
_case("argsort", "argsort.default", lambda z: [z.order(z.b, z.s, z.i), 1])
_case("new_zeros", "new_zeros.default", lambda z: [z.x(z.b, z.s), [2, 3]])
_case("new_ones", "new_ones.default", lambda z: [z.x(z.b, z.s), [2, 3]])
_case("new_full", "new_full.default", lambda z: [z.x(z.b, z.s), [2, 3], 4.0])
_case("arange", "arange.default", lambda z: [z.s])
_case("full", "full.default", lambda z: [[z.b, z.s], 2.0])
_case("zeros", "zeros.default", lambda z: [[z.b, z.s]])
_case("ones", "ones.default", lambda z: [[z.b, z.s]])
_case("eye", "eye.default", lambda z: [z.s])
_case("linspace", "linspace.default", lambda z: [0.0, 1.0, z.s])
_case("scalar_tensor", "scalar_tensor.default", lambda z: [1.5])

# Losses.
CROSS = "cross_entropy_loss.default"


def _targets(z: Sizes, *shape: int) -> Tensor:
    """The first is never ignored: a mean over nothing is not a number."""
    targets = z.index(z.o, *shape).masked_fill(z.mask(*shape), -100)
    targets.view(-1)[0] = 0
    return targets


_case("cross entropy", CROSS, lambda z: [z.x(z.b, z.o), _targets(z, z.b)])
_case("cross entropy, summed", CROSS, lambda z: [z.x(z.b, z.o), _targets(z, z.b), None, 2])
_case("cross entropy of rows", CROSS, lambda z: [z.x(z.b, z.o), _targets(z, z.b), None, 0])
_case("cross entropy, weighted", CROSS,
      lambda z: [z.x(z.b, z.o), _targets(z, z.b), z.positive(z.o).detach()])  # fmt: skip
_case("cross entropy, smoothed", CROSS,
      lambda z: [z.x(z.b, z.o), _targets(z, z.b), None, 1, -100, 0.1])  # fmt: skip
_case("cross entropy, ignoring 1", CROSS,
      lambda z: [z.x(z.b, z.o), torch.zeros(z.b, dtype=torch.int64), None, 1, 1])  # fmt: skip
_case("cross entropy of images", CROSS, lambda z: [z.x(z.b, z.o, z.s), _targets(z, z.b, z.s)])
_case("cross entropy of chances", CROSS,
      lambda z: [z.x(z.b, z.o), z.positive(z.b, z.o).detach()])  # fmt: skip
_case("nll_loss", "nll_loss.default", lambda z: [z.x(z.b, z.o), _targets(z, z.b), None, 1, -100])
_case("nll_loss_nd", "nll_loss_nd.default",
      lambda z: [z.x(z.b, z.o, z.s), _targets(z, z.b, z.s), None, 1, -100])  # fmt: skip


def _add_loss(name: str, reduction: int) -> None:
    _case(f"{name}, {('each', 'mean', 'sum')[reduction]}", f"{name}.default",
          lambda z: [z.x(z.b, z.s), z.positive(z.b, z.s), reduction])  # fmt: skip


for _name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"):
    for _reduction in range(3):
        _add_loss(_name, _reduction)
_case("mse_loss", "mse_loss.default", lambda z: [z.x(z.b, z.s), z.fixed(z.b, z.s)])
_case("binary_cross_entropy", "binary_cross_entropy.default",
      lambda z: [z.positive(z.b, z.s), z.mask(z.b, z.s).double()])  # fmt: skip
_case("binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits.default",
      lambda z: [z.x(z.b, z.s), z.mask(z.b, z.s).double(), None, z.fixed(z.s).exp()])  # fmt: skip
