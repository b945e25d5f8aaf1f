"""Compiles the price book from a table of prices by region, and renews what follows from it.

    python tools/compile_prices.py PRICES.csv

PRICES.csv has a row for every cloud, region and instance type, with the columns `cloud`,
`region`, `instance_type`, `gpu`, `gpu_count`, `on_demand_usd_per_hour`, `spot_usd_per_hour`,
`spot_zone_median`, `catalog_date`, `source`, `currency` and `note`. Written are
`catalog/data/prices.json`, one line for each cloud and instance, and the prices, their dates and
the sizes of instances in `gpus.json` and `instances.json` beside it, which are medians of that
book. Tests hold the files together.

What is left out is decided by the constants below, and counted in the book.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from astrarium.catalog.gpus import gpus
from astrarium.catalog.prices import (
    INSTANCE_COLUMNS,
    RATE_CARD,
    REGION_COLUMNS,
    Offer,
    is_stale,
    merged,
    region_class,
    rented_sizes,
)

DATA: Final = Path(__file__).parents[1] / "src/astrarium/catalog/data"

# A price per GPU this far from the median over clouds is a slip of a list, not an offer: minimum
# bids of an auction, machines that a broker no longer has. Large hosts with one GPU stay.
LEAST_SHARE, MOST_SHARE = 0.15, 10.0
LEAST_SPOT_SHARE = 0.05  # of the on-demand median of the type
# Content unchanged for so long before the newest of the table is marked, and left out where the
# same cloud has a newer price for as many of these GPUs.
STALE_AFTER: Final = timedelta(days=365)
DIGITS: Final = 6  # of a median over clouds
CURRENCY: Final = "USD"  # others would need a rate of exchange and its date

# What the notes of the table say that a reader of prices should know, as marks.
MARKS: Final = (
    (r"broker", "broker"),
    (r"marketplace", "marketplace"),
    (r"auction", "auction"),
    (r"form factor", "form-factor-assumed"),
    (r"host shape is our choice", "host-assumed"),
    (r"second(ary)? source", "second-hand"),
    (r"confidential", "confidential"),
    (r"per-GPU list price$|rate card", "rate-card"),
)
# A value of a data file, and the codes of its sources.
Sourced: TypeAlias = tuple[object, list[str]]

SOURCES: Final = (
    (r"^skypilot-catalog", "skypilot-catalog"),
    (r"oci-pricing-mcp", "oci-price-list"),
    (r"data-receipts", "azure-retail-2026"),
    (r".", "price-pages"),
)


def median_price(among: Iterable[Offer], *, spot: bool = False) -> float | None:
    """Dollars per GPU and hour: the median over clouds of the median over each one's regions."""
    of_cloud: defaultdict[str, list[float]] = defaultdict(list)
    for offer in among:
        price = offer.spot_usd_per_gpu_hour if spot else offer.usd_per_gpu_hour
        if price is not None:
            of_cloud[offer.cloud] += [price] * offer.regions
    if not of_cloud:
        return None
    return float(f"{median(map(median, of_cloud.values())):.{DIGITS}g}")


def default_offers(among: Sequence[Offer], node: int, newest: date) -> tuple[Offer, ...]:
    """Those whose median is the default price of a type with so many GPUs in a node.

    Stale ones count only if there are no others. Of those left whole nodes count, as the price of
    one GPU does not buy the links of a node; where no cloud rents one, smaller instances, whose
    price is then good for as many GPUs only.
    """
    priced = [offer for offer in among if offer.usd_per_hour is not None]
    left = [offer for offer in priced if not is_stale(offer.date, newest)] or priced
    whole = [offer for offer in left if offer.gpus >= node or RATE_CARD in offer.marks]
    return tuple(whole or left)


def first_match(patterns: Sequence[tuple[str, str]], text: str) -> str | None:
    return next((word for pattern, word in patterns if re.search(pattern, text)), None)


def place_of(region: str) -> str:
    found = region_class(region)
    if found is None:
        sys.exit(f"region '{region}' belongs to no class; add it to catalog/prices.py")
    return found


def marks_of(text: str) -> str:
    return " ".join(mark for pattern, mark in MARKS if re.search(pattern, text))


def read(path: Path, left_out: Counter[str]) -> Iterator[Offer]:
    """An offer for each region."""
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["currency"] != CURRENCY:
                left_out[f"not in {CURRENCY}"] += 1
                continue
            spot = line["spot_zone_median"] or line["spot_usd_per_hour"]
            yield Offer(
                cloud=line["cloud"],
                region=place_of(line["region"]),
                instance=line["instance_type"],
                gpu=line["gpu"].removesuffix("-perGPU"),
                gpus=int(line["gpu_count"]),
                usd_per_hour=float(line["on_demand_usd_per_hour"] or 0) or None,
                spot_usd_per_hour=float(spot or 0) or None,
                date=line["catalog_date"],
                source=first_match(SOURCES, line["source"]) or "",
                note=marks_of(f"{line['instance_type']}; {line['note']}"),
            )


def without_outliers(rows: Sequence[Offer], left_out: Counter[str]) -> Iterator[Offer]:
    usual = {gpu: median_price(row for row in rows if row.gpu == gpu) for gpu in _types(rows)}
    for row in rows:
        typical = (usual[row.gpu] or 0.0) * row.gpus
        usd, spot = row.usd_per_hour, row.spot_usd_per_hour
        if usd is not None and not LEAST_SHARE * typical <= usd <= MOST_SHARE * typical:
            left_out["outlier on demand"] += 1
            usd = None
        if spot is not None and spot < LEAST_SPOT_SHARE * typical:
            left_out["outlier spot"] += 1
            spot = None
        if usd is not None or spot is not None:
            yield replace(row, usd_per_hour=usd, spot_usd_per_hour=spot)


def _types(rows: Iterable[Offer]) -> set[str]:
    return {row.gpu for row in rows}


def without_replaced(
    rows: Sequence[Offer], stale_before: str, left_out: Counter[str]
) -> Iterator[Offer]:
    newest: dict[tuple[str, str, int], str] = {}
    for row in rows:
        sort = (row.cloud, row.gpu, row.gpus)
        newest[sort] = max(row.date, newest.get(sort, ""))
    for row in rows:
        if row.date < stale_before <= newest[row.cloud, row.gpu, row.gpus]:
            left_out["stale, a newer one is there"] += 1
        else:
            stale = row.date < stale_before
            yield replace(row, note=f"{row.note} stale".strip()) if stale else row


def book_text(offers: Sequence[Offer], left_out: Mapping[str, int]) -> str:
    """A line for each instance, with a list of figures for each class of regions."""
    head = {
        "currency": CURRENCY,
        "newest": max(offer.date for offer in offers),
        "rows_left_out": dict(sorted(left_out.items())),
        "instance_columns": INSTANCE_COLUMNS,
        "region_columns": REGION_COLUMNS,
    }
    instances: defaultdict[tuple[object, ...], dict[str, list[object]]] = defaultdict(dict)
    for offer in offers:
        figures = [getattr(offer, name) for name in REGION_COLUMNS]
        if offer.least_usd_per_hour == offer.most_usd_per_hour:
            figures = figures[:-2] if offer.regions > 1 else figures[:-3]
        key = tuple(getattr(offer, name) for name in INSTANCE_COLUMNS)
        instances[key][offer.region] = figures
    lines = [
        json.dumps([*key, regions], separators=(",", ":")) for key, regions in instances.items()
    ]
    heads = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    return "{\n" + "".join(heads) + ' "offers": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def with_prices(text: str, prices: Mapping[str, Mapping[str, Sourced]]) -> str:
    """A data file with other prices, and what goes with them; the rest as it stands."""
    for name, figures in prices.items():
        start = text.find(f'  "{name}": {{')
        if start < 0:
            continue
        entry = text[start:].partition("\n  }")[0]
        values, mark, sources = entry.partition('"sources": {')
        for key, (value, codes) in figures.items():
            if value is None:
                values, sources = _drop(values, key), _drop(sources, key)
                continue
            values = _put(values, key, value, before='"price_dates"')
            if codes:
                sources = _put(sources, key, codes, before='"spot_usd_|"usd_')
        text = text.replace(entry, values + mark + sources)
    return text


def _put(text: str, key: str, value: object, before: str) -> str:
    """The text with a key's value replaced, or with the key added before another one."""
    new = f'"{key}": {json.dumps(value)}'
    replaced, found = re.subn(rf'"{key}": (\[[^\]]*\]|[\d.]+)', new, text, count=1)
    return replaced if found else re.sub(rf"({before})", rf"{new}, \1", text, count=1)


def _drop(text: str, key: str) -> str:
    value = r"(\[[^\]]*\]|[\d.]+)"
    return re.sub(rf',\s*"{key}": {value}|"{key}": {value},\s*', "", text, count=1)


def figures_of(
    offers: Sequence[Offer], kind: str, nodes: Mapping[str, int]
) -> dict[str, dict[str, Sourced]]:
    """By GPU type, or by instance: what its entry says about prices, and from where."""
    groups: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        groups[getattr(offer, kind)].append(offer)
    newest = date.fromisoformat(max(offer.date for offer in offers))
    found: dict[str, dict[str, Sourced]] = {}
    for name, own in groups.items():
        if kind == "instance":
            found[name] = _prices(own, own[0].gpus, "usd_per_hour")
            found[name]["price_regions"] = (sum(offer.regions for offer in own), [])
        elif name in nodes:
            found[name] = _of_type(own, nodes[name], newest)
    return found


def _of_type(own: Sequence[Offer], node: int, newest: date) -> dict[str, Sourced]:
    """The default price, and which offers it is of."""
    chosen = default_offers(own, node, newest)
    most = max(offer.gpus for offer in chosen)
    whole = most >= node or any(RATE_CARD in offer.marks for offer in chosen)
    figures = _prices(chosen, 1, "usd_per_gpu_hour")
    figures["price_clouds"] = (len({offer.cloud for offer in chosen}), [])
    figures["price_good_for"] = (None if whole else most, [])
    stale = [is_stale(offer.date, newest) for offer in own]
    figures["price_offers_left_out"] = (None if all(stale) else sum(stale) or None, [])
    sizes = list(rented_sizes(own))
    if sizes:
        figures["rented_sizes"] = (sizes, _sources(own))
    return figures


def _prices(own: Sequence[Offer], size: int, unit: str) -> dict[str, Sourced]:
    """The medians of some offers, for so many GPUs, with their dates."""
    days = [offer.date for offer in own]
    figures: dict[str, Sourced] = {"price_dates": ([min(days), max(days)], [])}
    for spot in (False, True):
        price = median_price(own, spot=spot)
        priced = [o for o in own if (o.spot_usd_per_hour if spot else o.usd_per_hour)]
        figure = None if price is None else float(f"{price * size:g}")
        figures[f"spot_{unit}" if spot else unit] = (figure, _sources(priced))
    return figures


def _sources(offers: Sequence[Offer]) -> list[str]:
    """Those that give most prices first."""
    counts = Counter(offer.source for offer in offers)
    return sorted(counts, key=lambda code: (-counts[code], code))


def compiled(path: Path) -> tuple[list[Offer], Counter[str]]:
    """The offers of a table, and how many rows were left out for what."""
    left_out: Counter[str] = Counter()
    rows = list(read(path, left_out))
    stale_before = (max(date.fromisoformat(row.date) for row in rows) - STALE_AFTER).isoformat()
    rows = list(without_outliers(rows, left_out))
    rows = list(without_replaced(rows, stale_before, left_out))
    return merged(rows), left_out


def main(path: Path) -> None:
    offers, left_out = compiled(path)
    (DATA / "prices.json").write_text(book_text(offers, left_out), encoding="utf-8")
    nodes = {gpu.name: gpu.gpus_per_node for gpu in gpus()}
    for file, kind in (("gpus.json", "gpu"), ("instances.json", "instance")):
        text = (DATA / file).read_text(encoding="utf-8")
        renewed = with_prices(text, figures_of(offers, kind, nodes))
        (DATA / file).write_text(renewed, encoding="utf-8")
    print(f"{len(offers)} offers; rows left out: {dict(left_out)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
