"""Traces of capacity, policies over them, and sites with outer steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from astrarium.cli.operations import simulate as simulate_command
from astrarium.cli.operations import sites as sites_command
from astrarium.errors import InputError
from astrarium.operations.change import named
from astrarium.operations.replan import ReplanTerms
from astrarium.operations.simulate import Policy, PolicyOutcome, Setting, simulate
from astrarium.operations.sites import Sites, over_sites
from astrarium.operations.traces import (
    CapacityTrace,
    Drawn,
    Span,
    drawn_trace,
    read_trace,
    trace_csv,
)
from astrarium.plans.job import Job
from astrarium.value import replace

NO_FAILURES = ReplanTerms(failures_per_hour=0.0)


def setting_of(job: Job, terms: ReplanTerms = NO_FAILURES, seed: int = 0) -> Setting:
    plan = replace(job.plan, strategy=named(job.strategy, job.cluster))
    return Setting(job.workload, job.runtime, plan, job.cluster, terms, seed)


def hours(found: PolicyOutcome) -> float:
    causes = ("training", "checkpoint", "redone", "paused", "waiting")
    return sum(getattr(found, f"{cause}_hours") for cause in causes)


def trace_of(*counts: int, usd: float | None = 2.0) -> CapacityTrace:
    prices = {} if usd is None else {"a100": usd}
    return CapacityTrace(tuple(Span(10.0, {"a100": count}, prices) for count in counts))


def test_constant_capacity_is_the_plan(single: Job) -> None:
    found = simulate(setting_of(single), trace_of(32, 32), Policy.STATIC)
    assert found.tokens == pytest.approx(single.plan.tokens_per_second * 20 * 3600)
    assert found.usd == pytest.approx(2.0 * 32 * 20)
    assert (found.goodput, found.failures, found.changes) == (1.0, 0, 0)
    assert simulate(setting_of(single), trace_of(32, 32), Policy.REPLAN).tokens == found.tokens


def test_a_static_job_waits_and_a_replanned_one_goes_on(single: Job) -> None:
    trace = trace_of(32, 16, 32)
    static = simulate(setting_of(single), trace, Policy.STATIC)
    assert static.waiting_hours == pytest.approx(10.0)
    assert static.usd == pytest.approx(2.0 * 32 * 20)  # nothing is paid while it waits
    replanned = simulate(setting_of(single), trace, Policy.REPLAN)
    assert replanned.waiting_hours == 0
    assert replanned.changes == 2
    assert replanned.tokens > static.tokens
    spare = simulate(setting_of(single), trace_of(32, 24, 32), Policy.OVERPROVISION)
    assert spare.waiting_hours == 0
    for found in (static, replanned, spare):
        assert hours(found) == pytest.approx(30.0)
        assert 0 < found.goodput < 1


def test_all_gpus_gone_and_back(single: Job) -> None:
    for policy in Policy:
        found = simulate(setting_of(single), trace_of(32, 0, 32), policy)
        assert found.waiting_hours == pytest.approx(10.0)
        assert found.tokens > 0


def test_the_same_seed_gives_the_same(single: Job) -> None:
    often = ReplanTerms(failures_per_hour=0.02)
    drawn = drawn_trace(single.cluster, Drawn(72.0, 5, nodes_together=1, price_deviation=0.1))
    for policy in Policy:
        first, again, other = (
            simulate(setting_of(single, often, seed), drawn, policy) for seed in (1, 1, 2)
        )
        assert first == again
        assert first != other
        assert first.failures > 0
        assert hours(first) == pytest.approx(72.0)


def test_drawn_traces_are_read_back(single: Job, tmp_path: Path) -> None:
    drawn = drawn_trace(single.cluster, Drawn(200.0, 3, nodes_together=2, price_deviation=0.1))
    assert drawn == drawn_trace(
        single.cluster, Drawn(200.0, 3, nodes_together=2, price_deviation=0.1)
    )
    file = tmp_path / "trace.csv"
    file.write_text(trace_csv(drawn))
    read = read_trace(file)
    assert read.hours == pytest.approx(200.0)
    assert [span.gpus for span in read.spans] == [span.gpus for span in drawn.spans]
    assert {g for span in read.spans for g in span.gpus.values()} <= {0, 16, 32}
    away = sum(span.hours for span in read.spans if min(span.gpus.values()) < 32)
    assert 0 < away < 100


def test_capacity_is_away_as_often_as_stated(single: Job) -> None:
    """A node is away 4 of 24 hours on average."""
    drawn = drawn_trace(single.cluster, Drawn(50_000.0, 1, 1 / 20, 4.0, 1))
    there = sum(span.hours * span.gpus["A100-SXM4-80GB"] for span in drawn.spans)
    assert there / (50_000 * 32) == pytest.approx(20 / 24, rel=0.02)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("gpu,gpus\n0,a100\n", "no column 'hours'"),
        ("hours,gpu,gpus\n", "the trace is empty"),
        ("hours,gpu,gpus\n0,a100,8\n", "all rows are of one hour"),
        ("hours,gpu\n0,a100\n", "no column 'gpus'"),
        ("hours,gpu,gpus\n0,a100,8\nx,a100,8\n", ":3: hours: expected a number"),
        ("hours,gpu,gpus\n5,a100,8\n1,a100,8\n", "sort the rows"),
        ("hours,gpu,gpus\n0,a100,-8\n1,a100,8\n", "expected 0 to"),
        ("hours,gpu,gpus\n0,a100,nan\n1,a100,8\n", "expected 0 to"),
        ("hours,gpu,gpus\n0,a100,1.5\n1,a100,8\n", "whole number"),
        ("hours,gpu,gpus\n0,,8\n1,a100,8\n", "gpu is empty"),
        ("hours,gpu,gpus\n0,a100,8\n0,a100,16\n1,a100,8\n", ":3: a second row for a100 at hour 0"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_trace(file)


def test_the_command(single_file: Path, tmp_path: Path) -> None:
    runner, saved = CliRunner(), str(tmp_path / "saved.csv")
    arguments = ["draw", str(single_file), "--seed", "4", "--hours", "48h", "--together", "1"]
    drawn = runner.invoke(simulate_command, [*arguments, "--save-trace", saved])
    assert drawn.exit_code == 0, drawn.output
    assert "Most tokens" in drawn.output
    assert all(len(line) <= 80 for line in drawn.output.splitlines())
    read = runner.invoke(simulate_command, [saved, str(single_file), "--seed", "4", "--json"])
    again = runner.invoke(simulate_command, [*arguments, "--json"])
    assert read.output.replace(saved, "drawn with seed 4") == again.output
    steady = tmp_path / "steady.csv"
    steady.write_text("hours,gpu,gpus\n0,a100,32\n9,a100,32\n")
    level = runner.invoke(simulate_command, [str(steady), str(single_file), "--failures", "0"])
    unpriced = tmp_path / "unpriced.csv"
    unpriced.write_text("hours,gpu,gpus\n0,a100,32\n0,a800,8\n9,a100,32\n")
    shown = runner.invoke(simulate_command, [str(unpriced), str(single_file)])
    assert "No dollars: a price is missing" in shown.output
    assert "Most tokens: static and replan." in level.output
    both = runner.invoke(simulate_command, [saved, str(single_file), "--together", "2"])
    assert both.exit_code == 2


def test_outer_steps(single: Job) -> None:
    """A ring moves 2 (n - 1) / n of the bytes; what is overlapped costs nothing if links do."""
    slow = Sites(4, 1.25e9, 0.0, every=50)
    found = over_sites(single.workload, single.cluster, single.plan, slow)
    sent = 2 * 3 / 4 * 4 * single.workload.model.parameters
    assert found.bytes_sent == pytest.approx(sent)
    assert found.messages_sent == 6
    assert sent / 1.25e9 < found.message_seconds < 1.5 * sent / 1.25e9
    together = found.iterations_seconds + found.exposed_seconds
    tokens = 4 * 50 * single.workload.tokens_per_iteration
    assert found.tokens_per_second == pytest.approx(tokens / together)
    assert found.every_iteration_tokens_per_second < found.tokens_per_second
    enough = replace(slow, overlap=True, every=500)
    assert over_sites(single.workload, single.cluster, single.plan, enough).exposed_seconds == 0
    often = over_sites(
        single.workload, single.cluster, single.plan, replace(slow, overlap=True, every=1)
    )
    assert often.exposed_seconds == pytest.approx(
        often.message_seconds - single.plan.iteration_seconds
    )
    few_bits = replace(slow, bits=4)
    fewer = over_sites(single.workload, single.cluster, single.plan, few_bits)
    assert fewer.bytes_sent == pytest.approx(sent / 8)


def test_the_command_of_sites(single_file: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(sites_command, [str(single_file), "--link", "10Gbit/s"])
    assert shown.exit_code == 0, shown.output
    assert all(len(line) <= 80 for line in shown.output.splitlines())
    for bad in (["--sites", "1"], ["--every", "0"], ["--bits", "64"]):
        refused = runner.invoke(sites_command, [str(single_file), "--link", "10Gbit/s", *bad])
        assert refused.exit_code == 2
