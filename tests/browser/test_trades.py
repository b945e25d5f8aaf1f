"""Trades, repairs and the way back: one click each."""

from __future__ import annotations

import re

from browser_page import ALIKE, SMALL, Planner, state_of
from playwright.sync_api import expect


def test_a_trade_shows_its_plan(planner: Planner) -> None:
    planner.open(SMALL)
    trade = planner.page.locator("button.trade").first
    words = trade.inner_text()
    assert re.search(r"\d.* %", words)
    rank = int((trade.get_attribute("title") or "").removeprefix("Shows plan "))
    trade.click()
    expect(planner.page.get_by_role("heading", name=f"Start plan {rank}")).to_be_visible()
    planner.page.get_by_role("button", name="Back to plan 1").click()
    expect(planner.page.get_by_role("heading", name="Start plan 1", exact=True)).to_be_visible()


def test_a_mistake_is_repaired_in_one_click(planner: Planner) -> None:
    planner.open({**SMALL, "budget": "1000"}, is_settled=False)
    expect(planner.answer).to_have_attribute("data-state", "failed")
    assert "--" not in planner.status.inner_text()
    planner.page.get_by_role("button", name="Set the budget to $").click()
    planner.settled()
    assert float(state_of(planner.page.url)["budget"]) > 1000


def test_a_wrong_name_is_repaired(planner: Planner) -> None:
    planner.open({**ALIKE, "model": "lama-2-7b"}, is_settled=False)
    planner.page.get_by_role("button", name="Use llama-2-7b").click()
    planner.settled()
    expect(planner.lead).to_contain_text("Llama-2-7B")


def test_back_leads_to_the_answer_before_and_example_is_undone(planner: Planner) -> None:
    planner.open(ALIKE)
    page = planner.page
    expect(page).to_have_title(re.compile(r"^16 x H100.* · Astrarium$"))
    page.locator("#pool-0-count").fill("8")
    expect(planner.lead).to_contain_text("on 8 x H100")
    planner.settled()
    expect(planner.answer.locator(".was").first).to_contain_text("was ")
    page.go_back()
    expect(planner.lead).to_contain_text("on 16 x H100")
    planner.settled()
    page.get_by_role("button", name="Example").click()
    expect(planner.lead).to_contain_text("on 64 x H100")
    planner.settled()
    page.get_by_role("button", name="Undo").click()
    expect(planner.lead).to_contain_text("on 16 x H100")
    planner.settled()


def test_the_answer_stays_in_sight_and_the_run_is_told(planner: Planner) -> None:
    planner.open({**ALIKE, "co2": "0.4"})
    run = planner.page.locator("section.run")
    expect(run).to_contain_text("kWh")
    expect(run).to_contain_text("CO₂")
    expect(planner.page.locator("section.fallen")).to_contain_text("do not fit in memory")
    expect(planner.page.locator(".answer-bar")).to_have_count(0)
    planner.page.locator("section.export").scroll_into_view_if_needed()
    expect(planner.page.locator(".answer-bar")).to_contain_text("16 x H100")
    expect(planner.page.locator("#target option").first).to_contain_text("as it is")
