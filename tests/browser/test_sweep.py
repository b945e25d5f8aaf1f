"""A sweep on the page: its table, what a click shows, its front; no mistake that axe finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import small_sweeps
from browser_page import AXE, WIDTHS, Planner, served, violations
from playwright.sync_api import Browser, expect

Open = Callable[..., Planner]


@pytest.fixture(scope="module")
def address(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = small_sweeps.written(tmp_path_factory.mktemp("sweep")).path
    with served("--sweep", str(folder)) as found:
        yield found


def opened_sweep(planner: Planner) -> None:
    planner.open()
    expect(planner.page.locator(".heat td")).to_have_count(6)


def test_a_click_on_a_cell_shows_its_plan(planner: Planner) -> None:
    opened_sweep(planner)
    page = planner.page
    expect(page.locator("#sweep-title ~ p")).to_contain_text("9 scenarios: 8 planned, 1 no plan")
    # The best scenario is opened: its question is in the form, its plans are below.
    expect(page.locator("#model")).to_have_value("gpt2-small")
    page.locator("#sweep-rows").select_option("model")
    page.locator("#sweep-columns").select_option("global_batch")
    cell = page.locator(".heat tr", has_text="tinyllama").get_by_role("button").nth(1)
    cell.click()
    planner.settled()
    expect(page.locator("#model")).to_have_value("tinyllama-1.1b")
    expect(page.locator("#global_batch")).to_have_value("128")
    expect(page.locator("#runtime")).to_have_value("fsdp")
    expect(planner.lead).to_contain_text("TinyLlama-1.1B on 16 x H100")
    # The plan that is found anew is the one of the row.
    rate = cell.inner_text()
    assert rate in planner.answer.inner_text()
    expect(cell).to_have_attribute("aria-pressed", "true")


def test_other_figures_and_values_change_the_table(planner: Planner) -> None:
    opened_sweep(planner)
    page = planner.page
    page.get_by_text("Why scenarios have no plan").click()
    expect(page.locator(".scenarios details li")).to_contain_text("1: ")
    page.locator("#sweep-value").select_option("usd_total")
    expect(page.locator(".heat td").first).to_contain_text("$")
    page.locator("#sweep-model").select_option("tinyllama-1.1b")
    expect(page.locator(".heat")).not_to_contain_text("rtx4090")


def test_a_point_of_the_front_is_a_scenario(planner: Planner) -> None:
    opened_sweep(planner)
    box = planner.picture("sweep-front")
    box.scroll_into_view_if_needed()
    box.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        box.press(key)
    expect(planner.page.locator(".heat button[aria-pressed=true]")).to_have_count(1)
    planner.settled()


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core: `npm ci` in web/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_mistake(opened: Open, scheme: str) -> None:
    planner = opened(color_scheme=scheme)
    opened_sweep(planner)
    planner.settled()
    assert violations(planner, *WIDTHS) == []
