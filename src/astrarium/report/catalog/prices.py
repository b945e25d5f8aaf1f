"""The price book as documents and tables: the spread and the age of prices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from astrarium.catalog import Gpu, Instance
from astrarium.catalog.book import Book
from astrarium.catalog.prices import REGIONS, STALE_AFTER_DAYS, Offer, age_days, is_stale
from astrarium.report.catalog.entries import marked, numbered, price_to_dict, source_line, usd
from astrarium.report.tables import Field, listing, title
from astrarium.report.wording import unit_price
from astrarium.value import replace

CURRENCY = "USD"


def spread_to_dict(gpu: Gpu, offers: Sequence[Offer], today: date) -> dict[str, Any]:
    """The default price of a type, and the least and most that clouds ask for it."""
    spot = [price for o in offers if (price := o.spot_usd_per_gpu_hour) is not None]
    newest = max((offer.date for offer in offers), default="")
    return {
        "gpu": gpu.name,
        "currency": CURRENCY,
        **price_to_dict(gpu),
        "least_usd_per_gpu_hour": min(_of_regions(offers, "least_usd_per_hour"), default=None),
        "most_usd_per_gpu_hour": max(_of_regions(offers, "most_usd_per_hour"), default=None),
        "spot_least_usd_per_gpu_hour": min(spot, default=None),
        "spot_most_usd_per_gpu_hour": max(spot, default=None),
        "clouds": sorted({offer.cloud for offer in offers}),
        "newest": newest,
        "age_days": age_days(newest, today),
    }


def _of_regions(offers: Sequence[Offer], figure: str) -> list[float]:
    found = [(getattr(offer, figure), offer.gpus) for offer in offers]
    return [price / gpus for price, gpus in found if price is not None]


def offer_to_dict(offer: Offer, today: date) -> dict[str, Any]:
    return {
        **asdict(offer),
        "note": list(offer.marks),
        "currency": CURRENCY,
        "usd_per_gpu_hour": offer.usd_per_gpu_hour,
        "spot_usd_per_gpu_hour": offer.spot_usd_per_gpu_hour,
        "age_days": age_days(offer.date, today),
        "stale": is_stale(offer.date, today),
    }


def prices_table(
    types: Sequence[Gpu],
    offers_of: Callable[[str], Sequence[Offer]],
    today: date,
    width: int,
    notes: Sequence[str] = (),
) -> Iterator[RenderableType]:
    """A line for each GPU type: its default price per hour, and the spread over clouds."""
    lines = [spread_to_dict(gpu, offers_of(gpu.name), today) for gpu in types]

    def of(key: str) -> list[Any]:
        return [line[key] for line in lines]

    fields = (
        Field("GPU", of("gpu")),
        Field("default", [unit_price(price) for price in of("usd_per_gpu_hour")], right=True),
        Field("least", [usd(price) for price in of("least_usd_per_gpu_hour")], right=True),
        Field("most", [usd(price) for price in of("most_usd_per_gpu_hour")], right=True),
        Field("spot", [unit_price(p) for p in of("spot_usd_per_gpu_hour")], right=True),
        Field("clouds", [str(len(clouds) or "-") for clouds in of("clouds")], right=True),
        Field("newest", of("newest"), drop=1),
        Field(
            "days old", ["" if age is None else f"{age:,}" for age in of("age_days")], right=True
        ),
    )
    yield from listing(fields, width)
    yield Text(
        "US dollars per GPU and hour; the default is the median over clouds, each by the median of"
        " its regions",
        "dim",
    )
    for note in notes:
        yield Text(f"note: {note}")


def offers_report(
    gpu: Gpu,
    book: Book,
    instances: Sequence[Instance],
    width: int,
    notes: Sequence[str] = (),
) -> Iterator[RenderableType]:
    """All offers of a type, the cheapest first, with their age, spread and sources."""
    offers, today = book.of(gpu.name), book.today
    yield from prices_table([gpu], book.of, today, width, notes)
    known = price_to_dict(gpu)["price_sources"]
    cited = list(dict.fromkeys([*known, *(offer.source for offer in offers)]))
    by_name = {instance.name: instance for instance in instances}
    limits = list(dict.fromkeys(i.availability for i in instances if i.availability))
    lines = _joined(sorted(offers, key=_cheapest_first))
    if lines:
        yield title("Whole instances on offer; prices per GPU and hour")
    fields = (
        Field("cloud", [offer.cloud for offer in lines]),
        Field("region", [offer.region for offer in lines]),
        Field(
            "instance",
            [
                marked(by_name[o.instance], limits) if o.instance in by_name else o.instance
                for o in lines
            ],
            prose=True,
        ),
        Field("n", [str(offer.gpus) for offer in lines], right=True),
        Field("on demand", [_short(offer.usd_per_gpu_hour) for offer in lines], right=True),
        Field("spread", [_spread(offer) for offer in lines], right=True, drop=2),
        Field("spot", [_short(offer.spot_usd_per_gpu_hour) for offer in lines], right=True),
        Field("days old", [_age(offer, today) for offer in lines], right=True),
        Field("notes", [", ".join(offer.marks) for offer in lines], prose=True, drop=3),
        Field("source", [str(cited.index(o.source) + 1) for o in lines], drop=4),
    )
    if lines:
        yield from listing(fields, width)
        yield Text(f"! stale: older than {STALE_AFTER_DAYS} days", "dim")
    if limits and lines:
        yield numbered(limits)
    if cited:
        yield title("Sources")
        yield numbered([source_line(code) for code in cited])


def _cheapest_first(offer: Offer) -> tuple[float, str, int, str, str]:
    price = offer.usd_per_gpu_hour
    place = str(REGIONS.index(offer.region)) if offer.region in REGIONS else offer.region
    return (
        float("inf") if price is None else round(price, 6),
        offer.cloud,
        -offer.gpus,
        offer.instance,
        place,
    )


def _joined(offers: Sequence[Offer]) -> list[Offer]:
    """One line for regions in which an instance costs the same."""

    def same(offer: Offer) -> Offer:
        return replace(offer, region="", regions=1)

    joined = []
    for _, group in groupby(offers, key=same):
        alike = list(group)
        regions = [offer.region for offer in alike]
        places = "all" if set(regions) == set(REGIONS) else ", ".join(regions)
        count = sum(offer.regions for offer in alike)
        joined.append(replace(alike[0], region=places, regions=count))
    return joined


def _short(price: float | None) -> str:
    """Cents are enough to compare by; `--json` has all digits."""
    return "-" if price is None else f"${price:,.2f}"


def _spread(offer: Offer) -> str:
    least, most = offer.least_usd_per_hour, offer.most_usd_per_hour
    if least is None or most is None or least == most:
        return ""
    return f"{least / offer.gpus:,.2f}-{most / offer.gpus:,.2f}"


def _age(offer: Offer, today: date) -> str:
    age = age_days(offer.date, today)
    return "" if age is None else f"{age:,}{' !' if is_stale(offer.date, today) else ''}"
