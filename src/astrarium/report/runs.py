"""Measured runs as text: executions, programs, dry runs, calibrations, learned factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from astrarium.report.tables import Field, indented, labelled, listing, percent, table, title
from astrarium.report.wording import WORDS
from astrarium.units import format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from astrarium.calibrate.learn.factors import Errors, Factor
    from astrarium.calibrate.learn.profile import ClusterProfile
    from astrarium.runtime.dry import DryRun
    from astrarium.runtime.measure import MeasuredRun
    from astrarium.runtime.plan_run import PlanRun
    from astrarium.runtime.spmd.job import ProgramRun
    from astrarium.runtime.spmd.timed import MeasuredProgram


def execution_report(run: PlanRun, width: int) -> Iterator[RenderableType]:
    """A run for people, the verdict last."""
    gpus = "GPU" if run.planned_gpus == 1 else "GPUs"
    processes = "process" if run.ranks == 1 else "processes"
    yield Text(
        f"{run.model}, plan {run.plan_rank} for {run.planned_gpus} {gpus}, run by {run.ranks}"
        f" {processes} on {run.device} in {run.precision}"
    )
    yield Text(f"layout {run.layout}", style="dim")
    for note in run.notes:
        yield Text(f"note: {note}")
    yield from _changes(run, width)
    yield from _ranks(run, width)
    yield from _losses(run, width)
    yield Text(_verdict(run))
    software = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    yield Text(software, style="dim")


def measured_report(run: MeasuredRun) -> Iterator[RenderableType]:
    """An iteration as it was timed beside its prediction."""
    software = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    count = len(run.shares_of_cores)
    ranks = "1 rank on a core" if count == 1 else f"{count} ranks on a core each"
    yield Text(f"{run.model}, plan {run.plan_rank}, run by {ranks} ({software})")
    yield Text(f"layout {run.layout}", style="dim")
    yield from timed_lines(run, "an iteration", run.notes)


def timed_lines(
    run: MeasuredRun | MeasuredProgram, what: str, notes: Sequence[str] = ()
) -> Iterator[RenderableType]:
    """Notes, and the measured time beside the predicted."""
    for rank, share in enumerate(run.shares_of_cores):
        if share < 1.0:
            yield Text(f"note: rank {rank} is held back to {100 * share:g} % of its core's time")
    for note in notes:
        yield Text(f"note: {note}")
    low, high = (format_seconds(seconds) for seconds in run.measured_range_seconds)
    yield Text(f"measured   {format_seconds(run.measured_seconds)} {what} ({low} to {high})")
    yield Text(f"predicted  {format_seconds(run.predicted_seconds)}, {100 * run.error:+.1f} %")


def _changes(run: PlanRun, width: int) -> Iterator[RenderableType]:
    if not run.changes:
        return
    yield title("Scaled down")
    yield from listing(
        [
            Field("what", [change["what"] for change in run.changes]),
            Field("planned", [change["planned"] for change in run.changes], prose=True),
            Field("run", [change["run"] for change in run.changes], prose=True),
        ],
        width,
    )


def _ranks(run: PlanRun, width: int) -> Iterator[RenderableType]:
    yield title("Processes")
    parts = run.processes
    used = [axis for axis in parts[0].places if any(part.places[axis] for part in parts)]
    fields = [Field("rank", [str(part.rank) for part in parts], right=True)]
    fields += [Field(axis, [str(p.places[axis]) for p in parts], right=True) for axis in used]
    if any(part.pools for part in parts):
        fields.append(Field("pool", [", ".join(part.pools) for part in parts], drop=3))
    fields += [
        Field("layers", [str(part.layers) for part in parts], right=True),
        Field("weights", [format_count(part.parameters) for part in parts], right=True, drop=2),
        Field("peak", [format_bytes(part.peak_bytes) for part in parts], right=True, drop=1),
        Field("step", [format_seconds(part.mean_step_seconds) for part in parts], right=True),
    ]
    yield from listing(fields, width)


def loss_fields(losses: Sequence[float], other: str, others: Sequence[float] | None) -> list[Field]:
    """The loss of every step, beside those of another run where there is one."""
    fields = [
        Field("step", [str(step + 1) for step in range(len(losses))], right=True),
        Field("loss", [f"{loss:.6f}" for loss in losses], right=True),
    ]
    if others is None:
        return fields
    gaps = [abs(ours - theirs) for ours, theirs in zip(losses, others, strict=True)]
    return [
        *fields,
        Field(other, [f"{loss:.6f}" for loss in others], right=True),
        Field("difference", [f"{gap:.1e}" for gap in gaps], right=True),
    ]


def _losses(run: PlanRun, width: int) -> Iterator[RenderableType]:
    yield title("Losses")
    alone = run.single_process
    fields = loss_fields(run.losses, "one process", None if alone is None else alone.losses)
    fields += [
        Field("gradient norm", [f"{n:.4f}" for n in run.gradient_norms], right=True, drop=2),
        Field("seconds", [format_seconds(s) for s in run.step_seconds], right=True, drop=1),
    ]
    yield from listing(fields, width)


def _verdict(run: PlanRun) -> str:
    alone = run.single_process
    if not run.is_finite:
        return "FAILED: losses or norms of gradients are not numbers"
    if alone is None:
        return "ran as planned; one process cannot hold it, so nothing is compared"
    gap, limit = f"{alone.largest_difference:.1e}", f"{alone.tolerance:.0e}"
    if alone.equal and run.ranks == 1:
        return "ran in one process: nothing was divided, so nothing is compared"
    if alone.equal:
        return f"equal: losses differ by {gap} at most (tolerance {limit} of each)"
    return f"NOT equal: losses differ by up to {gap}; they or norms of gradients by over {limit}"


def program_run_report(run: ProgramRun, width: int) -> Iterator[RenderableType]:
    """A run for people, the verdict last."""
    steps = "1 step" if run.steps == 1 else f"{run.steps} steps"
    yield Text(f"{run.factory}, {steps} by {run.ranks} processes on {run.device}")
    yield title("Processes")
    parts = run.processes
    yield from listing(
        [
            Field("rank", [str(part.rank) for part in parts], right=True),
            Field("pool", [part.pool for part in parts], drop=2),
            Field("weights", [format_count(part.parameters) for part in parts], right=True),
            Field("peak", [format_bytes(part.peak_bytes) for part in parts], right=True, drop=1),
            Field("step", [format_seconds(part.median_step_seconds) for part in parts], right=True),
        ],
        width,
    )
    yield title("Losses")
    yield from listing(_program_losses(run), width)
    took, predicted = map(format_seconds, (run.median_step_seconds, run.predicted_seconds))
    yield Text(f"a step took {took} here; predicted for the devices of the program: {predicted}")
    yield Text(program_verdict(run))


def _program_losses(run: ProgramRun) -> list[Field]:
    alone = run.single_process
    fields = loss_fields(run.losses, "one device", None if alone is None else alone.losses)
    seconds = [format_seconds(one) for one in run.step_seconds]
    return [*fields, Field("seconds", seconds, right=True, drop=1)]


def program_verdict(run: ProgramRun) -> str:
    """Whether the ranks did what one device does."""
    alone = run.single_process
    if not run.is_finite:
        return "FAILED: losses are not numbers"
    if alone is None:
        return "ran; nothing was compared"
    losses = f"{alone.largest_loss_difference:.1e} of each at most"
    found = [f"losses differ by {_with_rounding(losses, alone.loss_rounding)}"]
    for what, worst in (("gradients", alone.gradients), ("buffers", alone.buffers)):
        if worst is not None:
            where = f" ({worst.name})" if worst.name else ""
            found.append(
                f"{what} by {_with_rounding(f'{worst.largest:.1e}{where}', worst.rounding)}"
            )
    word = "equal to" if alone.equal else "NOT equal to"
    return f"{word} {alone.reference}: {', '.join(found)}; tolerance {alone.tolerance:.0e}"


def _with_rounding(difference: str, rounding: float) -> str:
    """A difference beside what single precision does to the module itself."""
    return f"{difference} (rounding of the module: {rounding:.1e})" if rounding else difference


def measured_program_report(run: MeasuredProgram) -> Iterator[RenderableType]:
    """A step as it was timed beside its prediction."""
    yield Text(f"{run.factory}, run by {len(run.shares_of_cores)} ranks on a core each")
    yield from timed_lines(run, "a step")


def dry_report(run: DryRun, width: int) -> Iterator[RenderableType]:
    """Memory and time of each stage, the worst misjudgement last."""
    gpus = "1 GPU" if run.planned_gpus == 1 else f"{run.planned_gpus} GPUs"
    software = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    yield Text(
        f"{run.model}, plan {run.plan_rank} for {gpus}, one rank at a time on"
        f" {run.gpu or 'the CPU'} ({software})"
    )
    for note in run.notes:
        yield Text(f"note: {note}")
    yield title("Memory, predicted / allocated")
    yield from listing(_dry_memory(run), width)
    if any(stage.measured_seconds is not None for stage in run.stages):
        yield title("Iteration of one rank, messages taking no time")
        yield from listing(_dry_seconds(run), width)
    yield Text(_dry_verdict(run))


def _dry_memory(run: DryRun) -> list[Field]:
    fields = _named(run)
    for cause in run.stages[0].predicted_bytes:
        texts = [
            _pair(s.predicted_bytes[cause], (s.allocated_bytes or {}).get(cause))
            for s in run.stages
        ]
        fields.append(Field(cause, texts, right=True, drop=1))
    peaks = [_pair(stage.predicted_peak, stage.allocated_peak) for stage in run.stages]
    errors = [_percent(stage.peak_error) for stage in run.stages]
    return [*fields, Field("peak", peaks, right=True), Field("error", errors, right=True)]


def _dry_seconds(run: DryRun) -> list[Field]:
    pairs = [(stage.predicted_seconds, stage.measured_seconds) for stage in run.stages]
    errors = [guess / true - 1 if guess and true else None for guess, true in pairs]
    return [
        *_named(run),
        Field("predicted", [_time(guess) for guess, _ in pairs], right=True),
        Field("measured", [_time(true) for _, true in pairs], right=True),
        Field("error", [_percent(error) for error in errors], right=True),
    ]


def _named(run: DryRun) -> list[Field]:
    stages = [", ".join(map(str, (s.stage, *s.like))) for s in run.stages]
    return [
        Field("stage", stages, prose=True),
        Field("layers", [str(stage.layers) for stage in run.stages], right=True),
    ]


def _pair(predicted: float, allocated: float | None) -> str:
    found = "too much" if allocated is None else format_bytes(allocated)
    return f"{format_bytes(predicted)} / {found}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"


def _dry_verdict(run: DryRun) -> str:
    full = [str(stage.stage) for stage in run.stages if stage.allocated_bytes is None]
    if full:
        return (
            f"Out of memory here: stage {', '.join(full)}. Without TransformerEngine more is kept"
            " than the plan counts on; see the prediction above."
        )
    errors = {stage.stage: stage.peak_error or 0.0 for stage in run.stages}
    worst = max(errors, key=lambda stage: abs(errors[stage]))
    return f"The peak of stage {worst} has the largest error: {errors[worst]:+.1%}."


def calibration_report(
    header: Mapping[str, Any], file: str, left: int, warnings: Sequence[str], width: int
) -> Iterator[RenderableType]:
    yield labelled(_calibration_facts(header, file), style="dim")
    yield from _operators(header, width)
    for warning in warnings:
        yield Text(f"warning: {warning}")
    yield from _host(header["host"])
    yield from _failures(header["failed"], left)


def _calibration_facts(header: Mapping[str, Any], file: str) -> Iterator[tuple[str, str]]:
    known = header["gpu"] or "not in the catalog"
    yield "device", f"{header['device'].get('name', 'unknown')} ({known})"
    if header["specification"]:
        flops, bandwidth = (header["specification"][n] for n in ("flops", "memory_bandwidth"))
        rates = f"{format_rate(flops, 'FLOP')}, {format_rate(bandwidth)} of memory"
        yield "figures", f"{rates}: as it reached them"
    yield "software", ", ".join(f"{name} {text}" for name, text in header["versions"].items())
    cases = header["sections"]
    counts = ", ".join(f"{name} {count:,}" for name, count in cases.items())
    total = sum(cases.values())
    noun = "case" if total == 1 else "cases"
    yield "measured", f"{total:,} {noun} ({counts}), {header['date']}"
    yield "profile", file


def _operators(header: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    fits = {**header["operators"], **header["links"]}
    if not fits:
        return
    yield title("Measured against modelled time")
    entries = list(fits.values())
    factors = ["not used" if one.get("bounded") else f"{one['ratio']:.2f}" for one in entries]
    yield from listing(
        [
            Field("class", list(fits)),
            Field("cases", [f"{entry['rows']:,}" for entry in entries], right=True),
            Field("median", [f"{entry['median']:.2f}" for entry in entries], right=True),
            Field("spread", [percent(entry["spread"]) for entry in entries], right=True, drop=1),
            Field("factor", factors, right=True),
        ],
        width,
    )


def _host(host: Mapping[str, float]) -> Iterator[RenderableType]:
    if not host:
        return
    yield title("Gaps")
    for name, text in WORDS.host.items():
        if name in host:
            yield indented(f"{format_seconds(host[name]):>9}  {text}")


def _failures(failed: list[Mapping[str, Any]], left: int) -> Iterator[RenderableType]:
    if failed:
        yield title("Could not be measured")
        counts = Counter((row.get("operator"), row["failure"]) for row in failed)
        for (operator, reason), count in counts.items():
            yield indented(f"{count} x {operator}: {reason}")
    if left:
        cases = "1 case is" if left == 1 else f"{left:,} cases are"
        yield title(f"{cases} left: the same command continues")


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
    yield from _not_learned_from(profile)
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


def _not_learned_from(profile: ClusterProfile) -> Iterator[RenderableType]:
    aside = profile.set_aside
    if not aside:
        return
    yield title(f"Not learned from: {len(aside)}")
    for entry in aside[:ASIDE_SHOWN]:
        yield indented(f"{entry.label}: {entry.reason}")
    if len(aside) > ASIDE_SHOWN:
        yield Text(f"  and {len(aside) - ASIDE_SHOWN} more; the profile lists all", style="dim")
