"""Lists of plans: which of them a user would tell apart, and how far a search is with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astrarium.search.families import are_twins, differs_little, families, folded
from astrarium.search.money import Runs, best_paid, keeps, rank_key
from astrarium.search.outcome import Limits, Objective
from astrarium.search.plan import Plan

# What a search is doing, how much of it is done, how much there is (0: not known), and, for those
# who ask, the plans found so far: making them takes time.
Progress = Callable[[str, int, int, Callable[[], Sequence[Plan]]], None]


def no_progress(phase: str, done: int, total: int, plans: Callable[[], Sequence[Plan]]) -> None:
    """Nobody wants to know."""


def listed(plans: Sequence[Plan], objective: Objective) -> list[Plan]:
    """The best plan of every family, the best first."""
    return families(sorted(plans, key=lambda plan: rank_key(plan, objective)))


def before_others(first: Plan, plans: Sequence[Plan]) -> list[Plan]:
    """A list that begins with one plan; its twins are folded into it.

    Nor has it others that differ from that plan in cuts, switches and recomputation alone, but the
    best plan.
    """
    others = [plan for plan in plans if plan != first]
    same = [plan for plan in others if are_twins(first, plan)]
    left = [plan for plan in others if plan == plans[0] or not differs_little(first, plan)]
    return [folded(first, same), *(plan for plan in left if plan not in same)]


def telling(
    progress: Progress, runs: Runs, objective: Objective, limits: Limits, top: int
) -> Progress:
    """The same, for searches that may not know payment and limits: plans as they will be listed."""
    if progress is no_progress:
        return no_progress

    def tell(phase: str, done: int, total: int, plans: Callable[[], Sequence[Plan]]) -> None:
        def so_far() -> Sequence[Plan]:
            paid = [
                plan if plan.run else best_paid(runs, plan, objective, limits) for plan in plans()
            ]
            return listed([plan for plan in paid if keeps(plan, limits)], objective)[:top]

        progress(phase, done, total, so_far)

    return tell
