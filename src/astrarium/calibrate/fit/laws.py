"""Makes laws of a core (`astrarium.cost.laws`) from the rows of its calibration.

Least squares of relative errors, with coefficients that are not negative. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.calibrate.measure import cases
from astrarium.calibrate.measure.sections import GROUPED, SEND
from astrarium.cost import laws
from astrarium.cost.laws import Laws

Row = Mapping[str, Any]

CORE: Final = "CPU-core"  # the name of a core in the catalog
RUNTIME: Final = "megatron-cpu"  # whose operators are measured
# What one operator took to dispatch where constants of that runtime were measured.
REFERENCE_DISPATCH: Final = 1.0e-6
RANKS: Final = 2  # of the groups that laws of messages are made of
LARGE_MESSAGE: Final = 1 << 20  # bytes; smaller ones take the time of a call
LEAST_MESSAGES: Final = 2  # of either kind
LEAST_ARITHMETIC: Final = 0.5  # of the time of the fastest product; less says nothing of its rate
LEAST_ROWS: Final = 3  # of an operator and pass; fewer leave its law undetermined


@dataclass(frozen=True, slots=True)
class CoreFit:
    """The result of a calibration for one core of a processor."""

    laws: Laws
    relative_error: float  # typical, of single operators
    flops: float  # FLOP/s that no product exceeds
    host: float  # time to dispatch an operator against that where the runtime was measured
    messages: Laws  # between two cores, by operation: seconds of a call, and of a byte


def fit_core(rows: Sequence[Row]) -> CoreFit | None:
    """The laws of a core; None if not all of them, or no messages, were measured."""
    own = [row for row in rows if row.get("section") == cases.SECTION]
    found: dict[str, tuple[float, ...]] = {}
    errors: list[float] = []
    measured = _measured(own)
    for name, (terms, seconds) in measured.items():
        if len(seconds) < LEAST_ROWS:
            return None
        law, off = fitted(np.asarray(terms), np.asarray(seconds))
        found[name] = tuple(law)
        errors += off
    messages = fit_messages(rows)
    if not _expected() <= set(found) or not messages:
        return None
    return CoreFit(
        laws=found,
        relative_error=float(np.median(errors)),
        flops=_most_flops(found[laws.LINEAR], *measured[laws.LINEAR]),
        host=_dispatch_seconds(rows) / REFERENCE_DISPATCH,
        messages=messages,
    )


def _most_flops(
    law: Sequence[float], terms: Sequence[Sequence[float]], seconds: Sequence[float]
) -> float:
    """FLOP/s of large products, or of the fastest one if bytes explain most of its time."""
    fastest = max(each[1] / took for each, took in zip(terms, seconds, strict=True))
    return 1.0 / law[1] if law[1] * fastest > LEAST_ARITHMETIC else fastest


def _dispatch_seconds(rows: Iterable[Row]) -> float:
    gaps = [_seconds(row) for row in rows if row["operator"] == "launch"]
    return min(gaps, default=REFERENCE_DISPATCH)


def fit_messages(rows: Sequence[Row]) -> Laws:
    """Median times of messages between two cores, by operation; empty if not measured."""
    found: dict[str, tuple[float, ...]] = {}
    for name in (*GROUPED, SEND):
        sent = [row for row in rows if row["operator"] == name and row["ranks"] == RANKS]
        sizes = np.array([float(row["num_bytes"]) for row in sent])
        seconds = np.array([float(row["median_us"]) * 1e-6 for row in sent])
        large = sizes >= LARGE_MESSAGE
        if min(large.sum(), (~large).sum()) >= LEAST_MESSAGES:
            call = float(np.median(seconds[~large]))
            byte = float(np.median((seconds - call)[large] / sizes[large]))
            if byte > 0.0:
                found[name] = (call, byte)
    return found if len(found) == len(GROUPED) + 1 else {}


def fitted(terms: Floats, seconds: Floats) -> tuple[list[float], list[float]]:
    """Coefficients >= 0 with the least relative errors, and these errors."""
    scaled = terms / seconds[:, None]
    kept = list(range(terms.shape[1]))
    solution: Floats = np.zeros(len(kept))
    while kept:
        found = np.linalg.lstsq(scaled[:, kept], np.ones(len(seconds)), rcond=None)[0]
        solution = np.asarray(found, np.float64)
        if solution.min() >= 0.0:
            break
        kept.pop(int(np.argmin(solution)))
    law = np.zeros(terms.shape[1])
    law[kept] = solution
    return law.tolist(), np.abs(terms @ law / seconds - 1.0).tolist()


def _expected() -> set[str]:
    pointwise = {f"{name}_{role}" for name, roles in cases.POINTWISE.items() for role in roles}
    ends = {f"{name}_{role}" for name in ("cross_entropy", "embedding") for role in laws.PASS_NAMES}
    attention = {f"{laws.ATTENTION}_{role}" for role in laws.PASS_NAMES}
    return pointwise | ends | attention | {laws.LINEAR, laws.UPDATE}


_Points = dict[str, tuple[list[list[float]], list[float]]]


def _measured(rows: Sequence[Row]) -> _Points:
    nothing = min((_seconds(row) for row in rows if row["operator"] == cases.NOTHING), default=0.0)
    loss = {(r["m"], r["n"]): _seconds(r) for r in rows if _is(r, cases.LOSS, "forward")}
    found: _Points = {}
    for row in rows:
        name, terms = _law_of(row)
        seconds = _seconds(row)
        if row.get("role") == "both":
            forward = loss.get((row["m"], row["n"]))
            if forward is None:
                continue
            seconds = seconds - forward
        if row.get("role") in ("both", "backward") and not _is_plain(row["operator"]):
            seconds -= nothing
        if name and seconds > 0.0:
            points = found.setdefault(name, ([], []))
            points[0].append([float(term) for term in terms])
            points[1].append(seconds)
    return found


def _is(row: Row, operator: str, role: str) -> bool:
    return row["operator"] == operator and row.get("role") == role


def _is_plain(operator: str) -> bool:
    """Whether its backward rows are plain calls, not autograd's."""
    plain = ("bias_gradient", "qkv_gradient", "accumulate", "residual")
    return operator in {cases.PREFIX + name for name in plain} | {cases.LINEAR, cases.UPDATE}


def _law_of(row: Row) -> tuple[str, Sequence[Any]]:
    """The law that a row belongs to, and its terms; no name if it belongs to none."""
    role = "backward" if row.get("role") == "both" else row.get("role")
    makers: dict[str, Callable[[], tuple[str, Sequence[Any]]]] = {
        cases.LINEAR: lambda: (laws.LINEAR, laws.linear_terms(row["m"], row["n"], row["k"])),
        cases.ATTENTION: lambda: (f"{laws.ATTENTION}_{role}", _attention(row)),
        cases.UPDATE: lambda: (laws.UPDATE, (row["groups"], row["groups"] * row["parameters"])),
        cases.LOOKUP: lambda: (f"embedding_{role}", (1.0, row["m"] * row["k"])),
        cases.NOTHING: lambda: ("", ()),
    }
    if row["operator"] in makers:
        return makers[row["operator"]]()
    return f"{row['operator'].removeprefix(cases.PREFIX)}_{role}", (1.0, row["m"] * row["n"])


def _attention(row: Row) -> list[Floats]:
    length = row["q_length"]
    return laws.attention_terms(row["batch"], row["heads"], length, length, 2 * row["key_dim"])


def _seconds(row: Row) -> float:
    """The fastest batch: what else runs on the machine only ever adds."""
    return float(row["min_us"]) * 1e-6
