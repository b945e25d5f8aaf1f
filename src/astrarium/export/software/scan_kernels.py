"""The packages that hold the kernels of scans; without them programs refuse, or are slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from astrarium.model.blocks import Block, Model
from astrarium.model.scans import Recurrence, Scan
from astrarium.plans.job import Job

KERNELS: Final = {
    Recurrence.SSD: "mamba-ssm and causal-conv1d",
    Recurrence.DELTA: "flash-linear-attention and causal-conv1d",
}


def scan_of(model: Model) -> Scan | None:
    """The scan that a model has; it has one in all layers with a scan."""
    every = (scan for block in model.kinds if isinstance(block, Block) for scan in block.scans)
    return next(every, None)


def scan_needs(job: Job) -> Iterator[str]:
    """What must be installed for the scans of a model."""
    scan = scan_of(job.model)
    if scan is not None and scan.kind in KERNELS:
        yield f"{KERNELS[scan.kind]}, which have the kernels of its scans, on every node"
