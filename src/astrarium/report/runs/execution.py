"""A plan that ran, as text: what was scaled, the losses beside those of one process, the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from astrarium.report.tables import Field, listing, title
from astrarium.runtime.measure import MeasuredRun
from astrarium.runtime.plan_run import PlanRun
from astrarium.runtime.spmd.timed import MeasuredProgram
from astrarium.units import format_bytes, format_count, format_seconds


def execution_report(run: PlanRun, width: int) -> Iterator[RenderableType]:
    """All of a run that a person wants to know, the verdict last."""
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
        return "FAILED: losses or norms of gradients are no numbers"
    if alone is None:
        return "ran as planned; one process cannot hold it, so nothing is compared"
    gap, limit = f"{alone.largest_difference:.1e}", f"{alone.tolerance:.0e}"
    if alone.equal and run.ranks == 1:
        return "ran in one process: nothing was divided, so nothing is compared"
    if alone.equal:
        return f"equal: losses differ by {gap} at most (tolerance {limit} of each)"
    return f"NOT equal: losses differ by up to {gap}; they or norms of gradients by over {limit}"
