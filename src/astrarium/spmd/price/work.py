"""FLOPs, bytes and seconds of every operator and pass, from the shapes that a device sees.

An operator is a list of terms: matrix products, attention, kernels bound by memory. Sizes are
numbers or arrays (one entry for each device), whole or not. Backward terms are there only for
gradients that are needed, each on its own. Most operators are data: bytes read and written, in
whole tensors. Operators that no table names are one kernel that reads its inputs and writes its
result.

A `Bill` collects terms with the item that they belong to, stacked by kind of kernel, and each
operator model prices each kind in one call. A core of which a job has a share takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.efficiency import GemmRole, OperatorModel, Pointwise
from astrarium.cost.kernels import BACKWARD_PRODUCTS
from astrarium.cost.laws import LawModel
from astrarium.spmd.graph import DTYPE_BYTES, Graph, Node
from astrarium.spmd.price.devices import Devices, usable_format
from astrarium.value import Value

Size: TypeAlias = Floats | float
Shape: TypeAlias = tuple[Size, ...]

GEMM: Final = "gemm"  # sizes: batch, m, n, k
ATTENTION: Final = "attention"  # batch, heads, kv heads, queries, keys, key and value width
STREAM: Final = "stream"  # bytes read and written


class Kernel(Value, frozen=True):
    """The common part of terms that one call of the operator model prices."""

    kind: str  # one of the above, or the value of a `Pointwise`
    dtype: str = "float32"
    backward: bool = False
    role: GemmRole = GemmRole.FORWARD
    causal: bool = False


class Term(Value, frozen=True):
    kernel: Kernel
    sizes: tuple[Size, ...]

    @property
    def flops(self) -> Size:
        """FLOPs of its matrix products; other kernels count as memory traffic."""
        if self.kernel.kind == GEMM:
            return 2.0 * _product(self.sizes)
        if self.kernel.kind == ATTENTION:
            batch, heads, _, queries, keys, key_width, value_width = self.sizes
            visible = keys - np.minimum(queries, keys) / 2.0 if self.kernel.causal else keys
            passes = BACKWARD_PRODUCTS if self.kernel.backward else 1.0
            return 2.0 * passes * batch * heads * queries * visible * (key_width + value_width)
        return 0.0

    @property
    def moved_bytes(self) -> Size:
        element = DTYPE_BYTES[self.kernel.dtype]
        if self.kernel.kind == GEMM:
            batch, m, n, k = self.sizes
            return element * batch * (m * k + n * k + m * n)
        if self.kernel.kind == ATTENTION:
            batch, heads, kv_heads, queries, keys, key_width, value_width = self.sizes
            widths = key_width + value_width
            passes = 2.0 if self.kernel.backward else 1.0
            return passes * element * batch * (heads * queries + kv_heads * keys) * widths
        if self.kernel.kind == STREAM:
            return self.sizes[0]
        return 2.0 * element * self.sizes[0]


class Tensor(Value, frozen=True, dict=True):
    shape: Shape
    dtype: str

    @cached_property
    def elements(self) -> Size:
        return _product(self.shape)

    @cached_property
    def bytes(self) -> Size:
        return self.elements * DTYPE_BYTES[self.dtype]


class LocalCall(Value, frozen=True):
    """An operator with its operands as one device has them, and whose gradients are needed."""

    node: Node
    inputs: tuple[Tensor, ...]
    output: Tensor
    gradients: tuple[bool, ...]  # of each input
    copies: bool = False  # of a reshape: the result cannot be a view

    def argument(self, position: int, name: str, default: Any) -> Any:  # noqa: ANN401
        """An argument that is no tensor, as torch takes it."""
        if position < len(self.node.args):
            return self.node.args[position]
        return dict(self.node.kwargs).get(name, default)


@lru_cache(maxsize=4096)
def operator_name(op: str) -> str:
    """The operator without library and overload: "linear" of "aten.linear.default"."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def words(text: str) -> frozenset[str]:
    """The names of a list that is written as one text."""
    return frozenset(text.split())


# Results that are other views of their input: nothing is computed or kept.
VIEWS: Final = words(
    "alias as_strided chunk detach diagonal expand expand_as flatten getitem keep movedim narrow"
    " permute reshape select slice split split_with_sizes squeeze swapaxes swapdims t"
    " transpose unbind unflatten unsqueeze unsafe_chunk unsafe_split view view_as lift_fresh_copy"
    " contiguous numpy_T mT _unsafe_view _reshape_alias"
)
# Of these, whose backward pass writes a tensor of the input's size: the gradient of a part inside
# zeros, or the sum of what was expanded.
_PARTS: Final = words(
    "select slice narrow diagonal chunk split split_with_sizes unbind expand expand_as"
)
_TURNS: Final = words("permute transpose t swapaxes swapdims movedim numpy_T mT expand")
_MAY_COPY: Final = words("reshape contiguous flatten")
# Nothing is read: tensors made from shapes alone.
_MADE: Final = words(
    "arange zeros ones full zeros_like ones_like full_like empty empty_like rand rand_like randn"
    " randn_like new_empty new_full new_ones new_zeros"
)
# The gradient of an input is that of the result, or a sum of it.
_PASSES_GRADIENT: Final = words("add sub rsub add_ sub_ clone")
_POINTWISE: Final = {
    "layer_norm": Pointwise.LAYER_NORM,
    "native_layer_norm": Pointwise.LAYER_NORM,
    "rms_norm": Pointwise.RMS_NORM,
    "gelu": Pointwise.GELU,
}


def terms_of(call: LocalCall) -> list[Term]:
    """The kernels of an operator, forward and backward."""
    name = operator_name(call.node.op)
    if call.node.is_source:
        return []
    if name in VIEWS and not call.copies:
        return _view_terms(call, name)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(call)
    if name in _POINTWISE:
        return _pointwise_terms(call, _POINTWISE[name])
    return _memory_terms(call, name)


def call_of(
    graph: Graph, index: int, inputs: Sequence[Shape] | None = None, output: Shape | None = None
) -> LocalCall:
    """A node's operator on these shapes; on its own if none are given."""
    node = graph.nodes[index]
    read = [graph.nodes[i] for i in graph.inputs[index]]
    shapes = [one.shape for one in read] if inputs is None else inputs
    tensors = [Tensor(shape, one.dtype) for shape, one in zip(shapes, read, strict=True)]
    wanted = tuple(node.needs_gradient and one.needs_gradient for one in read)
    result = Tensor(node.shape if output is None else output, node.dtype)
    copies = makes_copy(graph, index)
    return LocalCall(node, tuple(tensors), result, wanted, copies)


def makes_copy(graph: Graph, index: int) -> bool:
    """Whether a reshape copies: its input was transposed, and not by attention."""
    node = graph.nodes[index]
    if operator_name(node.op) not in _MAY_COPY or not graph.inputs[index]:
        return False
    read = graph.inputs[index][0]
    if operator_name(graph.nodes[read].op) not in _TURNS:
        return False
    turned = graph.nodes[graph.inputs[read][0]]
    return operator_name(turned.op) != "scaled_dot_product_attention"


def is_view(graph: Graph, index: int) -> bool:
    """Whether a node's value shares the memory of its first input."""
    return operator_name(graph.nodes[index].op) in VIEWS and not makes_copy(graph, index)


def _product(sizes: Sequence[Size]) -> Size:
    total: Size = 1.0
    for size in sizes:
        total = total * size
    return total


def stream(num_bytes: Size, *, backward: bool = False) -> Term:
    """A kernel that reads and writes so many bytes."""
    return Term(Kernel(STREAM, backward=backward), (num_bytes,))


def _products(
    call: LocalCall,
    sizes: tuple[Size, Size, Size, Size],
    left: int,
    right: int,
    *,
    by_weight: bool = False,
) -> list[Term]:
    """A product of two inputs and the products of their gradients; `right` may be a weight."""
    batch, m, n, k = sizes
    dtype = call.output.dtype
    is_single = np.ndim(batch) == 0 and batch == 1.0
    terms = [Term(Kernel(GEMM, dtype), sizes)]
    if not (by_weight or is_single or len(call.inputs[right].shape) <= 2):
        # Both are activations: no gradient is accumulated.
        wanted = {left: (batch, m, k, n), right: (batch, n, k, m)}
        terms += [
            Term(Kernel(GEMM, dtype, backward=True), swapped)
            for one, swapped in wanted.items()
            if call.gradients[one]
        ]
        return terms
    roles = {left: GemmRole.DGRAD, right: GemmRole.WGRAD}
    terms += [
        Term(Kernel(GEMM, dtype, True, role), sizes)
        for one, role in roles.items()
        if call.gradients[one]
    ]
    return terms


def _bias_terms(call: LocalCall, position: int) -> list[Term]:
    """The sum over tokens that is a bias's gradient; adding it is part of the product."""
    if position >= len(call.inputs) or not call.gradients[position]:
        return []
    kernel = Kernel(Pointwise.BIAS_GRADIENT.value, call.output.dtype, backward=True)
    return [Term(kernel, (call.output.elements,))]


def _linear(call: LocalCall) -> list[Term]:
    x, weight = call.inputs[:2]
    sizes = (1.0, _product(x.shape[:-1]), weight.shape[0], weight.shape[1])
    return _products(call, sizes, 0, 1) + _bias_terms(call, 2)


def _addmm(call: LocalCall) -> list[Term]:
    _, x, weight = call.inputs[:3]
    sizes = (1.0, x.shape[0], weight.shape[1], weight.shape[0])
    return _products(call, sizes, 1, 2) + _bias_terms(call, 0)


def _matmul(call: LocalCall) -> list[Term]:
    left, right = call.inputs[-2:]
    first = len(call.inputs) - 2
    k = left.shape[-1]
    n = right.shape[-1] if len(right.shape) > 1 else 1.0
    sizes: tuple[Size, Size, Size, Size]
    if len(right.shape) <= 2:
        sizes = (1.0, _product(left.shape[:-1]), n, k)
    else:
        rows = left.shape[-2] if len(left.shape) > 1 else 1.0
        sizes = (_product(call.output.shape) / _at_least_one(rows * n), rows, n, k)
    return _products(call, sizes, first, first + 1)


def _at_least_one(size: Size) -> Size:
    """A divisor that is never zero: an empty piece has an empty result all the same."""
    return np.maximum(size, 1.0)


def _einsum(call: LocalCall) -> list[Term]:
    """Letters of both operands and the result: batch; of one and the result: rows, columns."""
    equation = str(call.node.args[0]).replace(" ", "")
    sources, _, result = equation.partition("->")
    letters = sources.split(",")
    if len(letters) != 2 or "." in equation:
        return _memory_terms(call, "einsum")
    size: dict[str, Size] = {}
    for names, tensor in zip(letters, call.inputs, strict=True):
        size |= dict(zip(names, tensor.shape, strict=True))
    left, right = map(set, letters)
    kept = set(result)
    sizes = (
        _product([size[x] for x in left & right & kept]),
        _product([size[x] for x in (left - right) & kept]),
        _product([size[x] for x in (right - left) & kept]),
        _product([size[x] for x in (left & right) - kept]),
    )
    return _products(call, sizes, 0, 1)


def _transposed(call: LocalCall) -> list[Term]:
    """Every pixel of the input is multiplied by a kernel for each channel of the result."""
    x, weight = call.inputs[:2]
    places = x.shape[0] * _product(x.shape[2:])
    columns = _product(weight.shape[1:])
    return _products(call, (1.0, places, columns, x.shape[1]), 0, 1) + _bias_terms(call, 2)


def _convolution(call: LocalCall) -> list[Term]:
    """A convolution as a product, without writing the unfolded input."""
    weight, out = call.inputs[1], call.output
    places = out.shape[0] * _product(out.shape[2:])
    groups = call.inputs[0].shape[1] / _at_least_one(weight.shape[1])
    columns = weight.shape[0] / _at_least_one(groups)
    depth = _product(weight.shape[1:])
    batch = 1.0 if np.all(np.asarray(groups) <= 1.0) else groups
    n = weight.shape[0] if np.ndim(batch) == 0 and batch == 1.0 else columns
    return _products(call, (batch, places, n, depth), 0, 1, by_weight=True) + _bias_terms(call, 2)


def _experts(call: LocalCall) -> list[Term]:
    """A product for each expert that is here, of the rows that it gets if all get as many."""
    x, matrices = call.inputs[:2]
    first, last = matrices.shape[1:]
    inner, outer = (first, last) if call.node.args[4] else (last, first)
    sizes = (matrices.shape[0], x.shape[0] / float(call.node.args[3]), outer, inner)
    return _products(call, sizes, 0, 1)


def _recurrent(call: LocalCall) -> list[Term]:
    """A product with every matrix for every step of every sequence."""
    x = call.inputs[0]
    steps = x.shape[0] * x.shape[1]
    terms = []
    for position, matrix in enumerate(call.inputs):
        if len(matrix.shape) == 2:
            terms += _products(call, (1.0, steps, *matrix.shape), 0, position)
    return terms


def _attention(call: LocalCall) -> list[Term]:
    query, key, value = call.inputs[:3]
    lead = _product(query.shape[:-3]) if len(query.shape) > 3 else 1.0
    sizes = (
        lead,
        query.shape[-3] if len(query.shape) > 2 else 1.0,
        key.shape[-3] if len(key.shape) > 2 else 1.0,
        query.shape[-2],
        key.shape[-2],
        query.shape[-1],
        value.shape[-1],
    )
    causal = bool(call.argument(5, "is_causal", False))
    terms = [Term(Kernel(ATTENTION, query.dtype, causal=causal), sizes)]
    if any(call.gradients[:3]):
        terms.append(Term(Kernel(ATTENTION, query.dtype, backward=True, causal=causal), sizes))
    return terms


def _embedding(call: LocalCall) -> list[Term]:
    """Rows looked up; backward a gradient of the table's size is filled and added to."""
    weight = call.inputs[0]
    kind = Pointwise.EMBEDDING.value
    terms = [Term(Kernel(kind, weight.dtype), (call.output.elements,))]
    if call.gradients[0]:
        terms.append(Term(Kernel(kind, weight.dtype, backward=True), (call.output.elements,)))
        terms.append(stream(weight.bytes, backward=True))
    return terms


def _cross_entropy(call: LocalCall) -> list[Term]:
    """A softmax that is kept, and its difference to the targets."""
    logits = call.inputs[0]
    terms = [stream(3.0 * logits.bytes)]
    if call.gradients[0]:
        terms.append(stream(3.0 * logits.bytes, backward=True))
    return terms


def _pointwise_terms(call: LocalCall, kind: Pointwise) -> list[Term]:
    count = call.inputs[0].elements
    terms = [Term(Kernel(kind.value, call.inputs[0].dtype), (count,))]
    if any(call.gradients):
        kernel = Kernel(kind.value, call.inputs[0].dtype, backward=True)
        terms.append(Term(kernel, (count,)))
    return terms


def _view_terms(call: LocalCall, name: str) -> list[Term]:
    """Views are free; the gradient of a part is written into one of the whole."""
    if not call.inputs or not call.gradients[0]:
        return []
    if name in _PARTS:
        return [stream(call.inputs[0].bytes + call.output.bytes, backward=True)]
    return []


def _memory_terms(call: LocalCall, name: str) -> list[Term]:
    """One kernel forward, one for each gradient: tensors read and written once."""
    read = 0.0 if name in _MADE else sum(tensor.bytes for tensor in call.inputs)
    terms = [stream(read + call.output.bytes)]
    for tensor, wanted in zip(call.inputs, call.gradients, strict=True):
        if not wanted:
            continue
        if name in _PASSES_GRADIENT:
            if len(tensor.shape) < len(call.output.shape):  # summed over what it was spread to
                terms.append(stream(call.output.bytes + tensor.bytes, backward=True))
            continue
        terms.append(stream(call.output.bytes + 2.0 * tensor.bytes, backward=True))
    return terms


_SPECIAL: Final[Mapping[str, Callable[[LocalCall], list[Term]]]] = {
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "baddbmm": _matmul,
    "einsum": _einsum,
    "convolution": _convolution,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    "experts": _experts,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "cross_entropy_loss": _cross_entropy,
}


_HALF: Final = ("bf16", "fp16")
_LARGE: Final = (8.0, 32.0, 32.0, 4096.0, 4096.0, 128.0, 128.0)  # sizes of attention
_LARGE_PRODUCT: Final = 8192.0
_FITTED_BYTES: Final = 2.0  # of an element of the kernels that `Pointwise` was fitted to
# Read and written for a parameter: Adam its value, gradient and two moments; plain descent the
# first two.
UPDATE_BYTES: Final = {"adam": 28.0, "adamw": 28.0, "sgd": 12.0}


@dataclass
class Bill:
    """Terms of items, to be priced together; sizes are arrays over columns of devices."""

    columns: int
    _sizes: dict[Kernel, list[Floats]] = field(default_factory=dict)
    _owners: dict[Kernel, list[int]] = field(default_factory=dict)

    def add(self, item: int, term: Term, times: float = 1.0) -> None:
        """Charge a term to an item; `times` counts calls, not sizes."""
        sizes = np.empty((len(term.sizes) + 1, self.columns))
        for row, size in enumerate(term.sizes):
            sizes[row] = size
        sizes[-1] = times
        self._sizes.setdefault(term.kernel, []).append(sizes)
        self._owners.setdefault(term.kernel, []).append(item)

    def seconds(self, devices: Devices, classes: list[int], items: int) -> Floats:
        """Seconds by pass, item and column; `classes` is the class of each column."""
        total = np.zeros((2, items, self.columns))
        by_class = {one: np.flatnonzero(np.array(classes) == one) for one in set(classes)}
        for kernel, collected in self._sizes.items():
            sizes = np.stack(collected, axis=1)  # [size, term, column]
            seconds = np.empty(sizes.shape[1:])
            for one, columns in by_class.items():
                model = devices.operators[one]
                seconds[:, columns] = kernel_seconds(model, kernel, sizes[:-1][:, :, columns])
            seconds *= sizes[-1] * devices.compute_ratio
            np.add.at(total[int(kernel.backward)], self._owners[kernel], seconds)
        return total


def kernel_seconds(model: OperatorModel, kernel: Kernel, sizes: Floats) -> Floats:
    """Seconds of calls of one kernel: `sizes` is [size, ...]."""
    if kernel.kind == GEMM:
        return _gemm_seconds(model, kernel, sizes)
    if kernel.kind == ATTENTION:
        return _attention_seconds(model, kernel, sizes)
    if kernel.kind == STREAM:
        return model.streaming(sizes[0])
    # Kernels were fitted to 16-bit elements on GPUs; laws of cores to their own.
    wide = 1.0 if isinstance(model, LawModel) else DTYPE_BYTES[kernel.dtype] / _FITTED_BYTES
    return model.pointwise(
        Pointwise(kernel.kind), sizes[0] * wide, backward=kernel.backward, fused=False
    )


def update_seconds(model: OperatorModel, parameters: Floats, optimizer: str) -> Floats:
    """Seconds that a tensor of so many parameters adds to the update of all tensors."""
    moved = UPDATE_BYTES[optimizer]
    growth = model.optimizer_step(2.0 * parameters, moved) - model.optimizer_step(parameters, moved)
    if isinstance(model, LawModel):
        lighter = moved / UPDATE_BYTES["adam"]  # the law was measured with Adam
        return np.where(parameters > 0, model.tensor_seconds + growth * lighter, 0.0)
    return growth


def _gemm_seconds(model: OperatorModel, kernel: Kernel, sizes: Floats) -> Floats:
    batch, m, n, k = sizes
    dtype = usable_format(model, kernel.dtype)
    single = batch == 1.0
    if np.all(single):
        return model.gemm(m, n, k, dtype=dtype, role=kernel.role)
    several = model.grouped_gemm(batch, m, n, k, dtype=dtype, role=kernel.role)
    if np.any(single):
        several = np.where(single, model.gemm(m, n, k, dtype=dtype, role=kernel.role), several)
    return np.where(batch > 0, several, 0.0)


def _attention_seconds(model: OperatorModel, kernel: Kernel, sizes: Floats) -> Floats:
    """Kernels were fitted to 16-bit formats; others are limited by their products or by memory."""
    dtype = usable_format(model, kernel.dtype)
    if isinstance(model, LawModel) or dtype in _HALF:
        return model.attention(*sizes, causal=kernel.causal, backward=kernel.backward)
    term = Term(kernel, tuple(sizes))
    by_products = term.flops / _attention_rate(model, kernel, dtype)
    return np.maximum(by_products, model.streaming(term.moved_bytes))


def _attention_rate(model: OperatorModel, kernel: Kernel, dtype: str) -> float:
    """FLOP/s of large attention: the share of products that it reaches in 16 bits."""
    half = next(name for name in (*_HALF, dtype) if name in model.gpu.peak_flops)
    seconds = model.attention(*_LARGE, causal=kernel.causal, backward=kernel.backward)
    fitted = float(Term(kernel, _LARGE).flops / seconds)
    side = np.array(_LARGE_PRODUCT)
    own, others = (model.gemm(side, side, side, dtype=name) for name in (dtype, half))
    return fitted * float(others / own)
