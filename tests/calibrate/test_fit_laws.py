"""Laws of a core are found again from the times that they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astrarium.calibrate import fit_laws
from astrarium.calibrate.cases import Scale
from astrarium.calibrate.cases_collectives import collective_cases
from astrarium.calibrate.cases_processor import (
    ATTENTION,
    LINEAR,
    LOOKUP,
    LOSS,
    NOTHING,
    PREFIX,
    UPDATE,
)
from astrarium.calibrate.fit import fit_rows
from astrarium.calibrate.processor import with_measured_cores
from astrarium.calibrate.profile import DeviceProfile, make_header
from astrarium.calibrate.sections import list_cases
from astrarium.cluster import parse_gpus
from astrarium.cost import laws
from astrarium.cost.tuning import Tuning

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


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    cases = list_cases(("processor",), Scale.SMALL, "cpu")
    found = [_row(case.columns, _seconds(case.columns)) for case in cases]
    for case in collective_cases(Scale.SMALL, "cpu", 2):
        size = float(case.columns["num_bytes"])
        found.append(_row(case.columns, 1e-4 + (size * 1e-9 if size >= 1 << 20 else 0.0)))
    return [*found, _row({"section": "host", "operator": "launch", "kernel": "host_gap"}, 2e-6)]


def test_every_law_is_found_again(rows: list[dict[str, Any]]) -> None:
    core = fit_laws.fit_core(rows)
    assert core is not None
    assert core.relative_error < 1e-6
    assert core.laws[laws.LINEAR] == pytest.approx((CALL, FLOP, ELEMENT))
    assert core.laws[laws.UPDATE] == pytest.approx((CALL, ELEMENT))
    for name, law in core.laws.items():
        if name.startswith(laws.ATTENTION):
            assert law == pytest.approx((CALL, ELEMENT, FLOP, ELEMENT))
        elif name not in (laws.LINEAR, laws.UPDATE):
            assert law == pytest.approx((CALL, ELEMENT)), name
    assert core.flops == pytest.approx(1 / FLOP)
    assert core.host == pytest.approx(2e-6 / fit_laws.REFERENCE_DISPATCH)
    for law in core.messages.values():
        assert law == pytest.approx((1e-4, 1e-9))


def test_a_slower_batch_changes_no_law(rows: list[dict[str, Any]]) -> None:
    disturbed = [{**row, "median_us": 3.0 * row["median_us"]} for row in rows]
    calm, loud = fit_laws.fit_core(rows), fit_laws.fit_core(disturbed)
    assert calm is not None
    assert loud is not None
    assert loud.laws == calm.laws


def test_a_core_needs_all_laws(rows: list[dict[str, Any]]) -> None:
    for lacking in (LINEAR, PREFIX + "gelu", LOSS):
        assert fit_laws.fit_core([row for row in rows if row["operator"] != lacking]) is None
    few = [row for row in rows if row["operator"] != LINEAR]
    few += [row for row in rows if row["operator"] == LINEAR][:2]
    assert fit_laws.fit_core(few) is None


def test_messages_are_laws_only_where_all_were_measured(rows: list[dict[str, Any]]) -> None:
    silent = [row for row in rows if row["operator"] != "send"]
    assert fit_laws.fit_messages(silent) == {}
    assert fit_laws.fit_core(silent) is None


def test_coefficients_are_never_negative() -> None:
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    law, errors = fit_laws.fitted(np.stack([np.ones(4), sizes], axis=1), 3.0 * sizes - 1.0)
    assert law[0] == 0.0
    assert 2.0 < law[1] < 3.0
    assert max(errors) > 0.01


def test_a_processor_is_a_device_of_the_catalog(rows: list[dict[str, Any]]) -> None:
    assert fit_rows(rows, DEVICE).gpu == fit_laws.CORE
    assert fit_rows(rows, {"kind": "cuda", "name": "unheard of"}).gpu is None


class _Journal:
    """What `make_header` reads of a journal."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.header = rows, {"device": DEVICE, "date": "2026-11-16"}
        self.failed: list[dict[str, Any]] = []
        self.given_up: list[dict[str, Any]] = []


def test_a_profile_carries_the_core(rows: list[dict[str, Any]], tmp_path: Any) -> None:
    header = make_header(_Journal(rows))  # type: ignore[arg-type]
    tuning = Tuning(**DeviceProfile(tmp_path / "cpu.parquet", header).tuning)
    assert tuning.runtime == "megatron-cpu"
    assert tuning.laws[laws.LINEAR] == pytest.approx((CALL, FLOP, ELEMENT))
    cluster = with_measured_cores(parse_gpus("cpu:1,cpu@50%:1,h100:8"), header)
    whole, half, gpu = cluster.pools
    assert gpu == parse_gpus("h100:8").pools[0]
    assert whole.gpu.peak_flops["fp32"] == pytest.approx(1 / FLOP)
    assert whole.gpu.memory_bytes == 2 << 30
    assert whole.intra_node_bandwidth == pytest.approx(1e9)
    assert half.intra_node_bandwidth == pytest.approx(0.5e9)
    assert half.inter_node_latency == pytest.approx(2 * whole.inter_node_latency)
