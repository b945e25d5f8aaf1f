"""Pools from a price book: what `--gpus` costs at chosen clouds, or all that they offer.

A pool is nodes of one instance type of one cloud, and is billed by the instances on offer there
(`Pool.billed_gpus`). Its links are those of the instance where the catalog knows them. A pool that
is made from the book alone has a single node if nothing is known about the network between
instances of its type: many offers are single machines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Final, TypeAlias

import numpy as np

from astrarium.catalog import Gpu, Instance, find_gpu, find_instance
from astrarium.catalog.prices import OWN_CLOUD, RATE_CARD, Book, Offer, is_stale, rented_sizes
from astrarium.catalog.records import sources
from astrarium.cluster.build import Machines, build_pool
from astrarium.cluster.interconnect import network_of_fabric
from astrarium.cluster.types import CLUSTER_FILE, Cluster, Pool, billed_gpus
from astrarium.errors import InputError, flag, refusal
from astrarium.value import Value, replace

Dearness: TypeAlias = Callable[[Pool], tuple[float, ...]]  # what a pool costs, in any unit

PRICE_FLAG: Final = "--price"
# A smaller instance counts as one of a pool's sizes if its GPUs cost at most so much more.
DEARER_SIZES: Final = 1.02
ROUNDED: Final = 1 + 1e-6  # prices of instances, over those of their GPUs
MOST_STALE: Final = 4  # prices that are named one by one


class Power(Value, frozen=True):
    """The costs of owned machines: the price of power, and how much is drawn for a board's watt.

    The rest of the node and the cooling of the hall are in it (`cost.energy`), as in the energy of
    a run.
    """

    usd_per_kwh: float
    of_tdp: float

    def usd_per_gpu_hour(self, gpu: Gpu) -> float:
        return self._kilowatts(gpu) * self.usd_per_kwh

    def words(self, gpu: Gpu) -> str:
        drawn = f"{self._kilowatts(gpu):.3g} kW a GPU, node and cooling included,"
        return f"owned; {drawn} at ${self.usd_per_kwh:g} per kWh"

    def _kilowatts(self, gpu: Gpu) -> float:
        return gpu.tdp_watts / 1000 * self.of_tdp


def _each(cluster: Cluster, change: Callable[[Pool], Pool]) -> Cluster:
    return replace(cluster, pools=tuple(map(change, cluster.pools)))


def priced(cluster: Cluster, book: Book, dearness: Dearness | None = None) -> Cluster:
    """The cluster at the cheapest offers of a book; a pool without one has no price.

    `dearness` says what is cheapest; by default it is the on-demand price of a node. Prices that a
    cluster file states stay, and so do its machines and links.
    """
    return _each(cluster, lambda pool: _priced_pool(pool, book, dearness))


def with_own_spot(cluster: Cluster, book: Book) -> Cluster:
    """The cluster with the user's spot prices (rows without a cloud) where it has no others."""

    def own(pool: Pool) -> Pool:
        stated = [
            offer.spot_usd_per_gpu_hour
            for offer in book.of(pool.gpu.name)
            if offer.is_spot_only and (offer.cloud == OWN_CLOUD or not pool.cloud)
        ]
        kept = pool.usd_per_gpu_hour is None or pool.price_origin == CLUSTER_FILE
        spot = min((price for price in stated if price is not None), default=None)
        return pool if kept or spot is None else replace(pool, spot_usd_per_gpu_hour=spot)

    return _each(cluster, own)


def with_prices(
    cluster: Cluster, usd_per_gpu_hour: Mapping[str, float], elsewhere: Collection[str] = ()
) -> Cluster:
    """The cluster with the user's prices by GPU type; types `elsewhere` may be missing."""
    here = [pool.gpu.name for pool in cluster.pools]
    for gpu in usd_per_gpu_hour:
        if gpu not in (*here, *elsewhere):
            raise refusal("price", f": {gpu} is none of the GPUs asked about ({', '.join(here)})")

    def stated(pool: Pool) -> Pool:
        price = usd_per_gpu_hour.get(pool.gpu.name)
        return pool if price is None else _without_offer(pool, price, PRICE_FLAG)

    return _each(cluster, stated)


def with_discount(cluster: Cluster, share: float) -> Cluster:
    """The default prices of a cluster, less a share; stated prices are what is paid."""

    def less(pool: Pool) -> Pool:
        price = pool.usd_per_gpu_hour
        if price is None or pool.price_origin:
            return pool
        return replace(
            pool,
            usd_per_gpu_hour=price * (1 - share),
            price_date=price_day(pool),
            price_origin=f"median over clouds less {100 * share:g} %",
        )

    return _each(cluster, less)


def undiscounted_notes(cluster: Cluster) -> tuple[str, ...]:
    """Notes on prices without the discount: stated prices are final."""
    stated = [p for p in cluster.pools if p.price_origin in (PRICE_FLAG, CLUSTER_FILE)]
    names = ", ".join(dict.fromkeys(pool.gpu.name for pool in stated))
    return (f"stated prices are not discounted: {names}",) if stated else ()


def with_power(cluster: Cluster, power: Power) -> Cluster:
    """The cluster with the power of machines whose price is zero."""
    if all(pool.usd_per_gpu_hour != 0 for pool in cluster.pools):
        names = ", ".join(pool.requested or pool.gpu.name for pool in cluster.pools)
        first = cluster.pools[0].requested or cluster.pools[0].gpu.name
        raise refusal(
            "power_price",
            f" is for owned machines, whose price is zero, and {names} are rented;"
            f" {flag('price')} {first}=0 owns them",
        )

    def powered(pool: Pool) -> Pool:
        if pool.usd_per_gpu_hour != 0:
            return pool
        sizes, words = tuple(range(1, pool.gpus_per_node + 1)), power.words(pool.gpu)
        usd = power.usd_per_gpu_hour(pool.gpu)
        return replace(pool, usd_per_gpu_hour=usd, price_origin=words, rented_sizes=sizes)

    return _each(cluster, powered)


def market_pools(book: Book, most_gpus: int) -> tuple[Pool, ...]:
    """Pools for every cloud and GPU type of a book, each with a limited number of GPUs."""
    pools: list[Pool] = []
    for name in book.gpus:
        usable = book.usable(name)
        for cloud in dict.fromkeys(offer.cloud for offer in usable):
            own = [offer for offer in usable if offer.cloud == cloud]
            pools += _pools_of_cloud(find_gpu(name), own, most_gpus)
    if not pools:
        raise InputError("no offer with an on-demand price is left; name more clouds or regions")
    return tuple(pools)


def stale_notes(cluster: Cluster, today: date) -> tuple[str, ...]:
    """Prices that are too old to be relied on, with dates; of very many the oldest."""
    stale = [
        pool
        for pool in cluster.pools
        if pool.usd_per_gpu_hour is not None and is_stale(price_day(pool), today)
    ]
    if len(stale) <= MOST_STALE:
        return tuple(dict.fromkeys(_stale(pool, today) for pool in stale))
    oldest = min(stale, key=price_day)
    return (
        f"{len(stale)} of {len(cluster.pools)} prices are stale; {_stale(oldest, today)}. Each"
        " plan's price has its date",
    )


def _stale(pool: Pool, today: date) -> str:
    day = price_day(pool)
    where = f" at {pool.cloud}" if pool.cloud else ""
    age = (today - date.fromisoformat(day)).days
    return (
        f"the price of {pool.gpu.name}{where} is stale: of {day}, {age:,} days old;"
        f" {flag('price', f'{pool.requested or pool.gpu.name}=USD')} sets a current one"
    )


def price_day(pool: Pool) -> str:
    """The latest day of the price; "" if it is the user's own."""
    if pool.price_origin or pool.price_date:
        return pool.price_date
    return pool.gpu.price_dates[1] if pool.gpu.price_dates else ""


def without_unpriced(cluster: Cluster, book: Book | None = None) -> tuple[Cluster, tuple[str, ...]]:
    """The pools that have a price, if any has one, and notes on the others."""
    unpriced = [pool for pool in cluster.pools if pool.usd_per_gpu_hour is None]
    if not unpriced or len(unpriced) == len(cluster.pools):
        return cluster, ()
    kept = tuple(pool for pool in cluster.pools if pool.usd_per_gpu_hour is not None)
    notes = tuple(f"{_unpriced(pool, book)}: left out" for pool in unpriced)
    return cluster.part(kept), notes


def unpriced_notes(cluster: Cluster, book: Book | None = None) -> tuple[str, ...]:
    """Notes on missing prices."""
    return tuple(_unpriced(pool, book) for pool in cluster.pools if pool.usd_per_gpu_hour is None)


def refused_notes(cluster: Cluster) -> tuple[str, ...]:
    """Default prices that are not taken because they belong to other machines."""
    return tuple(
        _unpriced(pool)
        for pool in cluster.pools
        if pool.usd_per_gpu_hour is None and pool.gpu.price_good_for is not None
    )


def _unpriced(pool: Pool, book: Book | None = None) -> str:
    name = pool.requested or pool.gpu.name
    why = _of_other_machines(pool, book) or f"no price is known for {pool.gpu.name}"
    return f"{why}; {flag('price', f'{name}=USD')} sets one"


def _of_other_machines(pool: Pool, book: Book | None) -> str:
    """Why there are prices of the type, but none of what is asked for; "" if there are none."""
    name, node = pool.gpu.name, pool.gpus_per_node
    if book is None:
        if pool.gpu.price_good_for is None:
            return ""
        most, who = pool.gpu.price_good_for, "clouds rent"
    else:
        usable = book.usable(name)
        if not usable:
            return ""
        most = max(offer.gpus for offer in usable)
        clouds = list(dict.fromkeys(offer.cloud for offer in usable))
        who = f"{clouds[0]} rents" if len(clouds) == 1 else f"{', '.join(clouds)} rent"
        if _whole(usable, node):
            return (
                f"the network between instances that {who} with {name} is not known, so that they"
                f" have no price as {pool.nodes} nodes"
            )
    gpus = f"{most} GPU{'s' if most > 1 else ''}"
    return f"{who} {name} in instances of at most {gpus}, which are no price of nodes of {node}"


def _without_offer(pool: Pool, price: float | None, origin: str) -> Pool:
    return replace(
        pool,
        usd_per_gpu_hour=price,
        spot_usd_per_gpu_hour=None,
        cloud="",
        instance="",
        region="",
        price_date="",
        price_origin=origin,
    )


def _priced_pool(pool: Pool, book: Book, dearness: Dearness | None) -> Pool:
    if pool.price_origin == CLUSTER_FILE:
        return pool
    choices = [_at_offer(pool, offer, book) for offer in _nodes_on_offer(pool, book)]
    if not choices:
        return _without_offer(pool, None, "")
    return choices[0] if dearness is None else min(choices, key=dearness)


def _nodes_on_offer(pool: Pool, book: Book) -> list[Offer]:
    """Offers that are machines such as those of a pool, the cheapest first.

    They are whole nodes: smaller instances are not joined like the GPUs of a node. Several nodes
    have a network between them, which the catalog has to know; what the user's own prices and
    cluster files are about, they know themselves.
    """
    node = pool.gpus_per_node
    whole = _whole(book.usable(pool.gpu.name), node)
    if pool.nodes > 1 and pool.rented_sizes:
        known = sources()
        whole = [o for o in whole if o.source not in known or _links(o, node).inter_node_bandwidth]
    return sorted(whole, key=lambda o: (_usd_of_node(o, node), o.cloud, o.region, o.instance))


def _at_offer(pool: Pool, best: Offer, book: Book) -> Pool:
    node = pool.gpus_per_node
    if pool.rented_sizes:  # not of a cluster file, whose machines are as they are
        pool = build_pool(
            pool.name,
            pool.gpu,
            pool.nodes,
            node,
            pool.requested or pool.gpu.name,
            node_size=pool.gpu.gpus_per_node,
            machines=replace(
                _links(best, node), rented_sizes=_sizes(best, book.usable(pool.gpu.name))
            ),
        )
    return _with_offer(pool, best)


def _whole(usable: Sequence[Offer], node: int) -> list[Offer]:
    return [offer for offer in usable if offer.gpus >= node or RATE_CARD in offer.marks]


def _usd_of_node(offer: Offer, node: int) -> float:
    """The price for GPUs of a node: whole instances, several if one is too small."""
    rate = offer.usd_per_gpu_hour
    assert rate is not None, "offers without a price are not usable"
    sizes = _usual_sizes(offer) if RATE_CARD in offer.marks else (offer.gpus,)
    return rate * int(billed_gpus(np.array(node), node, sizes))


def _usual_sizes(offer: Offer) -> tuple[int, ...]:
    """Sizes by which a rate per GPU is billed: those of the instances that clouds offer."""
    gpu = find_gpu(offer.gpu)
    return gpu.rented_sizes or (gpu.gpus_per_node,)


def _with_offer(pool: Pool, offer: Offer) -> Pool:
    return replace(
        pool,
        usd_per_gpu_hour=offer.usd_per_gpu_hour,
        spot_usd_per_gpu_hour=offer.spot_usd_per_gpu_hour,
        cloud=offer.cloud,
        instance=offer.instance,
        region=offer.region,
        price_date=offer.date,
        price_origin=offer.source,
    )


def _sizes(best: Offer, usable: Sequence[Offer]) -> tuple[int, ...]:
    """Instances of the same cloud and region whose GPUs cost no more, as far as that is known."""
    if RATE_CARD in best.marks:
        return _usual_sizes(best)
    rate = best.usd_per_gpu_hour or 0.0
    return rented_sizes(
        offer
        for offer in usable
        if (offer.cloud, offer.region) == (best.cloud, best.region)
        and (offer.usd_per_gpu_hour or 0.0) <= rate * DEARER_SIZES
    )


def _pools_of_cloud(gpu: Gpu, own: Sequence[Offer], most_gpus: int) -> list[Pool]:
    """Nodes of the largest instance, and smaller ones that are cheaper for their size."""
    whole = [offer for offer in own if RATE_CARD not in offer.marks]
    within = [offer for offer in whole or own if offer.gpus <= most_gpus]
    pools: list[Pool] = []
    for size in sorted({offer.gpus for offer in within}, reverse=True):
        alike = [offer for offer in within if offer.gpus == size]
        best = min(alike, key=lambda o: (o.usd_per_gpu_hour, o.region, o.instance))
        node = best.gpus if whole else min(gpu.gpus_per_node, most_gpus)
        usd = size * (best.usd_per_gpu_hour or 0.0)
        billed = ((float(p.billed_gpus(np.array(size))), p.usd_per_gpu_hour or 0.0) for p in pools)
        if all(usd * ROUNDED < gpus * price for gpus, price in billed):
            name = f"{gpu.name}@{best.cloud}" + (f"-x{size}" if pools else "")
            pools.append(_market_pool(name, gpu, best, own, node, most_gpus))
    return pools


def _market_pool(
    name: str, gpu: Gpu, best: Offer, own: Sequence[Offer], node: int, most_gpus: int
) -> Pool:
    links = _links(best, node)
    nodes = max(most_gpus // node, 1) if links.inter_node_bandwidth else 1
    machines = replace(links, rented_sizes=_sizes(best, own))
    return _with_offer(build_pool(name, gpu, nodes, node, gpu.name, machines=machines), best)


def _links(offer: Offer, node: int) -> Machines:
    """The links of the instance, where the catalog knows it; else those of the GPU type."""
    instance = _instance(offer)
    if instance is None or instance.gpus_per_node != node:
        return Machines()
    inter = instance.inter_node_bandwidth
    return Machines(
        intra_node_bandwidth=instance.intra_node_bandwidth,
        inter_node_bandwidth=inter,
        network=network_of_fabric(instance.fabric) if inter else None,
        host_memory=instance.host_memory_bytes or 0,
    )


def _instance(offer: Offer) -> Instance | None:
    try:
        instance = find_instance(offer.instance)
    except InputError:
        return None
    return instance if instance.gpu == offer.gpu else None
