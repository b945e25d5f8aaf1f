"""What was learned from measured runs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from astrarium.calibrate.learn.factors import Errors, Factor
from astrarium.calibrate.learn.profile import ClusterProfile
from astrarium.report.tables import Field, indented, percent, table, title
from astrarium.units import format_bytes, format_seconds

ASIDE_SHOWN = 5


def learned_report(
    profile: ClusterProfile, notes: Sequence[str], path: str
) -> Iterator[RenderableType]:
    """The factors, the errors before and after, what was not used, and how to use the profile."""
    yield Text(f"cluster   {profile.gpu} under {profile.runtime}")
    yield Text(f"learned   {', '.join(profile.origin)}")
    for note in notes:
        yield Text(f"note      {note}")
    yield title("Factors")
    yield _factors(profile.learned)
    for what, errors in (("time", profile.time_error), ("memory", profile.memory_error)):
        if errors is not None:
            yield indented(f"{what}: {_error_words(errors)}")
    yield from _aside(profile)
    yield Text("")
    if any(factor.after != factor.before for factor in profile.learned):
        yield Text(f"written to {path}; use it with --profile {path}")
    else:
        yield Text(f"written to {path}; it changes nothing: the runs agree with the model")


def _factors(learned: Sequence[Factor]) -> RenderableType:
    changed = [factor.after != factor.before for factor in learned]
    pairs = list(zip(learned, changed, strict=True))
    return table(
        [
            Field("factor", [factor.name for factor in learned]),
            Field("before", [_value(factor, factor.before) for factor in learned], right=True),
            Field("after", [_value(f, f.after) if new else "same" for f, new in pairs], right=True),
            Field("give or take", [_deviation(f) if new else "" for f, new in pairs], right=True),
            Field("meaning", [factor.meaning for factor in learned], prose=True),
        ],
        styles=["" if new else "dim" for new in changed],
    )


def _value(factor: Factor, value: float) -> str:
    if factor.unit == "s":
        return format_seconds(value) if value else "0 s"
    if factor.unit == "B":
        sign = "-" if value < 0 else ""
        return f"{sign}{format_bytes(abs(value))}" if value else "0 GiB"
    return f"x {value:.3f}"


def _deviation(factor: Factor) -> str:
    return _value(factor, factor.deviation) if factor.unit else percent(factor.deviation)


def _error_words(errors: Errors) -> str:
    runs = "1 run" if errors.rows == 1 else f"{errors.rows} runs"
    text = f"mean error of {runs} {percent(errors.before)} before, {percent(errors.after)} after"
    if errors.left_out is None:
        return f"{text}; one run cannot tell how other runs will do"
    return f"{text}; {percent(errors.left_out)} on runs left out"


def _aside(profile: ClusterProfile) -> Iterator[RenderableType]:
    aside = profile.set_aside
    if not aside:
        return
    yield title(f"Not learned from: {len(aside)}")
    for entry in aside[:ASIDE_SHOWN]:
        yield indented(f"{entry.label}: {entry.reason}")
    if len(aside) > ASIDE_SHOWN:
        yield Text(f"  and {len(aside) - ASIDE_SHOWN} more; the profile lists all", style="dim")
