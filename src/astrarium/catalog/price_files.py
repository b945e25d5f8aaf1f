"""Prices of the user: SkyPilot's catalogs on disk, and contracts.

`read_price_file` reads `vms.csv` of SkyPilot (or the newest version in a folder of them), CSV with
a header, and YAML, TOML or JSON with a list `prices`. docs/commands.md lists the keys of a price.
Rows of SkyPilot without a known GPU, an instance or a price are counted in a note, not refused.
Zero is a price: that of machines one owns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from astrarium import documents, units
from astrarium.catalog.gpus import find_gpu, find_instance, names_of
from astrarium.catalog.prices import (
    ANY_REGION,
    DISCOUNT,
    OWN_CLOUD,
    RATE_CARD,
    Offer,
    cloud_name,
    merged,
    region_class,
)
from astrarium.documents.parsing import csv_rows
from astrarium.errors import InputError, did_you_mean
from astrarium.value import Value

MOST_USD_PER_HOUR: Final = 1e6
MOST_GPUS: Final = 1024  # of one instance
SKYPILOT_FILE: Final = "vms.csv"
SHOWN_NAMES: Final = 3

_SKYPILOT_COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
_KEYS: Final = (
    "gpu",
    "cloud",
    "instance",
    "region",
    "gpus",
    "usd_per_hour",
    "usd_per_gpu_hour",
    "spot_usd_per_hour",
    "spot_usd_per_gpu_hour",
    "discount_percent",
    "date",
)
_LISTED: Final = "prices"

T = TypeVar("T")


class PriceFile(Value, frozen=True):
    """The offers of a file, and notes on rows that were left out."""

    offers: tuple[Offer, ...]
    notes: tuple[str, ...] = ()


def read_price_file(path: Path | str) -> PriceFile:
    """The offers of a file or folder, with notes on rows that were left out."""
    file = Path(path).expanduser()
    if file.is_dir():
        return _folder(file)
    if file.suffix.lower() == ".csv":
        lines = csv_rows(file)
        if not lines:
            raise InputError(f"{file}: is empty; expected a header such as gpu,usd_per_gpu_hour")
        header = [cell.strip() for cell in lines[0][1]]
        if set(_SKYPILOT_COLUMNS) <= set(header):
            return _skypilot(file, header, lines[1:])
        return PriceFile(tuple(_own_table(file, header, lines[1:])))
    return PriceFile(tuple(_own_document(file)))


def _folder(folder: Path) -> PriceFile:
    """All files of SkyPilot below a folder; of several versions the newest."""
    found = sorted(folder.rglob(SKYPILOT_FILE))
    if not found:
        raise InputError(
            f"{folder}: is a folder without {SKYPILOT_FILE}; name a file of prices, or SkyPilot's"
            " ~/.sky/catalogs"
        )
    newest = max(_version(file) for file in found)
    read = [read_price_file(file) for file in found if _version(file) == newest]
    return PriceFile(
        tuple(offer for one in read for offer in one.offers),
        tuple(note for one in read for note in one.notes),
    )


def _version(file: Path) -> int:
    """The version in a path: 8 of .../v8/aws/vms.csv."""
    name = file.parent.parent.name
    return int(name[1:]) if name[:1] == "v" and name[1:].isdigit() else 0


# SkyPilot


def _skypilot(
    file: Path, header: Sequence[str], lines: Sequence[tuple[int, list[str]]]
) -> PriceFile:
    cloud = cloud_name(file.absolute().parent.name)
    day = date.fromtimestamp(file.stat().st_mtime).isoformat()
    skipped: Counter[str] = Counter()
    regions: defaultdict[tuple[str, str, int, str], list[Offer]] = defaultdict(list)
    for number, cells in lines:
        row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        offer = _skypilot_offer(row, f"{file}:{number}", skipped)
        if offer is not None:
            offer = replace(offer, cloud=cloud, date=day, source=str(file))
            regions[offer.instance, offer.gpu, offer.gpus, offer.region].append(offer)
    offers = merged(_of_region(zones) for zones in regions.values())
    return PriceFile(tuple(offers), tuple(_skipped_notes(file, skipped)))


def _skypilot_offer(row: Mapping[str, str], place: str, skipped: Counter[str]) -> Offer | None:
    accelerator = row.get("AcceleratorName", "")
    if not accelerator:
        skipped["without a GPU"] += 1
        return None
    gpu = _skypilot_gpu(accelerator, row["InstanceType"])
    if gpu is None:
        skipped[f"of accelerators that the catalog does not know|{accelerator}"] += 1
        return None
    usd = _cell(row, "Price", place, _usd)
    spot = _cell(row, "SpotPrice", place, _usd)
    count = _cell(row, "AcceleratorCount", place, _fraction) or 0.0
    if not row["InstanceType"] or count < 1 or count % 1:
        skipped["without an instance of whole GPUs"] += 1
        return None
    # Zero stands for "not sold" in these files.
    if not usd and not spot:
        skipped["without a price"] += 1
        return None
    region = row.get("Region", "")
    instance = row["InstanceType"]
    return Offer("", region, instance, gpu, int(count), usd or None, spot or None, "", "")


def _of_region(zones: Sequence[Offer]) -> Offer:
    """One offer for the zones of a region, under the class of the region."""
    spot = [zone.spot_usd_per_hour for zone in zones if zone.spot_usd_per_hour is not None]
    usd = [zone.usd_per_hour for zone in zones if zone.usd_per_hour is not None]
    region = region_class(zones[0].region) or zones[0].region
    return replace(
        zones[0],
        region=region,
        usd_per_hour=median(usd) if usd else None,
        spot_usd_per_hour=median(spot) if spot else None,
    )


@cache
def _skypilot_gpu(accelerator: str, instance: str) -> str | None:
    """The GPU type; the instance, where it is known, says which form the card has."""
    try:
        return find_instance(instance).gpu
    except InputError:
        pass
    try:
        return find_gpu(names_of("skypilot")["read"].get(accelerator, accelerator)).name
    except InputError:
        return None


def _skipped_notes(file: Path, skipped: Counter[str]) -> Iterator[str]:
    by_cause: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for key, count in skipped.items():
        cause, _, name = key.partition("|")
        by_cause[cause][name] += count
    for cause, names in sorted(by_cause.items()):
        listed = [name for name, _ in names.most_common(SHOWN_NAMES) if name]
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        which = f" ({', '.join(listed)}{more})" if listed else ""
        yield f"{file}: {names.total():,} rows {cause} left out{which}"


# Contracts


def _own_table(
    file: Path, header: Sequence[str], lines: Sequence[tuple[int, list[str]]]
) -> Iterator[Offer]:
    _check_keys(header, f"{file}:1")
    if not lines:
        raise InputError(f"{file}: has a header, but no prices; add a row")
    for number, cells in lines:
        place = f"{file}:{number}"
        if len(cells) > len(header):
            raise InputError(f"{place}: {len(cells)} cells under {len(header)} columns")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        yield _own_offer(row, place, str(file))


def _own_document(file: Path) -> Iterator[Offer]:
    content = documents.read(file)
    entries = content.get(_LISTED) if isinstance(content, Mapping) else content
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{file}: expected a list '{_LISTED}', such as - {{gpu: h100, ...}}")
    for index, entry in enumerate(entries):
        key = (_LISTED, index) if isinstance(content, Mapping) else (index,)
        place = f"{file}:{documents.line_of(file, *key)}: {_LISTED}[{index}]"
        if not isinstance(entry, Mapping):
            raise InputError(f"{place}: expected keys such as gpu and usd_per_gpu_hour")
        _check_keys([str(name) for name in entry], place)
        row = {str(name): "" if value is None else str(value) for name, value in entry.items()}
        yield _own_offer(row, place, str(file))


def _check_keys(keys: Sequence[str], place: str) -> None:
    for key in keys:
        if key not in _KEYS:
            raise InputError(
                f"{place}: unknown key '{key}'{did_you_mean(key, _KEYS)}; known are"
                f" {', '.join(_KEYS)}"
            )
    if "gpu" not in keys:
        raise InputError(f"{place}: gpu is missing: which type is the price for?")


def _own_offer(row: Mapping[str, str], place: str, source: str) -> Offer:
    gpu = _located(place, "gpu", lambda: find_gpu(row.get("gpu", "")))
    gpus = _cell(row, "gpus", place, _count)
    usd, per_gpu = (_cell(row, key, place, _usd) for key in ("usd_per_hour", "usd_per_gpu_hour"))
    spot = _cell(row, "spot_usd_per_hour", place, _usd)
    spot_per_gpu = _cell(row, "spot_usd_per_gpu_hour", place, _usd)
    if usd is not None and per_gpu is not None:
        raise InputError(f"{place}: usd_per_hour and usd_per_gpu_hour are both given; keep one")
    if usd is None and per_gpu is None and spot is None and spot_per_gpu is None:
        raise InputError(f"{place}: no price; give usd_per_hour with gpus, or usd_per_gpu_hour")
    whole = usd is not None or spot is not None
    if whole and gpus is None:
        raise InputError(
            f"{place}: usd_per_hour is the price of a whole instance; give its gpus, or"
            " usd_per_gpu_hour"
        )
    off = _cell(row, "discount_percent", place, parse_percent)
    size = gpus or 1
    on_demand = usd if usd is not None else None if per_gpu is None else per_gpu * size
    if spot is None and spot_per_gpu is not None:
        spot = spot_per_gpu * size
    day = _cell(row, "date", place, _day) or ""
    marks = [*([] if gpus else [RATE_CARD]), *([] if off is None else [DISCOUNT])]
    return Offer(
        cloud=cloud_name(row.get("cloud", "")) or OWN_CLOUD,
        region=row.get("region") or ANY_REGION,
        instance=row.get("instance", ""),
        gpu=gpu.name,
        gpus=size,
        usd_per_hour=None if on_demand is None else on_demand * (1 - (off or 0.0)),
        spot_usd_per_hour=spot,
        date=day,
        source=source,
        note=" ".join(marks),
    )


def _cell(row: Mapping[str, str], key: str, place: str, parse: Callable[[str], T]) -> T | None:
    text = row.get(key, "")
    return _located(place, key, lambda: parse(text)) if text else None


def _located(place: str, key: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except InputError as error:
        raise InputError(f"{place}: {key}: {error}") from None


def _usd(text: str) -> float:
    amount = units.parse_usd(text, allow_zero=True)
    if amount > MOST_USD_PER_HOUR:
        raise InputError(
            f"'{text}': more than ${MOST_USD_PER_HOUR:,.0f} per hour, the limit; check the unit"
        )
    return amount


def _count(text: str) -> int:
    count = units.parse_count(text)
    if count > MOST_GPUS:
        raise InputError(f"'{text}': more GPUs than an instance can have; the most is {MOST_GPUS}")
    return count


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"'{text}': not a number of GPUs") from None


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        raise InputError(f"'{text}': not a date; expected one such as 2026-08-22") from None


def parse_percent(text: units.Amount) -> float:
    """Read "30" or "30 %" as 0.3; at least 0, below 100."""
    number = str(text).strip().removesuffix("%").strip()
    try:
        share = float(number) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InputError(f"'{text}': expected a percentage from 0 to below 100, such as 30")
    return share
