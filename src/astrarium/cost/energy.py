"""Energy of a run, what it emits and what it costs who owns the machines.

A cluster draws the same power all the time, also while it saves, restarts or waits:

    kW = sum over GPUs of TDP x utilisation x node overhead x PUE

GPUs, nodes and the hall around them are told apart because users know one of them or the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.units import HOUR
from astrarium.value import Value

WATTS_PER_KILOWATT = 1000.0

# Nodes of eight H100 drew 76 % of their rated 10.2 kW under intensive training (arXiv 2506.14551),
# 1.38 times the 5.6 kW of their GPUs' TDP. That product is measured; how the GPUs (near their limit
# in training) and the rest (processors, fans, adapters, losses) share it is a guess.
GPU_UTILISATION = 0.9
NODE_OVERHEAD = 0.76 * 10.2 / (8 * 0.7) / GPU_UTILISATION
# For cooling and power conversion; chosen between 1.1, which Google reports of its data centres,
# and 1.58, the mean of all (Uptime Institute, 2023).
PUE = 1.2


class PowerTerms(Value, frozen=True):
    """Factors from the TDP of the GPUs to the power of a data centre."""

    utilisation: float = GPU_UTILISATION
    node_overhead: float = NODE_OVERHEAD
    pue: float = PUE


def kilowatts(gpus: ArrayLike, tdp_watts: ArrayLike, terms: PowerTerms | None = None) -> Floats:
    """Power of clusters; the last axis has the pools, whose GPUs and TDP are given."""
    used = terms or PowerTerms()
    watts = (np.asarray(gpus) * np.asarray(tdp_watts, float)).sum(axis=-1)
    return watts * (used.utilisation * used.node_overhead * used.pue / WATTS_PER_KILOWATT)


def kilowatt_hours(power_kilowatts: ArrayLike, seconds: ArrayLike) -> Floats:
    return np.asarray(power_kilowatts) * np.asarray(seconds, float) / HOUR


def co2_kilograms(kwh: ArrayLike, kilograms_per_kwh: float) -> Floats:
    """Emissions of the energy alone; making the machines is not in it."""
    return np.asarray(kwh, float) * kilograms_per_kwh
