"""Sequences of unequal length: the seconds of a micro-batch, and who waits for whom.

A micro-batch takes as long as one of equal sequences with as many tokens, in documents of the
length that a token sees on average: attention's work is then the same. Memory is that of the
longest micro-batch, whose sequences are as long as the workload allows.

Replicas wait for the one with most work: after every micro-batch where gradients are reduced then,
otherwise once an iteration.

Not modelled: stages of a pipeline that wait for one another because micro-batches differ; sorting
by length. Context parallelism divides every document evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Final, TypeVar

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.ends import EndCosts
from astrarium.cost.groups import largest_of, slowest_of
from astrarium.cost.tally import LayerCosts, Shards
from astrarium.model.lengths import Draws
from astrarium.model.workload import Workload
from astrarium.strategy.columns import Degrees

Costs = tuple[LayerCosts, EndCosts]
Part = TypeVar("Part", LayerCosts, EndCosts)
# What the longest micro-batch decides.
_MOST: Final = (
    *("activations", "inputs", "dropped", "transient"),
    *("head_activations", "head_transient", "boundary_bytes"),
)


def at_lengths(
    workload: Workload,
    runtime: Runtime,
    priced: Callable[[Workload, Shards], Costs],
    shards: Shards,
) -> Costs:
    """Costs of shards under a workload whose sequences may be of unequal length."""
    whole, draws = priced(workload, shards), _draws_that_matter(workload, runtime)
    if draws is None:
        return whole
    sizes, of_size = np.unique(shards.micro_batch, return_inverse=True)
    for number, size in enumerate(sizes.tolist()):
        rows = np.flatnonzero(of_size == number)
        longest = draws if workload.packed else draws.longest_of(size)
        tokens = workload.seq_length if workload.packed else longest.mean
        seen = max(round(longest.seen), 1)
        alike = replace(workload, seq_length=seen, lengths=None)
        columns = {one.name: getattr(shards, one.name)[rows] for one in fields(Shards)}
        columns["micro_batch"] = columns["micro_batch"] * (tokens / seen)
        part = priced(alike, Shards(**columns))
        whole = _with_rows(whole[0], part[0], rows), _with_rows(whole[1], part[1], rows)
    return whole


def _draws_that_matter(workload: Workload, runtime: Runtime) -> Draws | None:
    """The lengths, if micro-batches do other work than as many rows of equal sequences."""
    return workload.draws if workload.packed or runtime.pads_to_longest else None


def _with_rows(whole: Part, part: Part, rows: Ints) -> Part:
    """Costs with other seconds in some rows."""
    changed = {}
    for one in fields(whole):
        if one.name not in _MOST:
            column = getattr(whole, one.name).copy()
            column[rows] = getattr(part, one.name)
            changed[one.name] = column
    return replace(whole, **changed)


def pace_of(workload: Workload, runtime: Runtime, degrees: Degrees, gpus: Ints) -> Floats:
    """Time of the slowest GPU, with the most work, over that of one in the middle."""
    pace, draws = slowest_of(gpus), _draws_that_matter(workload, runtime)
    if draws is None:
        return pace
    batch, dp = degrees.micro_batch, degrees.dp
    together = np.where(runtime.gradients_copied, 1, degrees.num_micro_batches)
    if workload.packed:
        deviation = draws.unevenness(workload.seq_length) * _attention_share(workload)
        late = deviation / np.sqrt(batch) * largest_of(dp)
    else:
        pairs, of_pair = np.unique(np.stack([batch, dp]), axis=1, return_inverse=True)
        late = np.array([_late(draws, *pair) for pair in pairs.T.tolist()])[of_pair]
    return pace * (1.0 + late / np.sqrt(together))


def _late(draws: Draws, batch: int, replicas: int) -> float:
    """Excess of the longest of some micro-batches over their mean, as a share."""
    return draws.longest_of(batch * replicas).mean / draws.longest_of(batch).mean - 1.0


def _attention_share(workload: Workload) -> float:
    """Of FLOPs, what grows with the length of documents."""
    alone = replace(workload, seq_length=1, lengths=None)
    return 1.0 - alone.flops_per_token / workload.flops_per_token
