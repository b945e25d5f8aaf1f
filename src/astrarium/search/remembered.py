"""Searches on one pool that were made before: other prices or tokens change no answer of theirs.

What decides is compared as a whole, so an answer is the one that the search would give again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

from astrarium.cluster import Pool
from astrarium.model.workload import Workload
from astrarium.search.outcome import SearchResult
from astrarium.search.plan import Plan
from astrarium.search.single import Expanded

MOST_KEPT: Final = 64  # a few KiB each

Answer = tuple[tuple[Plan, ...], SearchResult]
_memory: list[tuple[tuple[object, ...], Answer]] = []  # the last used first
_begun: list[tuple[tuple[object, ...], Sequence[Expanded]]] = []  # of the last search, some MiB


def remembered(
    workload: Workload, pool: Pool, asked: tuple[object, ...], search: Callable[[], Answer]
) -> Answer:
    """The outcome of a search without limits, at any prices; `asked` is all else."""
    of = _unpaid(workload, pool, asked)
    known = next((one for one in _memory if one[0] == of), None)
    found = (of, search()) if known is None else known
    _memory[:] = [found, *(one for one in _memory if one is not known)][:MOST_KEPT]
    plans, result = found[1][0], copy(found[1][1])  # callers change counts
    result.found, result.rejected = [*result.found], result.rejected.copy()
    result.reasons = result.reasons.copy()
    return plans, result


def _unpaid(workload: Workload, pool: Pool, asked: tuple[object, ...]) -> tuple[object, ...]:
    """All that decides, cheap comparisons first."""
    unpaid = replace(
        pool,
        usd_per_gpu_hour=None,
        spot_usd_per_gpu_hour=None,
        price_date="",
        price_origin="",
        interruptions_per_hour=None,
    )
    batch = workload.global_batch, workload.seq_length
    return (*batch, *asked, unpaid, replace(workload, tokens=None))


def keep_begun(
    workload: Workload, pool: Pool, asked: tuple[object, ...], begun: Sequence[Expanded]
) -> None:
    """For questions about plans simpler than those of a search: the layouts that it met."""
    _begun[:] = [(_unpaid(workload, pool, asked), begun)]


def begun_before(
    workload: Workload, pool: Pool, asked: tuple[object, ...]
) -> Sequence[Expanded] | None:
    of = _unpaid(workload, pool, asked)
    return next((begun for key, begun in _begun if key == of), None)
