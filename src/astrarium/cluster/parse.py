"""The text of `--gpus`: "h100:64,a100:128", one pool per type with the catalog's machines.

A count below a node is a part of one node, and divides it; a count above is whole nodes.
Anything else needs a cluster file, because the text cannot say how they are spread over machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from astrarium import units
from astrarium.catalog import Gpu, find_gpu
from astrarium.cluster.build import Machines, build_pool
from astrarium.cluster.types import LARGEST_CLUSTER, Cluster, Pool, check_cluster
from astrarium.errors import InputError

# "h100:64,a100:32", or counts by type.
GpusGiven: TypeAlias = str | Mapping[str, units.Amount] | Sequence[tuple[str, units.Amount]]


def parse_gpus(given: GpusGiven) -> Cluster:
    """Read "TYPE:COUNT[,TYPE:COUNT...]", or the same as names and numbers."""
    text = gpus_text(given)
    if not text.strip():
        raise InputError("no GPUs given; expected TYPE:COUNT[,TYPE:COUNT...] such as h100:64")
    pools = [_pool(*entry, text) for entry in _entries(given)]
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if other.gpu.name == pool.gpu.name:
                total = other.num_gpus + pool.num_gpus
                raise InputError(
                    f"{text}: {pool.gpu.name} appears twice; write the sum,"
                    f" {pool.requested or pool.gpu.name}:{total}, or give the machines in a cluster"
                    " file"
                )
    return check_cluster(Cluster(tuple(pools)))


def gpus_text(given: GpusGiven) -> str:
    """GPUs as they would be typed."""
    return given if isinstance(given, str) else ",".join(entry for entry, _, _ in _entries(given))


def _entries(given: GpusGiven) -> list[tuple[str, str, units.Amount]]:
    """Each entry as it would be typed, its type and its count; "" where either is missing."""
    if isinstance(given, str):
        texts = [entry.strip() for entry in given.split(",")]
        return [(text, *_divided(text)) for text in texts]
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(f"{name}:{units.echo(count)}", name, count) for name, count in pairs]


def _divided(entry: str) -> tuple[str, str]:
    name, _, count = entry.partition(":")
    return name.strip(), count.strip()


def _pool(entry: str, name: str, amount: units.Amount, text: str) -> Pool:
    if not entry:
        raise InputError(f"{text}: an entry is empty; expected TYPE:COUNT[,TYPE:COUNT...]")
    if not name:
        raise InputError(f"{entry}: the GPU type is missing; expected TYPE:COUNT such as h100:64")
    gpu = find_gpu(name)
    if amount == "":
        raise InputError(
            f"{entry}: the number of GPUs is missing; write {name}:{gpu.gpus_per_node} "
            f"for one node of {gpu.name}"
        )
    nodes, gpus_per_node = _machines(gpu, _count(entry, amount), entry)
    machines = Machines(rented_sizes=gpu.rented_sizes or (gpu.gpus_per_node,))
    size = (nodes, gpus_per_node)
    return build_pool(gpu.name, gpu, *size, name, node_size=gpu.gpus_per_node, machines=machines)


def _count(entry: str, amount: units.Amount) -> int:
    """The number of GPUs."""
    try:
        count = units.parse_count(amount)
    except InputError as error:
        raise InputError(f"{entry}: number of GPUs: {error}") from None
    if count > LARGEST_CLUSTER:
        raise InputError(
            f"{entry}: {count:,} GPUs are more than the largest cluster, {LARGEST_CLUSTER:,}"
        )
    return count


def _machines(gpu: Gpu, count: int, entry: str) -> tuple[int, int]:
    """Return nodes and GPUs per node that make up the count."""
    node = gpu.gpus_per_node
    if count % node == 0:
        return count // node, node
    if count < node and node % count == 0:
        return 1, count
    if count > node:
        below, above = count // node * node, (count // node + 1) * node
    else:
        parts = [part for part in range(1, node + 1) if node % part == 0]
        below = max(part for part in parts if part < count)
        above = min(part for part in parts if part > count)
    raise InputError(
        f"{entry}: {gpu.name} comes in nodes of {node}; use {below} or {above}, "
        "or give the machines in a cluster file"
    )
