"""Fits what scans cost to measured kernels: `python benchmarks/fit_scans.py`.

Reads `benchmarks/scans/h200.csv` (`benchmarks/scans_h200.py`) and prints the constants of
`astrarium.cost.scans`: seconds = fixed + products at a share of the peak rate + bytes at a share of
the bandwidth, the least squares of relative errors. Beside them the errors of rows of the fit and
of rows that it has not seen.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from astrarium.catalog import find_gpu
from astrarium.cost.scans import BACKWARD_PRODUCTS, moved_bytes
from astrarium.model.scans import Recurrence, Scan

TABLE: Final = Path(__file__).parent / "scans" / "h200.csv"
KINDS: Final = {
    "ssd": Recurrence.SSD,
    "delta": Recurrence.DELTA,
    "delta_layer": Recurrence.DELTA,
    "lightning": Recurrence.DECAY,
}
PASSES: Final = ("forward", "backward")
Row = dict[str, Any]


def rows() -> list[Row]:
    """The measured rows, with numbers as numbers."""
    with TABLE.open(newline="") as file:
        return [
            {key: text if key in ("op", "set") else float(text) for key, text in row.items()}
            for row in csv.DictReader(file)
        ]


def scan_of(row: Row) -> Scan:
    sizes = {key: int(row[key]) for key in ("heads", "head_dim", "groups", "state", "chunk")}
    return Scan(KINDS[row["op"]], taps=4, **sizes)


def work_of(row: Row, *, backward: bool) -> tuple[float, float]:
    """FLOPs over the peak rate, and bytes over the bandwidth."""
    gpu, scan = find_gpu("h200"), scan_of(row)
    tokens = row["batch"] * row["length"]
    flops = tokens * scan.flops_per_token(int(row["length"]))
    moved = tokens * moved_bytes(scan, 2, backward=backward)
    times = BACKWARD_PRODUCTS if backward else 1.0
    return flops * times / gpu.peak_flops["bf16"], moved / gpu.memory_bandwidth


def fitted(some: list[Row], *, backward: bool) -> np.ndarray[Any, Any]:
    """Fixed seconds, and what products and bytes are multiplied by."""
    name = PASSES[backward]
    terms = np.array([(1e-6, *work_of(row, backward=backward)) for row in some])
    seconds = np.array([row[name] for row in some])
    found, _ = nnls(terms / seconds[:, None], np.ones(len(some)))
    return found * (1e-6, 1.0, 1.0)


def errors(some: list[Row], law: np.ndarray[Any, Any], *, backward: bool) -> list[float]:
    name = PASSES[backward]
    made = [law @ (1.0, *work_of(row, backward=backward)) for row in some]
    return [abs(own / row[name] - 1) for own, row in zip(made, some, strict=True)]


def lines() -> Iterator[str]:
    every = rows()
    for op in KINDS:
        own = [row for row in every if row["op"] == op]
        if not own:
            continue
        for backward in (False, True):
            seen = [row for row in own if row["set"] == "fit"]
            unseen = [row for row in own if row["set"] == "unseen"]
            law = fitted(seen, backward=backward)
            shares = [1 / x if x else float("inf") for x in law[1:]]
            host = statistics.median(row[f"host_{PASSES[backward]}"] for row in own)
            told = [
                f"{statistics.median(found):.1%} median, {max(found):.0%} most of {len(found)}"
                for found in (errors(part, law, backward=backward) for part in (seen, unseen))
            ]
            yield (
                f"{op} {PASSES[backward]}: products {shares[0]:.3f}, traffic {shares[1]:.3f}, fixed"
                f" {law[0]:.2e}, host {host:.1e}; fit {told[0]}; unseen {told[1]}"
            )


if __name__ == "__main__":
    print("\n".join(lines()))
