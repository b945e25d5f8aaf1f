"""Cases of a mixed search on many numbers of GPUs at once.

What stages cost does not depend on how many there are on each pool, as long as the GPUs look the
same (`sites`). So all ways to lay so many stages over two pools are orders of one bundle, and each
case has its own limits among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.mixed import StageClass
from astrarium.search.arrangements import Arrangement, laid
from astrarium.search.mixed_cases import Bundle
from astrarium.search.sites import Sites
from astrarium.value import Value


class Line(Value, frozen=True):
    """Stages of the first pool, perhaps one of both, then those of the second; or from its end."""

    whole: int
    straddles: bool
    stages: int
    reverse: bool

    @property
    def classes(self) -> tuple[StageClass, ...]:
        rest = self.stages - self.whole - self.straddles
        line = ((0,),) * self.whole + ((0, 1),) * self.straddles + ((1,),) * rest
        return line[::-1] if self.reverse else line

    @property
    def pools(self) -> tuple[int, int]:
        return (1, 0) if self.reverse else (0, 1)


class SiteBundle(Bundle, frozen=True, dict=True):
    """Cases in rows, lines in orders; `site_of` (orders, rows) says where they meet, -1 nowhere."""

    lines: Sequence[Line]
    sites: Sites
    site_of: Ints
    gpus: Ints  # (rows, 2): some that look as those of the row

    @property
    def pool_gpus(self) -> Ints:
        return self.gpus

    @cached_property
    def classes(self) -> tuple[StageClass, ...]:
        return tuple(sorted({of for line in self.lines for of in line.classes}))

    @cached_property
    def class_of(self) -> Ints:
        number = {of: i for i, of in enumerate(self.classes)}
        return np.array([[number[of] for of in line.classes] for line in self.lines])

    def arrangement(self, order: int, row: int) -> Arrangement:
        return self.laid_on(order, row, self.sites.gpus(self.site_of[order, row]).tolist())

    def laid_on(self, order: int, row: int, gpus: Sequence[int]) -> Arrangement:
        """An order on some GPUs of its site."""
        d = self.degrees
        return laid(self.lines[order].pools, gpus, int(d.tp[row] * d.cp[row] * d.dp[row]))

    def limits(self, of_sites: Floats) -> Floats:
        """Seconds below which a case in an order would be on the front: (orders, rows)."""
        return np.where(self.site_of >= 0, of_sites[self.site_of], -np.inf)
