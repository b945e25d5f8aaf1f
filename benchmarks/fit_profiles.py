"""Fits operator profiles: published tables and own measurements in, `data/profiles/*.json` out.

    fit_profiles.py --tables FOLDER --measured RUN.csv [MORE.parquet ...] --date D --out DIR

FOLDER has gemm_forward.parquet: forward products of nine GPU types (aiconfigurator, Apache-2.0;
columns gpu, gemm_dtype, m, n, k, median_us, min_us). Measured: output of measure_operators.py on
MEASURED_GPU. Attention of other types, and the relative errors, are fit_efficiency.py's: run it
afterwards. Needs pandas, pyarrow and scipy (the extra `fit`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
from operator_fits import (
    MEASURED_GPU,
    MULTIPROCESSORS,
    TRAINING_SHAPE,
    cross_validated,
    device_of,
    errors,
    fit_attention,
    fit_gemm,
    fit_grouped,
    fit_line,
    fit_measured_gemm,
    fit_own_fp8,
    fit_roles,
    gemm_fit,
    measured_rows,
    read_options,
    shape_of,
    warming,
)

from astrarium.arrays import Floats
from astrarium.catalog import find_gpu
from astrarium.catalog.profiles import AttentionFit, GemmFit, RoleFit, chips
from astrarium.cost.efficiency import AttentionKernel

# Differs from the measured GPU in memory only, so it has the same products and attention.
SAME_CHIP = "H100-SXM5-80GB"
# Published tables time kernels without the gap between them, which own measurements include:
# 1.64 and 1.86 us on two hosts.
LAUNCH_SECONDS = 1.75e-6
# Adam reads and writes weight and two moments and reads the gradient (28), the norm reads the
# gradient (4), clipping rewrites it (8), the cast reads fp32 and writes 16 bits (6).
OPTIMIZER_BYTES = 46
# Bytes per element of what one fused kernel must move, forward and backward; norms and
# activations keep 16-bit inputs, dropout a mask of one byte.
FUSED_BYTES = {
    "layer_norm": (4, 6),
    "rms_norm": (4, 6),
    "swiglu": (3, 5),
    "gelu": (4, 6),
    "rotary": (4, 4),
    "residual": (6, 6),
    "dropout_residual": (7, 5),
}


def pointwise_bytes(rows: pd.DataFrame, bandwidth: float, stream: Floats) -> dict:
    """Bytes per element at the rate of a copy, from the large cases."""

    def per_element(name: str, kernel: str, role: str) -> float:
        picked = rows[(rows.operator == name) & (rows.kernel == kernel) & (rows.role == role)]
        elements = picked.m * picked.n
        large = elements >= 2**24
        seconds = picked.median_us[large] * 1e-6 - stream[0]
        return float((seconds / elements[large]).median() * bandwidth * stream[1])

    found = {}
    for name, (forward, backward) in FUSED_BYTES.items():
        eager = (per_element(name, "eager", r) for r in ("forward", "backward"))
        found[name] = [*eager, forward, backward] if name != "residual" else [6, 6, 6, 6]
    loss = []
    for kernel in ("stable", "compiled"):
        forward, both = (per_element("cross_entropy", kernel, r) for r in ("forward", "both"))
        loss += [forward, both - forward]
    found["cross_entropy"] = loss
    table = rows[(rows.operator == "embedding") & (rows.m == 8192) & (rows.n == 32000)]
    seconds = table.groupby("role").median_us.mean() * 1e-6 * bandwidth * stream[1]
    eager = [float(seconds[role]) / (8192 * 4096) for role in ("forward", "backward")]
    found["embedding"] = [*eager, *eager]
    names = ("eager_forward", "eager_backward", "fused_forward", "fused_backward")
    return {k: dict(zip(names, map(short, v), strict=True)) for k, v in found.items()}


def short(value: float) -> float:
    """Four digits; what a bound left at almost nothing is nothing."""
    return float(f"{value:.4g}") if abs(value) > 1e-8 else 0.0


def with_gap(fit: GemmFit) -> GemmFit:
    return replace(fit, fixed_seconds=fit.fixed_seconds + LAUNCH_SECONDS)


def plain(fit: object) -> dict[str, float]:
    return {name: short(value) for name, value in asdict(fit).items()}  # type: ignore[call-overload]


def measured_attention(own: dict[tuple[str, str], AttentionFit]) -> dict:
    names = {"fused": "cudnn", "flash2": "flash2"}
    return {
        name: {role: plain(own[kernel, role]) for role in ("forward", "backward")}
        for name, kernel in names.items()
    }


class Fitting:
    """All fits from one set of inputs; `profiles` and `training` are what is written."""

    def __init__(self, gemm: pd.DataFrame, rows: pd.DataFrame) -> None:
        self.gemm, self.rows = gemm, rows
        self.device = device_of(MEASURED_GPU)
        self.report: dict[str, object] = {}
        own = rows[(rows.operator == "gemm") & (rows.dtype == "bf16")]
        self.products = own.groupby(["role", "m", "n", "k"], as_index=False).median_us.mean()
        measured = rows[rows.operator == "attention"]
        self.own: dict[tuple[str, str], AttentionFit] = {}
        for kernel, role in (("flash2", "forward"), ("flash2", "backward"), ("cudnn", "forward"),
                             ("cudnn", "backward")):  # fmt: skip
            name = AttentionKernel.FLASH2 if kernel == "flash2" else AttentionKernel.FUSED
            table = measured[(measured.kernel == kernel) & (measured.role == role)]
            fit, error = fit_attention(table, self.device, name, role == "backward")
            self.own[kernel, role] = fit
            self.report[f"{MEASURED_GPU} attention {kernel} {role}"] = error

    def tables(self) -> dict[str, dict]:
        profiles = {}
        for gpu in MULTIPROCESSORS:
            of_gpu = self.gemm[self.gemm.gpu == gpu]
            bf16 = of_gpu[of_gpu.gemm_dtype == "bfloat16"]
            x, error, _ = fit_gemm(bf16, device_of(gpu), 2.0, "median_us")
            entry = {"bf16": plain(with_gap(gemm_fit(x)))}
            found = {"gemm bf16": error}
            narrow = chips().families[chips().gpus[gpu].family].narrow
            if "fp8" in of_gpu.gemm_dtype.to_numpy() and not narrow:
                # The fastest library: training runs the vendor's fp8 kernels. Power limits
                # them to the same share of the peak.
                fp8 = of_gpu[of_gpu.gemm_dtype == "fp8"]
                y, found["gemm fp8"], _ = fit_gemm(
                    fp8, device_of(gpu, "fp8"), 1.0, "min_us", float(x[1])
                )
                entry["fp8"] = plain(with_gap(gemm_fit(y)))
            profiles[gpu] = {"relative_error": error["deviation"], "errors": found, "gemm": entry}
        return profiles

    def measured(self, sustained: float) -> tuple[dict, dict]:
        """The measured GPU's own profile and the factors carried to all others."""
        forward = self.products[self.products.role == "forward"]
        published = self.gemm[
            (self.gemm.gpu == MEASURED_GPU) & (self.gemm.gemm_dtype == "bfloat16")
        ]
        joint = fit_measured_gemm(forward, published, self.device)
        x = joint[:9]
        self.same_chip(joint)

        def predictor(seen: pd.DataFrame) -> Callable[[pd.DataFrame], Floats]:
            y = fit_measured_gemm(seen, published, self.device)[:9]
            return lambda unseen: warming(
                gemm_fit(y), self.device, shape_of(unseen, "forward"), y[8]
            )

        found = {"gemm bf16": cross_validated(forward, ["n", "k"], predictor)}
        roles, role_errors = fit_roles(self.products, x, self.device)
        x[1] = sustained
        fp8 = self.rows[(self.rows.operator == "gemm") & (self.rows.dtype == "fp8")]
        y, fp8_error = fit_own_fp8(fp8, device_of(MEASURED_GPU, "fp8"))
        found |= {"gemm fp8": fp8_error, **role_errors}
        y[1] = SUSTAINED_EFFICIENCY_FP8
        profile = {
            "errors": found | {k: v for k, v in self.report.items() if k.startswith(MEASURED_GPU)},
            "gemm": {"bf16": plain(gemm_fit(x)), "fp8": plain(gemm_fit(y))},
            "attention": measured_attention(self.own),
        }
        return profile, self.training(x, roles)

    def same_chip(self, joint: Floats) -> None:
        """Report how the measured GPU's fit does on the table of its twin."""
        table = self.gemm[(self.gemm.gpu == SAME_CHIP) & (self.gemm.gemm_dtype == "bfloat16")]
        table = table[table[["m", "n", "k"]].min(axis=1) >= TRAINING_SHAPE]
        shape = shape_of(table, "forward")
        seconds = warming(gemm_fit(joint), device_of(SAME_CHIP), shape, joint[9]) - joint[10]
        self.report["same chip"] = errors(seconds, table.median_us.to_numpy() * 1e-6)

    def training(self, x: Floats, roles: dict[str, RoleFit]) -> dict:
        rows, bandwidth = self.rows, self.device.bandwidth
        grouped, grouped_error = fit_grouped(
            rows[rows.operator == "grouped_gemm"], x, roles, self.device
        )
        copies = rows[(rows.operator == "stream") & rows.kernel.isin(("copy", "add"))]
        copies = copies[copies.num_bytes >= 2**16]
        stream, stream_error = fit_line(
            copies.num_bytes.to_numpy() / bandwidth,
            copies.median_us.to_numpy() * 1e-6,
            (2e-6, 0.85),
        )
        updates = rows[(rows.operator == "optimizer") & (rows.kernel != "zero")]
        total = updates.groupby("parameters").median_us.sum()
        update, update_error = fit_line(
            total.index.to_numpy() * OPTIMIZER_BYTES / bandwidth,
            total.to_numpy() * 1e-6,
            (5e-5, 0.7),
        )
        return {
            "errors": {"grouped": grouped_error, "stream": stream_error, "optimizer": update_error},
            "roles": {role: plain(roles[role]) for role in ("dgrad", "wgrad")},
            "grouped": {
                "efficiency_ratio": short(grouped[0]),
                "fixed_seconds": short(grouped[1]),
            },
            "stream": {"efficiency": short(stream[1]), "fixed_seconds": short(stream[0])},
            "optimizer": {
                "bytes_per_parameter": OPTIMIZER_BYTES,
                "efficiency": short(update[1]),
                "fixed_seconds": short(update[0]),
            },
            "pointwise": pointwise_bytes(rows, bandwidth, stream),
        }


TABLE_ORIGIN = (
    "forward products fitted to aiconfigurator's tables (Apache-2.0, medians over inference "
    f"libraries; fp8: the fastest); backward products carried from {MEASURED_GPU} as ratios, see "
    "training.json"
)
MEASURED_ORIGIN = (
    "own measurement with benchmarks/measure_operators.py (torch 2.11.0, CUDA 13.0, driver 580, "
    "three hosts), forward products together with aiconfigurator's table (Apache-2.0); sustained "
    "efficiency from whole layers run until the clock settled at the 700 W limit"
)
SAME_CHIP_ORIGIN = (
    f"products and attention of {MEASURED_GPU}: the same chip and power limit; errors are against "
    "aiconfigurator's table of this type (Apache-2.0)"
)
# Products, and whole compiled layers, settle here after about five seconds at the power limit; in
# the first half second they reach 0.775. fp8 products settle at 0.62 to 0.67.
SUSTAINED_EFFICIENCY = 0.70
SUSTAINED_EFFICIENCY_FP8 = 0.65
# Power limit over the rate that training products of B200 hold (0.495 of the peak at 1000 W, from
# SimuMax's table, Apache-2.0). The short runs of inference tables do not reach that state.
BLACKWELL_JOULES_PER_FLOP = 8.9e-13


def main() -> None:
    options, products = read_options(__doc__)
    fitting = Fitting(products, measured_rows(options.measured))
    profiles = fitting.tables()
    table_errors = profiles[MEASURED_GPU]["errors"]
    own, training = fitting.measured(SUSTAINED_EFFICIENCY)
    kinds = [v for k, v in own["errors"].items() if k not in ("gemm fp8", "wgrad_bf16")]
    deviation = np.sqrt(np.mean([error["deviation"] ** 2 for error in kinds]))
    profiles[MEASURED_GPU] = {"relative_error": short(float(deviation)), **own}
    profiles[SAME_CHIP] |= {
        "gemm": own["gemm"],
        "attention": own["attention"],
        "errors": fitting.report["same chip"],
    }
    for gpu, entry in profiles.items():
        here = find_gpu(gpu)
        if here.architecture.startswith("Blackwell") and here.form_factor != "PCIe":
            held = here.tdp_watts / (here.peak_flops["bf16"] * BLACKWELL_JOULES_PER_FLOP)
            entry["gemm"]["bf16"]["sustained_efficiency"] = short(held)
    origins = {MEASURED_GPU: MEASURED_ORIGIN, SAME_CHIP: SAME_CHIP_ORIGIN}
    for gpu, entry in profiles.items():
        mine = gpu == MEASURED_GPU
        header = {
            "gpu": gpu,
            "source": "measured" if mine else "tables",
            "date": options.date,
            "origin": origins.get(gpu, TABLE_ORIGIN),
        }
        write(options.out / f"{gpu}.json", header | entry | {"attention_ratio": 1.0})
    path = options.out / "training.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    write(path, kept | training)
    print(json.dumps({"report": fitting.report, "table": table_errors}, indent=1))


def write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
