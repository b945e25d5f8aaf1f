"""The whole run of a plan: its time by cause, its losses and its energy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType

from astrarium.cost.uncertainty import chance_within
from astrarium.plans.document import ClusterPart, Plan, Run
from astrarium.report.tables import WIDE, dollars, indented, percent, shares_table
from astrarium.report.wording import WORDS, unit_price
from astrarium.units import HOUR, format_count, format_energy, format_seconds

FULL_BAR, SHORT_BAR = 40, 20
NOTHING: Final = 5e-4  # a share that is written as 0.0 %

FAILURE: Final = ("a failure", "--failures")  # of machines on demand


def run_section(plan: Plan, run: Run, cluster: ClusterPart, width: int) -> Iterator[RenderableType]:
    """The facts of the run, causes with their shares if there are several."""
    yield indented(run_words(plan, run))
    for line in _assumptions(plan, run, cluster):
        yield indented(line)
    total = sum(run.breakdown_seconds.values())
    spent = [
        (WORDS.run[cause], s) for cause, s in run.breakdown_seconds.items() if s > NOTHING * total
    ]
    if len(spent) > 1:
        yield shares_table(spent, total, FULL_BAR if width >= WIDE else SHORT_BAR)


def run_words(plan: Plan, run: Run) -> str:
    words = [format_seconds(sum(run.breakdown_seconds.values()))]
    if plan.usd_total is not None:
        words.append(dollars(plan.usd_total))
    words.append(format_energy(run.kwh))
    if run.co2_kilograms is not None:
        words.append(f"{format_count(run.co2_kilograms)} kg of CO2")
    if run.goodput < 1:
        words.append(f"goodput {percent(run.goodput)} of {format_count(plan.tokens_per_second)}/s")
    return ", ".join(words)


def _assumptions(plan: Plan, run: Run, cluster: ClusterPart) -> Iterator[str]:
    if run.spot_gpus:
        prices = {
            pool.gpu: unit_price(pool.spot_usd_per_gpu_hour)
            for pool in cluster.pools
            if pool.name in plan.pools
        }
        spot = " + ".join(
            f"{count:,} x {name} at {prices[name]} per GPU and hour"
            for name, count in run.spot_gpus.items()
        )
        others = plan.num_gpus - sum(run.spot_gpus.values())
        yield f"spot: {spot}" + (f"; {others:,} are on demand" if others else "")
    if run.interruptions_per_hour > 0:
        between = format_seconds(HOUR / run.interruptions_per_hour)
        what, flag = ("an interruption", "--interruptions") if run.spot_gpus else FAILURE
        yield f"{what} every {between} is assumed ({flag} sets the rate)"
    for limit, chance in (("deadline", run.deadline_chance), ("budget", run.budget_chance)):
        if chance is not None and chance < _at_upper_end(plan):
            kept = f"the chance to keep it is {percent(chance)}"
            yield f"the {limit} lies within the likely range: {kept}"
    if run.checkpoint_interval_seconds is not None:
        yield f"a checkpoint after every {format_seconds(run.checkpoint_interval_seconds)} of work"


def _at_upper_end(plan: Plan) -> float:
    """The chance of a limit at the upper end of the likely interval."""
    ends = plan.interval_seconds
    return chance_within(ends[1], plan.iteration_seconds, ends)
