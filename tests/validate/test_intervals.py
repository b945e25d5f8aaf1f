"""Calibration of intervals: sources count alike, and what is held back is covered."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fit_intervals
import numpy as np
import pytest
from fit_intervals import (
    CARRIED,
    FAMILIES,
    LEAST,
    LEVEL,
    ORIGINS,
    Runs,
    by_row,
    by_source,
    constants_without,
    fit_terms,
    held_back,
    reach,
)

from astrarium.catalog.intervals import Terms, read_intervals
from astrarium.catalog.runtimes import describe_runtime, find_runtime, runtime_names

PLAIN = Terms(iteration=0.05, specification=0.1, experts=0.0, communication=0.0, host=0.0)


def made_up(sizes: list[int], seed: int, family: str = "fsdp", slower: float = 2.0) -> Runs:
    """Sources with an offset of their own, and rows that scatter around it."""
    rng = np.random.default_rng(seed)
    offsets = np.repeat(rng.laplace(0.0, 0.06, len(sizes)), sizes)
    error = offsets + rng.laplace(0.0, 0.03, sum(sizes))
    rows = len(error)
    return Runs(
        source=np.repeat([f"source {index}" for index in range(len(sizes))], sizes),
        family=np.full(rows, family),
        error=np.where(error > 0, slower * error, error),
        operators=np.full(rows, 0.1),
        specified=np.zeros(rows, bool),
        experts=np.zeros(rows, bool),
        communication=np.zeros(rows),
        host=np.zeros(rows),
    )


def joined(*parts: Runs) -> Runs:
    names = vars(parts[0])
    return Runs(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in names})


def test_unseen_sources_are_covered_four_times_in_five() -> None:
    sizes = [5, 300, 20, 8, 50, 12, 100, 7, 30, 15, 9, 60]
    held = [held_back(made_up(sizes, seed)) for seed in range(12)]
    assert 0.77 <= np.mean([by_source(one) for one in held]) <= 0.88
    assert 0.70 <= np.mean([by_row(one) for one in held]) <= 0.92


def test_a_big_sweep_counts_as_one_source() -> None:
    few, many = made_up([10] * 9, 3), made_up([10] * 8 + [4000], 3)
    big = many.where(many.source == "source 8")
    calm = Runs(**(vars(big) | {"error": np.full(len(big), 0.001)}))
    with_sweep = joined(few.where(few.source != "source 8"), calm)
    assert sum(reach(with_sweep, PLAIN, "fsdp")) > 0.7 * sum(reach(few, PLAIN, "fsdp"))


def test_few_sources_give_wide_intervals() -> None:
    alone = made_up([200], 5)
    scores = alone.error / alone.deviations(PLAIN)
    inside = np.mean(scores <= reach(alone, PLAIN, "fsdp")[1])
    assert inside > (1 + LEVEL) / 2  # beside the source of which nothing is known


def test_a_family_leans_to_its_own_sources() -> None:
    calm, wild = made_up([20] * 6, 7, "fsdp"), made_up([20] * 6, 8, "nanotron")
    wild = Runs(**(vars(wild) | {"error": 5 * wild.error, "source": np.char.add("w", wild.source)}))
    runs = joined(calm, wild)
    own, pool, other = (reach(runs, PLAIN, name) for name in ("fsdp", "no family", "nanotron"))
    assert own[0] < pool[0] < other[0]
    assert own[1] < pool[1] < other[1]


def test_each_side_has_its_own_reach() -> None:
    runs = [made_up([1] * 2000, 11, slower=ratio) for ratio in (1.0, 3.0)]
    even, skewed = (reach(each, PLAIN, "fsdp") for each in runs)
    assert skewed[0] == even[0]
    assert skewed[1] == pytest.approx(3 * even[1])


def test_a_source_may_be_off_to_either_side() -> None:
    late = made_up([40] * 10, 17)
    late = Runs(**(vars(late) | {"error": np.abs(late.error) + 0.2}))
    as_seen, either = reach(late, PLAIN, "fsdp"), reach(late.either_way(), PLAIN, "fsdp")
    assert as_seen[0] == LEAST
    assert either[0] > 0.5 * as_seen[1]
    twice = late.either_way()
    assert len(twice) == 2 * len(late)
    assert twice.per_source().sum() == pytest.approx(late.per_source().sum())


def test_a_source_is_predicted_without_the_constants_it_taught() -> None:
    usual = find_runtime("nanotron")
    with constants_without(ORIGINS["HF-Ultrascale-Playbook"]):
        bare = find_runtime("nanotron")
    assert bare.step_seconds == find_runtime("megatron").step_seconds != usual.step_seconds
    assert bare.fused == usual.fused  # read from the program, not from its runs
    assert find_runtime("nanotron") == usual


def test_every_origin_is_found_in_the_constants() -> None:
    said = " ".join(c.source for name in runtime_names() for c in describe_runtime(name))
    assert [name for name, words in ORIGINS.items() if not re.search(words, said)] == []


def test_experts_are_told_from_the_rest() -> None:
    runs = made_up([40] * 15, 13)
    experts = np.arange(len(runs)) % 2 == 0
    error = np.where(experts, 4 * runs.error, runs.error)
    found = fit_terms(Runs(**(vars(runs) | {"experts": experts, "error": error})))
    assert found.experts > 0.1


def test_the_carried_tables_are_enough_for_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "intervals.json"
    monkeypatch.setattr("sys.argv", ["fit_intervals.py", str(CARRIED), "--out", str(out)])
    fit_intervals.main()
    found = read_intervals(out)
    assert set(found.by_runtime) == {name for names in FAMILIES.values() for name in names}
    assert found.terms.communication > 0
    held = json.loads(out.read_text(encoding="utf-8"))["held_back"]
    assert 0.7 <= held["by_source"] <= 0.95
    assert "sources alike" in capsys.readouterr().out
