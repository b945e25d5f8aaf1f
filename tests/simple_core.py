"""Rows of a processor whose core follows simple laws, as its calibration would have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from astrarium.calibrate.measure.cases import (
    ATTENTION,
    LINEAR,
    LOOKUP,
    LOSS,
    NOTHING,
    PREFIX,
    UPDATE,
    Scale,
)
from astrarium.calibrate.measure.sections import collective_cases, list_cases
from astrarium.cost import laws

CALL, FLOP, ELEMENT = 5e-6, 1e-11, 2e-10
AUTOGRAD = 3e-5
DEVICE = {"kind": "cpu", "name": "a processor", "cores": 4, "memory_bytes": 8 << 30}


def _row(columns: dict[str, Any], seconds: float) -> dict[str, Any]:
    times = dict.fromkeys(("median_us", "min_us", "max_us", "host_us"), seconds * 1e6)
    return {**columns, **times}


def _seconds(columns: dict[str, Any]) -> float:
    """What a core of simple laws would take for a case."""
    operator, role = columns["operator"], columns.get("role")
    if operator == NOTHING:
        return AUTOGRAD
    if operator == LINEAR:
        terms = laws.linear_terms(columns["m"], columns["n"], columns["k"])
        return float(np.dot([CALL, FLOP, ELEMENT], terms))
    if operator == ATTENTION:
        length, dims = columns["q_length"], 2 * columns["key_dim"]
        terms = laws.attention_terms(columns["batch"], columns["heads"], length, length, dims)
        plain = float(np.dot([CALL, ELEMENT, FLOP, ELEMENT], terms))
        return plain + (AUTOGRAD if role == "backward" else 0.0)
    if operator == UPDATE:
        return CALL * columns["groups"] + ELEMENT * columns["groups"] * columns["parameters"]
    size = columns["m"] * columns["k" if operator == LOOKUP else "n"]
    plain = CALL + ELEMENT * size
    if operator == LOSS and role == "both":
        return 2 * plain + AUTOGRAD
    alone = operator.removeprefix(PREFIX) in (
        "residual",
        "bias_gradient",
        "qkv_gradient",
        "accumulate",
    )
    return plain + (AUTOGRAD if role == "backward" and not alone else 0.0)


def core_rows() -> list[dict[str, Any]]:
    """All rows that laws and messages of a core are made of."""
    cases = list_cases(("processor",), Scale.SMALL, "cpu")
    found = [_row(case.columns, _seconds(case.columns)) for case in cases]
    for case in collective_cases(Scale.SMALL, "cpu", 2):
        size = float(case.columns["num_bytes"])
        found.append(_row(case.columns, 1e-4 + (size * 1e-9 if size >= 1 << 20 else 0.0)))
    return [*found, _row({"section": "host", "operator": "launch", "kernel": "host_gap"}, 2e-6)]


class Journal:
    """What `make_header` reads of a journal."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.header = rows, {"device": DEVICE, "date": "2026-11-16"}
        self.failed: list[dict[str, Any]] = []
        self.given_up: list[dict[str, Any]] = []
