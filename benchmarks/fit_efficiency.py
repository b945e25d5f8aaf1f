"""Fits what all GPU types share: the law of products and attention, and the boosted corrections.

    fit_efficiency.py --tables FOLDER --measured RUN.csv [MORE.parquet ...] --date D --out DIR

FOLDER has gemm_forward.parquet and attention_forward_causal.parquet (see fit_profiles.py); the
measured runs are of MEASURED_GPU. Writes DIR/efficiency/*.json and completes
DIR/profiles/*.json (run fit_profiles.py first). Every stated error is of rows that were not
fitted: of a GPU type left out, or of shapes left out. A class of operators keeps its trees only
if they beat the formula there. Needs pandas, pyarrow, scipy and xgboost (the extra `fit`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from attention_law import (
    LAW_ROWS_PER_GPU,
    attention_report,
    fit_attention_law,
    law_trees,
    own_attention,
    ratios,
    sampled,
)
from gemm_law import EDGE_EXPONENT, REFERENCE_FLOPS, fit_law, fp8_trees, gemm_report, own_roles
from operator_fits import (
    MEASURED_GPU,
    MULTIPROCESSORS,
    attention_table,
    measured_rows,
    read_options,
    relatives,
)

from astrarium.catalog.profiles import Correction, GemmFit

LEAST_GAIN = 0.05  # of the median error, for trees to be kept
# Carrying backward kernels from the measured GPU to another adds this much doubt.
CARRIED_ERROR = 0.05
ORIGIN = (
    "forward products and causal attention of nine GPU types (aiconfigurator's tables, "
    f"Apache-2.0), backward kernels and FlashAttention-2 of {MEASURED_GPU} (own measurement)"
)


def short(value: float) -> float:
    """Four digits; what a bound left at almost nothing is nothing."""
    return float(f"{value:.4g}") if abs(value) > 1e-8 else 0.0


def plain(fit: object) -> dict[str, float]:
    return {name: short(value) for name, value in asdict(fit).items()}  # type: ignore[call-overload]


def better(trees: dict[str, float], formula: dict[str, float]) -> bool:
    """Whether trees are worth keeping: clearly better in the median, no worse in the tail."""
    gain = trees["median"] < (1 - LEAST_GAIN) * formula["median"]
    return gain and trees["deviation"] <= formula["deviation"]


def total(error: dict[str, float]) -> float:
    return float(np.hypot(error["deviation"], error["bias"]))


def left_out_errors(report: dict) -> dict[str, float]:
    """One deviation for types with a measured relative, one for new designs."""
    errors: dict[str, list[float]] = {"same_design": [], "new_design": []}
    for gpu in MULTIPROCESSORS:
        kind = "same_design" if relatives(gpu) else "new_design"
        chosen = "relative" if kind == "same_design" else "law"
        errors[kind] += [
            total(report["gemm"]["left out"][gpu][chosen]),
            total(report["attention"]["left out"][gpu]["trees"]),
        ]
    return {
        kind: short(float(np.hypot(np.sqrt(np.mean(np.square(found))), CARRIED_ERROR)))
        for kind, found in errors.items()
    }


def complete_profiles(folder: Path, report: dict, ratios: dict[str, float]) -> None:
    """Attention of types that follow the law; relative errors, of shapes that were not fitted."""
    for gpu in MULTIPROCESSORS:
        path = folder / f"{gpu}.json"
        profile = json.loads(path.read_text())
        if gpu == MEASURED_GPU:
            kinds = [total(found["kept"]) for found in report["measured"].values()]
            error = np.sqrt(np.mean(np.square(kinds)))
        else:
            where = report["attention"]
            # Types that take their attention from the measured one's are left out of its fit.
            attention = where["left out" if profile.get("attention") else "known"][gpu]
            attention = attention["relative" if profile.get("attention") else "trees"]
            products = profile["errors"].get("gemm bf16", profile["errors"])
            error = np.sqrt((total(products) ** 2 + total(attention) ** 2) / 2)
            error = np.hypot(error, CARRIED_ERROR)
        profile["attention_ratio"] = 1.0 if profile.get("attention") else short(ratios[gpu])
        profile["relative_error"] = short(float(error))
        path.write_text(json.dumps(profile, indent=1) + "\n")


def keep(
    report: dict, corrections: dict[str, Correction], name: str, fitted: Callable[[], Correction]
) -> None:
    """Keep the trees of a class measured on one GPU if they win; note what was kept."""
    found = report["measured"][name]
    wins = better(found["trees"], found["formula"])
    found["kept"] = found["trees"] if wins else found["formula"]
    if wins:
        corrections[name] = fitted()


def main() -> None:
    options, products = read_options(__doc__)
    heads = attention_table(options.tables / "attention_forward_causal.parquet")
    rows = measured_rows(options.measured)
    laws: dict[str, GemmFit] = {
        "bf16": fit_law(products, "bf16"),
        "fp8": fit_law(products, "fp8"),
    }
    law = fit_attention_law(sampled(heads, LAW_ROWS_PER_GPU, 2))
    report: dict = {
        "gemm": gemm_report(products, "bf16"),
        "gemm fp8": gemm_report(products, "fp8"),
        "attention": attention_report(heads),
        "measured": {},
    }
    corrections = {"attention_law": law_trees(law, heads), "gemm_fp8": fp8_trees(products)}
    for name, (errors, fitted) in {**own_attention(rows), **own_roles(rows, products)}.items():
        report["measured"][name] = errors
        keep(report, corrections, name, fitted)
    folder = options.out / "efficiency"
    for old in folder.glob("*.json"):
        old.unlink()
    content = {
        "origin": ORIGIN,
        "date": options.date,
        "reference_gpu": MEASURED_GPU,
        "reference_flops": REFERENCE_FLOPS,
        "joules_exponent": EDGE_EXPONENT,
        "gemm": {dtype: plain(fit) for dtype, fit in laws.items()},
        "attention": plain(law.fit),
        "attention_joules_per_flop": law.joules_per_flop,
        "left_out": left_out_errors(report),
        "errors": report,
    }
    (folder / "law.json").write_text(json.dumps(content, indent=1) + "\n")
    for name, found in corrections.items():
        (folder / f"{name}.json").write_text(
            json.dumps(asdict(found), separators=(",", ":")) + "\n"
        )
    known = ratios(law, corrections["attention_law"], heads)
    complete_profiles(options.out / "profiles", report, known)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
