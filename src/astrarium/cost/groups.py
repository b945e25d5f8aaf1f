"""Ranks that share parameters or wait for one another: how many, where, in how many messages."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.collectives import Group, place
from astrarium.strategy.columns import Degrees

# One standard deviation of the time that GPUs of one type take for the same work at their power
# limit. Five centres found 8 % between the ends of the box plot (arXiv 2208.11035, 2022-08), which
# are 5.4 deviations apart if times are normal.
GPU_DEVIATION: Final = 0.015


def data_ranks(degrees: Degrees) -> tuple[Ints, Ints]:
    """Ranks that divide dense, and expert, parameters. Context ranks divide both."""
    dense = degrees.dp * degrees.cp // degrees.shard_groups
    return dense, np.maximum(dense * degrees.tp // (degrees.ep * degrees.etp), 1)


def dense_group(degrees: Degrees, domain: Ints) -> Group:
    """The ranks that divide dense parameters: context ranks next to each other, then replicas."""
    size, _ = data_ranks(degrees)
    members = degrees.dp // degrees.shard_groups
    together = place(size, degrees.tp, domain)
    context = place(degrees.cp, degrees.tp, domain).per_domain
    replicas = np.gcd(degrees.tp * degrees.cp * degrees.pp * members, domain)
    replicas = np.clip(replicas // (degrees.tp * degrees.cp * degrees.pp), 1, members)
    apart = np.where(context == degrees.cp, context * replicas, context)
    return Group(
        size,
        np.where(degrees.pipeline_inside, apart, together.per_domain),
        degrees.tp * np.where(degrees.pipeline_inside, degrees.pp, 1),
    )


def copies_group(degrees: Degrees, domain: Ints) -> Group:
    """Ranks of all shard groups that hold the same part: they sum its gradients."""
    inside = np.where(degrees.pipeline_inside, degrees.pp, 1)
    apart = degrees.tp * degrees.cp * inside * (degrees.dp // degrees.shard_groups)
    return place(degrees.shard_groups, apart, domain)


def by_rank(group: Group) -> Group:
    """A group of every layout, for columns of (layouts, ranks)."""
    stride = np.broadcast_to(group.stride, group.size.shape)
    return Group(group.size[:, None], group.per_domain[:, None], stride[:, None])


def message_calls(runtime: Runtime, parameters: Floats, ranks: Ints) -> Floats:
    """Buckets that so many parameters of a rank fill, shared by so many ranks."""
    if not runtime.message_parameters:
        return np.ones_like(parameters)
    size = np.maximum(runtime.message_parameters, runtime.message_parameters_per_rank * ranks)
    return np.maximum(np.ceil(parameters / size), 1.0)


def slowest_of(gpus: Ints) -> Floats:
    """Time of the slowest of so many GPUs over that of one in the middle.

    Every step waits for it.
    """
    return 1.0 + GPU_DEVIATION * largest_of(gpus)


def largest_of(numbers: Ints) -> Floats:
    """The expected largest of so many normal deviates, by Blom's formula."""
    counts, row = np.unique(numbers, return_inverse=True)
    largest = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in counts.tolist()]
    return np.array(largest)[row]
