"""A long search: what is known is shown, how far it is, and it can be ended."""

from __future__ import annotations

import re

import httpx
from browser_page import LONG, MOST_SHIFT, SMALL, Planner
from playwright.sync_api import expect
from web_server import wait_for

LISTED = 5  # plans, where the request does not say how many


def working(planner: Planner) -> int:
    """How many searches the server is at."""
    found: int = httpx.get(f"{planner.address}api/health", trust_env=False).json()["working"]
    return found


def test_results_come_while_it_searches_and_cancel_ends_it(planner: Planner) -> None:
    planner.open(LONG, is_settled=False)
    page, cancel = planner.page, planner.page.get_by_role("button", name="Cancel")
    bar = page.get_by_role("progressbar", name="Progress of the search")
    expect(planner.answer).to_have_attribute("data-state", "partial")
    expect(planner.status).to_contain_text("The best so far; searching")
    first = planner.rows.count()
    assert first == LISTED
    done = float(bar.get_attribute("value") or 0)
    total = float(bar.get_attribute("max") or 0)
    assert 0 <= done < total
    # As many plans as are asked for, early, and nothing that is shown has to wait for the end.
    expect(planner.answer).to_have_attribute("data-state", "partial")
    assert float(bar.get_attribute("value") or 0) >= done
    planner.keep_picture("searching-1280-light")
    cancel.click()
    expect(planner.answer).to_have_attribute("data-state", "cancelled")
    expect(planner.status).to_have_text("Cancelled; there may be better plans.")
    assert planner.rows.count() >= first
    assert planner.layout_shift() < MOST_SHIFT
    wait_for(lambda: working(planner) == 0)
    # What was found is not thrown away: it can be looked at as any answer.
    planner.rows.nth(1).click()
    expect(page.get_by_role("heading", name="Start plan 2")).to_be_visible()
    expect(page.locator(".picture[aria-busy=true]")).to_have_count(0)
    planner.keep_picture("cancelled-1280-light")
    page.get_by_role("button", name="Search again").click()
    expect(planner.answer).to_have_attribute("data-state", re.compile("searching|partial"))
    cancel.click()
    expect(planner.answer).to_have_attribute("data-state", "cancelled")
    wait_for(lambda: working(planner) == 0)


def test_an_edit_ends_the_search_before(planner: Planner) -> None:
    planner.open(LONG, is_settled=False)
    expect(planner.answer).to_have_attribute("data-state", re.compile("searching|partial"))
    wait_for(lambda: working(planner) > 0)
    planner.page.get_by_role("button", name="Example").click()
    expect(planner.lead).to_contain_text("on 64 x H100")
    planner.settled()
    wait_for(lambda: working(planner) == 0)


def test_leaving_the_page_ends_its_search(planner: Planner) -> None:
    planner.open(LONG, is_settled=False)
    expect(planner.page.locator("#model-message")).to_contain_text("parameters")
    expect(planner.answer).to_have_attribute("data-state", "partial")
    wait_for(lambda: working(planner) > 0)
    planner.page.goto("about:blank")
    wait_for(lambda: working(planner) == 0)


def test_back_and_forward_through_links(planner: Planner) -> None:
    planner.open(SMALL)
    planner.open({**SMALL, "model": "llama-2-13b"}, is_settled=False)
    expect(planner.lead).to_contain_text("Llama-2-13B")
    planner.page.go_back()
    expect(planner.lead).to_contain_text("Llama-2-7B")
    planner.settled()
