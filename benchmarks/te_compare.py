"""TransformerEngine as measured by `te_operators.py` and `te_iterations.py`, against the model.

Writes its part of docs/accuracy.md: errors of iterations by what bounds them, kind and precision,
and of operators. Shapes that constants may be chosen by are told from those kept apart.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from page import percent, table

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import find_runtime
from astrarium.cost.efficiency import GemmRole, OperatorModel, Pointwise, operator_model
from astrarium.cost.feedforward import permuted_copies
from astrarium.cost.tally import QUANTISE_BYTES, weight_products
from astrarium.validate.metrics import time_scores
from astrarium.validate.predictions import Prediction
from astrarium.validate.readings import BLOCKWISE

OPERATORS = Path(__file__).parent / "profiles" / "te_operators_h200.csv"
SOURCE = "Megatron-core-TE-H200"
# Of the device's time for the passes: a host that takes more is what an iteration waits for.
HOST_BOUND = 0.7
TEXT = """megatron-core 0.19.2 with TransformerEngine 2.20.2, own measurement
([data](../benchmarks/profiles/README.md#transformerengine)). Half of the shapes, drawn by a seed
beforehand, are kept apart: no constant was chosen by them. *drawn-unseen* are shapes and batches
drawn at random by another seed and scored once, when the model was finished. Host-bound: launching
the passes takes the host at least 0.7 of the time they take.

*mixtures* are 43 models of 8 to 128 experts, each in bf16 and in a recipe of 8 bits, every fourth
with unequal shares, every fifth with latent attention, drawn by a seed and split in halves before
they were measured; *long* are dense models over 16,384 and 65,536 tokens. Sorting, filling up and
casting of experts' rows and the memory of their copies were found in kernels of both halves of
*mixtures*, the law of wide and narrow heads in *long*: blind errors are
[above](#against-the-targets).

Each case has its own compiled kernels. Rows measured before 2026-11-18 shared them: torch compiles
for sizes that change when it meets a second shape, and such kernels take the gated activation three
to four times as long, so iterations seemed 2 to 4 % longer than those of a run of its own (fp8,
bound by the device: an error of 7 %, most of it of the measurement). 55 of these rows were measured
again; 9 that were not are no longer scored.
"""
KERNELS_TEXT = """The seconds in which any kernel runs, as the profiler saw them in one iteration
more, against passes and update without waits for the host: what a host that launches fast enough
would leave.
"""
OPERATORS_TEXT = """Operators, both passes together, on a device that never waits for its
host; predicted over measured is the median. Of 8-bit products and of experts only those are counted
that take longer than their host: others are more launches than a queue holds.
"""
Row = Mapping[str, str]
Seconds = tuple[float, float]  # forward, backward


class Compared(NamedTuple):
    """One operator: what it is, and predicted over measured time of both passes."""

    operator: str
    precision: str
    apart: bool
    ratio: float


RUNTIME = find_runtime("megatron")
IN_BLOCKS = replace(RUNTIME, scaled_product_ratio=BLOCKWISE)


def _sizes(row: Row, *names: str) -> Iterator[float]:
    return (float(row[name]) for name in names)


def _casts(ops: OperatorModel, row: Row, inputs: float, outputs: float) -> Seconds:
    """To 8 bits: inputs on the way forward, gradients of outputs on the way back."""
    if row["precision"] == "bf16":
        return 0.0, 0.0
    moved = QUANTISE_BYTES["fp8"] / RUNTIME.cast_rate
    return float(ops.streaming(moved * inputs)), float(ops.streaming(moved * outputs))


def _linear(ops: OperatorModel, row: Row) -> Seconds:
    m, k, n = _sizes(row, "tokens", "inputs", "outputs")
    dtype = "bf16" if row["precision"] == "bf16" else "fp8"
    runtime = IN_BLOCKS if row["precision"] == "blockwise" else RUNTIME
    forward, dgrad, wgrad, added = weight_products(
        ops, runtime, np.array(m), np.array(n), np.array(k), dtype
    )
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
    longer = BLOCKWISE if row["precision"] == "blockwise" else 1.0
    forward, dgrad, wgrad = (
        longer
        * float(
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
    copies = permuted_copies(int(topk)) / 2  # there, or back
    one = float(ops.streaming(copies * 2 * tokens * topk * width / RUNTIME.permute_rate))
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
    """Operators with both passes measured, without waiting for the host."""
    ops = operator_model(find_gpu("H200"))
    for row in rows:
        predict = PREDICT.get(row["operator"])
        if predict is None or not row["forward_backward_us"]:
            continue
        forward, backward = predict(ops, row)
        measured, host = _sizes(row, "forward_backward_us", "host_forward_backward_us")
        many = row["operator"] == "grouped" or row["precision"] != "bf16"
        if many and host > HOST_BOUND * measured:
            continue
        yield Compared(
            row["operator"] + (" skewed" if row["skewed"] == "1" else ""),
            row["precision"],
            row["apart"] == "true",
            (forward + backward) * 1e6 / measured,
        )


def measured(path: Path = OPERATORS) -> list[dict[str, str]]:
    """All rows of the table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(found: Iterable[Compared]) -> Iterator[tuple[str, str, bool, int, float, str]]:
    """By operator and precision: how many, the median ratio, the mean absolute error."""
    groups: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for one in found:
        groups[one.operator, one.precision, one.apart].append(one.ratio)
    for (operator, precision, apart), ratios in sorted(groups.items()):
        error = percent(_absolute(ratio - 1 for ratio in ratios))
        middle = math.exp(statistics.median(map(math.log, ratios)))
        yield operator, precision, apart, len(ratios), middle, error


def te_part(predictions: Sequence[Prediction]) -> list[str]:
    """The part of the page about TransformerEngine."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for score in time_scores(predictions):
        row = score.prediction.row
        if row.source.startswith(SOURCE):
            host, passes = _sizes(row.cells, "host_forward_backward_s", "forward_backward_s")
            bound = "host" if host > HOST_BOUND * passes else "device"
            kind = "experts" if row.moe_experts else "dense"
            side = row.source.removeprefix(f"{SOURCE}-")
            groups[bound, kind, row.precision.split()[0], side].append(score.error)
    iterations = [
        [*key, str(len(errors)), percent(_absolute(errors)), percent(statistics.mean(errors))]
        for key, errors in sorted(groups.items())
    ]
    kernels = [
        [*key, str(len(errors)), percent(_absolute(errors)), percent(statistics.mean(errors))]
        for key, errors in sorted(_of_kernels(predictions).items())
    ]
    operators = [
        [name, precision, "unseen" if apart else "development", str(count), f"{ratio:.2f}", error]
        for name, precision, apart, count, ratio, error in summary(compared(measured()))
    ]
    heads = ["bound by", "layers", "precision", "shapes", "rows", "MAPE", "mean"]
    of_operators = ["operator", "precision", "shapes", "rows", "predicted / measured", "MAPE"]
    return [
        "## TransformerEngine on one H200\n",
        TEXT,
        *table(heads, iterations),
        KERNELS_TEXT,
        *table(["layers", "precision", "shapes", "rows", "MAPE", "mean"], kernels),
        OPERATORS_TEXT,
        *table(of_operators, operators),
    ]


def _of_kernels(predictions: Iterable[Prediction]) -> dict[tuple[str, ...], list[float]]:
    """Errors of what the device is busy for, by kind, precision and shapes."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for prediction in predictions:
        row, plan = prediction.row, prediction.plan
        if plan is None or not row.cells.get("kernel_s"):
            continue
        busy = sum(plan.breakdown_seconds[cause] for cause in ("forward", "backward", "optimizer"))
        kind = "experts" if row.moe_experts else "dense"
        key = (kind, row.precision.split()[0], row.source.removeprefix(f"{SOURCE}-"))
        groups[key].append(busy / float(row.cells["kernel_s"]) - 1)
    return groups


def _absolute(errors: Iterable[float]) -> float:
    return statistics.mean(abs(error) for error in errors)
