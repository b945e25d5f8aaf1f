"""Strategies that are better than claimed are found; right claims are left alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import climber
import pytest
from climbing import Moves, Prices

from astrarium.cluster import parse_gpus
from astrarium.search.planner import predict
from astrarium.strategy.types import LayerSplit

SMALL = climber.Problem(1, "tinyllama-1.1b", "h100:8", 2048, 16)
PROVED = climber.Problem(1, "tinyllama-1.1b", "h100:8", 4096, 64)
MIXED = climber.Problem(61, "llama-2-7b", "h100:8,a100:8", 2048, 16)


def prices_of(problem: climber.Problem) -> Prices:
    return Prices(problem.workload, parse_gpus(problem.gpus))


def test_a_worse_answer_is_flagged_and_a_true_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = climber.claimed(PROVED)
    assert claim is not None
    assert claim.optimal
    right = climber.checked(PROVED, claim, seed=1, seconds=0.5)
    assert not right["violation"]
    assert right["climber_seconds"] == pytest.approx(claim.seconds)

    slow = {"tp": 8, "micro_batch": 1, "recompute": "full"}
    prices = prices_of(PROVED)
    read = prices.read({**slow, "stages": [{"layers": [0, 22]}]})
    seconds = prices.scored([read])[0].seconds
    planted = claim._replace(seconds=seconds, strategies=(prices.written(read),))
    wrong = climber.checked(PROVED, planted, seed=1, seconds=0.5)
    assert wrong["violation"]
    assert wrong["climber_seconds"] < seconds
    gap = planted._replace(optimal=False, bound_gap=0.999)
    assert wrong["climber_seconds"] > gap.floor  # what is stated as a gap is no violation

    results = tmp_path / "results.jsonl"  # what stands there is not asked about again
    results.write_text(json.dumps(wrong) + "\n" + json.dumps(wrong)[:9], encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["climber", "--problems", "1", "--results", str(results)])
    with pytest.raises(SystemExit) as ended:
        climber.main()
    assert ended.value.code == 1
    assert "VIOLATION" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.1.1.json").read_text()) == wrong["strategy"]


@pytest.mark.parametrize("problem", [SMALL, MIXED])
def test_random_strategies_and_neighbours_are_priced_as_predicted(problem: climber.Problem) -> None:
    prices = prices_of(problem)
    moves = Moves(prices, random.Random(0))
    found = prices.scored(moves.random() for _ in range(40))
    found += prices.scored(moves.neighbours(found[0].candidate, 20))
    assert len({one.candidate.strategy.pp for one in found}) > 1
    for one in found[::6]:
        strategy = prices.strategy(one.candidate)
        plan = predict(problem.workload, prices.cluster, replace(strategy, split=LayerSplit.FREE))
        assert (plan.iteration_seconds, plan.fits) == (one.seconds, not one.excess)
        written = prices.written(one.candidate)
        assert prices.written(prices.read(written)) == written


def test_problems_are_drawn_by_seed() -> None:
    assert climber.numbers("1-3,7") == [1, 2, 3, 7]
    assert climber.drawn(1, 5, 0) == climber.drawn(1, 5, 0) != climber.drawn(2, 5, 0)
    assert all("," not in climber.drawn(1, n, 0).gpus for n in range(1, 61))
    assert all("," in climber.drawn(1, n, 0).gpus for n in range(61, 101))
