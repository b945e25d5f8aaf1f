"""Operators of TransformerEngine as measured by `te_operators.py`, against the cost model's.

    python benchmarks/te_compare.py [FILE]

Prints the ratio of predicted to measured device time by operator and precision, for shapes that
constants may be chosen by and for those kept apart.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import find_runtime
from astrarium.cost.efficiency import GemmRole, OperatorModel, Pointwise, operator_model
from astrarium.cost.feedforward import PERMUTE_PASSES
from astrarium.cost.tally import QUANTISE_BYTES, weight_products

OPERATORS = Path(__file__).parent / "profiles" / "te_operators_h200.csv"
PRODUCTS = ("linear", "norm_linear")
Row = Mapping[str, str]
Seconds = tuple[float, float]  # forward, backward


class Compared(NamedTuple):
    """One operator: what it is, and predicted over measured, for a pass and for both."""

    operator: str
    precision: str
    apart: bool
    forward: float
    both: float


RUNTIME = find_runtime("megatron")


def _sizes(row: Row, *names: str) -> Iterator[float]:
    return (float(row[name]) for name in names)


def _casts(ops: OperatorModel, row: Row, inputs: float, outputs: float) -> Seconds:
    """To 8 bits: inputs on the way forward, gradients of outputs on the way back."""
    if row["precision"] == "bf16":
        return 0.0, 0.0
    moved = QUANTISE_BYTES / RUNTIME.cast_rate
    return float(ops.streaming(moved * inputs)), float(ops.streaming(moved * outputs))


def _linear(ops: OperatorModel, row: Row) -> Seconds:
    m, k, n = _sizes(row, "tokens", "inputs", "outputs")
    dtype = "bf16" if row["precision"] == "bf16" else "fp8"
    forward, dgrad, wgrad, added = weight_products(ops, RUNTIME, m, n, k, dtype)
    casts = _casts(ops, row, m * k, m * n)
    norms = (
        [ops.pointwise(Pointwise.RMS_NORM, m * k, backward=b, fused=True) for b in (False, True)]
        if row["operator"] == "norm_linear"
        else (0.0, 0.0)
    )
    return float(forward + casts[0] + norms[0]), float(dgrad + wgrad + added + casts[1] + norms[1])


def _grouped(ops: OperatorModel, row: Row) -> Seconds:
    tokens, k, n, experts, topk = _sizes(row, "tokens", "inputs", "outputs", "experts", "topk")
    dtype = "bf16" if row["precision"] == "bf16" else "fp8"
    rows = tokens * topk
    forward, dgrad, wgrad = (
        float(
            ops.grouped_gemm(experts, rows / experts, n, k, dtype=dtype, role=role, settled=False)
        )
        + experts * RUNTIME.expert_product_seconds
        for role in (GemmRole.FORWARD, GemmRole.DGRAD, GemmRole.WGRAD)
    )
    casts = _casts(ops, row, rows * k, rows * n)
    return forward + casts[0], dgrad + wgrad + casts[1]


def _attention(ops: OperatorModel, row: Row) -> Seconds:
    tokens, seq, heads, kv_heads, width, v_width = _sizes(
        row, "tokens", "seq", "heads", "kv_heads", "head_dim", "v_head_dim"
    )
    forward, backward = (
        float(
            ops.attention(
                tokens / seq,
                heads,
                kv_heads,
                seq,
                seq,
                width,
                v_width,
                causal=True,
                backward=backward,
                settled=False,
            )
        )
        for backward in (False, True)
    )
    return forward, backward


def _permute(ops: OperatorModel, row: Row) -> Seconds:
    """One of the passes over all copies of tokens that the model counts."""
    tokens, width, topk = _sizes(row, "tokens", "inputs", "topk")
    assert PERMUTE_PASSES == 3  # dispatch and combine are two of them
    one = float(ops.streaming(2 * 2 * tokens * topk * width / RUNTIME.permute_rate))
    return one, one


def _loss(ops: OperatorModel, row: Row) -> Seconds:
    tokens, vocab = _sizes(row, "tokens", "outputs")
    fused = row["operator"] != "loss"
    forward, backward = (
        float(ops.pointwise(Pointwise.CROSS_ENTROPY, tokens * vocab, backward=b, fused=fused))
        for b in (False, True)
    )
    return forward, backward


PREDICT = {
    "linear": _linear,
    "norm_linear": _linear,
    "grouped": _grouped,
    "attention": _attention,
    "permute": _permute,
    "unpermute": _permute,
    "loss": _loss,
    "loss_te": _loss,
}


def compared(rows: Iterable[Row]) -> Iterator[Compared]:
    """Operators that the device is slower with than its host, both passes measured."""
    ops = operator_model(find_gpu("H200"))
    for row in rows:
        predict = PREDICT.get(row["operator"])
        if predict is None or not row["forward_backward_us"]:
            continue
        forward, backward = predict(ops, row)
        measured, both = _sizes(row, "forward_us", "forward_backward_us")
        yield Compared(
            row["operator"] + (" skewed" if row["skewed"] == "1" else ""),
            row["precision"],
            row["apart"] == "true",
            forward * 1e6 / measured,
            (forward + backward) * 1e6 / both,
        )


def measured(path: Path = OPERATORS) -> list[dict[str, str]]:
    """All rows of the table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(found: Iterable[Compared]) -> Iterator[tuple[str, str, bool, int, float, float]]:
    """By operator and precision: how many, the median ratio, the mean absolute error."""
    groups: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for one in found:
        groups[one.operator, one.precision, one.apart].append(one.both)
    for (operator, precision, apart), ratios in sorted(groups.items()):
        error = statistics.mean(abs(ratio - 1) for ratio in ratios)
        middle = math.exp(statistics.median(map(math.log, ratios)))
        yield operator, precision, apart, len(ratios), middle, error


def main() -> None:
    rows = measured(Path(sys.argv[1])) if len(sys.argv) > 1 else measured()
    for operator, precision, apart, count, middle, error in summary(compared(rows)):
        side = "apart" if apart else "seen"
        print(f"{operator:16} {precision:11} {side:6} {count:4} {middle:6.2f} {100 * error:5.1f} %")


if __name__ == "__main__":
    main()
