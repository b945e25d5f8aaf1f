"""Several data centres with slow links between them: outer steps, as DiLoCo takes them.

Every site trains a replica of the model by its own plan, on its own data, for many iterations. Then
the sites sum by how much their weights have changed, and an outer optimizer applies the mean (arXiv
2311.08105, 2023-11: 8 sites with 500 iterations between outer steps). Fragments of the model may
take turns, and a fragment may travel beside the iterations until the next one is due, in as few as
4 bits a weight (Streaming DiLoCo, arXiv 2501.18512, 2025-01).

The sum is priced as any all-reduce, over links of the stated speed with the efficiency of TCP. Not
modelled: what outer steps do to the loss, computation that messages slow down, sites that differ.
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
    every: int = 100  # iterations between two outer steps of a weight
    bits: int = GRADIENT_BITS
    fragments: int = 1
    overlap: bool = False


class SitesOutcome(Value, frozen=True):
    """What the sites train together; `exposed_seconds` is what an outer step adds to iterations.

    `message_seconds` is the sum of a fragment over all sites. `hidden_bytes_per_second` is the
    speed of a link from which on overlapped messages take no time.
    `every_iteration_tokens_per_second` is plain data parallelism over the same links,
    `outer_state_bytes` what a site keeps beside.
    """

    tokens_per_second: float
    one_site_tokens_per_second: float
    every_iteration_tokens_per_second: float
    efficiency: float  # of as many sites without any messages
    iterations_seconds: float  # between two outer steps
    message_seconds: float
    exposed_seconds: float
    bytes_sent: float  # by a site, for an outer step
    messages_sent: int
    mean_bytes_per_second: float  # of the link of a site
    hidden_bytes_per_second: float
    outer_state_bytes: float
    global_batch: int  # of all sites together


def over_sites(workload: Workload, cluster: Cluster, plan: Plan, sites: Sites) -> SitesOutcome:
    """The throughput and the messages of a plan that runs at every site."""
    weights = workload.trained_parameters
    fragment = weights * sites.bits / 8 / sites.fragments
    message = _sum_seconds(cluster, sites, fragment)
    iterations = sites.every * plan.iteration_seconds
    window = iterations / sites.fragments
    exposed = sites.fragments * (max(message - window, 0.0) if sites.overlap else message)
    one = plan.tokens_per_second
    together = sites.sites * one * iterations / (iterations + exposed)
    plain = _sum_seconds(cluster, sites, weights * GRADIENT_BITS / 8)
    sent = 2 * (sites.sites - 1) / sites.sites * fragment * sites.fragments
    return SitesOutcome(
        tokens_per_second=together,
        one_site_tokens_per_second=one,
        every_iteration_tokens_per_second=sites.sites
        * one
        * plan.iteration_seconds
        / (plan.iteration_seconds + plain),
        efficiency=together / (sites.sites * one),
        iterations_seconds=iterations,
        message_seconds=message,
        exposed_seconds=exposed,
        bytes_sent=sent,
        messages_sent=2 * (sites.sites - 1) * sites.fragments,
        mean_bytes_per_second=sent / (iterations + exposed),
        hidden_bytes_per_second=_hidden_rate(cluster, sites, fragment, window),
        outer_state_bytes=float(OUTER_STATE_BYTES * weights),
        global_batch=workload.global_batch * sites.sites,
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


def _hidden_rate(cluster: Cluster, sites: Sites, num_bytes: float, window: float) -> float:
    """The least speed of links at which a fragment arrives before the next; inf if none does."""
    low, high = 1.0, 1e15
    if _sum_seconds(cluster, replace(sites, bytes_per_second=high), num_bytes) > window:
        return float("inf")
    for _ in range(60):
        middle = (low * high) ** 0.5
        fits = _sum_seconds(cluster, replace(sites, bytes_per_second=middle), num_bytes) <= window
        low, high = (low, middle) if fits else (middle, high)
    return high
