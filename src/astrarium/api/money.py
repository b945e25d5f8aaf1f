"""From the flags about money to a book, priced clusters and notes on them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from astrarium import units
from astrarium.errors import InputError
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.catalog.book import Book
    from astrarium.cluster import Cluster, Pool
    from astrarium.cluster.market import Dearness, Power
    from astrarium.cost.energy import PowerTerms
    from astrarium.cost.training_run import RunTerms
    from astrarium.model.workload import Workload

TODAY_VARIABLE = "SOURCE_DATE_EPOCH"  # seconds; as for reproducible builds
DEFAULT_MOST_GPUS = 1024
ALL_CLOUDS = "all"


class MoneyFlags(Value, frozen=True):
    """The flags about money, as they were written."""

    market: str | None = None
    region: str | None = None
    max_gpus: str | None = None
    prices: Sequence[str] = ()
    price: Sequence[str] = ()
    discount: Sequence[str] = ()
    power_price: str | None = None
    power_utilisation: str | None = None
    money_decides: bool = False  # the cheapest, or a budget: types without a price are no use
    may_choose: bool = False  # GPUs, where none are asked for
    elsewhere: frozenset[str] = frozenset()  # GPU types of another cluster at the same terms
    dearness: Dearness | None = None  # what is cheapest; None: on demand

    @property
    def uses_book(self) -> bool:
        return self.market is not None or bool(self.prices)


def terms(
    flags: Mapping[str, Any], *, money_decides: bool = False, elsewhere: Collection[str] = ()
) -> MoneyFlags:
    """The flags about money among all those of a command; --max-gpus lets it choose GPUs."""
    names = [f.name for f in fields(MoneyFlags) if f.name in flags]
    given = {name: flags[name] for name in names if flags[name] is not None}
    return MoneyFlags(
        **given,
        money_decides=money_decides,
        may_choose="max_gpus" in flags,
        elsewhere=frozenset(elsewhere),
    )


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
    discounts: Sequence[str] = (),
    *,
    built_in: bool = True,
) -> tuple[Book, tuple[str, ...]]:
    """The offers of clouds ("aws,gcp" or "all") and files, and notes on the files."""
    from astrarium.catalog.book import book_of
    from astrarium.catalog.price_files import read_price_file

    read = [read_price_file(file) for file in files]
    own = [offer for one in read for offer in one.offers]
    chosen = _clouds(clouds) if built_in else []
    found = book_of(today(), clouds=chosen, region=region, own=own, discounts=_discounts(discounts))
    return found, tuple(note for one in read for note in one.notes)


def _clouds(text: str | None) -> list[str] | None:
    names = [] if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if text is not None and not names:
        raise InputError("--market: no cloud is named; expected names such as aws,gcp, or all")
    return None if not names or ALL_CLOUDS in map(str.lower, names) else names


def _discounts(texts: Sequence[str]) -> dict[str, float]:
    from astrarium.catalog.book import EVERY_CLOUD
    from astrarium.catalog.price_files import parse_percent

    found: dict[str, float] = {}
    for text in texts:
        cloud, equals, percent = text.rpartition("=")
        if equals and not cloud.strip():
            raise InputError(f"--discount {text}: the cloud is missing; write aws=30, or 30")
        try:
            found[cloud.strip() if equals else EVERY_CLOUD] = parse_percent(percent)
        except InputError as error:
            raise InputError(f"--discount {error}") from None
    return found


def market(terms: MoneyFlags) -> tuple[Cluster, tuple[str, ...]]:
    """All that the clouds of --market offer, each type up to --max-gpus."""
    from astrarium.cluster import Cluster
    from astrarium.cluster.market import market_pools

    if not terms.may_choose:
        raise InputError(
            "no GPUs are given; use --gpus TYPE:N such as h100:64, which --market puts a price on"
        )
    most = DEFAULT_MOST_GPUS if terms.max_gpus is None else _most_gpus(terms.max_gpus)
    offered, notes = book(terms.market, terms.region, terms.prices, terms.discount)
    return concluded(Cluster(market_pools(offered, most)), terms, notes)


def _most_gpus(text: str) -> int:
    from astrarium.cluster import LARGEST_CLUSTER

    try:
        count = units.parse_count(text)
    except InputError as error:
        raise InputError(f"--max-gpus {error}") from None
    if count > LARGEST_CLUSTER:
        raise InputError(f"--max-gpus '{text}': too large; the most is {LARGEST_CLUSTER:,}")
    return count


def priced(cluster: Cluster, terms: MoneyFlags) -> tuple[Cluster, tuple[str, ...]]:
    """A cluster of --gpus or --cluster at the user's terms, and what is to be said about it."""
    from astrarium.cluster import market

    _check_alone(terms)
    notes: tuple[str, ...] = ()
    offered: Book | None = None
    if terms.uses_book:
        built_in = terms.market is not None
        offered, notes = book(
            terms.market, terms.region, terms.prices, terms.discount, built_in=built_in
        )
        here = market.priced(cluster, offered, terms.dearness)
        # Without --market, files say what they know and defaults the rest.
        cluster = here if built_in else _defaults_for_others(here, _at_default(cluster, terms))
        cluster = market.with_own_spot(cluster, offered)
    elif terms.discount:
        cluster = market.with_discount(cluster, _only_discount(terms.discount))
    if terms.price:
        cluster = market.with_prices(cluster, _stated(terms.price), terms.elsewhere)
    if terms.discount:
        notes = (*notes, *market.undiscounted_notes(cluster))
    owned = any(pool.usd_per_gpu_hour == 0 for pool in cluster.pools)
    if terms.power_price is not None and (owned or not terms.elsewhere):
        cluster = market.with_power(cluster, _power(terms))
    return concluded(cluster, terms, notes, offered)


def offers_spot(cluster: Cluster, terms: MoneyFlags) -> bool:
    """Whether a cloud of the book has a spot price for one of the types."""
    offered, _ = book(terms.market, terms.region, terms.prices, built_in=terms.market is not None)
    names = {pool.gpu.name for pool in cluster.pools}
    return any(o.spot_usd_per_hour is not None for name in names for o in offered.usable(name))


def on_spot(workload: Workload, run: RunTerms, *, cheapest: bool) -> Dearness:
    """What a pool costs for its work where nodes may be spot, interruptions included.

    The cheapest way to pay for it counts, or the fastest, and then the other.
    """
    import numpy as np

    from astrarium.cluster import Cluster
    from astrarium.search.money import Runs

    def dearness(pool: Pool) -> tuple[float, float]:
        ways = Runs(workload, Cluster((pool,)), run).ways_of_pool(0, np.array([pool.num_gpus]))
        usd = (ways.stretch * ways.hourly)[0]
        least, fastest = float(usd.min()), float(usd[ways.stretch[0].argmin()])
        return (least, fastest) if cheapest else (fastest, least)

    return dearness


def concluded(
    cluster: Cluster, terms: MoneyFlags, notes: Sequence[str] = (), offered: Book | None = None
) -> tuple[Cluster, tuple[str, ...]]:
    """Notes on missing and stale prices; without the types that have none, if money decides."""
    from astrarium.cluster import market

    left_out: tuple[str, ...] = ()
    if terms.money_decides:
        cluster, left_out = market.without_unpriced(cluster, offered)
    if terms.money_decides or terms.uses_book:
        missing = market.unpriced_notes(cluster, offered)
    else:
        missing = market.refused_notes(cluster)
    return cluster, (*notes, *left_out, *missing, *market.stale_notes(cluster, today()))


def _check_alone(terms: MoneyFlags) -> None:
    """Refuse flags that say nothing without another one."""
    needs = (
        ("--region", terms.region, terms.uses_book, "--market or --prices"),
        ("--max-gpus", terms.max_gpus, False, "--market without --gpus"),
        ("--power-utilisation", terms.power_utilisation, terms.power_price, "--power-price"),
    )
    for flag, value, other, what in needs:
        if value is not None and not other:
            raise InputError(f"{flag} '{value}' goes with {what}; add it, or leave {flag} out")


def _at_default(cluster: Cluster, terms: MoneyFlags) -> Cluster:
    """Default prices less the discount that names no cloud: these are medians over clouds."""
    from astrarium.catalog.book import EVERY_CLOUD
    from astrarium.cluster import market

    share = _discounts(terms.discount).get(EVERY_CLOUD)
    return cluster if share is None else market.with_discount(cluster, share)


def _defaults_for_others(here: Cluster, before: Cluster) -> Cluster:
    from dataclasses import replace

    pairs = zip(here.pools, before.pools, strict=True)
    return replace(
        here, pools=tuple(new if new.usd_per_gpu_hour is not None else old for new, old in pairs)
    )


def _only_discount(texts: Sequence[str]) -> float:
    from astrarium.catalog.book import EVERY_CLOUD

    discounts = _discounts(texts)
    if set(discounts) != {EVERY_CLOUD}:
        raise InputError(
            f"--discount {texts[0]}: the default prices are medians over clouds; give --market"
            " with the cloud, or a discount without a name"
        )
    return discounts[EVERY_CLOUD]


def _stated(texts: Sequence[str]) -> dict[str, float]:
    """The prices of --price, by full name of the GPU type."""
    from astrarium.catalog import find_gpu

    found = {}
    for text in texts:
        name, equals, amount = (part.strip() for part in text.partition("="))
        if not equals or not name or not amount:
            raise InputError(f"--price '{text}': expected TYPE=USD per GPU and hour, e.g. h100=2.5")
        try:
            found[find_gpu(name).name] = units.parse_usd(amount, allow_zero=True)
        except InputError as error:
            raise InputError(f"--price {text}: {error}") from None
    return found


def _power(terms: MoneyFlags) -> Power:
    from astrarium.cluster.market import Power

    assert terms.power_price is not None
    try:
        usd = units.parse_usd(terms.power_price, allow_zero=True)
    except InputError as error:
        raise InputError(f"--power-price {error}") from None
    return Power(usd, power_terms(terms.power_utilisation).of_tdp)


def power_terms(utilisation: str | None) -> PowerTerms:
    """What is drawn for each watt of the boards; `utilisation` is the text of its flag."""
    from astrarium.catalog.price_files import parse_percent
    from astrarium.cost.energy import PowerTerms

    if utilisation is None:
        return PowerTerms()
    if utilisation.strip(" %") == "100":
        return PowerTerms(utilisation=1.0)
    try:
        return PowerTerms(utilisation=parse_percent(utilisation))
    except InputError as error:
        raise InputError(f"--power-utilisation {error}") from None
