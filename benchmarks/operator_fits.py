"""Fits of the operator formulas of astrarium.cost.efficiency to tables of measured times.

Only parameters are fitted, to log times, robustly. Stated errors are never of fitted rows: large
tables hold out a third of their (n, k) pairs, small ones are cross-validated in five parts that
keep shapes together, and the final fit then uses all rows. The exception are the straight lines
of copies and optimizer (two parameters, few rows): theirs are of the fitted rows. The form of
the formulas (tile shapes, norms, block size) was chosen among a dozen on the same tables.
Needs pandas and scipy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from astrarium.arrays import Floats
from astrarium.catalog import find_gpu
from astrarium.catalog.profiles import AttentionFit, GemmFit, RoleFit, chips
from astrarium.cost.kernels import (
    QUERY_BLOCK,
    AttentionKernel,
    Hardware,
    HeadShape,
    MatrixShape,
    attention_work,
    burst_seconds,
    in_role,
    smooth_maximum,
)

MEASURED_GPU = "H200-SXM5-141GB"
MULTIPROCESSORS = {
    "A100-SXM4-80GB": 108,
    "H100-SXM5-80GB": 132,
    "H200-SXM5-141GB": 132,
    "B200-SXM6-180GB": 148,
    "B300-SXM6-288GB": 148,
    "GB200-NVL72-186GB": 152,
    "GB300-NVL72-288GB": 152,
    "L40S-48GB": 142,
    "RTX-PRO-6000-Blackwell-96GB": 188,
}
GEMM_START = (0.8, 0.75, 0.3, 150.0, 4.0, 0.05, 0.8, 2.5e-6, 5e-4)
GEMM_LOW = (0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.3, 1e-6, 1e-5)
GEMM_HIGH = (1.0, 1.0, 1.0, 1500.0, 20.0, 1.0, 1.0, 2e-5, 1e-2)
GEMM_SCALE = (0.1, 0.1, 0.1, 100.0, 1.0, 0.1, 0.1, 1e-6, 1e-3)
ATTENTION_START = (0.8, 100.0, 100.0, 128.0, 0.3, 4e-6)
ATTENTION_LOW = (0.1, 0.0, 0.0, 0.0, 0.0, 5e-7)
ATTENTION_HIGH = (1.0, 3000.0, 2000.0, 2000.0, 1.0, 5e-5)
ATTENTION_SCALE = (0.1, 50.0, 50.0, 50.0, 0.1, 1e-6)
HEAD_DIMS = (64, 128)  # of published tables: those of almost all models
TRAINING_SHAPE = 512  # errors are stated for m, n, k of at least this


def device_of(gpu: str, dtype: str = "bf16") -> Hardware:
    found = find_gpu(gpu)
    return Hardware(found.peak_flops[dtype], found.memory_bandwidth, MULTIPROCESSORS[gpu])


def relatives(gpu: str) -> list[str]:
    """Other measured types of the same design."""
    family = chips().gpus[gpu].family
    return [o for o in MULTIPROCESSORS if o != gpu and chips().gpus[o].family == family]


def stand_in(gpu: str, among: Iterable[str] = MULTIPROCESSORS) -> str:
    """The measured type that a left-out one is modelled on: a relative, or the nearest in rate."""
    others = [name for name in among if name != gpu]
    rate = device_of(gpu).flops
    return min(
        set(relatives(gpu)).intersection(others) or others,
        key=lambda other: abs(np.log(device_of(other).flops / rate)),
    )


def solve(
    predict: Callable[[Floats], Floats], seconds: Floats, start: Iterable[float], **limits: object
) -> Floats:
    result = least_squares(
        lambda x: np.log(predict(x) / seconds),
        list(start),
        loss="soft_l1",
        f_scale=0.1,
        **limits,
    )
    return result.x


def errors(predicted: Floats, seconds: Floats) -> dict[str, float]:
    log = np.log(predicted / seconds)
    return {
        "rows": len(log),
        "median": round(float(np.median(np.abs(log))), 4),
        "mean": round(float(np.abs(log).mean()), 4),
        "deviation": round(float(log.std()), 4),
        "bias": round(float(np.median(log)), 4),
    }


FOLDS = 5


def cross_validated(
    rows: pd.DataFrame,
    groups: list[str],
    fit: Callable[[pd.DataFrame], Callable[[pd.DataFrame], Floats]],
    column: str = "median_us",
) -> dict[str, float]:
    """Errors of predictions for groups of rows (shapes) that the fit had not seen."""
    cells = rows.groupby(groups).ngroup().to_numpy()
    fold = np.random.default_rng(0).integers(0, FOLDS, cells.max() + 1)[cells]
    predicted = np.empty(len(rows))
    for part in range(FOLDS):
        predicted[fold == part] = fit(rows[fold != part])(rows[fold == part])
    return errors(predicted, rows[column].to_numpy() * 1e-6)


def held_out(table: pd.DataFrame) -> np.ndarray:
    """True for rows of a third of the (n, k) pairs."""
    cells = table.groupby(["n", "k"]).ngroup().to_numpy()
    return (np.random.default_rng(0).random(cells.max() + 1) < 0.3)[cells]


def shape_of(table: pd.DataFrame, role: str, input_bytes: float = 2.0) -> MatrixShape:
    m, n, k = (table[c].to_numpy(np.float64) for c in "mnk")
    one = table["groups"].to_numpy(np.float64) if role == "grouped" else np.ones(len(table))
    if role in ("forward", "grouped"):
        return MatrixShape(m, n, k, one, input_bytes, 2.0)
    if role == "dgrad":
        return MatrixShape(m, k, n, one, input_bytes, 2.0)
    return MatrixShape(n, k, m, one, input_bytes, 8.0 if role == "wgrad" else 2.0)


def warming(fit: GemmFit, device: Hardware, shape: MatrixShape, warm_seconds: float) -> Floats:
    """Time in a short benchmark: the power limit binds only after a while."""
    burst = burst_seconds(fit, device, shape)
    flops = 2.0 * shape.groups * shape.rows * shape.columns * shape.depth
    power = flops / (device.flops * fit.sustained_efficiency) * -np.expm1(-burst / warm_seconds)
    return fit.fixed_seconds + smooth_maximum(burst, power, 3)


def gemm_fit(x: Floats) -> GemmFit:
    return GemmFit(*(float(value) for value in x[:8]))


def fit_gemm(
    table: pd.DataFrame,
    device: Hardware,
    input_bytes: float,
    column: str,
    sustained: float | None = None,
) -> tuple:
    """Forward products of one GPU and number format; `sustained` is fitted unless given."""
    usable = table[(table.m >= 128) & (table.n >= 256) & (table.k >= 256)]
    out = held_out(usable)
    train = usable[~out].sample(4000, random_state=1)
    test = usable[out & (usable[["m", "n", "k"]].min(axis=1) >= TRAINING_SHAPE)]

    def predict(x: Floats, rows: pd.DataFrame) -> Floats:
        return warming(gemm_fit(x), device, shape_of(rows, "forward", input_bytes), x[8])

    start, low, high = list(GEMM_START), list(GEMM_LOW), list(GEMM_HIGH)
    if sustained is not None:
        start[1], low[1], high[1] = sustained, sustained * (1 - 1e-6), sustained * (1 + 1e-6)
    x = solve(
        lambda x: predict(x, train),
        train[column].to_numpy() * 1e-6,
        start,
        bounds=(low, high),
        x_scale=GEMM_SCALE,
    )
    return x, errors(predict(x, test), test[column].to_numpy() * 1e-6), test


def heads_of(table: pd.DataFrame) -> HeadShape:
    names = ("batch", "heads", "kv_heads", "q_length", "kv_length", "key_dim", "value_dim")
    return HeadShape(*(table[name].to_numpy(np.float64) for name in names))


def predict_attention(
    fit: AttentionFit, device: Hardware, kernel: AttentionKernel, backward: bool, rows: pd.DataFrame
) -> Floats:
    shape = heads_of(rows)
    both = [
        attention_work(fit, device, shape, kernel, causal=mask, backward=backward)
        for mask in (True, False)
    ]
    return fit.fixed_seconds + np.where(rows["causal"].to_numpy(bool), *both)


def fit_attention(
    table: pd.DataFrame, device: Hardware, kernel: AttentionKernel, backward: bool
) -> tuple[AttentionFit, dict[str, float]]:
    def fitted(rows: pd.DataFrame) -> AttentionFit:
        x = solve(
            lambda x: predict_attention(AttentionFit(*x), device, kernel, backward, rows),
            rows["median_us"].to_numpy() * 1e-6,
            ATTENTION_START,
            bounds=(ATTENTION_LOW, ATTENTION_HIGH),
            x_scale=ATTENTION_SCALE,
        )
        return AttentionFit(*(float(value) for value in x))

    def predictor(rows: pd.DataFrame) -> Callable[[pd.DataFrame], Floats]:
        fit = fitted(rows)
        return lambda unseen: predict_attention(fit, device, kernel, backward, unseen)

    return fitted(table), cross_validated(table, ["q_length", "heads", "key_dim"], predictor)


def attention_table(path: Path) -> pd.DataFrame:
    """The published table under the names used here, without rows above the peak."""
    table = pd.read_parquet(path).rename(
        columns={"batch_size": "batch", "isl": "q_length", "num_heads": "heads"}
    )
    table = table.rename(columns={"num_key_value_heads": "kv_heads", "head_dim": "key_dim"})
    table = table.assign(kv_length=table.q_length, value_dim=table.key_dim, causal=1)
    flops = 2.0 * table.batch * table.heads * table.q_length.astype(float) ** 2 * table.key_dim
    peaks = table.gpu.map({gpu: device_of(gpu).flops for gpu in table.gpu.unique()})
    possible = flops / (table.median_us * 1e-6) < 0.95 * peaks
    # No block of queries passes the keys faster than one multiprocessor can.
    counts = table.gpu.map(MULTIPROCESSORS)
    block = 4.0 * QUERY_BLOCK * table.q_length * table.key_dim * counts / peaks
    possible &= table.median_us * 1e-6 > block
    return table[possible & table.key_dim.isin(HEAD_DIMS) & (table.median_us > 20)]


def measured_rows(paths: Iterable[Path]) -> pd.DataFrame:
    """Own measurements, of one or several runs, as CSV or Parquet."""
    return pd.concat(
        [
            pd.read_parquet(path)
            if path.suffix == ".parquet"
            else pd.read_csv(path, dtype={"kernel": str})
            for path in paths
        ]
    )


def fit_measured_gemm(rows: pd.DataFrame, table: pd.DataFrame, device: Hardware) -> Floats:
    """Forward products of the measured GPU, own rows and as many of the table's.

    The two differ in the gap between kernels and in how warm the card gets.
    """
    train = table[table[["m", "n", "k"]].min(axis=1) >= TRAINING_SHAPE]
    train = train.sample(2 * len(rows), random_state=2)
    own, other = shape_of(rows, "forward"), shape_of(train, "forward")

    def predict(z: Floats) -> Floats:
        fit = gemm_fit(z)
        published = warming(fit, device, other, z[9]) - z[10]
        return np.concatenate([warming(fit, device, own, z[8]), np.maximum(published, 1e-7)])

    seconds = np.concatenate([rows.median_us, train.median_us]) * 1e-6
    return solve(
        predict,
        seconds,
        (*GEMM_START[:7], 5e-6, GEMM_START[8], GEMM_START[8], 1e-6),
        bounds=((*GEMM_LOW, 1e-5, 0.0), (*GEMM_HIGH, 1e-2, 4e-6)),
        x_scale=(*GEMM_SCALE, 1e-3, 1e-6),
    )


# efficiency, ramp, memory ratios and exposed bytes; only accumulation exposes traffic
ROLE_BOUNDS = {
    "dgrad": ((0.5, 0.1, 0.2, 0.0), (1.3, 15.0, 1.3, 1e-9)),
    "wgrad": ((0.5, 1.0, 0.2, 0.0), (1.3, 1.0 + 1e-9, 1.3, 8.0)),
    "wgrad_bf16": ((0.5, 0.1, 0.2, 0.0), (1.3, 15.0, 1.3, 1e-9)),
}


def fit_roles(rows: pd.DataFrame, x: Floats, device: Hardware) -> tuple[dict, dict]:
    """Backward products against the forward fit, on the measured GPU."""
    fits, report = {}, {}
    base = gemm_fit(x)
    for role, (low, high) in ROLE_BOUNDS.items():
        start = [
            (a + b) / 2 if b - a < 1e-6 else max(a, min(1.0, b))
            for a, b in zip(low, high, strict=True)
        ]

        def predict(y: Floats, table: pd.DataFrame, role: str = role) -> Floats:
            fit = in_role(base, RoleFit(*y), device)
            return warming(fit, device, shape_of(table, role), x[8])

        def fitted(
            table: pd.DataFrame,
            predict: Callable[[Floats, pd.DataFrame], Floats] = predict,
            start: list[float] = start,
            bounds: tuple = (low, high),
        ) -> Floats:
            seconds = table["median_us"].to_numpy() * 1e-6
            return solve(lambda y: predict(y, table), seconds, start, bounds=bounds)

        def predictor(
            table: pd.DataFrame, fitted: Callable = fitted, predict: Callable = predict
        ) -> Callable[[pd.DataFrame], Floats]:
            y = fitted(table)
            return lambda unseen: predict(y, unseen)

        table = rows[rows.role == role]
        fits[role] = RoleFit(*(float(value) for value in fitted(table)))
        report[role] = cross_validated(table, ["n", "k"], predictor)
    return fits, report


GROUPED_ROLES = ("forward", "dgrad", "wgrad_bf16")


def fit_grouped(rows: pd.DataFrame, x: Floats, roles: dict, device: Hardware) -> tuple:
    base = gemm_fit(x)
    rows = rows[rows.role.isin(GROUPED_ROLES)]

    def predict(y: Floats, table: pd.DataFrame) -> Floats:
        fit = replace(
            base, efficiency=base.efficiency * y[0], fixed_seconds=base.fixed_seconds + y[1]
        )
        seconds = np.empty(len(table))
        for role in GROUPED_ROLES:
            mask = (table.role == role).to_numpy()
            used = fit if role == "forward" else in_role(fit, roles[role], device)
            shape = shape_of(table[mask], role)
            shape = shape._replace(groups=table[mask].groups.to_numpy(np.float64))
            seconds[mask] = warming(used, device, shape, x[8])
        return seconds

    def fitted(table: pd.DataFrame) -> Floats:
        seconds = table.median_us.to_numpy() * 1e-6
        limits = {"bounds": ((0.3, 0.0), (1.2, 1e-4)), "x_scale": (0.1, 1e-5)}
        return solve(lambda y: predict(y, table), seconds, (0.9, 1e-5), **limits)

    def predictor(table: pd.DataFrame) -> Callable[[pd.DataFrame], Floats]:
        y = fitted(table)
        return lambda unseen: predict(y, unseen)

    return fitted(rows), cross_validated(rows, ["groups", "m", "n", "k"], predictor)


def fit_own_fp8(rows: pd.DataFrame, device: Hardware) -> tuple[Floats, dict[str, float]]:
    def predict(x: Floats, table: pd.DataFrame) -> Floats:
        return warming(gemm_fit(x), device, shape_of(table, "forward", 1.0), x[8])

    def fitted(table: pd.DataFrame) -> Floats:
        seconds = table.median_us.to_numpy() * 1e-6
        limits = {"bounds": (GEMM_LOW, GEMM_HIGH), "x_scale": GEMM_SCALE}
        return solve(lambda x: predict(x, table), seconds, GEMM_START, **limits)

    def predictor(table: pd.DataFrame) -> Callable[[pd.DataFrame], Floats]:
        x = fitted(table)
        return lambda unseen: predict(x, unseen)

    return fitted(rows), cross_validated(rows, ["n", "k"], predictor)


def fit_line(rate: Floats, seconds: Floats, start: tuple[float, float]) -> tuple[Floats, dict]:
    """Fixed seconds and efficiency of work whose time at the hardware's rate is `rate`."""
    y = solve(lambda y: y[0] + rate / y[1], seconds, start, x_scale=(1e-6, 0.1))
    return y, errors(y[0] + rate / y[1], seconds)


def read_options(about: str) -> tuple[argparse.Namespace, pd.DataFrame]:
    """The options of both scripts that write fits, and the published products."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    return options, pd.read_parquet(options.tables / "gemm_forward.parquet")
