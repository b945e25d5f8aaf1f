"""Questions to a search, and its answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from astrarium.errors import Repair
from astrarium.strategy.estimate import Twin
from astrarium.strategy.types import Strategy
from astrarium.value import Value

# Plans that every search looks for and begins with; of longer lists the others are those met on the
# way. So what is looked at, and which plan is the first, does not depend on how many are shown.
LISTED: Final = 5
# Plans that are worse than the best by more than this factor do not decide which one is the first.
NEAR: Final = 1.1


class Objective(StrEnum):
    """The goal; the batch is given, so throughput and time ask for the same."""

    THROUGHPUT = "throughput"
    TIME = "time"
    COST = "cost"
    GPUS = "gpus"  # the fewest that fit
    MEMORY = "memory"  # the least on the fullest rank


class Prefer(StrEnum):
    """The plan that comes first where several cannot be told apart."""

    RECOMMENDED = "recommended"  # the simplest with room in memory
    FASTEST = "fastest"


class Mode(StrEnum):
    EXACT = "exact"
    UP_TO = "up-to"


FEWER_GPUS: Final = (Repair("Let plans use fewer GPUs", {"mode": Mode.UP_TO.value}),)


class Claim(StrEnum):
    """The splits that the gap of a search on one pool covers."""

    ALL = "all"  # every way to deal them
    VIRTUAL_STAGES = "virtual stages"  # other cuts are solved by another search
    NONE = "none"  # the best plans are wanted, no proof
    ANY_PLAN = "any plan"  # the same; layers are dealt freely only if nothing else is found


class Rejection(StrEnum):
    """Reasons why strategies fell out."""

    RUNTIME = "runtime"  # the runtime refuses them
    RULE = "rule"  # a rule of the user
    MEMORY = "memory"
    BUDGET = "budget"
    DEADLINE = "deadline"
    BOUND = "bound"  # provably no better than the plans kept; never priced
    DOMINATED = "dominated"  # the same with an overlap switched off
    SLOWER = "slower"  # priced, and worse than the plans kept


class Limits(Value, frozen=True):
    """Limits of the whole run."""

    budget_usd: float | None = None
    deadline_seconds: float | None = None


class KeptFree(Value, frozen=True):
    """Memory that plans leave free on each GPU: for a chance to fit, or a number of bytes."""

    fit_chance: float | None = None
    margin_bytes: int = 0


DEFAULT_FIT_CHANCE: Final = 0.95


class Found(Value, frozen=True):
    """A strategy the search kept."""

    strategy: Strategy
    seconds: float
    score: float
    peak_bytes: float
    twins: tuple[Twin, ...] = ()


@dataclass(slots=True)
class SearchResult:
    """The strategies kept, best first; `space` = kept + all that was rejected.

    `reasons` splits what rules rejected by rule.
    """

    found: list[Found]
    space: int
    evaluated: int
    rejected: Counter[Rejection]
    reasons: Counter[str]
    optimal: bool
    bound_gap: float
    least_bytes: float  # that strategies rejected for memory need; infinite if none was
    complete: bool = True  # whether all was looked at, be it only in part proven

    @classmethod
    def of_few(cls, count: int) -> SearchResult:
        """Of so many strategies, all of them kept."""
        return cls([], count, count, Counter(), Counter(), True, 0.0, float("inf"))
