"""The number format in which a workload runs on given GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from astrarium.cluster import Pool
from astrarium.errors import InputError, Repair
from astrarium.model.workload import Precision, Workload

# Compute capabilities whose tensor cores apply scales of few elements in TransformerEngine: B200 to
# GB300. Those of 12 (RTX) have the formats, but no training in them is known.
MICROSCALING: Final = (10.0, 11.0)


def has_format(precision: Precision, *pools: Pool) -> bool:
    """Whether all GPUs compute in it as training software does."""
    low, high = MICROSCALING
    return all(
        precision.dtype in pool.gpu.peak_flops
        and (not precision.is_microscaled or low <= pool.gpu.compute_capability < high)
        for pool in pools
    )


def runnable(workload: Workload, *pools: Pool) -> Workload:
    """The workload in a number format all GPUs have: bf16 falls back to fp16, fp8 is refused.

    Processors train in fp32, whatever is asked for; GPUs do not, as nothing of it was measured.
    """
    if pools and all(pool.gpu.is_processor for pool in pools):
        return replace(workload, precision=Precision.FP32)
    cores = [pool.gpu.name for pool in pools if pool.gpu.is_processor]
    if cores:
        others = next(pool.gpu.name for pool in pools if not pool.gpu.is_processor)
        raise InputError(
            f"{cores[0]} and {others}: processor cores and GPUs do not mix, as cores train in fp32"
            " and GPUs in 16 bits or fewer; ask for one of them"
        )
    if workload.precision is Precision.FP32 and pools:
        raise InputError(
            f"{pools[0].gpu.name}: training in fp32 is known of processors only;"
            " ask for bf16, fp16 or fp8"
        )
    lacking = [pool for pool in pools if not has_format(workload.precision, pool)]
    if not lacking:
        return workload
    if workload.precision is Precision.BF16:
        return runnable(replace(workload, precision=Precision.FP16), *pools)
    gpu = lacking[0].gpu
    raise InputError(
        f"{gpu.name} has no {workload.precision.value} arithmetic to train in; it has"
        f" {', '.join(one for one in Precision if has_format(one, lacking[0]))}",
        "precision",
        [Repair("Use bf16", {"precision": "bf16"})],
    )
