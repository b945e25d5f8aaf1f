"""Several data centres with slow links between them: outer steps, as DiLoCo takes them.

Every site trains a replica by its own plan, on its own data, for many iterations. Then the sites
sum the changes of their weights, and an outer optimizer applies the mean (arXiv 2311.08105,
2023-11: 8 sites, 500 iterations between outer steps). The change may travel beside the next
iterations, in as few as 4 bits a weight (Streaming DiLoCo, arXiv 2501.18512, 2025-01). The sum is
priced as any all-reduce, over links of the stated speed with the efficiency of TCP. Not modelled:
the effect of outer steps on the loss, computation that messages slow down, sites that differ.
"""

from __future__ import annotations

import numpy as np

from astrarium.cluster import Cluster
from astrarium.cluster.interconnect import Network
from astrarium.cost.collectives import Group, all_reduce_seconds, fabric_of
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan
from astrarium.value import Value, replace

GRADIENT_BITS = 32
OUTER_STATE_BYTES = 8  # of a weight: its last value that all sites share, and a momentum, in fp32


class Sites(Value, frozen=True):
    """Sites that are alike; the link is that of one of them, in each direction."""

    sites: int
    bytes_per_second: float
    latency_seconds: float = 0.05
    every: int = 100  # iterations between two outer steps
    bits: int = GRADIENT_BITS
    overlap: bool = False


class SitesOutcome(Value, frozen=True):
    """The training of the sites together.

    `every_iteration_tokens_per_second` is plain data parallelism over the same links,
    `outer_state_bytes` what a site keeps beside.
    """

    tokens_per_second: float
    every_iteration_tokens_per_second: float
    efficiency: float  # of as many sites without any messages
    iterations_seconds: float  # between two outer steps
    message_seconds: float  # of the sum over all sites
    exposed_seconds: float  # of it, without training
    bytes_sent: float  # by a site, for an outer step
    messages_sent: int
    outer_state_bytes: float
    global_batch: int  # of all sites together


def over_sites(workload: Workload, cluster: Cluster, plan: Plan, sites: Sites) -> SitesOutcome:
    """The throughput and the messages of a plan that runs at every site."""
    weights, number, own = workload.trained_parameters, sites.sites, plan.iteration_seconds
    change = weights * sites.bits / 8
    message = _sum_seconds(cluster, sites, change)
    iterations = sites.every * own
    exposed = max(message - iterations, 0.0) if sites.overlap else message
    efficiency = iterations / (iterations + exposed)
    plain = own / (own + _sum_seconds(cluster, sites, weights * GRADIENT_BITS / 8))
    return SitesOutcome(
        tokens_per_second=number * plan.tokens_per_second * efficiency,
        every_iteration_tokens_per_second=number * plan.tokens_per_second * plain,
        efficiency=efficiency,
        iterations_seconds=iterations,
        message_seconds=message,
        exposed_seconds=exposed,
        bytes_sent=2 * (number - 1) / number * change,
        messages_sent=2 * (number - 1),
        outer_state_bytes=float(OUTER_STATE_BYTES * weights),
        global_batch=workload.global_batch * number,
    )


def _sum_seconds(cluster: Cluster, sites: Sites, num_bytes: float) -> float:
    """An all-reduce among the sites: each is a node whose only link is the one to the others."""
    pool = replace(
        cluster.pools[0],
        nodes=sites.sites,
        gpus_per_node=1,
        nvlink_domain=1,
        inter_node_bandwidth=sites.bytes_per_second,
        inter_node_latency=sites.latency_seconds,
        network=Network.TCP,
        oversubscription=1.0,
        block_nodes=0,
    )
    group = Group(np.array([sites.sites]), np.array([1]))
    return float(all_reduce_seconds(fabric_of(pool), num_bytes, group)[0])
