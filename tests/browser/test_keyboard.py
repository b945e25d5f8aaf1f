"""The page without a mouse: everything is reached in order, and does what it says."""

from __future__ import annotations

import re

from browser_page import ALIKE, SMALL, Planner, state_of
from playwright.sync_api import Locator, expect

FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one);
  const isSeen = style.outlineStyle !== "none" || style.boxShadow !== "none";
  const all = [...document.querySelectorAll("*")];
  const name = one.id || one.getAttribute("aria-label") || one.textContent.trim();
  return [all.indexOf(one), name.slice(0, 60), isSeen];
}"""
MOST_STOPS = 150
REACHED = [
    "Copy link",
    "Example",
    "cancel",
    "model",
    "Own config.json…",
    "pool-0-type",
    "pool-0-count",
    "pool-0-price",
    "Remove row 1: h100",
    "add-pool",
    "global_batch",
    "precision",
    "objective",
    "mode",
    "budget",
    "deadline",
    "rule",
    "Software, fine-tuning, optimizer, memory",
    "Clouds, spot, checkpoints, power",
    "filter",
    "Table of plans",
    "What do tp, pp, dp mean?",
    "strategy",
    "Zoom in",
    "target",
    "Download zip",
    "Look at the files",
    "Plans as JSON",
    "Trace for Perfetto",
    "Copy command",
]


def tab_to(planner: Planner, place: Locator) -> None:
    """Presses Tab until a part of the page has the focus."""
    for _ in range(MOST_STOPS):
        if place.evaluate("one => one === document.activeElement"):
            return
        planner.page.keyboard.press("Tab")
    raise AssertionError(f"{place}: not reached by Tab")


def test_tab_reaches_everything_in_order_and_shows_where_it_is(planner: Planner) -> None:
    planner.open(ALIKE)
    stops: list[tuple[int, str, bool]] = []
    for _ in range(MOST_STOPS):
        planner.page.keyboard.press("Tab")
        stop = planner.page.evaluate(FOCUSED)
        if stop is None:
            break
        stops.append(tuple(stop))
    places = [place for place, _, _ in stops]
    assert places == sorted(set(places))
    names = [name for _, name, _ in stops]
    # A button that has nothing to do is passed over.
    missing = [name for name in REACHED if name not in names and name != "cancel"]
    assert missing == []
    pictures = planner.page.locator(".chart-box").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label').slice(0, 60))"
    )
    assert len(pictures) == 5
    assert [name for name in pictures if name not in names] == []
    assert [name for _, name, is_seen in stops if not is_seen] == []


def test_a_model_and_gpus_are_chosen_by_keys(planner: Planner) -> None:
    planner.open(SMALL)
    page, keys = planner.page, planner.page.keyboard
    tab_to(planner, page.locator("#model"))
    keys.press("ControlOrMeta+a")
    keys.type("llama 2 13")
    first = page.locator("[role=option]").first
    expect(first).to_be_visible()
    keys.press("ArrowDown")
    expect(first).to_have_attribute("aria-selected", "true")
    keys.press("Enter")
    expect(planner.lead).to_contain_text("Llama-2-13B")
    tab_to(planner, page.get_by_role("button", name="Remove row 2: a100"))
    keys.press("Enter")
    expect(page.get_by_label("GPU type of row 2")).to_have_count(0)
    tab_to(planner, page.locator("#add-pool"))
    keys.press("Space")
    expect(page.get_by_label("GPU type of row 2")).to_have_value("a100")
    planner.settled()


def test_plans_are_sorted_chosen_and_compared_by_keys(planner: Planner) -> None:
    planner.open(ALIKE)
    page, keys = planner.page, planner.page.keyboard
    header = page.get_by_role("columnheader", name="Memory")
    tab_to(planner, header.get_by_role("button"))
    keys.press("Enter")
    expect(header).to_have_attribute("aria-sort", "ascending")
    keys.press("Space")
    expect(header).to_have_attribute("aria-sort", "descending")
    # One row is a stop of Tab, arrows go from row to row and choose.
    expect(planner.chosen).to_have_count(1)
    tab_to(planner, planner.chosen.get_by_role("checkbox"))
    keys.press("Home")
    box = planner.rows.nth(1).get_by_role("checkbox")
    keys.press("ArrowDown")
    expect(box).to_be_focused()
    keys.press("Space")
    expect(box).to_be_checked()
    expect(page.get_by_role("region", name="Compare")).to_be_visible()
    keys.press("ArrowDown")
    keys.press("Tab")
    expect(planner.rows.nth(2).locator("td.strategy button")).to_be_focused()
    rank = planner.rows.nth(2).locator("td").nth(1).inner_text()
    expect(planner.chosen.locator("td").nth(1)).to_have_text(rank)
    keys.press("End")
    expect(planner.rows.last).to_have_attribute("aria-current", "true")
    keys.press("ArrowUp")
    rank = planner.rows.nth(-2).locator("td").nth(1).inner_text()
    expect(planner.chosen.locator("td").nth(1)).to_have_text(rank)
    expect(page.get_by_role("heading", name=f"Start plan {rank}", exact=True)).to_be_visible()
    planner.settled()


def test_the_front_is_walked_by_keys(planner: Planner) -> None:
    planner.open(SMALL)
    page, keys = planner.page, planner.page.keyboard
    tab_to(planner, planner.picture("front"))
    keys.press("Home")
    tip = planner.tip("front")
    expect(tip).to_be_visible()
    fastest = tip.inner_text()
    keys.press("ArrowRight")
    expect(tip).not_to_have_text(fastest)
    told = page.locator("section[aria-labelledby=front-title] [aria-live=polite]")
    expect(told).to_contain_text("micro-batch")
    keys.press("End")
    keys.press("Home")
    keys.press("Enter")
    money = next(line for line in fastest.split("\n") if line.startswith("$")).partition(" ")[0]
    expect(planner.chosen.locator("td").last).to_have_text(money)
    keys.press("Escape")
    expect(tip).to_be_hidden()
    planner.settled()


def test_the_timeline_is_steered_by_keys(planner: Planner) -> None:
    planner.open()
    keys = planner.page.keyboard
    tab_to(planner, planner.picture("timeline"))
    whole = planner.drawn("timeline")
    keys.press("+")
    near = planner.drawn("timeline", unlike=whole)
    keys.press("ArrowRight")
    planner.drawn("timeline", unlike=near)
    keys.press("0")
    planner.drawn("timeline", like=whole)
    keys.press("ArrowDown")
    told = planner.page.locator("section[aria-labelledby=timeline-title] [aria-live=polite]")
    expect(told.last).to_contain_text(re.compile("Stage 0: .* works"))
    planner.drawn("timeline", unlike=whole)


def test_an_own_strategy_and_files_by_keys(planner: Planner) -> None:
    planner.open(ALIKE)
    page, keys = planner.page, planner.page.keyboard
    tab_to(planner, page.locator("#strategy"))
    keys.type("tp=2")
    expect(page.locator("#strategy-message")).to_contain_text("It runs")
    assert state_of(page.url)["view"] == {"strategy": "tp=2"}
    tab_to(planner, page.get_by_role("button", name="Look at the files"))
    keys.press("Enter")
    name = page.locator(".export summary").first
    expect(name).to_be_visible()
    tab_to(planner, name)
    keys.press("Enter")
    expect(page.locator(".export details[open]")).to_have_count(1)
