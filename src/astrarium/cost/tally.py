"""The ledger of one kind of layer: seconds and bytes entered by cause, for all shards at once."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.catalog.optimizers import find_optimizer
from astrarium.catalog.runtimes import Runtime
from astrarium.cluster.interconnect import overlap_profile
from astrarium.cost.collectives import Fabric
from astrarium.cost.efficiency import GRADIENT_BYTES, NARROW, GemmRole, OperatorModel, Pointwise
from astrarium.cost.kernels import under_power_limit
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.blocks import Block, Linear, Module, Split
from astrarium.model.workload import Workload
from astrarium.strategy.columns import RECOMPUTE_MODULES
from astrarium.strategy.types import RecomputeModule
from astrarium.value import Value

ELEMENT_BYTES = 2  # gradients in 16-bit formats, as products write them
MASK_BYTES = 1  # of a dropped element
FLOAT_BYTES = 4  # router scores, softmax statistics
# An operand of 8-bit products is read in 16 bits and written twice, as it is and transposed: inputs
# in the forward pass, gradients of outputs in the backward pass. Weights are cast once an
# iteration, with the update.
# In NVFP4 the scale of the tensor is found first: read twice, written twice in 9 of 16 bits.
QUANTISE_BYTES = {"fp8": 4.0, "fp4": 5.125}
NARROW_BYTES = {"fp8": 1.0, "fp4": 0.5625}  # of an element, with its scales
VOCAB_MULTIPLE = 128  # Megatron pads the vocabulary to a multiple of this times tp

# How much longer products take whose rows begin at multiples of 1, 2 or 4 16-bit elements instead
# of 8 (16 bytes, what tensor cores load at once): vTrain (MIT), A100, head of 50,257 tokens by tp.
MISALIGNED: Final = {1: 2.6, 2: 2.1, 4: 1.7}
ALIGNED_ELEMENTS: Final = 8

PASSES = ("forward", "backward")
GemmSeconds = dict[str, tuple[Floats, Floats, Floats]]  # weight -> forward, dgrad, wgrad


class Shards(Value, frozen=True):
    """Distinct ways to shard a layer, one row each."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequence_parallel: Bools
    domain: Ints  # GPUs that reach each other over the fast links

    def __len__(self) -> int:
        return len(self.tp)

    def tokens(self, seq_length: int) -> Floats:
        """Tokens of one micro-batch on one rank, before sequence parallelism."""
        return self.micro_batch * seq_length / self.cp

    @property
    def residual_split(self) -> Ints:
        """Ranks that share the residual stream between tensor-parallel regions."""
        return np.where(self.sequence_parallel, self.tp, 1)


class LayerCosts(Value, frozen=True):
    """Per shard (rows) and kind of layer (columns); seconds and bytes of one micro-batch.

    `tp_*` come twice: plain, and with communication pipelined into the GEMMs (`*_overlapped`).
    `dropped` and `module_recompute` have a last axis over `RECOMPUTE_MODULES`. `stand_ins`: 16-bit
    tensors, one per shape, kept to hand autograd in place of gradients summed into fp32 ones.
    `scaled_weights`: bytes of 8-bit copies that stay beside the weights.
    `launch_*`: what the host takes to launch the kernels. `weight_tensors`: how many weights there
    are beside those of experts, of which each has its own (`expert_tensors`). `*_parameters` train;
    `frozen_*` do not, counted as weights of the runtime's size. `*matrix_update`: seconds of matrix
    products in the update of all weights of the shard. `*_once` belong to a frozen model beside it:
    of the forward pass and its messages, what is never redone, and of frozen parameters, those that
    no backward pass reads; `pass_bytes`: what one of its layers takes. `unit`: parameters that are
    whole at once where ranks divide them.
    """

    forward: Floats
    backward: Floats
    tp_forward: Floats
    tp_backward: Floats
    tp_forward_overlapped: Floats
    tp_backward_overlapped: Floats
    cp_forward: Floats
    cp_backward: Floats
    ep_forward: Floats
    ep_backward: Floats
    module_recompute: Floats
    activations: Floats
    inputs: Floats
    dropped: Floats
    transient: Floats
    stand_ins: Floats
    scaled_weights: Floats
    dense_parameters: Floats
    expert_parameters: Floats
    frozen_dense: Floats
    frozen_expert: Floats
    matrix_update: Floats
    expert_matrix_update: Floats
    launch_forward: Floats
    launch_backward: Floats
    launch_again: Floats
    weight_tensors: Floats
    expert_tensors: Floats
    forward_once: Floats
    sent_once: Floats
    once_dense: Floats
    once_expert: Floats
    pass_bytes: Floats
    unit: Floats


class Tally:
    """Accumulates the costs of one kind of layer over all shards."""

    def __init__(
        self,
        shards: Shards,
        workload: Workload,
        ops: OperatorModel,
        fabric: Fabric,
        runtime: Runtime,
        tuning: Tuning = NEUTRAL,
    ) -> None:
        self.shards, self.workload, self.ops, self.fabric = shards, workload, ops, fabric
        self.runtime, self.tuning = runtime, tuning
        self.dtype = workload.precision.dtype
        self.element_bytes = workload.precision.element_bytes
        # Of an element that a product keeps where nothing else keeps it in 16 bits.
        self.input_bytes = float(self.element_bytes)
        if self.scaled:
            self.input_bytes = runtime.scaled_input_bytes * NARROW_BYTES[self.dtype]
        self.tokens = shards.tokens(workload.seq_length)
        self.residual_tokens = self.tokens / shards.residual_split
        # What cross attention reads, where it is not as long as what the layer works on.
        self.context_length, self.context_tokens = workload.seq_length, self.tokens
        # Operators outside the experts differ only with these: each shape is priced once.
        self.first_of_shape, self.shape_of = distinct_rows(
            shards.tp, shards.cp, shards.micro_batch, shards.sequence_parallel
        )
        # Forward messages of a part of the block, which redoing it repeats.
        self.messages_of: dict[Module, Floats] = {}
        zeros = np.zeros(len(shards))
        skip = {"module_recompute", "dropped"}
        self.out = {f.name: zeros.copy() for f in fields(LayerCosts) if f.name not in skip}
        by_module = (len(shards), len(RECOMPUTE_MODULES))
        # Tensor-core seconds in each pass at full clock, and the least at the power limit.
        self.tensor = {name: zeros.copy() for name in PASSES}
        self.limit = {name: zeros.copy() for name in PASSES}
        self.out["module_recompute"] = np.zeros(by_module)
        self.out["dropped"] = np.zeros(by_module)

    @property
    def scaled(self) -> bool:
        """Whether products are of 8 bits or fewer."""
        return self.dtype in NARROW

    @property
    def frozen(self) -> bool:
        """Whether the weights of the model do not train, but adapters beside them."""
        return self.workload.adapters is not None

    def weigh(self, kind: str, weights: Floats, in_products: bool = True) -> None:
        """Weights of a shard, dense or of experts: trained, or frozen in fewer bits."""
        adapters = self.workload.adapters
        if adapters is None:
            self.add(f"{kind}_parameters", weights)
            return
        share = adapters.frozen_bytes / self.element_bytes if in_products else 1.0
        self.add(f"frozen_{kind}", weights * share)

    def orthogonalise(
        self, kind: str, rows: Floats, weights: Floats, copies: Floats | float = 1.0
    ) -> None:
        """Matrix products in the update of a weight with so many rows, where there are any.

        Muon's steps of Newton and Schulz: each X X^T, its square, and both times X.
        """
        steps = find_optimizer(self.workload.optimizer).newton_schulz_steps
        if not steps:
            return
        columns = weights / rows
        small, large = np.minimum(rows, columns), np.maximum(rows, columns)
        products = ((small, small, large), (small, small, small), (small, large, small))
        dtype = "bf16" if self.scaled else self.dtype
        each = sum(self.ops.gemm(*shape, dtype=dtype) for shape in products)
        self.add(f"{kind}matrix_update", np.asarray(steps * copies * each))

    def tokens_of(self, weight: Linear) -> Floats:
        """Tokens of a micro-batch that a weight multiplies."""
        return self.context_tokens if weight.context else self.tokens

    def add(self, name: str, amount: Floats) -> None:
        self.out[name] += amount

    def products(self, name: str, burst: Floats, limit: Floats) -> None:
        """Work of the tensor cores in one pass, at full clock and at the power limit."""
        self.add(name, burst)
        self.tensor[name] += burst
        self.limit[name] += limit

    def hold_power(self) -> None:
        """Slow the products down to what the power limit allows among the other kernels."""
        for name in PASSES:
            before, burst = self.out[name].copy(), self.tensor[name]
            held = under_power_limit(burst, self.limit[name], before - burst)
            self.out[name] += held - burst
            if name == "forward":
                ratio = self.out[name] / np.where(before > 0, before, 1.0)
                self.out["module_recompute"] *= ratio[:, None]

    def hold_weights(self, weights: Floats) -> None:
        """The 8-bit copies of so many weights, cast once an iteration."""
        if self.scaled:
            held = self.runtime.scaled_weight_bytes * NARROW_BYTES[self.dtype]
            self.add("scaled_weights", weights * held)

    def recompute(self, module: RecomputeModule, seconds: Floats, dropped: Floats) -> None:
        """Costs of redoing `module`, and the bytes it spares."""
        column = RECOMPUTE_MODULES.index(module)
        self.out["module_recompute"][:, column] += seconds
        self.out["dropped"][:, column] += dropped * self.runtime.kept_ratio

    def keep(self, num_bytes: Floats) -> None:
        """Bytes that stay from the forward to the backward pass."""
        self.add("activations", num_bytes * self.runtime.kept_ratio)

    def pass_through(self, num_bytes: Floats) -> None:
        """Bytes alive only inside the layer; of several such the most counts."""
        self.out["transient"] = np.maximum(self.out["transient"], num_bytes)

    def pointwise(self, kind: Pointwise, elements: Floats, longer: Floats | float = 1.0) -> Floats:
        """A norm, activation or the like; returns its forward seconds."""
        fused = kind in self.runtime.fused
        forward, backward = (
            longer * self.ops.pointwise(kind, elements, backward=back, fused=fused)
            for back in (False, True)
        )
        self.add("forward", forward)
        self.add("backward", backward)
        return forward

    def everywhere(self, name: str, amount: float) -> None:
        """An amount that does not depend on how the layer is sharded."""
        self.add(name, np.full(len(self.shards), amount))

    def stream(self, forward_bytes: Floats, backward_bytes: Floats) -> Floats:
        """A bandwidth-bound kernel; returns its forward seconds."""
        forward = self.ops.streaming(forward_bytes)
        self.add("forward", forward)
        self.add("backward", self.ops.streaming(backward_bytes))
        return forward

    def quantise(self, inputs: Floats, outputs: Floats, longer: float = 1.0) -> None:
        """Casts for 8-bit products with so many elements of inputs and outputs."""
        if self.scaled:
            moved = longer * QUANTISE_BYTES[self.dtype] / self.runtime.cast_rate
            self.stream(moved * inputs, moved * outputs)


def weight_products(
    ops: OperatorModel, runtime: Runtime, m: Floats, n: Floats, k: Floats, dtype: str
) -> tuple[Floats, Floats, Floats, Floats]:
    """Seconds of the products of a weight w[n,k] with m tokens: forward, dgrad, wgrad.

    At full clock. Where the last product cannot add to the fp32 gradient itself, it writes 16
    bits, which a kernel of its own adds: the fourth figure.
    """
    longer = misaligned(n, k) * (runtime.scaled_product_ratio if dtype in NARROW else 1.0)
    forward, dgrad = (
        longer * ops.gemm(m, n, k, dtype=dtype, role=role, settled=False)
        for role in (GemmRole.FORWARD, GemmRole.DGRAD)
    )
    if runtime.accumulates_in_product:
        wgrad = longer * ops.gemm(
            m,
            n,
            k,
            dtype=dtype,
            role=GemmRole.WGRAD,
            settled=False,
            gradient_bytes=summed_bytes(runtime),
        )
        return forward, dgrad, wgrad, np.zeros_like(wgrad)
    added = summed_seconds(ops, runtime, n * k)
    return forward, dgrad, longer * ops.gemm(n, k, m, dtype=dtype, settled=False), added


def summed_bytes(runtime: Runtime) -> float:
    """Bytes of an element that products add gradients to; a program may hold copies beside it."""
    return min(runtime.gradient_bytes, GRADIENT_BYTES)


def least_backward_seconds(
    ops: OperatorModel, runtime: Runtime, flops: Floats, dtype: str
) -> Floats:
    """The least seconds of both backward products of weights with such forward FLOPs."""
    role = GemmRole.WGRAD if runtime.accumulates_in_product else GemmRole.FORWARD
    return ops.settled_seconds(flops, dtype) + ops.settled_seconds(flops, dtype, role)


def misaligned(n: Floats, k: Floats) -> Floats:
    """Factor on products of a weight w[n,k] for rows that are not aligned."""
    widths = np.gcd(np.asarray(n, np.int64), np.asarray(k, np.int64))
    step = np.gcd(widths, ALIGNED_ELEMENTS)
    return np.select([step == each for each in MISALIGNED], list(MISALIGNED.values()), 1.0)


def summed_seconds(ops: OperatorModel, runtime: Runtime, elements: Floats) -> Floats:
    """Seconds to sum a gradient of 16 bits that no product has added to an fp32 one.

    A program that reduces the gradients of every micro-batch sums only its own shard: it copies
    them into the message, in the type of the message.
    """
    if runtime.gradients_copied:
        moved = ELEMENT_BYTES + runtime.reduced_gradient_bytes
        return ops.streaming(moved / runtime.gradient_copy_rate * elements)
    return ops.pointwise(Pointwise.ACCUMULATE, elements, backward=True, fused=False)


def beside(
    message: Floats,
    computation: Floats,
    slowdown: Floats | None = None,
    contention: Floats | float = 0.0,
) -> Floats:
    """Seconds that a message adds when it runs beside a computation.

    What outlasts the computation is seen in full; while both run, the collective's kernels and
    memory traffic slow the computation down, by default as much as at the full rate of NVLink.
    `contention` is the delay of other messages on the same links. Never more than one after the
    other.
    """
    if slowdown is None:
        slowdown = np.asarray(overlap_profile().compute_slowdown)
    hidden = np.minimum(message, computation)
    seen = np.maximum(message - hidden, contention)
    return np.minimum(seen + slowdown * hidden, message)


def weights_of(block: Block, module: Module, split: Split) -> list[Linear]:
    return [x for x in block.linears if x.module is module and x.split is split]


def sum_over_modules(per_module: Floats, shard: Ints, masks: Ints) -> Floats:
    """Adds up (shards, kinds, modules) over the modules in each row's mask.

    `shard` is (rows, ranks); the sums are (rows, ranks, kinds).
    """
    out = np.zeros((*shard.shape, per_module.shape[1]))
    for module in range(len(RECOMPUTE_MODULES)):
        chosen = (masks >> module & 1).astype(bool)
        if chosen.any():
            out[chosen] += per_module[shard[chosen], :, module]
    return out
