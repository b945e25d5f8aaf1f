"""The text of `--gpus`: "h100:64,a100:128", one pool per type with the catalog's machines.

A count below a node is a part of one node, and divides it; a count above is whole nodes.
Anything else needs a cluster file, because the text cannot say which machines hold how many.
"""

from __future__ import annotations

from astrarium import units
from astrarium.catalog import Gpu, find_gpu
from astrarium.cluster.build import Machines, build_pool
from astrarium.cluster.types import LARGEST_CLUSTER, Cluster, Pool, check_cluster
from astrarium.errors import InputError


def parse_gpus(text: str) -> Cluster:
    """Read "TYPE:COUNT[,TYPE:COUNT...]"."""
    if not text.strip():
        raise InputError("no GPUs given; expected TYPE:COUNT[,TYPE:COUNT...] such as h100:64")
    pools = [_pool(entry.strip(), text) for entry in text.split(",")]
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if other.gpu.name == pool.gpu.name:
                total = other.num_gpus + pool.num_gpus
                raise InputError(
                    f"{text}: {pool.gpu.name} appears twice; write the sum, "
                    f"{_spelling(pool)}:{total}, or give the machines in a cluster file"
                )
    return check_cluster(Cluster(tuple(pools)))


def _pool(entry: str, text: str) -> Pool:
    if not entry:
        raise InputError(f"{text}: an entry is empty; expected TYPE:COUNT[,TYPE:COUNT...]")
    name, colon, count_text = (part.strip() for part in entry.partition(":"))
    if not name:
        raise InputError(f"{entry}: the GPU type is missing; expected TYPE:COUNT such as h100:64")
    gpu = find_gpu(name)
    if not colon or not count_text:
        raise InputError(
            f"{entry}: the number of GPUs is missing; write {name}:{gpu.gpus_per_node} "
            f"for one node of {gpu.name}"
        )
    nodes, gpus_per_node = _machines(gpu, _count(entry, count_text), entry)
    machines = Machines(rented_sizes=gpu.rented_sizes or (gpu.gpus_per_node,))
    return build_pool(
        gpu.name,
        gpu,
        nodes,
        gpus_per_node,
        name,
        node_size=gpu.gpus_per_node,
        machines=machines,
    )


def _count(entry: str, text: str) -> int:
    """Read how many GPUs there are."""
    try:
        count = units.parse_count(text)
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


def _spelling(pool: Pool) -> str:
    return pool.requested or pool.gpu.name
