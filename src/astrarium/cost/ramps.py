"""The least cost of idle ranks where ranks have several chunks: a table of proved figures.

A pipeline of P ranks, v chunks on each and g P micro-batches takes T >= r g S, where S is one
micro-batch on all ranks together: ranks that never wait would take g S. The least r, over all
seconds of all chunks, forward and backward, is a linear program with a row for each chain of passes
(`cost.chains`). `benchmarks/fit_ramps.py` solves it and writes `catalog/data/ramps.json`. Other
shapes have the closed form of `cost.dealings`, about half of the ramp of even chunks.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from astrarium import catalog
from astrarium.arrays import Floats, Ints

DATA: Final = Path(catalog.__file__).parent / "data" / "ramps.json"


def least_ramp(pp: Ints, batches: Ints, virtual: Ints) -> Floats:
    """r of pipelines with several chunks, 1 of others; micro-batches come in groups of pp."""
    table = _table()
    pp, batches, virtual = np.broadcast_arrays(pp, batches, virtual)
    ramp = (pp - 1) / (batches * virtual)
    closed = np.where(virtual > 1, (1 + ramp) / (1 + ramp / 2), 1.0)
    at = pp, virtual, batches // pp
    known = np.logical_and.reduce([of < size for of, size in zip(at, table.shape, strict=True)])
    known &= batches % pp == 0
    found = table[tuple(np.where(known, of, 0) for of in at)]
    return np.maximum(closed, found)


@cache
def _table() -> Floats:
    """By ranks, chunks and groups of micro-batches; 0 where nothing is known."""
    rows = json.loads(DATA.read_text())["least"]
    found = np.zeros(
        [1 + max(of) for of in zip(*((p, v, len(of)) for p, v, of in rows), strict=True)]
    )
    for pp, virtual, least in rows:
        found[pp, virtual, 1 : len(least) + 1] = least
    return found
