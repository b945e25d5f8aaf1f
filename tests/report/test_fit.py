"""The text of `fit` promises no strategy where none fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from astrarium.plans.document import PlanDocument
from astrarium.report.plan.fit import SCHEMA, FitDocument, fit_report


@pytest.mark.parametrize(
    ("smallest", "way_out"),
    [
        (None, "no other strategy fits either, on any number of them"),
        (128, "no other strategy fits either: it takes 128 of these GPUs, and 64 are given"),
        (64, "`astrarium plan` finds a strategy that does"),
        (32, "`astrarium plan --mode up-to` finds strategies that do, from 32 GPUs on"),
    ],
)
def test_the_way_out(overfull: PlanDocument, smallest: int | None, way_out: str) -> None:
    document = FitDocument(
        SCHEMA,
        overfull.workload,
        overfull.cluster,
        fits=False,
        excess_bytes=1.0,
        smallest_gpus=smallest,
        why_not="",
        plan=overfull.plans[0],
        changes=(),
    )
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    for part in fit_report(document, 80, chosen=True):
        console.print(part)
    shown = " ".join(stream.getvalue().split())
    assert way_out in shown
    assert ("astrarium plan" in shown) == (smallest is not None and smallest <= 64)
