"""Scans: layers that carry a state along the sequence, with their convolution, gate and norm.

Kernels work on chunks, one kernel behind another: products inside chunks, states of all chunks, the
pass from state to state, the output. Each is bound by its bytes at the sizes that were measured; of
products, half the peak rate is an assumption. The shares of the bandwidth were fitted to five
shapes of mamba-ssm 2.3.2 and one of lightning attention on an H200 (`benchmarks/scans`), of 2,048
to 16,384 tokens and 8 or 16 heads. A shape left out of the fit is predicted within 19 % forward;
backward errors are 8 to 74 %. Gated delta nets have the shares of Mamba-2: the kernels of
flash-linear-attention refuse their backward pass on Hopper with Triton 3.4 to 3.7.0. Predictions
for models with scans therefore have a wider interval (`search.plan`).

Context parallelism exchanges tokens for heads before a scan and back behind it, as Megatron does.

Not modelled: heads of queries and keys that several context ranks hold twice; packed sequences.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.collectives import all_to_all_seconds, place
from astrarium.cost.tally import FLOAT_BYTES, PASSES, Tally
from astrarium.model.scans import Recurrence, Scan


class ScanFit(NamedTuple):
    """One pass: shares of the peak rate and of the bandwidth, and what it takes in any case."""

    products: float
    traffic: float
    fixed_seconds: float
    host_seconds: float  # of the host, to launch the kernels


# Forward, backward: H200, own measurement, 2026-11-18; of the host, the median of the five.
_MAMBA: Final = (ScanFit(0.5, 0.42, 1.6e-5, 1.0e-3), ScanFit(0.5, 0.256, 1.36e-4, 3.7e-3))
FITS: Final = {
    Recurrence.SSD: _MAMBA,
    Recurrence.DELTA: _MAMBA,
    Recurrence.DECAY: (ScanFit(0.5, 0.70, 5e-6, 5.5e-4), ScanFit(0.5, 0.43, 1e-5, 8.6e-4)),
}
# Backward passes find scores and states again and multiply each gradient twice.
BACKWARD_PRODUCTS: Final = 3.0
# Bytes of an element at the rate of a copy, forward and backward. Convolutions: of causal-conv1d by
# what is read and written, the forward pass found again; of fla as measured (4,096 x 2,560).
CONVOLUTION_BYTES: Final = {Recurrence.SSD: (4.0, 12.0), Recurrence.DELTA: (7.0, 48.0)}
GATE_BYTES: Final = (8.3, 28.0)  # the gated norm of mamba-ssm, as measured (4,096 x 2,560)


def add_scan(layer: Tally, scan: Scan) -> None:
    """A scan with what stands around it, on heads divided by tensor parallelism."""
    divided = layer.tokens / layer.shards.tp
    seconds = [_seconds(layer, scan, divided, backward=back) for back in (False, True)]
    for name, each in zip(PASSES, seconds, strict=True):
        layer.add(name, each)
    if scan.taps:
        layer.stream(*(each * divided * scan.channels for each in CONVOLUTION_BYTES[scan.kind]))
    layer.stream(*(each * divided * scan.inner for each in GATE_BYTES))
    layer.keep(divided * kept_bytes(scan, layer.element_bytes))
    layer.pass_through(divided * _transient_bytes(scan, layer.element_bytes))
    layer.weigh("dense", scan.parameters / layer.shards.tp, in_products=False)
    _launch(layer, scan)
    _exchange(layer, scan)


def _launch(layer: Tally, scan: Scan) -> None:
    """Adds the host's time for many small kernels; layers count those of attention."""
    forward, backward = (fit.host_seconds for fit in FITS[scan.kind])
    for name, seconds in zip(PASSES, (forward, backward), strict=True):
        layer.everywhere(f"launch_{name}", seconds)
    layer.everywhere("launch_again", forward)


def _seconds(layer: Tally, scan: Scan, divided: Floats, *, backward: bool) -> Floats:
    fit = FITS[scan.kind][backward]
    flops = divided * scan.flops_per_token(layer.workload.seq_length)
    moved = divided * moved_bytes(scan, layer.element_bytes, backward=backward)
    work = layer.ops.products_and_bytes(
        flops * (BACKWARD_PRODUCTS if backward else 1.0),
        moved,
        rate_share=fit.products,
        traffic_share=fit.traffic,
    )
    return work + fit.fixed_seconds


def moved_bytes(scan: Scan, element: int, *, backward: bool) -> float:
    """Bytes that the kernels of one pass read and write for a token."""
    keys = scan.groups * scan.state
    states = scan.inner * scan.state / scan.chunk
    if scan.kind is Recurrence.DELTA:
        keys = scan.heads * scan.state  # repeated for every head of values
        triangle = scan.heads * scan.chunk
        forward = element * (7 * keys + 7 * scan.inner + 2 * states)
        forward += triangle * (2 * FLOAT_BYTES + 2 * element)
        again = element * (12 * keys + 10 * scan.inner + 5 * states) + 6 * element * triangle
        return forward + again if backward else forward
    if scan.kind is Recurrence.DECAY:
        if backward:
            return element * (8 * keys + 7 * scan.inner + 4 * states)
        return element * (3 * keys + 3 * scan.inner + 2 * states)
    scores = scan.groups * scan.chunk * FLOAT_BYTES
    forward = element * (4 * keys + 3 * scan.inner) + 2 * scores
    forward += states * (2 * FLOAT_BYTES + 2 * element)
    again = element * (10 * keys + 8 * scan.inner) + 4 * scores + 4 * FLOAT_BYTES * states
    return forward + again if backward else forward


def kept_bytes(scan: Scan, element: int) -> float:
    """Bytes of a token that stay until the backward pass.

    Mamba's kernels keep what the projection made, the output of the scan, what enters the
    projection behind it, and a figure of the norm for each group; the rest is found again. Those of
    delta nets keep the convolution's input and output, repeated queries and keys, values, the
    triangle of each chunk, output and gate.
    """
    if scan.kind is Recurrence.DELTA:
        keys = scan.heads * scan.state
        inside = 2 * scan.channels + 2 * keys + scan.inner + scan.heads * scan.chunk
        behind = 3 * scan.inner
        return element * (inside + behind) + 4 * FLOAT_BYTES * scan.heads
    return element * (scan.projected + 2 * scan.inner) + FLOAT_BYTES * scan.groups


def _transient_bytes(scan: Scan, element: int) -> float:
    """Bytes of a token alive only inside a backward pass: gradients, and the states of chunks."""
    states = scan.inner * scan.state / scan.chunk
    return element * (scan.projected + 2 * scan.channels) + 3 * FLOAT_BYTES * states


def _exchange(layer: Tally, scan: Scan) -> None:
    """Tokens for heads and back, among context ranks; each copy is put in order once more."""
    shards = layer.shards
    several = shards.cp > 1
    divided = layer.tokens / shards.tp * layer.element_bytes
    group = place(shards.cp, shards.tp, shards.domain)
    seen = np.zeros(len(shards))
    for width in (scan.projected, scan.inner):
        seen += all_to_all_seconds(layer.fabric, divided * width, group)
        copied = np.where(several, 2 * divided * width, 0.0)
        layer.stream(copied, copied)
    layer.add("cp_forward", seen)
    layer.add("cp_backward", seen)
