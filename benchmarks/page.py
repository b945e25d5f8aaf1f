"""Pieces of the pages that benchmarks write: tables in Markdown, numbers in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from astrarium.report.wording import strategy_words
from astrarium.search.plan import Plan
from astrarium.validate.scenario import Scenario


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, and a blank one."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:], ""]


def percent(share: float | None, decimals: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{decimals}f} %"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def strategy_text(plan: Plan, scenario: Scenario) -> str:
    """The strategy of a plan in one line."""
    experts = scenario.workload.model.max_experts > 0
    return strategy_words(plan.strategy, experts=experts)
