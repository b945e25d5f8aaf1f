"""What listeners hear of a search: how far it is, and the plans it has, not too often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from astrarium.api import planning

if TYPE_CHECKING:
    from astrarium.search.plan import Plan

PROGRESS_EVERY_SECONDS: Final = 0.1
PLANS_EVERY_SECONDS: Final = 0.4
MOST_SHARE: Final = 0.04  # of the time that may go into documents of what is known so far

Tell = Callable[[str, Any], None]  # the name of an event, and what it holds


def progress(seconds: float, phase: str, done: int, total: int) -> dict[str, Any]:
    return {"seconds": seconds, "phase": phase, "done": done, "total": total}


class Reporter:
    """Called by the search (`astrarium.search.listing.Progress`)."""

    def __init__(self, question: planning.Question, tell: Tell) -> None:
        self._question, self._tell = question, tell
        self._begin = self._progress_told = self._plans_told = monotonic()
        self._spent = 0.0
        self._last: Sequence[Plan] = ()

    def __call__(
        self, phase: str, done: int, total: int, plans: Callable[[], Sequence[Plan]]
    ) -> None:
        now = monotonic()
        if now - self._progress_told >= PROGRESS_EVERY_SECONDS:
            self._progress_told = now
            self._tell("progress", progress(now - self._begin, phase, done, total))
        waited = now - self._plans_told >= PLANS_EVERY_SECONDS
        # The only pool is searched: the answer itself follows at once, or the next part tells.
        is_answer = phase == "pools" and done == total == 1
        if waited and not is_answer and self._spent <= MOST_SHARE * (now - self._begin):
            self._tell_plans(plans())
            self._plans_told = monotonic()
            self._spent += self._plans_told - now

    def _tell_plans(self, plans: Sequence[Plan]) -> None:
        from astrarium.plans.document import to_dict

        if plans and plans != self._last:
            self._last = plans
            seconds = monotonic() - self._begin
            self._tell("plans", to_dict(planning.so_far(self._question, plans, seconds)))
