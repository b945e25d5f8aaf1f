"""Readers: from what was given for a flag (a text, or from Python and JSON a number) to its value.

A reader takes the name of the flag, for its messages, and what was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from astrarium.errors import InputError, Repair, about, did_you_mean, flag, instead, refusal

if TYPE_CHECKING:
    from astrarium.cluster.build import GpusGiven
    from astrarium.cost.checkpoints import Storage
    from astrarium.cost.training_run import Ramp
    from astrarium.operations.stragglers import Stragglers

Given: TypeAlias = Any  # what was given: it is a reader that finds out whether it can be used
Reader: TypeAlias = Callable[[str, Given], Any]

MOST_TOKENS = 10**18
MOST_SECONDS = 100 * 365 * 86400.0
MOST_PLANS = 100
MOST_INTERRUPTIONS_PER_HOUR = 1000.0
MOST_BANDWIDTH = 1e18
MOST_IMBALANCE = 100.0
MOST_LOST = 2**24
MOST_MICRO_BATCHES = 2**16
MOST_SPREAD = 0.12  # beyond, some GPUs of a normal spread would need no time
PER_NODE = "/node"


def as_given(_: str, given: Given) -> Given:
    return given


def text(_: str, given: Given) -> str:
    """A name, an address or a path."""
    return fspath(given) if isinstance(given, PathLike) else str(given)


def text_or_table(name: str, given: Given) -> str | Mapping[str, Any]:
    return given if isinstance(given, Mapping) else text(name, given)


def gpus(_: str, given: Given) -> GpusGiven:
    """GPUs as `astrarium.cluster.parse_gpus` takes them."""
    return str(given) if isinstance(given, int | float) else given


def texts(_: str, given: Given) -> tuple[str, ...]:
    """The values of a repeated flag; one text alone is one."""
    return tuple(map(str, entries(given)))


def entries(given: Given) -> list[Any]:
    """The values of a repeated flag: texts, or names with their amounts."""
    if isinstance(given, Mapping):
        return list(given.items())
    return [given] if isinstance(given, str | int | float) else list(given)


def number(parser: str, most: float, **settings: Any) -> Reader:  # noqa: ANN401
    """Reads a quantity with a parser of `astrarium.units`."""

    def read(name: str, given: Given) -> Any:  # noqa: ANN401
        from astrarium import units

        try:
            value = getattr(units, parser)(given, **settings)
        except InputError as error:
            raise refusal(name, f" {error}") from None
        if value > most:
            raise refusal(name, f" '{units.echo(given)}': too large; the most is {most:,.0f}")
        return value

    return read


def count(most: int, *, allow_zero: bool = False) -> Reader:
    return number("parse_count", most, allow_zero=allow_zero)


def duration(
    most: float = MOST_SECONDS, *, bare_unit: str | None = None, allow_zero: bool = False
) -> Reader:
    """Reads seconds; a bare number is in `bare_unit`, or refused."""
    return number("parse_seconds", most, bare_unit=bare_unit, allow_zero=allow_zero)


BEST = "best"  # of the number formats that GPUs have


def choice(place: str, *, without: Sequence[str] = (), also: Sequence[str] = ()) -> Reader:
    """Reads a word of the enumeration "module:Class", imported late, or one of `also`."""
    module, _, kind = place.partition(":")

    def read(name: str, given: Given) -> str:
        words: type[StrEnum] = getattr(import_module(f"astrarium.{module}"), kind)
        known: dict[str, str] = {word.value: word for word in words if word.value not in without}
        known |= {word: word for word in also}
        if str(given).lower() in known:
            return known[str(given).lower()]
        hint = did_you_mean(str(given), known)
        says = f" '{given}': expected one of {', '.join(known)}{hint}"
        raise refusal(name, says, instead(str(given), list(known)))

    return read


def precision_or_best(name: str, given: Given) -> str:
    """A number format, or the word for all that plans may choose among."""
    read = choice("model.workload:Precision", without=("fp32",), also=(BEST,))
    return read(name, given)


def micro_batches(name: str, given: Given) -> int | None:
    """A number, or None: the best number."""
    return None if given == "auto" else count(MOST_MICRO_BATCHES)(name, given)


def rank(name: str, given: Given) -> int:
    try:
        return count(MOST_PLANS)(name, given)
    except InputError:
        says = f" '{given}': expected the number of a plan such as 1, the best"
        raise refusal(name, says) from None


def prices(name: str, given: Given) -> dict[str, float]:
    """Dollars of a GPU and hour, by full name of the type."""
    from astrarium.catalog import find_gpu
    from astrarium.units import parse_usd

    found = {}
    for entry in entries(given):
        gpu, amount = entry if isinstance(entry, tuple) else _before_first(str(entry))
        if not gpu or amount == "":
            says = f" '{spelled(entry)}': expected TYPE=USD per GPU and hour, e.g. h100=2.5"
            raise refusal(name, says)
        try:
            found[find_gpu(gpu).name] = parse_usd(amount, allow_zero=True)
        except InputError as error:
            raise refusal(name, f" {spelled(entry)}: {error}") from None
    return found


def discounts(name: str, given: Given) -> dict[str, float]:
    """Shares that come off, by cloud."""
    from astrarium.catalog.prices import EVERY_CLOUD

    found = {}
    for entry in entries(given):
        cloud, percent = entry if isinstance(entry, tuple) else _before_last(entry)
        if cloud is not None and not cloud.strip():
            raise refusal(name, f" {entry}: the cloud is missing; write aws=30, or 30")
        found[EVERY_CLOUD if cloud is None else cloud.strip()] = share(name, percent)
    return found


def interruptions(name: str, given: Given) -> dict[str, float]:
    """Interruptions of a node an hour, by full name of the GPU type; "" stands for all others."""
    from astrarium.catalog import find_gpu

    rate = number("parse_per_hour", MOST_INTERRUPTIONS_PER_HOUR, allow_zero=True)
    found = {}
    for entry in entries(given):
        gpu, often = entry if isinstance(entry, tuple) else _before_last(entry)
        # The rate first: it is the part that is always there.
        value = rate(name, often)
        found["" if gpu is None else find_gpu(gpu).name] = value
    return found


def factor(name: str, given: Given) -> float:
    """A number from 1 to `MOST_IMBALANCE`."""
    value: float = number("parse_number", MOST_IMBALANCE)(name, given)
    if value < 1:
        raise refusal(name, f" {value:g}: the least is 1, which is an even load")
    return value


def lengths(name: str, given: Given) -> str:
    """A distribution of lengths: its text, a file with a length in each line, or a list."""
    from astrarium.model.lengths import binned, checked_lengths, lengths_of_file

    with about(name):
        if not isinstance(given, str | PathLike):
            return binned(entries(given))
        is_text = "*" in str(given) or str(given).startswith("lognormal:")
        path = Path(given)
        if not is_text and path.is_file():
            return lengths_of_file(path)
        try:
            return checked_lengths(str(given))
        except InputError as error:
            raise refusal(name, f" {error}") from None


def share(name: str, given: Given) -> float:
    """A percentage below 100 as a share."""
    from astrarium.catalog.price_files import parse_percent

    try:
        return parse_percent(given)
    except InputError as error:
        raise refusal(name, f" {error}") from None


def share_or_all(name: str, given: Given) -> float:
    return 1.0 if str(given).strip(" %") == "100" else share(name, given)


def storage(name: str, given: Given) -> Storage:
    """RATE of all nodes together, or RATE/node."""
    from astrarium.cost.checkpoints import Storage

    rate = str(given).removesuffix(PER_NODE)
    bandwidth = number("parse_bandwidth", MOST_BANDWIDTH)(name, rate)
    if rate != str(given):
        return Storage(per_node=bandwidth)
    return Storage(per_node=bandwidth, shared=bandwidth)


def ramp(name: str, given: Given) -> Ramp:
    from astrarium.cost.training_run import Ramp

    numbers = list(given) if isinstance(given, list | tuple) else str(given).split(",")
    if len(numbers) != len(("START", "INCREMENT", "SAMPLES")):
        raise refusal(name, f" '{given}': expected START,INCREMENT,SAMPLES such as 16,16,6M")
    return Ramp(*(count(MOST_TOKENS)(name, part) for part in numbers))


def gpu_counts(name: str, given: Given) -> dict[str, int]:
    """GPUs by what they are called: TYPE:N,... or a mapping; also several of them."""
    found: Counter[str] = Counter()
    for entry in entries(given):
        pairs = [entry] if isinstance(entry, tuple) else map(_at_colon, str(entry).split(","))
        for gpu, number_of in pairs:
            if not gpu or number_of == "":
                raise refusal(name, f" '{spelled(entry)}': expected TYPE:N such as a100:8")
            found[gpu] += count(MOST_LOST)(name, number_of)
    return dict(found)


def slowed(name: str, given: Given) -> dict[str, float]:
    """Factors by "stage=N", or by a type or pool of GPUs."""
    from astrarium.operations.change import MOST_SLOWDOWN

    found = {}
    for entry in entries(given):
        what, factor_of = entry if isinstance(entry, tuple) else _at_colon(str(entry))
        stage = what.removeprefix("stage=")
        if not what or factor_of == "" or (stage != what and not stage.isdecimal()):
            says = f" '{spelled(entry)}': expected stage=2:1.4 or, for all of a type, h100:1.4"
            raise refusal(name, says)
        value = number("parse_number", MOST_SLOWDOWN)(name, factor_of)
        if value <= 1:
            says = f" '{spelled(entry)}': a slow GPU takes more than 1 times as long; give above 1"
            raise refusal(name, says)
        found[what] = value
    return found


def stragglers(name: str, given: Given) -> Stragglers:
    """gpu=PERCENT, a spread, and nodes=PERCENT:FACTOR, which are slow; "spread": as published."""
    from astrarium.operations.change import MOST_SLOWDOWN
    from astrarium.operations.stragglers import Stragglers

    if isinstance(given, Stragglers):
        return given
    found: dict[str, float] = {}
    for part in [] if str(given) == "spread" else str(given).split(","):
        what, amount = _before_first(part)
        if what == "gpu" and amount:
            found["gpu_deviation"] = share(name, amount)
        elif what == "nodes" and ":" in amount:
            of_nodes, factor_of = _at_colon(amount)
            found["slow_nodes"] = share(name, of_nodes)
            found["slow_factor"] = number("parse_number", MOST_SLOWDOWN)(name, factor_of)
        else:
            wants = "expected spread, or such as gpu=2%,nodes=0.1%:1.5"
            raise refusal(name, f" '{part}': {wants}")
    if found.get("slow_factor", 1.0) < 1:
        raise refusal(name, f" '{given}': slow nodes take more than 1 times as long; give above 1")
    if found.get("gpu_deviation", 0.0) > MOST_SPREAD:
        raise refusal(name, f" '{given}': a spread above {100 * MOST_SPREAD:g} % is no spread")
    return Stragglers(**found)


def max_gpus(name: str, given: Given) -> int:
    from astrarium.cluster import LARGEST_CLUSTER

    return count(LARGEST_CLUSTER)(name, given)


def _at_colon(text: str) -> tuple[str, str]:
    name, _, amount = (part.strip() for part in text.rpartition(":"))
    return name, amount


def _before_first(text: str) -> tuple[str, str]:
    name, _, amount = (part.strip() for part in text.partition("="))
    return name, amount


def _before_last(entry: Given) -> tuple[str | None, Given]:
    """The name of [NAME=]AMOUNT, and the amount."""
    if not isinstance(entry, str):
        return None, entry
    name, equals, amount = entry.rpartition("=")
    return (name if equals else None), amount


def spelled(entry: Given) -> str:
    """An entry of a repeated flag as it would be typed."""
    from astrarium.units import echo

    return f"{entry[0]}={echo(entry[1])}" if isinstance(entry, tuple) else str(entry)


def both_given(first: str, second: str) -> InputError:
    keep = [(first, second), (second, first)]
    repairs = [Repair(f"Keep {flag(kept)}", {other: ""}) for kept, other in keep]
    return refusal(first, f" and {flag(second)} are both given; keep one", repairs)
