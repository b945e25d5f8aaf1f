"""The user's own plan beside the answer, and in words what the answer saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from astrarium.plans.document import ClusterPart, ComparePart, Plan, PlanDocument
from astrarium.report.front.points import gpus_of
from astrarium.report.plan.text import lacking_words
from astrarium.report.tables import HUNDRED, Field, dollars, indented, percent, table, title
from astrarium.report.wording import pipeline_words, short_types, strategy_words, time_cause
from astrarium.search.recommended import is_tied
from astrarium.units import HOUR, format_count, format_energy, format_seconds
from astrarium.value import Value

NOTHING = 5e-4  # a share that is written as 0.0 %
CAUSES_SHOWN = 3
TINY = 1e-4  # dollars; below, three digits would be written with an exponent
SMALL = 0.01  # of an iteration; causes that change by less are not named


class ComparedQuantity(Value, frozen=True):
    """A quantity that both plans take, and its format."""

    name: str
    of: Callable[[Plan], float | None]
    words: Callable[[float], str]
    saved: float | None


def compare_section(document: PlanDocument, compare: ComparePart) -> Iterator[RenderableType]:
    """Yours and plan 1 side by side; a plan that cannot run says why instead."""
    answer, own = document.plans[0], compare.plan
    yield title("Compared with yours")
    for note in compare.notes:
        yield indented(f"note: {note}", "dim")
    if own is None:
        yield indented(f"yours does not run: {compare.refused}", "bold red")
        return
    yield _table(document, own, answer, compare)
    if not own.fits:
        yield Text(f"yours does not fit: {lacking_words(own)}", "bold red")
        return
    yield Text(saved_words(own, answer, compare))
    if own.gpus == answer.gpus and (causes := causes_words(own, answer)):
        yield Text(causes)
    took = [(plan.iteration_seconds, plan.train_seconds) for plan in (own, answer)]
    if took[0] != took[1] and not differ(own, answer, experts=document.workload.has_experts):
        yield Text("the predicted times are too close to tell the two apart", "dim")


def _table(document: PlanDocument, own: Plan, answer: Plan, compare: ComparePart) -> RenderableType:
    both = (own, answer)
    experts = document.workload.has_experts
    types = short_types(dict.fromkeys(name for plan in both for name in plan.gpus))
    rows = [("GPUs", *(gpus_of(plan.gpus, types) for plan in both), "")]
    clouds = [_cloud(own, compare.cluster), _cloud(answer, document.cluster)]
    if any(clouds):
        rows.append(("cloud", *clouds, ""))
    strategies = [strategy_words(plan.strategy, experts=experts) for plan in both]
    rows.append(("strategy", *strategies, ""))
    if own.runtimes != answer.runtimes:
        rows.append(("runtime", *(", ".join(plan.runtimes) for plan in both), ""))
    stages = [pipeline_words(plan) for plan in both]
    if strategies[0] == strategies[1] and stages[0] != stages[1]:
        rows.append(("stages", *stages, ""))
    rows.append(("tokens/s", *(format_count(plan.tokens_per_second) for plan in both), ""))
    for quantity in _quantities(own, compare):
        amounts = [quantity.of(plan) for plan in both]
        cells = ["not known" if n is None else quantity.words(n) for n in amounts]
        rows.append((quantity.name, *cells, _saved_cell(quantity, amounts[0])))
    heads = ("", "yours", f"plan {answer.rank}", f"plan {answer.rank} saves")
    columns = zip(heads, zip(*rows, strict=True), strict=True)
    return table([Field(head, cells, prose=True) for head, cells in columns])


def _cloud(plan: Plan, cluster: ClusterPart) -> str:
    """The clouds whose offers a plan uses; blank if prices belong to no cloud."""
    used = [pool.cloud for pool in cluster.pools if pool.name in plan.pools and pool.cloud]
    return ", ".join(dict.fromkeys(used))


def _saved_cell(quantity: ComparedQuantity, own: float | None) -> str:
    if quantity.saved is None or not own:
        return ""
    share = quantity.saved / own
    if abs(share) < NOTHING:
        return "nothing"
    sign = "" if quantity.saved > 0 else "-"
    return f"{sign}{quantity.words(abs(quantity.saved))} ({percent(share)})"


def _quantities(own: Plan, compare: ComparePart) -> tuple[ComparedQuantity, ...]:
    """Quantities of the run or, where its length is not known, of an iteration."""
    if own.train_seconds is None:
        return (
            ComparedQuantity(
                "iteration", lambda p: p.iteration_seconds, format_seconds, compare.saved_seconds
            ),
            ComparedQuantity("its money", _iteration_usd, _small_dollars, compare.saved_usd),
        )
    return (
        ComparedQuantity("time", lambda p: p.train_seconds, format_seconds, compare.saved_seconds),
        ComparedQuantity("money", lambda p: p.usd_total, dollars, compare.saved_usd),
        ComparedQuantity(
            "energy",
            lambda p: p.run.kwh if p.run else None,
            format_energy,
            compare.saved_kwh,
        ),
    )


def _iteration_usd(plan: Plan) -> float | None:
    price = plan.usd_per_hour
    return None if price is None else plan.iteration_seconds / HOUR * price


def _small_dollars(amount: float) -> str:
    """Iterations cost little: rounded to cents, different amounts would look equal."""
    if 0 < amount < TINY:
        return f"${amount:.7f}"
    return f"${amount:.3g}" if 0 < amount < HUNDRED else dollars(amount)


def saved_words(own: Plan, answer: Plan, compare: ComparePart) -> str:
    """The savings of the answer, and its additional costs."""
    less: list[str] = []
    more: list[str] = []
    for quantity in _quantities(own, compare):
        before = quantity.of(own)
        if quantity.saved is None or not before or abs(quantity.saved / before) < NOTHING:
            continue
        share = percent(abs(quantity.saved) / before)
        side = less if quantity.saved > 0 else more
        side.append(f"{quantity.words(abs(quantity.saved))} ({share})")
    which = "an iteration of " if own.train_seconds is None else ""
    subject = f"{which}plan {answer.rank}"
    saved, spent = (
        " and ".join([*filter(None, [", ".join(w[:-1])]), *w[-1:]]) for w in (less, more)
    )
    if not more:
        return f"{subject} saves {saved}" if less else f"{subject} saves nothing: yours is as good"
    if not less:
        return f"{subject} takes {spent} more than yours"
    return f"{subject} saves {saved}, and takes {spent} more"


def causes_words(own: Plan, answer: Plan) -> str:
    """The causes of time by which an iteration differs most; "" if none does by much."""
    theirs = own.breakdown_seconds
    saved = {cause: theirs[cause] - now for cause, now in answer.breakdown_seconds.items()}
    most = sorted(saved, key=lambda cause: -abs(saved[cause]))[:CAUSES_SHOWN]
    said = [
        f"{time_cause(cause).title} {format_seconds(abs(saved[cause]))}"
        f" {'less' if saved[cause] > 0 else 'more'}"
        for cause in most
        if abs(saved[cause]) > SMALL * own.iteration_seconds
    ]
    return f"in an iteration: {', '.join(said)}" if said else ""


def differ(own: Plan, answer: Plan, *, experts: bool) -> bool:
    """Whether one run is surely the faster: by their ratio on the same GPUs, or by intervals."""
    faster, slower = sorted((own, answer), key=lambda plan: plan.iteration_seconds)
    alike = (own.gpus, own.runtimes) == (answer.gpus, answer.runtimes)
    if alike and not is_tied(faster, slower, experts=experts):
        return True
    seconds = [plan.train_seconds or plan.iteration_seconds for plan in (own, answer)]

    def within(plan: Plan, of: float, other: float) -> bool:
        low, high = (bound / plan.iteration_seconds * of for bound in plan.interval_seconds)
        return low <= other <= high

    return not (within(own, *seconds) and within(answer, *reversed(seconds)))
