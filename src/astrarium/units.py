"""Parsing and formatting of quantities: the only place where units other than SI exist.

Inside the package every quantity is a plain number in bytes, bytes/s, seconds or US dollars.
Text from files and flags is converted here once, and numbers are turned into text here again.

Units of data are case-sensitive (`Gb` is a gigabit, `GB` a gigabyte, `GiB` 2**30 bytes), and a
unit must be written: a bare "400" is refused, because nobody can tell 400 Gb/s from 400 GB/s.
Numbers may carry `_` or `,` between groups of thousands. Parsing is exact (decimal, not binary),
so that "1.1B" is 1,100,000,000.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from astrarium.errors import InputError

Amount: TypeAlias = int | float | str  # a number in the unit of its name, or a text such as "2T"

# Nothing a training run is described by comes near this; larger numbers are typing errors.
LARGEST_QUANTITY = 10**30

MINUTE, HOUR, DAY, WEEK = 60.0, 3600.0, 86400.0, 604800.0  # seconds

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)?(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    r"\s*(?P<unit>[^\W\d_][^\d]*|)"
)
_LONGEST_ECHO = 40

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}

_PREFIXES = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_BYTES = {
    prefix + name: Decimal(factor)
    for prefix, factor in _PREFIXES.items()
    for name in ("B", "byte", "bytes")
}
_BITS = {
    prefix + name: Decimal(factor) / 8
    for prefix, factor in _PREFIXES.items()
    for name in ("b", "bit", "bits")
}
_BANDWIDTHS = {
    name + per_second: factor
    for name, factor in (_BYTES | _BITS).items()
    for per_second in ("/s", "ps")
}

_SECONDS = {
    **dict.fromkeys(("ns",), Decimal("1e-9")),
    **dict.fromkeys(("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), Decimal("1e-6")),
    **dict.fromkeys(("ms",), Decimal("1e-3")),
    **dict.fromkeys(("s", "sec", "second", "seconds"), Decimal(1)),
    **dict.fromkeys(("min", "minute", "minutes"), Decimal(MINUTE)),
    **dict.fromkeys(("h", "hour", "hours"), Decimal(HOUR)),
    **dict.fromkeys(("d", "day", "days"), Decimal(DAY)),
    **dict.fromkeys(("week", "weeks"), Decimal(WEEK)),
}

# Hours of what something can happen in; a month is the twelfth part of 365.25 days.
_PERIODS = {"": 1, "h": 1, "hour": 1, "d": 24, "day": 24, "week": 168, "month": 730.5}


def parse_count(text: Amount, *, allow_zero: bool = False) -> int:
    """Read a whole number such as "2T", "1.5B", "200k", "1e12" or "1_000_000"."""
    expected = "a whole number such as 4096, 200k, 1.5B, 2T or 1_000_000"
    number, unit = _split(text, expected)
    value = _scale(number, unit.lower(), _COUNTS, text, expected)
    if value != value.to_integral_value():
        raise _refusal(text, f"{value.normalize():f} is not whole", expected)
    return int(_checked(value, text, expected, allow_zero))


def parse_number(text: Amount, *, allow_zero: bool = False) -> float:
    """Read a plain number such as "2.5"."""
    expected = "a number such as 0.4 or 2.5"
    number, unit = _split(text, expected)
    return float(
        _checked(_scale(number, unit, {"": 1}, text, expected), text, expected, allow_zero)
    )


def parse_per_hour(text: Amount, *, allow_zero: bool = False) -> float:
    """Read how often something happens, such as "0.01" (an hour), "0.5/day" or "5 %/month"."""
    expected = "a number an hour such as 0.01, or a share of a time such as 10 %/day or 5 %/month"
    often, _, period = str(text).partition("/")
    share = often.rstrip().endswith("%")
    number, unit = _split(often.rstrip().removesuffix("%"), expected)
    value = _checked(_scale(number, unit, {"": 1}, text, expected), text, expected, allow_zero)
    time = period.strip().lower()
    if time not in _PERIODS:
        raise _refusal(text, f"unknown time '{time}'", expected)
    return float(value) / (100 if share else 1) / _PERIODS[time]


def parse_bytes(text: Amount, *, allow_zero: bool = False, bare_unit: str = "") -> int:
    """Read a size such as "80 GiB" or "80GB" into whole bytes; a bare number is in `bare_unit`."""
    expected = "a size with its unit, such as 80 GiB or 80 GB"
    number, unit = _split(text, expected)
    value = _scale(number, unit or bare_unit, _BYTES, text, expected)
    return round(_checked(value, text, expected, allow_zero))


def parse_bandwidth(text: Amount, *, allow_zero: bool = False) -> float:
    """Read a rate such as "400 Gb/s" (bits) or "50 GB/s" (bytes) into bytes per second."""
    expected = "a rate with its unit, such as 400 Gb/s (bits) or 50 GB/s (bytes)"
    number, unit = _split(text, expected)
    value = _scale(number, unit, _BANDWIDTHS, text, expected)
    return float(_checked(value, text, expected, allow_zero))


def parse_seconds(text: Amount, *, allow_zero: bool = False, bare_unit: str | None = None) -> float:
    """Read a duration such as "50 us" or "30 days"; a bare number is in `bare_unit` if given."""
    expected = "a duration with its unit, such as 50 us, 90 min, 12 h or 30 days"
    number, unit = _split(text, expected)
    value = _scale(number, (unit or bare_unit or "").lower(), _SECONDS, text, expected)
    return float(_checked(value, text, expected, allow_zero))


def parse_usd(text: Amount, *, allow_zero: bool = False) -> float:
    """Read an amount of US dollars such as "200k", "$1.5M" or "3.06 USD"."""
    expected = "an amount of US dollars such as 200k, 1.5M, $3.06 or 2,500 USD"
    amount = text
    if isinstance(text, str):
        amount = re.sub(r"\s*usd$", "", text.strip().removeprefix("$"), flags=re.IGNORECASE)
    number, unit = _split(amount, expected)
    value = _scale(number, unit.lower(), _COUNTS, text, expected)
    return float(_checked(value, text, expected, allow_zero))


def format_bytes(size: float) -> str:
    """Write a size in GiB, the unit of GPU memory; MiB, KiB or B when far below one."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor / 10:
            return f"{_fixed(size / factor)} {unit}"
    return f"{size:.0f} B"


def format_seconds(seconds: float) -> str:
    """Write a duration in the largest unit that leaves a number of at least one."""
    steps = (("days", 2.0 * DAY, DAY), ("h", HOUR, HOUR), ("min", 2.0 * MINUTE, MINUTE))
    for unit, threshold, factor in (*steps, ("s", 1.0, 1.0), ("ms", 1e-3, 1e-3)):
        if abs(seconds) >= threshold:
            return f"{_fixed(seconds / factor)} {unit}"
    return f"{_fixed(seconds * 1e6)} us" if seconds else "0 s"


def format_count(count: float) -> str:
    """Write whole numbers below a million in full, larger ones as "68.98B" or "2T"."""
    if abs(count) < 10**6 or not math.isfinite(count):
        return f"{count:,.0f}"
    return _with_suffix(count, ("M", "B", "T"), 10**6)


def format_energy(kwh: float) -> str:
    return f"{kwh:.3g} kWh" if kwh < 100 else f"{format_count(kwh)} kWh"


def format_rate(per_second: float, unit: str = "B") -> str:
    """Write a rate with a decimal prefix: "50 GB/s", or "989 TFLOP/s" for `unit` "FLOP"."""
    if abs(per_second) < 10**3 or not math.isfinite(per_second):
        return f"{per_second:.4g} {unit}/s"
    scaled = _with_suffix(per_second, ("k", "M", "G", "T", "P", "E"), 10**3)
    return f"{scaled[:-1]} {scaled[-1]}{unit}/s"


def format_usd(amount: float) -> str:
    """Write dollars, with cents below a thousand and more digits below a cent."""
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    if size >= 1000:
        return f"{sign}${size:,.0f}"
    return f"{sign}${size:.2f}" if size >= 0.01 or size == 0 else f"{sign}${size:.2g}"


def _split(text: Amount, expected: str) -> tuple[Decimal, str]:
    """Separate the number from its unit; a number has none."""
    if isinstance(text, int | float):
        if isinstance(text, bool) or (isinstance(text, float) and not math.isfinite(text)):
            raise _refusal(text, "not a number", expected)
        return Decimal(text), ""
    text = str(text)  # JSON may hold anything
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or not re.search(r"\d", match["number"].lower().partition("e")[0]):
        raise _refusal(text, "not a number", expected)
    try:
        return Decimal(re.sub("[,_]", "", match["number"])), match["unit"].strip()
    except InvalidOperation:  # an exponent beyond all that Decimal can hold
        raise _refusal(text, "far too large", expected) from None


def _scale(
    number: Decimal,
    unit: str,
    units: Mapping[str, Decimal] | Mapping[str, int],
    text: Amount,
    expected: str,
) -> Decimal:
    """Multiply by the unit; sizes out of all reason stop here, before decimal overflows."""
    if unit not in units:
        raise _refusal(text, f"unknown unit '{unit}'" if unit else "the unit is missing", expected)
    if number and number.adjusted() > 2 * math.log10(LARGEST_QUANTITY):
        raise _refusal(text, "far too large", expected)
    return number * units[unit]


def _checked(value: Decimal, text: Amount, expected: str, allow_zero: bool) -> Decimal:
    """Refuse negative and huge values, and zero unless it makes sense."""
    if value < 0:
        raise _refusal(text, "negative", expected)
    if value == 0 and not allow_zero:
        raise _refusal(text, "must be greater than zero", expected)
    if value > LARGEST_QUANTITY:
        raise _refusal(text, f"larger than {float(LARGEST_QUANTITY):g}", expected)
    return value


def echo(given: Amount) -> str:
    """A value as a message repeats it: numbers without a fraction show none."""
    text = str(int(given) if isinstance(given, float) and given.is_integer() else given)
    return text if len(text) <= _LONGEST_ECHO else text[:_LONGEST_ECHO] + "..."


def _refusal(text: Amount, reason: str, expected: str) -> InputError:
    return InputError(f"'{echo(text)}': {reason}; expected {expected}")


def _fixed(value: float) -> str:
    """Write three to four digits: 1.23, 12.3, 123, 1,234."""
    size = abs(value)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:,.{decimals}f}"


def _with_suffix(value: float, suffixes: tuple[str, ...], first: float) -> str:
    """Write four significant digits and the suffix of the matching power of a thousand."""
    scaled = value / first
    index = 0
    while abs(scaled) >= 999.95 and index < len(suffixes) - 1:
        scaled /= 1000
        index += 1
    number = f"{scaled:,.0f}" if abs(scaled) >= 999.95 else f"{scaled:.4g}"
    return number + suffixes[index]
