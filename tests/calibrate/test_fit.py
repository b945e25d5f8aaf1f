"""Factors: what is put in comes out, with doubt for few rows and limits for nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astrarium.calibrate.fit.factors import (
    BOUNDS,
    LEAST_SECONDS,
    PRIOR_ROWS,
    class_fits,
    fit_rows,
    host_seconds,
    link_ratios,
    predicted,
    summarised,
)
from astrarium.calibrate.measure.cases import Scale
from astrarium.calibrate.measure.journal import JournalContents
from astrarium.calibrate.measure.sections import SECTIONS, collective_cases, list_cases
from astrarium.catalog import find_gpu
from astrarium.cost.efficiency import operator_model
from astrarium.errors import InputError

Rows = list[dict[str, Any]]
H200 = operator_model(find_gpu("h200"))


def modelled_rows(factor: float, sections: tuple[str, ...] = SECTIONS) -> Rows:
    """The rows that a GPU slower than the model by this factor would give."""
    rows = []
    for case in list_cases(sections, Scale.FULL, "cuda"):
        found = predicted(case.columns, H200)
        if found is not None:
            rows.append({**case.columns, "median_us": found[1] * factor * 1e6})
    return rows


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_a_slower_device_is_found_out(factor: float) -> None:
    fits = class_fits(modelled_rows(factor), H200)
    assert set(fits) >= {
        "gemm",
        "gemm_dgrad",
        "gemm_wgrad",
        "gemm_fp8",
        "grouped_gemm",
        "attention_forward",
        "attention_backward",
        "pointwise",
        "pointwise_fused",
        "cross_entropy",
        "embedding",
        "streaming",
    }
    for fit in fits.values():
        assert fit.median == pytest.approx(factor)
        assert fit.spread == pytest.approx(0.0, abs=1e-9)
        assert min(1.0, factor) - 1e-9 <= fit.ratio <= max(1.0, factor) + 1e-9
    assert fits["gemm"].ratio == pytest.approx(factor, rel=0.01)  # has many rows


def test_a_warm_card_counts() -> None:
    rows = modelled_rows(1.0)
    for row in rows:
        if row["operator"] == "gemm_sustained":
            row["median_us"] *= 1.1
    fits = class_fits(rows, H200)
    assert fits["gemm"].median == pytest.approx(1.1)
    assert fits["gemm_fp8"].median == pytest.approx(1.1)
    assert fits["streaming"].median == pytest.approx(1.0)


def test_one_wild_row_moves_nothing() -> None:
    rows = modelled_rows(1.2, ("stream",))
    rows[-1]["median_us"] *= 100
    assert class_fits(rows, H200)["streaming"].median == pytest.approx(1.2)


def test_launches_do_not_count() -> None:
    short = [
        row for row in modelled_rows(5.0, ("stream",)) if row["median_us"] < 1e6 * LEAST_SECONDS
    ]
    assert short
    assert class_fits(short, H200) == {}


def test_few_rows_are_doubted_and_nonsense_is_bounded() -> None:
    few, many = summarised(np.full(4, 1.5)), summarised(np.full(400, 1.5))
    assert few.ratio == pytest.approx(1.5 ** (4 / (4 + PRIOR_ROWS)))
    assert many.ratio == pytest.approx(1.5, rel=0.01)
    assert summarised(np.full(400, 50.0)).ratio == pytest.approx(BOUNDS[1])
    assert summarised(np.full(400, 0.01)).ratio == pytest.approx(BOUNDS[0])


def test_classes_out_of_bounds_are_marked() -> None:
    assert not summarised(np.full(400, 2.0)).bounded
    assert summarised(np.full(3, 50.0)).bounded
    assert summarised(np.full(3, 0.01)).bounded


def test_products_faster_than_the_peak_are_refused() -> None:
    rows = modelled_rows(1.0)
    row = next(row for row in rows if row["operator"] == "gemm" and row["dtype"] == "bf16")
    row["median_us"] /= 10
    with pytest.raises(InputError, match=r"PFLOP/s, but the peak of a H200-SXM5-141GB is 989"):
        fit_rows(rows, {"name": "NVIDIA H200"})


def test_an_optimizer_step_is_the_sum_of_its_parts() -> None:
    rows: Rows = []
    for parameters in (1 << 24, 1 << 27, 1 << 29):
        total = H200.optimizer_step(parameters).item() * 1e6
        shares = {"adam": 0.6, "norm": 0.1, "clip": 0.2, "cast": 0.1, "zero": 9.0}
        rows += [
            {"operator": "optimizer", "kernel": name, "parameters": parameters, "median_us": t}
            for name, t in ((name, share * total) for name, share in shares.items())
        ]
    fit = class_fits(rows, H200)["optimizer"]
    assert fit.rows == 3
    assert fit.median == pytest.approx(1.0)


def test_a_known_gpu_is_compared_with_itself() -> None:
    fit = fit_rows(modelled_rows(1.0), {"name": "NVIDIA H200"})
    assert fit.gpu == "H200-SXM5-141GB"
    assert fit.specification is None
    assert fit.intra_link is None


def test_a_stranger_gets_figures_from_what_it_reached(measured: JournalContents) -> None:
    fit = fit_rows(measured.rows, {"name": "some processor"})
    assert fit.gpu is None
    assert fit.specification is not None
    assert fit.specification.flops > 1e8
    assert fit.specification.memory_bandwidth > 1e8
    low, high = BOUNDS
    assert all(low * 0.999 <= entry.ratio <= high * 1.001 for entry in fit.operators.values())


def test_too_little_was_measured_for_figures() -> None:
    rows = modelled_rows(1.0, ("stream",))
    fit = fit_rows(rows, {"name": "some processor"})
    assert (fit.specification, fit.operators) == (None, {})


def test_links_are_compared_inside_a_node() -> None:
    gpu = find_gpu("h200")
    rows: Rows = [
        {**case.columns, "median_us": 1.0} for case in collective_cases(Scale.FULL, "cuda", 8)
    ]
    ratios = link_ratios(rows, gpu)
    for row, ratio in zip([r for r in rows if r["num_bytes"] >= 1 << 20], ratios, strict=True):
        row["median_us"] = 1.25 / ratio
    assert link_ratios(rows, gpu) == pytest.approx(np.full(len(ratios), 1.25))
    fit = fit_rows(rows, {"name": "NVIDIA H200"}).intra_link
    assert fit is not None
    assert fit.ratio == pytest.approx(1.25, rel=0.02)


def test_the_host_has_seconds_of_its_own(measured: JournalContents) -> None:
    host = host_seconds(measured.rows)
    assert {"launch_seconds", "kernel_seconds", "layer_forward_seconds"} <= set(host)
    assert all(seconds > 0 for seconds in host.values())
    rows: Rows = [
        {"operator": "layer_host", "role": "forward", "groups": 12, "median_us": 12e3},
        {"operator": "layer_host", "role": "both", "groups": 12, "median_us": 30e3},
    ]
    assert host_seconds(rows) == pytest.approx(
        {"layer_forward_seconds": 1e-3, "layer_backward_seconds": 1.5e-3}
    )
