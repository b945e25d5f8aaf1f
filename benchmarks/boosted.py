"""Boosted trees for corrections of operator formulas: training with XGBoost, and the saved form.

The trees learn log(true / formula) + (1 - slope) log(formula) under monotone constraints, see
astrarium.catalog.profiles.Correction. Needs xgboost (the extra `fit`).

    boosted.py FILE.json    a small ensemble with XGBoost's own sums, to test cost/trees.py with
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xgboost

from astrarium.arrays import Floats
from astrarium.catalog.profiles import Correction
from astrarium.cost.corrections import LoadedCorrection
from astrarium.cost.trees import forest

SLOPE = 0.85  # of 0.5, 0.7 and 0.85 the one with the least errors on types left out
LIMIT = 0.7  # a correction by more than a factor of two says that the formula is wrong
SECONDS_RANGE = (1e-6, 0.3)
NEVER = float(np.finfo(np.float32).max)  # a threshold that everything is below
DIGITS = 6  # of leaves; thresholds keep all digits of a 32-bit float


@dataclass(frozen=True)
class Size:
    """How large an ensemble grows; small tables take small ones."""

    trees: int
    levels: int
    rate: float
    least_weight: float


LARGE = Size(100, 5, 0.05, 20.0)
SMALL = Size(60, 3, 0.1, 5.0)


def train(
    features: Mapping[str, Floats],
    directions: Mapping[str, int],
    residual: Floats,
    weights: Floats,
    size: Size,
    families: tuple[str, ...] = (),
) -> Correction:
    """Trees for `residual`, the log of true over the formula's time (feature "seconds")."""
    names = tuple(directions)
    columns = matrix(features, names)
    seconds = np.clip(features["seconds"], *SECONDS_RANGE)
    target = np.clip(residual, -LIMIT, LIMIT) + (1.0 - SLOPE) * np.log(seconds)
    start = float(np.float32(np.average(target, weights=weights)))
    booster = xgboost.train(
        {
            "max_depth": size.levels,
            "eta": size.rate,
            "min_child_weight": size.least_weight,
            "lambda": 5.0,
            "subsample": 0.8,
            "monotone_constraints": tuple(directions[name] for name in names),
            "base_score": start,
            "tree_method": "hist",
            "nthread": 1,
            "seed": 0,
        },
        xgboost.DMatrix(columns, target, weight=weights / weights.mean()),
        size.trees,
    )
    trees = [
        complete(json.loads(text), size.levels) for text in booster.get_dump(dump_format="json")
    ]
    return Correction(
        features=names,
        slope=SLOPE,
        seconds_range=SECONDS_RANGE,
        limit=LIMIT,
        families=families,
        start=start,
        split_features=tuple(tree[0] for tree in trees),
        split_thresholds=tuple(tree[1] for tree in trees),
        leaves=tuple(tree[2] for tree in trees),
    )


def example(trees: int, levels: int, rows: int) -> dict[str, object]:
    """Trees on random numbers, some of them whole so that values meet thresholds."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(1000, 4)).round(2).astype(np.float32)
    columns[:, 0] = rng.integers(0, 8, len(columns))
    target = columns[:, 0] + np.sin(3 * columns[:, 1]) * columns[:, 2]
    settings = {"max_depth": levels, "base_score": 0.5, "nthread": 1}
    booster = xgboost.train(settings, xgboost.DMatrix(columns, target), trees)
    dumped = [complete(json.loads(t), levels) for t in booster.get_dump(dump_format="json")]
    sums = booster.predict(xgboost.DMatrix(columns[:rows]))
    return {
        "start": 0.5,
        "split_features": [tree[0] for tree in dumped],
        "split_thresholds": [tree[1] for tree in dumped],
        "leaves": [tree[2] for tree in dumped],
        "rows": [[float(str(value)) for value in row] for row in columns[:rows]],
        "sums": [float(str(value)) for value in sums],
    }


def matrix(features: Mapping[str, Floats], names: tuple[str, ...]) -> Floats:
    """The logarithms that trees see, as 32-bit floats."""
    columns = np.broadcast_arrays(*(np.log2(np.asarray(features[name])) for name in names))
    return np.stack(columns, axis=1).astype(np.float32)


def complete(node: dict, levels: int) -> tuple:
    """Features, thresholds and leaves of a tree filled up to equal depth.

    A leaf above the bottom becomes splits that everything leaves to the left.
    """
    rows, splits = [node], ([], [])
    for _ in range(levels):
        below = []
        for here in rows:
            if "leaf" in here:
                feature, threshold, children = 0, NEVER, (here, here)
            else:
                by_id = {child["nodeid"]: child for child in here["children"]}
                feature, threshold = int(here["split"][1:]), here["split_condition"]
                children = (by_id[here["yes"]], by_id[here["no"]])
            splits[0].append(feature)
            splits[1].append(float(str(np.float32(threshold))))
            below += children
        rows = below
    return tuple(splits[0]), tuple(splits[1]), tuple(round(row["leaf"], DIGITS) for row in rows)


def learned(found: Correction) -> LoadedCorrection:
    parts = (found.split_features, found.split_thresholds, found.leaves)
    return LoadedCorrection(found, forest(found.start, len(found.features), *parts))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(example(12, 4, 60), separators=(",", ":")) + "\n")
