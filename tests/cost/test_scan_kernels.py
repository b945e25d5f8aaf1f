"""Predicted scans against the measured shapes, and what the table says of memory."""

from __future__ import annotations

from fit_scans import Row, rows, scan_of

from astrarium.catalog import find_gpu
from astrarium.cost.efficiency import operator_model
from astrarium.cost.scans import BACKWARD_PRODUCTS, FITS, moved_bytes


def predicted(row: Row, *, backward: bool) -> float:
    scan, tokens = scan_of(row), row["batch"] * row["length"]
    fit = FITS[scan.kind][backward]
    flops = tokens * scan.flops_per_token(int(row["length"]))
    work = operator_model(find_gpu("h200")).products_and_bytes(
        flops * (BACKWARD_PRODUCTS if backward else 1.0),
        tokens * moved_bytes(scan, 2, backward=backward),
        rate_share=fit.products,
        traffic_share=fit.traffic,
    )
    return float(work) + fit.fixed_seconds


def of(op: str) -> list[Row]:
    return [row for row in rows() if row["op"] == op]


def test_forward_passes_are_within_a_tenth() -> None:
    found = of("ssd")
    assert len(found) == 5
    assert all(abs(predicted(row, backward=False) / row["forward"] - 1) < 0.1 for row in found)


def test_backward_passes_are_within_two_fifths() -> None:
    errors = [abs(predicted(row, backward=True) / row["backward"] - 1) for row in of("ssd")]
    assert max(errors) < 0.4


def test_lightning_attention_is_of_one_shape() -> None:
    (row,) = of("lightning")
    assert abs(predicted(row, backward=False) / row["forward"] - 1) < 0.1
    assert abs(predicted(row, backward=True) / row["backward"] - 1) < 0.1


def test_a_scan_alone_keeps_no_more_than_its_output_and_steps() -> None:
    """Beside its inputs, which are there anyway; the rest is found again."""
    for row in of("ssd"):
        scan = scan_of(row)
        per_token = row["kept_bytes"] / (row["batch"] * row["length"])
        assert per_token <= 2 * scan.inner + 16 * scan.heads
