"""Learned corrections of the operator formulas: features in, a factor on the formula's time out.

A feature is the binary logarithm of a size, of a hardware figure or of the formula's own result.
Trees may not fall along sizes and may not rise along what hardware has more of, so the corrected
time keeps what the formula promises: more work never takes less, a smaller GPU is never faster.
The exception is the width of a head: kernels exist for a few widths, each with its own speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog.profiles import Correction, find_correction
from astrarium.cost.kernels import QUERY_BLOCK, Hardware, HeadShape, MatrixShape
from astrarium.cost.trees import Forest, forest
from astrarium.errors import InputError
from astrarium.value import Value

# Features in the order of the trees, with the direction that time may take along each.
MATRIX_FEATURES: Final = {"rows": 1, "columns": 1, "depth": 1, "seconds": 1, "outputs": 1}
HEAD_FEATURES: Final = {
    "keys": 1,
    "heads": 1,
    "kv_heads": 1,
    "head_dim": 0,
    "seconds": 1,
    "blocks": 1,
}
# Nine GPU types are too few for more of them: with memory bandwidth and the number of
# multiprocessors types that were left out are predicted worse.
HARDWARE_FEATURES: Final = {"flops": -1, "watts": -1, "exponentials": -1}
_LEAST: Final = 1e-12  # what counts as size or time zero

Features = Mapping[str, ArrayLike]


class LoadedCorrection(Value, frozen=True, dict=True):
    """A correction and its trees, ready to be evaluated."""

    correction: Correction
    trees: Forest

    def factor(self, features: Features) -> Floats:
        """The factor for the formula's seconds, which are a feature themselves."""
        correction = self.correction
        logs = {name: _log2(features[name]) for name in correction.features}
        low, high = (float(_log2(limit)) for limit in correction.seconds_range)
        given = np.clip(_log2(features["seconds"]), low, high) * np.log(2.0)
        learned = self.trees([logs[name] for name in correction.features])
        moved = learned - (1.0 - correction.slope) * given
        return np.exp(np.clip(moved, -correction.limit, correction.limit))


@cache
def learned(name: str) -> LoadedCorrection | None:
    """The correction of a class of operators, if one was found to help."""
    found = find_correction(name)
    if found is None:
        return None
    try:
        trees = forest(
            found.start,
            len(found.features),
            found.split_features,
            found.split_thresholds,
            found.leaves,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"the trees of {name} are damaged: {error}") from None
    return LoadedCorrection(found, trees)


def matrix_features(shape: MatrixShape, device: Hardware, seconds: Floats) -> dict[str, ArrayLike]:
    """Features of matrix products whose formula gives `seconds`."""
    outputs = shape.groups * shape.rows * shape.columns / device.multiprocessors
    return {
        "rows": shape.rows,
        "columns": shape.columns,
        "depth": shape.depth,
        "seconds": seconds,
        "outputs": outputs,
    }


def head_features(shape: HeadShape, device: Hardware, seconds: Floats) -> dict[str, ArrayLike]:
    """Features of tiled attention whose formula gives `seconds`."""
    blocks = shape.batch * shape.heads * np.ceil(shape.q_length / QUERY_BLOCK)
    return {
        "keys": shape.kv_length,
        "heads": shape.batch * shape.heads,
        "kv_heads": shape.batch * shape.kv_heads,
        "head_dim": (shape.key_dim + shape.value_dim) / 2.0,
        "seconds": seconds,
        "blocks": blocks / device.multiprocessors,
    }


def hardware_features(device: Hardware, watts: float, exponentials: float) -> dict[str, ArrayLike]:
    """Features of a GPU; `exponentials` per clock of a multiprocessor."""
    return {"flops": device.flops, "watts": watts, "exponentials": exponentials}


def _log2(value: ArrayLike) -> Floats:
    return np.log2(np.maximum(np.asarray(value, np.float64), _LEAST))
