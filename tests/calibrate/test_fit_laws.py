"""Laws of a core are found again from the times that they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simple_core import CALL, DEVICE, ELEMENT, FLOP, Journal, core_rows

from astrarium.calibrate.fit import laws as fit_laws
from astrarium.calibrate.fit.factors import fit_rows
from astrarium.calibrate.fit.profile import DeviceProfile, make_header, with_measured_cores
from astrarium.calibrate.measure.cases import LINEAR, LOSS, PREFIX
from astrarium.cluster import parse_gpus
from astrarium.cost import laws
from astrarium.cost.tuning import Tuning


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return core_rows()


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


def test_products_whose_arithmetic_takes_no_time_have_the_fastest_measured_rate(
    rows: list[dict[str, Any]],
) -> None:
    """As on a machine whose memory is slow: least squares may leave the arithmetic out."""
    products = [row for row in rows if row["operator"] == LINEAR]
    flat = [{**row, "min_us": 5.0} if row["operator"] == LINEAR else row for row in rows]
    core = fit_laws.fit_core(flat)
    assert core is not None
    assert core.laws[laws.LINEAR][1] == pytest.approx(0.0, abs=1e-20)
    most = max(laws.linear_terms(row["m"], row["n"], row["k"])[1] for row in products)
    assert core.flops == pytest.approx(most / 5e-6)


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


def test_a_profile_carries_the_core(rows: list[dict[str, Any]], tmp_path: Any) -> None:
    header = make_header(Journal(rows))  # type: ignore[arg-type]
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
