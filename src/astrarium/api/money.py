"""From the flags about money to a book, priced clusters and notes on them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

import numpy as np

from astrarium.api.asked import PriceFlags
from astrarium.catalog.prices import EVERY_CLOUD, Book, book_of
from astrarium.cluster import Cluster, Pool
from astrarium.cluster import market as pricing
from astrarium.cluster.market import Dearness, market_pools
from astrarium.cost.energy import PowerTerms
from astrarium.cost.training_run import RunTerms
from astrarium.errors import InputError, flag, refusal
from astrarium.model.workload import Workload
from astrarium.value import Value, replace

TODAY_VARIABLE = "SOURCE_DATE_EPOCH"  # seconds; as for reproducible builds
DEFAULT_MOST_GPUS = 1024
ALL_CLOUDS = "all"


class MoneyTerms(Value, frozen=True):
    """The flags about money, and what a question makes of them."""

    flags: PriceFlags
    money_decides: bool = False  # the cheapest, or a budget: types without a price are no use
    may_choose: bool = False  # GPUs, where none are asked for
    elsewhere: frozenset[str] = frozenset()  # GPU types of another cluster at the same terms
    dearness: Dearness | None = None  # what is cheapest; None: on demand


NO_TERMS = MoneyTerms(PriceFlags())


def today() -> date:
    """The day against which prices age: that of the environment if it names one."""
    seconds = os.environ.get(TODAY_VARIABLE)
    if not seconds:
        return date.today()
    try:
        return datetime.fromtimestamp(int(seconds), UTC).date()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"{TODAY_VARIABLE} is '{seconds}'; expected seconds since 1970, or unset it"
        ) from None


def book(
    clouds: str | None,
    region: str | None,
    files: Sequence[str],
    discounts: Mapping[str, float] | None = None,
    *,
    built_in: bool = True,
) -> tuple[Book, tuple[str, ...]]:
    """The offers of clouds ("aws,gcp" or "all") and files, and notes on the files."""
    from astrarium.catalog.price_files import read_price_file

    read = [read_price_file(file) for file in files]
    own = [offer for one in read for offer in one.offers]
    chosen = _clouds(clouds) if built_in else []
    found = book_of(today(), clouds=chosen, region=region, own=own, discounts=discounts or {})
    return found, tuple(note for one in read for note in one.notes)


def _clouds(text: str | None) -> list[str] | None:
    names = [] if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if text is not None and not names:
        raise refusal("market", ": no cloud is named; expected names such as aws,gcp, or all")
    return None if not names or ALL_CLOUDS in map(str.lower, names) else names


def market(terms: MoneyTerms) -> tuple[Cluster, tuple[str, ...]]:
    """All that the clouds of --market offer, each type up to --max-gpus."""
    if not terms.may_choose:
        raise InputError(
            f"no GPUs are given; use {flag('gpus')} TYPE:N such as h100:64, which {flag('market')}"
            " puts a price on",
            "gpus",
        )
    given = terms.flags
    offered, notes = book(given.market, given.region, given.prices or (), given.discount)
    return concluded(
        Cluster(market_pools(offered, given.max_gpus or DEFAULT_MOST_GPUS)), terms, notes
    )


def priced(cluster: Cluster, terms: MoneyTerms) -> tuple[Cluster, tuple[str, ...]]:
    """A cluster of --gpus or --cluster at the user's terms, and what is to be said about it."""
    given = terms.flags
    _check_alone(given)
    notes: tuple[str, ...] = ()
    offered: Book | None = None
    if given.uses_book:
        built_in = given.market is not None
        files = given.prices or ()
        offered, notes = book(given.market, given.region, files, given.discount, built_in=built_in)
        here = pricing.priced(cluster, offered, terms.dearness)
        # Without --market, files say what they know and defaults the rest.
        cluster = here if built_in else _defaults_for_others(here, _at_default(cluster, given))
        cluster = pricing.with_own_spot(cluster, offered)
    elif given.discount:
        cluster = pricing.with_discount(cluster, _only_discount(given.discount))
    if given.price:
        cluster = pricing.with_prices(cluster, given.price, terms.elsewhere)
    if given.discount:
        notes = (*notes, *pricing.undiscounted_notes(cluster))
    owned = any(pool.usd_per_gpu_hour == 0 for pool in cluster.pools)
    if given.power_price is not None and (owned or not terms.elsewhere):
        power = pricing.Power(given.power_price, power_terms(given.power_utilisation).of_tdp)
        cluster = pricing.with_power(cluster, power)
    return concluded(cluster, terms, notes, offered)


def power_terms(utilisation: float | None) -> PowerTerms:
    return PowerTerms() if utilisation is None else PowerTerms(utilisation=utilisation)


def offers_spot(cluster: Cluster, given: PriceFlags) -> bool:
    """Whether a cloud of the book has a spot price for one of the types."""
    built_in = given.market is not None
    offered, _ = book(given.market, given.region, given.prices or (), built_in=built_in)
    names = {pool.gpu.name for pool in cluster.pools}
    return any(o.spot_usd_per_hour is not None for name in names for o in offered.usable(name))


def on_spot(workload: Workload, run: RunTerms, *, cheapest: bool) -> Dearness:
    """The price of a pool's work with spot nodes: the cheapest and the fastest way to pay."""
    from astrarium.search.money import Runs

    def dearness(pool: Pool) -> tuple[float, float]:
        ways = Runs(workload, Cluster((pool,)), run).ways_of_pool(0, np.array([pool.num_gpus]))
        usd = (ways.stretch * ways.hourly)[0]
        least, fastest = float(usd.min()), float(usd[ways.stretch[0].argmin()])
        return (least, fastest) if cheapest else (fastest, least)

    return dearness


def concluded(
    cluster: Cluster, terms: MoneyTerms, notes: Sequence[str] = (), offered: Book | None = None
) -> tuple[Cluster, tuple[str, ...]]:
    """Notes on missing and stale prices; without the types that have none, if money decides."""
    left_out: tuple[str, ...] = ()
    if terms.money_decides:
        cluster, left_out = pricing.without_unpriced(cluster, offered)
    if terms.money_decides or terms.flags.uses_book:
        missing = pricing.unpriced_notes(cluster, offered)
    else:
        missing = pricing.refused_notes(cluster)
    return cluster, (*notes, *left_out, *missing, *pricing.stale_notes(cluster, today()))


def _check_alone(given: PriceFlags) -> None:
    """Refuse flags that say nothing without another one."""
    used = given.power_utilisation
    needs = (
        ("region", given.region, given.uses_book, f"{flag('market')} or {flag('prices')}"),
        ("max_gpus", given.max_gpus, False, f"{flag('market')} without {flag('gpus')}"),
        (
            "power_utilisation",
            None if used is None else f"{100 * used:g}",
            given.power_price is not None,
            flag("power_price"),
        ),
    )
    for name, value, has_other, other in needs:
        if value is not None and not has_other:
            says = f" '{value}' goes with {other}; add it, or leave {flag(name)} out"
            raise refusal(name, says)


def _at_default(cluster: Cluster, given: PriceFlags) -> Cluster:
    """Default prices less the discount that names no cloud: these are medians over clouds."""
    share = (given.discount or {}).get(EVERY_CLOUD)
    return cluster if share is None else pricing.with_discount(cluster, share)


def _defaults_for_others(here: Cluster, before: Cluster) -> Cluster:
    pairs = zip(here.pools, before.pools, strict=True)
    return replace(
        here, pools=tuple(new if new.usd_per_gpu_hour is not None else old for new, old in pairs)
    )


def _only_discount(discounts: Mapping[str, float]) -> float:
    if set(discounts) != {EVERY_CLOUD}:
        cloud, share = next(iter(discounts.items()))
        first = f"{100 * share:g}" if cloud == EVERY_CLOUD else f"{cloud}={100 * share:g}"
        raise refusal(
            "discount",
            f" {first}: the default prices are medians over clouds; give {flag('market')}"
            " with the cloud, or a discount without a name",
        )
    return discounts[EVERY_CLOUD]
