"""The space of strategies on several pools, in the same steps as `space`.

Degrees are those for which an arrangement exists. A layout is an arrangement and a number of
virtual stages; its layers are dealt freely, so the split is solved for and not counted. Options
are the same for all stages. Models whose layers are not equal have one chunk per rank.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Bools, Ints, distinct_rows
from astrarium.cluster import Cluster
from astrarium.cost.stages import StagePlanner
from astrarium.model.workload import Workload
from astrarium.search.space import Layout, Space
from astrarium.search.split.arrangements import Arrangements
from astrarium.strategy.columns import Degrees
from astrarium.strategy.types import LayerSplit


class MixedSpace(Space):
    """All strategies of a workload on a cluster whose pools are in canonical order."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        planner: StagePlanner,
        *,
        exact: bool,
        expanded_overlaps: frozenset[str] = frozenset(),
        shard_groups: bool = False,
        offload: bool = True,
    ) -> None:
        super().__init__(
            workload,
            cluster.pools[0],
            planner,
            exact=exact,
            expanded_overlaps=expanded_overlaps,
            shard_groups=shard_groups and len(cluster.pools) == 1,
            offload=offload,
        )
        self.cluster = cluster
        self.arrangements = Arrangements(cluster, planner.num_layers, exact=exact)

    def _usable(self, rows: dict[str, Ints]) -> Bools:
        """Those for which there is an arrangement."""
        total, gpus = self.cluster.num_gpus, rows["gpus"]
        usable = gpus == total if self.exact else gpus <= total
        chosen = np.flatnonzero(usable)
        tp_cp = (rows["tp"] * rows["cp"])[chosen]
        columns = tp_cp, tp_cp * rows["dp"][chosen], rows["pp"][chosen]
        first, index = distinct_rows(*columns)
        counts = self._arrangement_counts(*(column[first] for column in columns))
        usable[chosen] = (counts > 0)[index]
        return usable

    def _with_orders(self, rows: dict[str, Ints]) -> dict[str, Ints]:
        """On several pools the stages of a replica are never next to each other."""
        if len(self.cluster.pools) == 1:
            return super()._with_orders(rows)
        return rows | {"pipeline_inside": np.zeros(len(rows["pp"]), bool)}

    def _arrangement_counts(self, *columns: Ints) -> Ints:
        """Of tp x cp, crews and stages, as Python's integers: there may be very many."""
        every = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([*(self.arrangements.count(*of) for of in every), None], object)[:-1]

    def sizes(self, degrees: Degrees) -> Ints:
        """Strategies behind each row of degrees, as Python's integers."""
        tp_cp = degrees.tp * degrees.cp
        columns = tp_cp, tp_cp * degrees.dp, degrees.pp
        first, index = distinct_rows(*columns)
        arrangements = self._arrangement_counts(*(column[first] for column in columns))
        return (arrangements * self.counts(degrees.pp[first]).astype(object))[index]

    @property
    def _nodes(self) -> list[int]:
        return [pool.gpus_per_node for pool in self.cluster.pools]

    def most_chunks(self, pp: Ints) -> Ints:
        alike = len(self.workload.model.kinds) == 1
        return super().most_chunks(pp) if alike else np.ones_like(pp)

    def layouts(self, pp: int) -> tuple[Layout, ...]:
        """Numbers of virtual stages; `chunk_layers` is the most that a chunk can hold."""
        if pp not in self._layouts:
            numbers = range(1, int(self.most_chunks(np.array(pp))) + 1)
            spare = [self.planner.num_layers - (pp - 1) * v for v in numbers]
            self._layouts[pp] = tuple(
                Layout(v, LayerSplit.FREE, max(-(-layers // v), 1))
                for v, layers in zip(numbers, spare, strict=True)
            )
        return self._layouts[pp]
