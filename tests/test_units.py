"""Units: parsing agrees with pint, formatting reads back, nonsense is refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium import units
from astrarium.errors import InputError

REGISTRY: pint.UnitRegistry[float] = pint.UnitRegistry()

# Our spelling beside pint's, where "b" is a barn and "d" could be many things.
SIZES = {"B": "byte", "kB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte"}
BINARY_SIZES = {"KiB": "kibibyte", "MiB": "mebibyte", "GiB": "gibibyte", "TiB": "tebibyte"}
BITS = {"b": "bit", "Mb": "megabit", "Gb": "gigabit", "Tb": "terabit", "Gbit": "gigabit"}
TIMES = {"ns": "ns", "us": "us", "\u00b5s": "us", "\u03bcs": "us", "ms": "ms", "s": "s"}
LONG_TIMES = {"min": "minute", "h": "hour", "hours": "hour", "days": "day", "weeks": "week"}

numbers = st.floats(min_value=1e-3, max_value=1e9).map(lambda x: f"{x:.6g}")
spaces = st.sampled_from(["", " ", "  "])
positive = st.floats(min_value=1e-6, max_value=1e18)

Parser = Callable[[str], float]


@given(numbers, spaces, st.sampled_from(sorted({**SIZES, **BINARY_SIZES}.items())))
def test_bytes_agree_with_pint(number: str, space: str, unit: tuple[str, str]) -> None:
    expected = REGISTRY.Quantity(float(number), unit[1]).to("byte").magnitude
    if expected > 1:
        assert units.parse_bytes(number + space + unit[0]) == pytest.approx(expected, abs=0.5)


@given(
    numbers,
    spaces,
    st.sampled_from(sorted({**SIZES, **BINARY_SIZES, **BITS}.items())),
    st.sampled_from(["/s", "ps"]),
)
def test_bandwidth_agrees_with_pint(
    number: str, space: str, unit: tuple[str, str], per_second: str
) -> None:
    expected = REGISTRY.Quantity(float(number), unit[1] + "/s").to("byte/s").magnitude
    parsed = units.parse_bandwidth(number + space + unit[0] + per_second)
    assert parsed == pytest.approx(expected, rel=1e-12)


@given(numbers, spaces, st.sampled_from(sorted({**TIMES, **LONG_TIMES}.items())))
def test_seconds_agree_with_pint(number: str, space: str, unit: tuple[str, str]) -> None:
    expected = REGISTRY.Quantity(float(number), unit[1]).to("second").magnitude
    assert units.parse_seconds(number + space + unit[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2T", 2 * 10**12),
        ("1.5B", 15 * 10**8),
        ("1.1b", 11 * 10**8),  # 1.1 * 1e9 in binary floating point is not whole
        ("200k", 200_000),
        ("1e12", 10**12),
        ("1_000_000", 10**6),
        ("1,048,576", 2**20),
        (" 64 ", 64),
        (".5M", 500_000),
        ("12345678901234567890", 12345678901234567890),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert units.parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("200k", 2e5), ("$1.5M", 1.5e6), ("3.06 USD", 3.06), ("$2,500", 2500.0), ("0.3usd", 0.3)],
)
def test_dollars(text: str, value: float) -> None:
    assert units.parse_usd(text) == value


def test_bits_and_bytes_differ() -> None:
    assert units.parse_bandwidth("400 Gb/s") == 50e9
    assert units.parse_bandwidth("400 GB/s") == 400e9
    assert units.parse_bytes("80 GiB") == 80 * 2**30
    assert units.parse_bytes("80GB") == 80 * 10**9


def test_a_bare_duration_needs_a_unit_to_be_told() -> None:
    assert units.parse_seconds("30", bare_unit="days") == 30 * 86400
    assert units.parse_seconds("30 h", bare_unit="days") == 30 * 3600
    with pytest.raises(InputError, match="unit is missing"):
        units.parse_seconds("30")


@pytest.mark.parametrize(
    ("text", "per_hour"),
    [
        ("0.25", 0.25),
        ("0.25/h", 0.25),
        ("2 / day", 1 / 12),
        ("12%/Day", 0.005),
        ("1.68 %/week", 1e-4),
        ("7.305%/month", 1e-4),
        ("50 %", 0.5),
    ],
)
def test_how_often_something_happens(text: str, per_hour: float) -> None:
    assert units.parse_per_hour(text) == pytest.approx(per_hour, rel=1e-12)


def test_a_number_has_no_unit() -> None:
    assert units.parse_number("2.5") == 2.5
    with pytest.raises(InputError, match="unknown unit 'k'"):
        units.parse_number("2k")


PARSERS: list[tuple[Parser, str]] = [
    (units.parse_count, ""),
    (units.parse_bytes, "GiB"),
    (units.parse_bandwidth, "GB/s"),
    (units.parse_seconds, "s"),
    (units.parse_usd, ""),
    (units.parse_number, ""),
    (units.parse_per_hour, "%/day"),
]


@pytest.mark.parametrize(("parse", "unit"), PARSERS)
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("-1", "negative"),
        ("0", "must be greater than zero"),
        ("-0", "must be greater than zero"),
        ("nan", "not a number"),
        ("inf", "not a number"),
        ("-inf", "not a number"),
        ("", "not a number"),
        ("e5", "not a number"),
        ("1,5", "not a number"),
        ("0x10", "unit|number"),
        ("1e31", "larger than 1e\\+30"),
        ("1e999999999999", "far too large"),
        ("9" * 5000, "far too large"),
        ("1 furlong", "unit|number"),
    ],
)
def test_nonsense_is_refused(parse: Parser, unit: str, number: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        parse(f"{number} {unit}")
    message = str(caught.value)
    assert f"'{number[:20]}" in message  # the text itself, cut short when it is endless
    assert "; expected a" in message
    assert len(message) < 200


@given(st.text(max_size=20), st.sampled_from(PARSERS))
def test_any_text_is_parsed_or_refused(text: str, parser: tuple[Parser, str]) -> None:
    try:
        value = parser[0](text)
    except InputError:
        return
    assert 0 <= value <= units.LARGEST_QUANTITY


def test_zero_where_it_makes_sense() -> None:
    assert units.parse_seconds("0 us", allow_zero=True) == 0
    assert units.parse_usd("0", allow_zero=True) == 0
    assert units.parse_count("0", allow_zero=True) == 0


def test_counts_are_whole() -> None:
    with pytest.raises(InputError, match=r"1234\.5 is not whole"):
        units.parse_count("1.2345k")


@pytest.mark.parametrize(("text", "unit"), [("80 Gb", "Gb"), ("80 gb", "gb"), ("80 GB/s", "GB/s")])
def test_units_of_size_are_exact(text: str, unit: str) -> None:
    with pytest.raises(InputError, match=f"unknown unit '{unit}'"):
        units.parse_bytes(text)


@given(positive)
def test_formatted_bytes_read_back(size: float) -> None:
    size = math.ceil(size)
    assert units.parse_bytes(units.format_bytes(size)) == pytest.approx(size, rel=0.05)


@given(positive)
def test_formatted_seconds_read_back(seconds: float) -> None:
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=0.005)


@given(st.integers(1, 10**24))
def test_formatted_counts_read_back(count: int) -> None:
    assert units.parse_count(units.format_count(count)) == pytest.approx(count, rel=0.0005)
    if count < 10**6:
        assert units.parse_count(units.format_count(count)) == count


@given(st.floats(min_value=1, max_value=1e17))
def test_formatted_rates_read_back(rate: float) -> None:
    assert units.parse_bandwidth(units.format_rate(rate)) == pytest.approx(rate, rel=0.0005)


@given(st.floats(min_value=1e-4, max_value=1e15))
def test_formatted_dollars_read_back(amount: float) -> None:
    assert units.parse_usd(units.format_usd(amount)) == pytest.approx(amount, rel=0.05, abs=0.005)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(80 * 2**30), "80.0 GiB"),
        (units.format_bytes(1.5 * 2**30), "1.50 GiB"),
        (units.format_bytes(0.5 * 2**30), "0.50 GiB"),
        (units.format_bytes(1234 * 2**30), "1,234 GiB"),
        (units.format_bytes(10 * 2**20), "10.0 MiB"),
        (units.format_bytes(100), "100 B"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(-2 * 2**30), "-2.00 GiB"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(5e-5), "50.0 us"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(7.5), "7.50 s"),
        (units.format_seconds(600), "10.0 min"),
        (units.format_seconds(5400), "1.50 h"),
        (units.format_seconds(30 * 86400), "30.0 days"),
        (units.format_seconds(math.inf), "inf days"),
        (units.format_count(1024), "1,024"),
        (units.format_count(68_976_648_192), "68.98B"),
        (units.format_count(2 * 10**12), "2T"),
        (units.format_count(999_999_999), "1B"),
        (units.format_count(-5), "-5"),
        (units.format_rate(50e9), "50 GB/s"),
        (units.format_rate(989.4e12, "FLOP"), "989.4 TFLOP/s"),
        (units.format_rate(12.5), "12.5 B/s"),
        (units.format_usd(1_234_567.8), "$1,234,568"),
        (units.format_usd(3.06), "$3.06"),
        (units.format_usd(0), "$0.00"),
        (units.format_usd(0.0012), "$0.0012"),
        (units.format_usd(-5), "-$5.00"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected
