"""The law of matrix products for all GPU types, and errors of formula, law and boosted trees.

One set of numbers for all types. What large products hold at the power limit follows from the
energy of a FLOP, which falls with the square root of a multiprocessor's rate: operands come over
the edges of a tile, arithmetic fills its area. The exponent is that argument's, not a fit's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from boosted import LARGE, SMALL, learned, train
from operator_fits import (
    FOLDS,
    GEMM_HIGH,
    GEMM_LOW,
    GEMM_SCALE,
    GEMM_START,
    MEASURED_GPU,
    MULTIPROCESSORS,
    TRAINING_SHAPE,
    device_of,
    errors,
    fit_measured_gemm,
    fit_roles,
    gemm_fit,
    held_out,
    shape_of,
    solve,
    stand_in,
    warming,
)

from astrarium.arrays import Floats, Ints
from astrarium.catalog import find_gpu
from astrarium.catalog.profiles import Correction, GemmFit, chips
from astrarium.cost.corrections import (
    HARDWARE_FEATURES,
    MATRIX_FEATURES,
    hardware_features,
    matrix_features,
)
from astrarium.cost.kernels import burst_seconds, in_role

ROWS_PER_GPU = 2500
LAW_ROWS_PER_GPU = 700
EDGE_EXPONENT = 0.5
REFERENCE_FLOPS = device_of(MEASURED_GPU).flops / MULTIPROCESSORS[MEASURED_GPU]
POSSIBLE = 0.97  # of the peak; faster rows are errors of the table
TABLE_NAMES = {"bf16": "bfloat16", "fp8": "fp8"}
COLUMNS = {"bf16": "median_us", "fp8": "min_us"}  # fp8: the fastest library, as training would use
BYTES = {"bf16": 2.0, "fp8": 1.0}
# As fit_profiles.py: published tables time kernels without the gap between them.
LAUNCH_SECONDS = 1.75e-6


def rows_of(products: pd.DataFrame, dtype: str, count: int, seed: int) -> dict[str, pd.DataFrame]:
    """Rows of training size that are possible, by GPU type."""
    table = products[products.gemm_dtype == TABLE_NAMES[dtype]]
    table = table[table[["m", "n", "k"]].min(axis=1) >= TRAINING_SHAPE]
    found = {}
    for gpu, part in table.groupby("gpu"):
        seconds = part[COLUMNS[dtype]] * 1e-6
        rate = 2.0 * part.m * part.n * part.k / seconds
        part = part.assign(seconds=seconds)[rate < POSSIBLE * device_of(gpu, dtype).flops]
        found[gpu] = part.sample(min(count, len(part)), random_state=seed)
    return found


def law_of(x: Floats, gpu: str, dtype: str) -> GemmFit:
    """The law on one GPU type: x[1] is the energy of a FLOP at the reference rate, in pJ."""
    device = device_of(gpu, dtype)
    edge = (device_of(gpu).flops / device.multiprocessors / REFERENCE_FLOPS) ** -EDGE_EXPONENT
    held = find_gpu(gpu).tdp_watts / (device.flops * x[1] * 1e-12 * edge)
    return gemm_fit(np.array([x[0], min(1.0, held), *x[2:8]]))


def cool_seconds(fit: GemmFit, gpu: str, dtype: str, rows: pd.DataFrame, warm: float) -> Floats:
    return warming(fit, device_of(gpu, dtype), shape_of(rows, "forward", BYTES[dtype]), warm)


def solve_law(rows: dict[str, pd.DataFrame], dtype: str) -> Floats:
    seconds = np.concatenate([part.seconds for part in rows.values()])

    def predict(x: Floats) -> Floats:
        return np.concatenate(
            [cool_seconds(law_of(x, gpu, dtype), gpu, dtype, r, x[8]) for gpu, r in rows.items()]
        )

    low, high = list(GEMM_LOW), list(GEMM_HIGH)
    low[1], high[1] = 0.1, 3.0
    limits = {"bounds": (low, high), "x_scale": GEMM_SCALE}
    return solve(predict, seconds, (*GEMM_START[:1], 0.9, *GEMM_START[2:]), **limits)


def fit_law(products: pd.DataFrame, dtype: str) -> GemmFit:
    """The law's numbers; the held rate is the measured GPU's, every type replaces it."""
    x = solve_law(rows_of(products, dtype, LAW_ROWS_PER_GPU, 1), dtype)
    fit = law_of(x, MEASURED_GPU, dtype)
    return gemm_fit(
        np.array([fit.efficiency, fit.sustained_efficiency, *x[2:7], x[7] + LAUNCH_SECONDS])
    )


def own_fit(rows: pd.DataFrame, gpu: str, dtype: str) -> Floats:
    limits = {"bounds": (GEMM_LOW, GEMM_HIGH), "x_scale": GEMM_SCALE}
    return solve(
        lambda x: cool_seconds(gemm_fit(x), gpu, dtype, rows, x[8]),
        rows.seconds.to_numpy(),
        GEMM_START,
        **limits,
    )


def table_features(gpu: str, dtype: str, rows: pd.DataFrame, fit: GemmFit) -> dict[str, Floats]:
    device = device_of(gpu, dtype)
    shape = shape_of(rows, "forward", BYTES[dtype])
    found = matrix_features(shape, device, burst_seconds(fit, device, shape))
    found |= hardware_features(device, find_gpu(gpu).tdp_watts, 1.0)
    return {name: np.broadcast_to(column, len(rows)) for name, column in found.items()}


def table_trees(
    fits: dict[str, tuple[GemmFit, float]],
    rows: dict[str, pd.DataFrame],
    dtype: str,
    families: tuple[str, ...] = (),
) -> Correction:
    """Trees on what the given fits miss on published rows."""
    features: dict[str, list[Floats]] = {}
    residuals, weights = [], []
    for gpu, (fit, warm) in fits.items():
        part = rows[gpu]
        predicted = cool_seconds(fit, gpu, dtype, part, warm)
        residuals.append(np.log(part.seconds / predicted).to_numpy())
        weights.append(np.full(len(part), 1.0 / len(part)))
        for name, column in table_features(gpu, dtype, part, fit).items():
            features.setdefault(name, []).append(column)
    columns = {name: np.concatenate(parts) for name, parts in features.items()}
    directions = {**MATRIX_FEATURES, **HARDWARE_FEATURES}
    del directions["exponentials"]
    residual, weight = np.concatenate(residuals), np.concatenate(weights)
    return train(columns, directions, residual, weight, LARGE, families)


def gemm_report(products: pd.DataFrame, dtype: str) -> dict:
    """Median errors of formula, law and trees; for types left out, and for shapes left out."""
    rows = rows_of(products, dtype, ROWS_PER_GPU, 1)
    few = rows_of(products, dtype, LAW_ROWS_PER_GPU, 2)
    fits = {gpu: own_fit(part, gpu, dtype) for gpu, part in few.items()}
    left_out = {}
    for gpu, test in rows.items():
        seconds = test.seconds.to_numpy()
        other = stand_in(gpu, rows)
        x = fits[other].copy()
        here, there = find_gpu(gpu), find_gpu(other)
        joules = there.tdp_watts / (there.peak_flops["bf16"] * x[1])
        x[1] = min(1.0, here.tdp_watts / (here.peak_flops["bf16"] * joules))
        y = solve_law({name: part for name, part in few.items() if name != gpu}, dtype)
        law = law_of(y, gpu, dtype)
        others = {g: (law_of(y, g, dtype), y[8]) for g in rows if g != gpu}
        trees = learned(table_trees(others, rows, dtype))
        predicted = cool_seconds(law, gpu, dtype, test, y[8])
        factor = trees.factor(table_features(gpu, dtype, test, law))
        left_out[gpu] = {
            "relative": {
                "like": other,
                **errors(cool_seconds(gemm_fit(x), gpu, dtype, test, x[8]), seconds),
            },
            "law": errors(predicted, seconds),
            "trees": errors(predicted * factor, seconds),
        }
    return {"left out": left_out, "known": known_report(rows, dtype)}


def known_report(rows: dict[str, pd.DataFrame], dtype: str) -> dict:
    """Errors on (n, k) pairs that were not fitted, of types that were."""
    out = {gpu: held_out(part) for gpu, part in rows.items()}
    seen = {gpu: part[~out[gpu]] for gpu, part in rows.items()}
    solved = {
        gpu: own_fit(part.sample(LAW_ROWS_PER_GPU, random_state=4), gpu, dtype)
        for gpu, part in seen.items()
    }
    fits = {gpu: (gemm_fit(x), float(x[8])) for gpu, x in solved.items()}
    trees = learned(table_trees(fits, seen, dtype))
    report = {}
    for gpu, part in rows.items():
        report[gpu] = {}
        for name, test in (("", part[out[gpu]]), (" fitted", seen[gpu])):
            seconds = test.seconds.to_numpy()
            predicted = cool_seconds(fits[gpu][0], gpu, dtype, test, fits[gpu][1])
            factor = trees.factor(table_features(gpu, dtype, test, fits[gpu][0]))
            report[gpu]["formula" + name] = errors(predicted, seconds)
            report[gpu]["trees" + name] = errors(predicted * factor, seconds)
    return report


def fp8_trees(products: pd.DataFrame) -> Correction:
    """Trees for 8-bit products of the designs whose fits are of published tables."""
    narrow = {name for name, family in chips().families.items() if family.narrow}
    mine = chips().gpus[MEASURED_GPU].family
    rows = rows_of(products, "fp8", ROWS_PER_GPU, 1)
    rows = {gpu: part for gpu, part in rows.items() if chips().gpus[gpu].family != mine}
    fits = {}
    for gpu, part in rows.items():
        x = own_fit(part.sample(LAW_ROWS_PER_GPU, random_state=4), gpu, "fp8")
        fits[gpu] = gemm_fit(x), float(x[8])
    families = tuple(sorted({chips().gpus[gpu].family for gpu in rows} - narrow))
    return table_trees(fits, rows, "fp8", families)


def own_roles(rows: pd.DataFrame, products: pd.DataFrame) -> dict:
    """Errors and trainers of the three products of a weight, on the measured GPU.

    What the trees learn there is how its library picks kernels, so they hold for its design only.
    """
    own = rows[(rows.operator == "gemm") & (rows.dtype == "bf16")]
    table = own.groupby(["role", "m", "n", "k"], as_index=False).median_us.mean()
    published = products[
        (products.gpu == MEASURED_GPU) & (products.gemm_dtype == TABLE_NAMES["bf16"])
    ]
    device = device_of(MEASURED_GPU)
    x = fit_measured_gemm(table[table.role == "forward"], published, device)[:9]
    roles, _ = fit_roles(table, x, device)
    found = {}
    for role in ("forward", "dgrad", "wgrad"):
        fit = gemm_fit(x) if role == "forward" else in_role(gemm_fit(x), roles[role], device)
        found[f"gemm_bf16_{role}"] = role_trees(table[table.role == role], role, fit, x[8])
    return found


def role_trees(
    table: pd.DataFrame, role: str, fit: GemmFit, warm: float
) -> tuple[dict, Callable[[], Correction]]:
    """Errors in five parts that keep (n, k) pairs together, and how to train on all rows."""
    device = device_of(MEASURED_GPU)
    shape = shape_of(table, role)
    predicted = warming(fit, device, shape, warm) - fit.fixed_seconds
    features = dict(matrix_features(shape, device, burst_seconds(fit, device, shape)))
    seconds = table.median_us.to_numpy() * 1e-6
    cells = table.groupby(["n", "k"]).ngroup().to_numpy()
    times = fit.fixed_seconds, predicted, seconds
    return corrected_in_parts(features, MATRIX_FEATURES, times, cells)


def corrected_in_parts(
    features: dict[str, Floats],
    directions: dict[str, int],
    times: tuple[float, Floats, Floats],
    cells: Ints,
) -> tuple[dict, Callable[[], Correction]]:
    """Errors of formula and trees in five parts that keep cells together; how to train on all.

    `times` are the fixed, the predicted and the measured seconds.
    """
    fixed, predicted, seconds = times
    residual = np.log(np.maximum(seconds - fixed, seconds / 2) / predicted)

    def fitted(mask: np.ndarray) -> Correction:
        part = {name: np.asarray(column)[mask] for name, column in features.items()}
        families = (chips().gpus[MEASURED_GPU].family,)
        return train(part, directions, residual[mask], np.ones(mask.sum()), SMALL, families)

    fold = np.random.default_rng(0).integers(0, FOLDS, cells.max() + 1)[cells]
    corrected = np.empty(len(seconds))
    for part in range(FOLDS):
        test = fold == part
        unseen = {name: np.asarray(column)[test] for name, column in features.items()}
        corrected[test] = predicted[test] * learned(fitted(~test)).factor(unseen)
    report = {
        "formula": errors(fixed + predicted, seconds),
        "trees": errors(fixed + corrected, seconds),
    }
    return report, lambda: fitted(np.ones(len(seconds), bool))
