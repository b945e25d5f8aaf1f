"""The price book: list prices of whole instances, by cloud and class of regions, with dates.

US dollars per hour: on demand the median over the regions of a class ("us", "europe", "asia",
"other"; "any" if a list names none), spot the median over the zones of each region. Taxes, storage,
traffic and contracts are not included. Marks in `note`: "stale" (unchanged for a year), "broker",
"marketplace", "auction", "form-factor-assumed", "host-assumed", "second-hand", "confidential",
"rate-card" (per GPU without an instance), "discount" (already taken off). `tools/compile_prices.py`
makes the book.

`book_of` gives a book to plan by: offers of the allowed clouds and regions. The user's own prices
replace the built-in ones of the same cloud and GPU type; spot-only prices replace the spot prices
alone. Discounts come off on-demand prices, except own prices that state a discount.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from statistics import median
from typing import Any, Final, cast

from astrarium.catalog.gpus import find_gpu
from astrarium.catalog.records import STALE_AFTER_DAYS as STALE_AFTER_DAYS
from astrarium.catalog.records import read_table
from astrarium.errors import InputError, about, did_you_mean, instead, repairs_among
from astrarium.value import Value

OWN_CLOUD: Final = "own"  # of prices of the user that name no cloud
RATE_CARD: Final = "rate-card"
DISCOUNT: Final = "discount"

# Of the data file: what all regions of an instance share, and what each class has; the last ones
# may be left out.
INSTANCE_COLUMNS: Final = ("cloud", "instance", "gpu", "gpus", "date", "source", "note")
REGION_COLUMNS: Final = (
    "usd_per_hour",
    "spot_usd_per_hour",
    "regions",
    "least_usd_per_hour",
    "most_usd_per_hour",
)
_DECIMALS: Final = 6  # of one over regions

# What people call the clouds of the book; patterns of the names of regions.
_CLOUDS: Final[Mapping[str, Any]] = read_table("clouds.json")


class Offer(Value, frozen=True):
    """One way to rent GPUs: a whole instance of one cloud in one class of regions."""

    cloud: str
    region: str  # a class of regions, or the user's word
    instance: str
    gpu: str  # name of the GPU type
    gpus: int  # per instance
    usd_per_hour: float | None  # whole instance, on demand
    spot_usd_per_hour: float | None
    date: str  # ISO; "" if the user's file gives none
    source: str  # code of `sources`, or the user's file
    note: str = ""
    regions: int = 1  # that the price is the median of
    least_usd_per_hour: float | None = None  # among these regions
    most_usd_per_hour: float | None = None

    @property
    def usd_per_gpu_hour(self) -> float | None:
        return None if self.usd_per_hour is None else self.usd_per_hour / self.gpus

    @property
    def spot_usd_per_gpu_hour(self) -> float | None:
        return None if self.spot_usd_per_hour is None else self.spot_usd_per_hour / self.gpus

    @property
    def is_spot_only(self) -> bool:
        return self.usd_per_hour is None and self.spot_usd_per_hour is not None

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(self.note.split())

    def is_in(self, region: str | None) -> bool:
        """Whether it can be had there; what names no region can be had everywhere."""
        return region is None or self.region in (region, ANY_REGION)


def offers(gpu: str | None = None, clouds: Collection[str] | None = None) -> tuple[Offer, ...]:
    """The offers of the book, of one GPU type (name or alias) or of some clouds."""
    wanted = None if gpu is None else find_gpu(gpu).name
    among = None if clouds is None else {find_cloud(cloud) for cloud in clouds}
    return tuple(
        offer
        for offer in _book()
        if wanted in (offer.gpu, None) and (among is None or offer.cloud in among)
    )


def cloud_names() -> tuple[str, ...]:
    return tuple(sorted({offer.cloud for offer in _book()}))


def cloud_name(text: str) -> str:
    """One spelling for each cloud: that of the book, also for its aliases, or lower case."""
    key = "".join(text.lower().split())
    return _CLOUDS["aliases"].get(key, key)


def find_cloud(name: str, known: Collection[str] = ()) -> str:
    """The cloud of this name or alias; `known` are names beside those of the book."""
    names = [*cloud_names(), *known]
    by_name = {cloud_name(each): each for each in names}
    found = by_name.get(cloud_name(name))
    if found is None:
        raise InputError(
            f"unknown cloud '{name}'{did_you_mean(name, [*names, *_CLOUDS['aliases']])}; known are"
            f" {', '.join(names)}",
            repairs=instead(name, [*names, *_CLOUDS["aliases"]]),
        )
    return found


def age_days(day: str, today: date) -> int | None:
    """Days since a price was stated; None if no day is known."""
    return (today - date.fromisoformat(day)).days if day else None


def is_stale(day: str, today: date) -> bool:
    """Whether a price is too old to be relied on; prices without a day are the user's own."""
    age = age_days(day, today)
    return age is not None and age > STALE_AFTER_DAYS


def merged(among: Iterable[Offer]) -> list[Offer]:
    """Offers of single regions as one for each class of regions: medians, and how far they vary."""
    groups: defaultdict[tuple[str, str, str, str, int], list[Offer]] = defaultdict(list)
    for offer in among:
        groups[offer.cloud, offer.gpu, offer.instance, offer.region, offer.gpus].append(offer)
    made = []
    for _, group in sorted(groups.items()):
        usd = [offer.usd_per_hour for offer in group if offer.usd_per_hour is not None]
        spot = [o.spot_usd_per_hour for o in group if o.spot_usd_per_hour is not None]
        marks = {mark for offer in group for mark in offer.marks}
        one = replace(
            group[0],
            usd_per_hour=round(median(usd), _DECIMALS) if usd else None,
            spot_usd_per_hour=round(median(spot), _DECIMALS) if spot else None,
            date=min(offer.date for offer in group),
            note=" ".join(sorted(marks)),
            regions=len(group),
            least_usd_per_hour=min(usd, default=None),
            most_usd_per_hour=max(usd, default=None),
        )
        made.append(one)
    return made


def rented_sizes(among: Iterable[Offer]) -> tuple[int, ...]:
    """GPUs of the instances on offer, ascending; a rate per GPU says nothing about them."""
    return tuple(sorted({offer.gpus for offer in among if RATE_CARD not in offer.marks}))


@cache
def _book() -> tuple[Offer, ...]:
    return tuple(read_book(read_table("prices.json")))


def read_book(table: Mapping[str, object]) -> Iterator[Offer]:
    """Offers of a data file: a line is an instance with the figures of each class of regions."""
    for *alike, regions in cast("Sequence[Sequence[Any]]", table["offers"]):
        same = dict(zip(INSTANCE_COLUMNS, alike, strict=True))
        for region, figures in regions.items():
            own = dict(zip(REGION_COLUMNS, figures, strict=False))
            # Left out where all regions of the class ask the same.
            own.setdefault("least_usd_per_hour", own["usd_per_hour"])
            own.setdefault("most_usd_per_hour", own["usd_per_hour"])
            yield Offer(region=region, **same, **own)


ANY_REGION: Final = "any"  # where a list names no region
REGIONS: Final = ("us", "europe", "asia", "other")


def region_class(region: str) -> str | None:
    """The class of a region by the first pattern in its name, or None if that says nothing."""
    name = region.strip().lower()
    return next((word for pattern, word in _CLOUDS["regions"] if re.search(pattern, name)), None)


EVERY_CLOUD: Final = "*"  # in discounts: clouds that are not named


class Book(Value, frozen=True):
    """Offers, and the day against which their age is counted."""

    offers: tuple[Offer, ...]
    today: date
    named: bool = False  # whether its clouds were chosen one by one

    def of(self, gpu: str) -> tuple[Offer, ...]:
        return tuple(offer for offer in self.offers if offer.gpu == gpu)

    def usable(self, gpu: str) -> tuple[Offer, ...]:
        """Those with an on-demand price; stale ones only if there is nothing else.

        Of clouds that are named, nothing else of the same cloud: one more cloud must not take away
        what another offers.
        """
        priced = [offer for offer in self.of(gpu) if offer.usd_per_hour is not None]
        fresh = [offer for offer in priced if not is_stale(offer.date, self.today)]
        if not self.named:
            return tuple(fresh or priced)
        clouds = {offer.cloud for offer in fresh}
        return tuple(offer for offer in priced if offer in fresh or offer.cloud not in clouds)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(offer.gpu for offer in self.offers))


def book_of(
    today: date,
    *,
    clouds: Collection[str] | None = None,
    region: str | None = None,
    own: Sequence[Offer] = (),
    discounts: Mapping[str, float] | None = None,
) -> Book:
    """The offers of some clouds (None: all), the user's own before the built-in, in one region.

    Own prices without a cloud are always there; with an empty list of clouds all own prices are,
    and no built-in ones. `discounts` are shares by cloud, `EVERY_CLOUD` for those not named.
    """
    place = None if region is None else _region(region, own)
    own = [_normal(offer) for offer in own]
    known = sorted({offer.cloud for offer in own})
    chosen = None if clouds is None else _chosen(list(clouds), known)
    off = {c if c == EVERY_CLOUD else find_cloud(c, known): s for c, s in (discounts or {}).items()}
    if chosen:
        own = [offer for offer in own if offer.cloud in (*chosen, OWN_CLOUD)]
    # What is elsewhere must not take the place of what can be had here.
    own = [offer for offer in own if offer.is_in(place)]
    replaced = {(offer.cloud, offer.gpu) for offer in own if not offer.is_spot_only}
    own_spot = [offer for offer in own if offer.is_spot_only]
    built_in = [
        offer
        for offer in offers()
        if (chosen is None or offer.cloud in chosen) and (offer.cloud, offer.gpu) not in replaced
    ]
    every = [_with_spot(offer, own_spot) for offer in (*own, *built_in) if offer.is_in(place)]
    _check_discounts(off, every)
    less = [_discounted(offer, off.get(offer.cloud, off.get(EVERY_CLOUD, 0.0))) for offer in every]
    return Book(tuple(less), today, named=chosen is not None)


def _normal(offer: Offer) -> Offer:
    """Cloud and region in the words of the book, as far as it has some for them."""
    region = region_class(offer.region) or offer.region
    return replace(offer, cloud=cloud_name(offer.cloud), region=region)


def _chosen(names: list[str], known: Collection[str]) -> list[str]:
    found: list[str] = []
    for index, name in enumerate(names):
        with about("market"), repairs_among(names, index):
            found.append(find_cloud(name, known))
    return found


def _region(name: str, own: Sequence[Offer]) -> str:
    """The region in the words of the book; those of own prices are understood, too."""
    words = list(dict.fromkeys([*REGIONS, *(offer.region for offer in own)]))
    found = {word.lower(): word for word in words}.get(name.strip().lower())
    if found is None:
        raise InputError(
            f"unknown region '{name}'{did_you_mean(name, words)}; known are {', '.join(words)}",
            "region",
            instead(name, words),
        )
    return region_class(found) or found


def _with_spot(offer: Offer, own_spot: Sequence[Offer]) -> Offer:
    """An offer with the least spot price among those that are stated for it."""
    stated = [
        each.spot_usd_per_gpu_hour * offer.gpus
        for each in own_spot
        if each.spot_usd_per_gpu_hour is not None
        and (each.cloud, each.gpu) == (offer.cloud, offer.gpu)
        and each.instance in (offer.instance, "")
        and each.region in (offer.region, ANY_REGION)
    ]
    if not stated or offer.usd_per_hour is None:
        return offer
    return replace(offer, spot_usd_per_hour=min(stated))


def _check_discounts(off: Mapping[str, float], among: Sequence[Offer]) -> None:
    """Refuse discounts that would come off nothing."""
    clouds = sorted({offer.cloud for offer in among})
    for cloud in off:
        if cloud not in (EVERY_CLOUD, *clouds):
            raise InputError(
                f"discount of {cloud}: nothing here is priced by {cloud}; prices are of"
                f" {', '.join(clouds) or 'no cloud'}"
            )


def _discounted(offer: Offer, share: float) -> Offer:
    if not share or offer.usd_per_hour is None or DISCOUNT in offer.marks:
        return offer
    return replace(
        offer,
        usd_per_hour=offer.usd_per_hour * (1 - share),
        least_usd_per_hour=_times(offer.least_usd_per_hour, 1 - share),
        most_usd_per_hour=_times(offer.most_usd_per_hour, 1 - share),
        note=f"{offer.note} {DISCOUNT}".strip(),
    )


def _times(price: float | None, factor: float) -> float | None:
    return None if price is None else price * factor
