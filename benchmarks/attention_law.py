"""The law of forward attention for all GPU types, boosted corrections, and their errors.

The law is the formula of tiled attention with one set of numbers; designs differ in how many
FLOPs a multiprocessor does in the time of one exponential, and types in the energy they have for
a FLOP. What only the measured GPU has (backward, FlashAttention-2) is corrected on its own fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from boosted import LARGE, learned, train
from gemm_law import EDGE_EXPONENT, REFERENCE_FLOPS, corrected_in_parts
from operator_fits import (
    ATTENTION_HIGH,
    ATTENTION_LOW,
    ATTENTION_SCALE,
    ATTENTION_START,
    MEASURED_GPU,
    MULTIPROCESSORS,
    device_of,
    errors,
    heads_of,
    predict_attention,
    solve,
    stand_in,
)

from astrarium.arrays import Floats
from astrarium.catalog import find_gpu
from astrarium.catalog.profiles import AttentionFit, Correction, chips, find_profile
from astrarium.cost.corrections import (
    HARDWARE_FEATURES,
    HEAD_FEATURES,
    hardware_features,
    head_features,
)
from astrarium.cost.kernels import AttentionKernel, law_attention_work, of_design

ROWS_PER_GPU = 3000  # of a table, enough for trees of this size
LAW_ROWS_PER_GPU = 800
HELD_OUT = 0.3  # of the (length, heads, width) cells, when a known GPU is tested
CELLS = ["q_length", "heads", "key_dim"]


def exponentials(gpu: str) -> float:
    return chips().families[chips().gpus[gpu].family].exponentials_per_clock


def softmax_ratio(gpu: str) -> float:
    """FLOPs of a multiprocessor in the time of one exponential, against the reference."""
    rate = device_of(gpu).flops / MULTIPROCESSORS[gpu]
    return rate / REFERENCE_FLOPS * exponentials(MEASURED_GPU) / exponentials(gpu)


def own_rows(rows: pd.DataFrame, kernel: str, role: str) -> pd.DataFrame:
    """Own rows of one kernel and direction, averaged over runs."""
    picked = rows[(rows.operator == "attention") & (rows.kernel == kernel) & (rows.role == role)]
    names = [
        "batch",
        "heads",
        "kv_heads",
        "q_length",
        "kv_length",
        "key_dim",
        "value_dim",
        "causal",
    ]
    return picked.groupby(names, as_index=False).median_us.mean()


def sampled(table: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    groups = [
        part.sample(min(count, len(part)), random_state=seed) for _, part in table.groupby("gpu")
    ]
    return pd.concat(groups, ignore_index=True)


def by_gpu(table: pd.DataFrame, of_gpu: Callable[[str, pd.DataFrame], Floats]) -> Floats:
    """A column put together from the rows of every GPU type."""
    out = np.empty(len(table))
    for gpu in table.gpu.unique():
        mine = (table.gpu == gpu).to_numpy()
        out[mine] = of_gpu(gpu, table[mine])
    return out


def features_of(table: pd.DataFrame, seconds: Floats) -> dict[str, Floats]:
    parts: dict[str, Floats] = {}
    for gpu in table.gpu.unique():
        mine = (table.gpu == gpu).to_numpy()
        device = device_of(gpu)
        found = head_features(heads_of(table[mine]), device, seconds[mine])
        found |= hardware_features(device, find_gpu(gpu).tdp_watts, exponentials(gpu))
        for name, column in found.items():
            parts.setdefault(name, np.empty(len(table)))[mine] = column
    return parts


@dataclass
class AttentionLaw:
    """One fit for all types, and the energy of a FLOP on the reference design."""

    fit: AttentionFit  # its fixed seconds are those of the published tables
    joules_per_flop: float

    def seconds(self, table: pd.DataFrame) -> Floats:
        """Without the fixed time."""
        return by_gpu(table, self.seconds_on)

    def seconds_on(self, gpu: str, rows: pd.DataFrame) -> Floats:
        device = device_of(gpu)
        edge = (device.flops / device.multiprocessors / REFERENCE_FLOPS) ** -EDGE_EXPONENT
        held = min(1.0, find_gpu(gpu).tdp_watts / (device.flops * self.joules_per_flop * edge))
        here = of_design(self.fit, softmax_ratio(gpu))
        return law_attention_work(here, device, heads_of(rows), held, causal=True)


def fit_attention_law(table: pd.DataFrame) -> AttentionLaw:
    """Fit to rows of all types, whose numbers of rows are even."""

    def made(x: Floats) -> AttentionLaw:
        return AttentionLaw(AttentionFit(*(float(v) for v in x[:6])), float(x[6]) * 1e-12)

    def predict(x: Floats) -> Floats:
        found = made(x)
        return found.fit.fixed_seconds + found.seconds(table)

    x = solve(
        predict,
        table.median_us.to_numpy() * 1e-6,
        (*ATTENTION_START, 0.9),
        bounds=((*ATTENTION_LOW, 0.2), (*ATTENTION_HIGH, 3.0)),
        x_scale=(*ATTENTION_SCALE, 0.2),
    )
    return made(x)


def fit_trees(law: AttentionLaw, table: pd.DataFrame) -> Correction:
    formula, fixed = law.seconds(table), law.fit.fixed_seconds
    measured = table.median_us.to_numpy() * 1e-6 - fixed
    usable = measured > fixed / 2  # else it says more about the call than about the kernel
    features = {n: c[usable] for n, c in features_of(table, formula).items()}
    residual = np.log(measured[usable] / formula[usable])
    weights = 1.0 / table.groupby("gpu").median_us.transform("size").to_numpy(float)[usable]
    return train(features, {**HEAD_FEATURES, **HARDWARE_FEATURES}, residual, weights, LARGE)


def law_trees(law: AttentionLaw, heads: pd.DataFrame) -> Correction:
    return fit_trees(law, sampled(heads, ROWS_PER_GPU, 1))


def with_trees(
    law: AttentionLaw, trees: Correction, table: pd.DataFrame, ratio: float = 1.0
) -> Floats:
    formula = law.seconds(table)
    factor = learned(trees).factor(features_of(table, formula))
    return law.fit.fixed_seconds + formula * factor * ratio


def ratio_of(law: AttentionLaw, trees: Correction, table: pd.DataFrame) -> float:
    """What a type that is known takes of the time that its specification lets expect."""
    fixed = law.fit.fixed_seconds
    measured = np.maximum(table.median_us.to_numpy() * 1e-6 - fixed, fixed / 2)
    return float(np.median(measured / (with_trees(law, trees, table) - fixed)))


def ratios(law: AttentionLaw, trees: Correction, heads: pd.DataFrame) -> dict[str, float]:
    """That ratio of every type with a table."""
    table = sampled(heads, ROWS_PER_GPU, 1)
    return {gpu: ratio_of(law, trees, table[table.gpu == gpu]) for gpu in MULTIPROCESSORS}


def attention_report(heads: pd.DataFrame) -> dict:
    """Median errors of formula and trees, for types left out and for shapes left out."""
    table, few = sampled(heads, ROWS_PER_GPU, 1), sampled(heads, LAW_ROWS_PER_GPU, 2)
    fits = {gpu: formula_of(few[few.gpu == gpu], gpu) for gpu in MULTIPROCESSORS}
    left_out = {}
    for gpu in MULTIPROCESSORS:
        law = fit_attention_law(few[few.gpu != gpu])
        trees = fit_trees(law, table[table.gpu != gpu])
        test, other = table[table.gpu == gpu], stand_in(gpu)
        seconds = test.median_us.to_numpy() * 1e-6
        fused = AttentionKernel.FUSED
        relative = predict_attention(fits[other], device_of(gpu), fused, False, test)
        left_out[gpu] = {
            "relative": {"like": other, **errors(relative, seconds)},
            "law": errors(law.fit.fixed_seconds + law.seconds(test), seconds),
            "trees": errors(with_trees(law, trees, test), seconds),
        }
    return {"left out": left_out, "known": known_report(table)}


def formula_of(table: pd.DataFrame, gpu: str) -> AttentionFit:
    """The formula fitted to one GPU type alone."""
    x = solve(
        lambda x: predict_attention(
            AttentionFit(*x), device_of(gpu), AttentionKernel.FUSED, False, table
        ),
        table.median_us.to_numpy() * 1e-6,
        ATTENTION_START,
        bounds=(ATTENTION_LOW, ATTENTION_HIGH),
        x_scale=ATTENTION_SCALE,
    )
    return AttentionFit(*(float(v) for v in x))


def known_report(table: pd.DataFrame) -> dict:
    """Errors on shapes that were not fitted, of types that were."""
    cells = table.groupby(CELLS).ngroup().to_numpy()
    out = (np.random.default_rng(0).random(cells.max() + 1) < HELD_OUT)[cells]
    few = sampled(table[~out], LAW_ROWS_PER_GPU, 2)
    law = fit_attention_law(few)
    trees = fit_trees(law, table[~out])
    report: dict = {}
    for gpu in MULTIPROCESSORS:
        mine = (table.gpu == gpu).to_numpy()
        fit = formula_of(few[few.gpu == gpu], gpu)
        ratio = ratio_of(law, trees, table[mine & ~out])
        report[gpu] = {}
        for name, test in (("", table[mine & out]), (" fitted", table[mine & ~out])):
            seconds = test.median_us.to_numpy() * 1e-6
            formula = predict_attention(fit, device_of(gpu), AttentionKernel.FUSED, False, test)
            report[gpu]["formula" + name] = errors(formula, seconds)
            report[gpu]["trees" + name] = errors(with_trees(law, trees, test, ratio), seconds)
    return report


def own_attention(rows: pd.DataFrame) -> dict:
    """Errors and trainers of the kernels of the measured GPU, on its profile's fits."""
    profile = find_profile(MEASURED_GPU)
    assert profile is not None
    found = {}
    for kernel, name in (("cudnn", AttentionKernel.FUSED), ("flash2", AttentionKernel.FLASH2)):
        for role in ("forward", "backward"):
            fit = getattr(profile.attention[name], role)
            table = own_rows(rows, kernel, role)
            found[f"{name.value}_{role}"] = own_trees(fit, table, name, role == "backward")
    return found


def own_trees(
    fit: AttentionFit, table: pd.DataFrame, kernel: AttentionKernel, backward: bool
) -> tuple[dict, Callable[[], Correction]]:
    """Errors of formula and trees in five parts that keep shapes together; how to train on all."""
    device = device_of(MEASURED_GPU)
    predicted = predict_attention(fit, device, kernel, backward, table) - fit.fixed_seconds
    seconds = table.median_us.to_numpy() * 1e-6
    features = dict(head_features(heads_of(table), device, predicted))
    cells = table.groupby(CELLS).ngroup().to_numpy()
    return corrected_in_parts(
        features, HEAD_FEATURES, (fit.fixed_seconds, predicted, seconds), cells
    )
