"""Measured layers: what a profile of one micro-batch says about all the others.

A profile times a layer and waits for it, layer by layer. Its seconds hold three things that grow
differently with the micro-batch: the device's work, launches of the host, which take as long for
any micro-batch, and messages of tensor parallelism. Kernels and launches wait for each other where
each layer ends with a synchronisation, so that

    measured = sqrt(launches^2 + work^2) + messages

One number does not tell them apart; the predicted launches and messages do, as far as the work
then stays within a factor of two of its prediction, more than operator models are off. What it
would be beyond that is launches. The lowest degree measured, which has the least messages, decides
how far the work is off; what is left at other degrees is launches of these degrees (waiting for
messages is done by the host). A layer without any known launches is all work.

Not modelled: a device that is off by more at one micro-batch than at another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.tally import Shards, Tally
from astrarium.model.blocks import LayerTiming

# How far the work of a layer can be off its prediction where launches explain the rest. Held-out
# errors of operators are below 20 %; programs without fused kernels, clocks held down by the power
# limit and narrow layers add to that.
MOST_OFF: Final = 2.0


def measured_shards(timings: Mapping[int, LayerTiming], like: Shards) -> Shards:
    """The shards that were measured, one row for each degree in ascending order."""
    degrees = np.array(sorted(timings))
    ones = np.ones_like(degrees)
    samples = np.array([timings[degree].samples for degree in sorted(timings)])
    whole = np.zeros(len(degrees), dtype=np.bool_)
    domain = np.full_like(degrees, like.domain.max())
    return Shards(degrees, ones, ones, ones, samples, whole, domain)


def correct(layer: Tally, timings: Mapping[int, LayerTiming], there: Tally) -> None:
    """Correct predicted costs of a layer; `there` is the prediction for what was measured."""
    row = nearest_measured(timings, layer.shards.tp)
    forward = np.array([timings[degree].forward_seconds for degree in sorted(timings)])
    backward = [timings[degree].backward_seconds for degree in sorted(timings)]
    ratio, launches = _parts(forward, there, "forward")
    longer = launches - launches[0]
    ratio_back, launches_back = ratio, there.out["launch_backward"] + np.maximum(longer, 0.0)
    if None not in backward:
        ratio_back, launches_back = _parts(np.array(backward, dtype=float), there, "backward")
    out = layer.out
    out["launch_again"] += launches[row] - out["launch_forward"]
    out["launch_forward"], out["launch_backward"] = launches[row], launches_back[row]
    out["forward"] *= ratio[row]
    out["backward"] *= ratio_back[row]
    out["module_recompute"] *= ratio[row][:, None]


def _parts(measured: Floats, there: Tally, name: str) -> tuple[Floats, Floats]:
    """Work over its prediction, and seconds of launches, for each degree measured."""
    work, launches = there.out[name], there.out[f"launch_{name}"]
    own = np.maximum(measured - there.out[f"tp_{name}"], 0.0)
    if not launches[0]:
        return _over(own, work), np.zeros_like(own)
    first = np.sqrt(max(own[0] ** 2 - launches[0] ** 2, 0.0))
    off = np.clip(_over(first, work[0]), 1.0 / MOST_OFF, MOST_OFF)
    off = np.minimum(off, _over(own[0], work[0]))
    return np.full_like(own, off), np.sqrt(np.maximum(own**2 - (off * work) ** 2, 0.0))


def _over(part: Floats, whole: Floats) -> Floats:
    return np.asarray(part / np.where(whole > 0, whole, 1.0))


def nearest_measured(timings: Mapping[int, LayerTiming], tp: Ints) -> Ints:
    """The measured degree that stands for each one: the next below, or the lowest."""
    degrees = np.array(sorted(timings))
    return np.asarray(np.maximum(np.searchsorted(degrees, tp, side="right") - 1, 0))
