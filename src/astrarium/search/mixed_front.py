"""Plans over several pools on the front: what a mixed search keeps when money and time both count.

A score is the seconds of an iteration over those below which the plan would be on the front, so
one is the limit. As the front moves, limits fall and scores rise: bounds that were taken earlier
stay below the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cluster import Cluster
from astrarium.search.archive import Archive, Ways
from astrarium.search.mixed_cases import Bundle, Priced
from astrarium.search.mixed_plans import KeptPlans
from astrarium.search.outcome import Found, Limits, Objective

ON_THE_FRONT = 1.0 - 1e-12

WaysOfPools = Callable[[Ints], Ways]  # how so many GPUs of each pool, (rows, pools), can be paid


class FrontPlans(KeptPlans):
    """Enters plans into an archive; `place` says where their pools are among all."""

    def __init__(
        self,
        cluster: Cluster,
        archive: Archive,
        ways_of: WaysOfPools,
        place: Callable[[Sequence[int]], tuple[int, ...]],
    ) -> None:
        super().__init__(cluster, None, Objective.COST, Limits(), 1)
        self._archive, self._ways_of, self._place = archive, ways_of, place
        # The cheapest of every pool; nothing is said about what is lost to interruptions.
        single = ways_of(np.diag([pool.num_gpus for pool in cluster.pools]))
        self.prices = single.hourly.min(axis=1) / [pool.num_gpus for pool in cluster.pools]

    def score(self, seconds: Any, gpus: Any, usd_per_hour: Any) -> Any:  # noqa: ANN401
        hourly = np.atleast_1d(np.asarray(usd_per_hour, float))[:, None]
        ways = Ways(np.ones_like(hourly), hourly, np.zeros(hourly.shape, np.int64))
        return seconds / self._archive.limits(ways)

    def least_score(self, seconds: Floats, gpus: Floats, usd_hours: Floats) -> Floats:
        return np.asarray(self.score(seconds, gpus, usd_hours / seconds))

    def score_of(self, seconds: Any, gpus: Sequence[int]) -> Any:  # noqa: ANN401
        return seconds / self.worst_seconds(gpus)

    def worst_seconds(self, gpus: Sequence[int]) -> float:
        return float(self._archive.limits(self._ways_of(np.array([gpus])))[0])

    @property
    def best_score(self) -> float:
        return 1.0

    @property
    def limit(self) -> float:
        return ON_THE_FRONT

    @property
    def worst(self) -> float:
        return ON_THE_FRONT

    def keep(self, bundle: Bundle, gpus: Sequence[int], priced: Priced) -> None:
        if self.score_of(priced.seconds, gpus) < ON_THE_FRONT:
            found = Found(self.strategy(bundle, priced), priced.seconds, 0.0, priced.peak_bytes)
            self._archive.enter([found], [self._place(gpus)], self._ways_of(np.array([gpus])))
