"""Why not another strategy: its place among the plans, or the rule that forbids it."""

from __future__ import annotations

import re

import pytest
from browser_page import ALIKE, Planner, command_line, refusal, state_of
from playwright.sync_api import expect


def asked(strategy: str) -> list[str]:
    """The same question to the command line."""
    arguments = ["predict", *command_line(ALIKE)[1:], f"--strategy={strategy}"]
    return [one for one in arguments if not one.startswith("--top=")]


def test_a_strategy_that_runs_has_a_place(planner: Planner) -> None:
    planner.open(ALIKE)
    field = planner.page.get_by_label("A strategy of your own")
    verdict = planner.page.locator("#strategy-message")
    field.fill("tp=2,pp=1,micro_batch=1")
    expect(verdict).to_contain_text(re.compile("It runs, (and would be number|behind all)"))
    expect(verdict).to_contain_text("tp 2 · dp 8")
    expect(verdict.locator("dl")).to_contain_text("Tokens/s")
    assert state_of(planner.page.url)["view"] == {"strategy": "tp=2,pp=1,micro_batch=1"}
    planner.keep_picture("why-not-1280-light")
    field.fill("tp=1,pp=1,micro_batch=4,recompute=none")
    expect(verdict).to_contain_text("It does not fit: stage 0 needs")


@pytest.mark.parametrize("strategy", ["tp=3", "tp=64", "tpp=2", "pp=33"])
def test_what_forbids_a_strategy_is_told_as_on_the_command_line(
    planner: Planner, strategy: str
) -> None:
    planner.watch.expected.add(422)
    planner.open(ALIKE, strategy=strategy)
    mistake = planner.page.locator("#strategy-message .mistake")
    expect(mistake).to_be_visible()
    expect(planner.page.get_by_label("A strategy of your own")).to_have_value(strategy)
    told = " ".join(mistake.inner_text().removeprefix("⚠").split())
    assert told == refusal(asked(strategy)).replace("--strategy", "“Your strategy”")
