"""A book to plan by: offers of the allowed clouds in the allowed regions.

The user's own prices replace the built-in ones of the same cloud and GPU type; spot-only prices
replace the spot prices alone. Discounts come off on-demand prices, except own prices that state a
discount.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Final

from astrarium.catalog.prices import (
    ANY_REGION,
    DISCOUNT,
    OWN_CLOUD,
    REGIONS,
    Offer,
    cloud_name,
    find_cloud,
    is_stale,
    offers,
    region_class,
)
from astrarium.errors import InputError, did_you_mean
from astrarium.value import Value

EVERY_CLOUD: Final = "*"  # in discounts: clouds that are not named


class Book(Value, frozen=True):
    """Offers, and the day against which their age is counted."""

    offers: tuple[Offer, ...]
    today: date
    named: bool = False  # whether its clouds were chosen one by one

    def of(self, gpu: str) -> tuple[Offer, ...]:
        """The offers of a GPU type, by its full name."""
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
    chosen = None if clouds is None else [find_cloud(cloud, known) for cloud in clouds]
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


def _region(name: str, own: Sequence[Offer]) -> str:
    """The region in the words of the book; those of own prices are understood, too."""
    words = list(dict.fromkeys([*REGIONS, *(offer.region for offer in own)]))
    found = {word.lower(): word for word in words}.get(name.strip().lower())
    if found is None:
        raise InputError(
            f"unknown region '{name}'{did_you_mean(name, words)}; known are {', '.join(words)}",
            "region",
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
