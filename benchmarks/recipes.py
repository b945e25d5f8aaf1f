"""NVIDIA's recipes for one model, machine and number format, release by release.

Two of them that differ in strategy were both measured, so the ratio of their times says how well
differences between strategies are predicted: of expert parallelism, ZeRO 3, context parallelism and
virtual stages, which no sweep varies. The software changed in between as well; by how much, recipes
that kept their strategy say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from astrarium.strategy.types import Recompute, Strategy
from astrarium.validate.metrics import Scoring, why_not_scored
from astrarium.validate.predictions import Prediction

RELEASE = r"2[0-9]\.\d\d(?:\.\d\d)?"  # in notes


@dataclass(frozen=True, slots=True)
class Change:
    """A recipe in two releases."""

    before: Prediction
    after: Prediction

    @property
    def measured(self) -> float:
        """The gain in tokens a second."""
        return _rate(self.after, self.after.row.iter_time_s) / _rate(
            self.before, self.before.row.iter_time_s
        )

    @property
    def predicted(self) -> float:
        return _rate(self.after, self.after.iter_time_s) / _rate(
            self.before, self.before.iter_time_s
        )

    @property
    def kept(self) -> bool:
        """Whether the strategy is the same."""
        return _shape(self.before) == _shape(self.after)


def release(prediction: Prediction) -> str:
    found = re.search(RELEASE, prediction.row.notes)
    return found[0] if found else ""


def recipe(prediction: Prediction) -> tuple[object, ...]:
    """What a recipe is for. How tokens are dropped is part of the name of a model."""
    row = prediction.row
    return (row.model, row.gpu, row.num_gpus, row.seq_len, row.precision)


def changes(predictions: Sequence[Prediction]) -> Iterator[Change]:
    """Every recipe beside the same one in the release before, the last batch of each release."""
    recipes: dict[tuple[object, ...], dict[str, Prediction]] = {}
    for one in predictions:
        trusted = one.plan is not None and why_not_scored(one, Scoring.ALL) is None
        if "Bridge" in one.row.source and trusted:
            recipes.setdefault(recipe(one), {})[release(one)] = one
    for own in recipes.values():
        for before, after in pairwise(sorted(own)):
            yield Change(own[before], own[after])


def _rate(prediction: Prediction, seconds: float | None) -> float:
    """Sequences a second, of one length."""
    assert seconds is not None
    return (prediction.row.global_batch or 1) / seconds


def _shape(prediction: Prediction) -> Strategy:
    """A strategy without what its batch decides, and what a table does not state."""
    assert prediction.plan is not None
    strategy = prediction.plan.strategy
    return replace(strategy, num_micro_batches=1, recompute=Recompute(), stages=())
