"""Fits what scans cost to measured kernels: `python benchmarks/fit_scans.py`.

Reads `benchmarks/scans/h200.csv` (`benchmarks/scans_h200.py`) and prints the constants of
`astrarium.cost.scans`: seconds = fixed + bytes at a share of the bandwidth, the least squares of
relative errors. Beside them the errors of each shape under the fit of the others. Products took
less than their half of the peak rate would in every shape, so that nothing says what they reach.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from astrarium.catalog import find_gpu
from astrarium.cost.scans import moved_bytes
from astrarium.model.scans import Recurrence, Scan

TABLE: Final = Path(__file__).parent / "scans" / "h200.csv"
KINDS: Final = {
    "ssd": Recurrence.SSD,
    "delta": Recurrence.DELTA,
    "delta_layer": Recurrence.DELTA,
    "lightning": Recurrence.DECAY,
}
PASSES: Final = ("forward", "backward")
FEWEST: Final = 2  # rows: as many as there are constants
Row = dict[str, Any]


def rows() -> list[Row]:
    """The measured rows, with numbers as numbers."""
    with TABLE.open(newline="") as file:
        return [
            {key: text if key in ("op", "set") else float(text) for key, text in row.items()}
            for row in csv.DictReader(file)
        ]


def scan_of(row: Row) -> Scan:
    names = ("heads", "head_dim", "groups", "state", "chunk")
    heads, head_dim, groups, state, chunk = (int(row[name]) for name in names)
    return Scan(KINDS[row["op"]], heads, head_dim, groups, state, chunk, taps=4)


def bytes_of(row: Row, *, backward: bool) -> float:
    """Seconds of the bytes of a pass at the full bandwidth."""
    moved = moved_bytes(scan_of(row), 2, backward=backward)
    return row["batch"] * row["length"] * moved / find_gpu("h200").memory_bandwidth


def fitted(some: list[Row], *, backward: bool) -> np.ndarray[Any, Any]:
    """Fixed seconds, and what bytes are multiplied by."""
    seconds = np.array([row[PASSES[backward]] for row in some])
    terms = np.array([(1.0, bytes_of(row, backward=backward)) for row in some])
    found, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(some)))
    return np.asarray(found)


def left_out(some: list[Row], *, backward: bool) -> list[float]:
    """The relative error of each row under the fit of the others."""
    found = []
    for number, row in enumerate(some):
        law = fitted(some[:number] + some[number + 1 :], backward=backward)
        made = law @ (1.0, bytes_of(row, backward=backward))
        found.append(abs(made / row[PASSES[backward]] - 1))
    return found


def lines() -> Iterator[str]:
    """A line for each operator and pass, of those with enough rows."""
    for op in KINDS:
        own = [row for row in rows() if row["op"] == op]
        for backward in (False, True) if len(own) > FEWEST else ():
            fixed, times = fitted(own, backward=backward)
            host = statistics.median(row[f"host_{PASSES[backward]}"] for row in own)
            told = " ".join(f"{error:.0%}" for error in left_out(own, backward=backward))
            yield (
                f"{op} {PASSES[backward]}: traffic {1 / times:.3f}, fixed {fixed:.2e}, host"
                f" {host:.1e}; left out: {told}"
            )


if __name__ == "__main__":
    print("\n".join(lines()))
