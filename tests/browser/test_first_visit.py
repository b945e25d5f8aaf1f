"""Who opens the page for the first time: an answer at once, then one for a cluster of their own."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from browser_page import MOST_SHIFT, NARROW, SMALL, WIDE, Planner, state_of
from playwright.sync_api import expect

Open = Callable[..., Planner]
LOOKS = [
    pytest.param(WIDE, "light", id="wide-light"),
    pytest.param(WIDE, "dark", id="wide-dark"),
    pytest.param(NARROW, "light", id="narrow-light"),
    pytest.param(NARROW, "dark", id="narrow-dark"),
]
PARTS = [
    "Plans",
    "Which plans are really faster",
    "Where the time goes, plan 1",
    "Why not …?",
    "Timeline of an iteration, plan 1",
    "Memory of each stage, plan 1",
    "Which GPUs hold which stage, plan 1",
    "Start plan 1",
    "The same on the command line",
]


def test_a_result_is_there_without_any_input(planner: Planner) -> None:
    planner.open()
    expect(planner.answer.locator(".best")).to_contain_text("Recommended plan:")
    expect(planner.lead).to_contain_text("Llama-2-70B")
    expect(planner.lead).to_contain_text("on 64 x H100")
    expect(planner.rows).to_have_count(10)
    expect(planner.command).to_contain_text("astrarium plan llama-2-70b --gpus h100:64")
    assert planner.page.url == planner.address


def test_from_the_example_to_a_plan_for_the_own_cluster(planner: Planner) -> None:
    """The model is searched in the catalog, the GPUs are changed: nothing else is needed."""
    planner.open()
    page = planner.page
    model = page.get_by_role("combobox", name="Model")
    model.click()
    model.fill("llama 3 8b")
    page.get_by_role("option", name=re.compile(r"^Llama-3-8B")).click()
    expect(planner.lead).to_contain_text("Llama-3-8B")
    gpu = page.get_by_role("combobox", name="GPU type of row 1")
    gpu.click()
    gpu.fill("a100")
    page.get_by_role("option", name=re.compile(r"^a100 ")).click()
    page.get_by_label("Number of GPUs in row 1").fill("16")
    expect(planner.lead).to_contain_text("on 16 x A100")
    planner.settled()
    asked = state_of(page.url)
    assert asked["model"] == "Llama-3-8B"
    assert asked["pools"][0]["count"] == "16"
    expect(planner.command).to_contain_text("astrarium plan Llama-3-8B --gpus a100:16")
    page.get_by_role("button", name="Example").click()
    expect(planner.lead).to_contain_text("Llama-2-70B")
    planner.settled()
    assert planner.layout_shift() < MOST_SHIFT


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_every_part_is_there_and_stays_where_it_is(
    opened: Open, size: tuple[int, int], scheme: str
) -> None:
    planner = opened(size, color_scheme=scheme)
    planner.open()
    page = planner.page
    for title in PARTS:
        heading = page.get_by_role("heading", name=title, exact=True)
        heading.scroll_into_view_if_needed()
        expect(heading).to_be_in_viewport()
    for name in ("front", "breakdown", "timeline", "memory", "topology"):
        box = planner.picture(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    assert planner.layout_shift() < MOST_SHIFT
    page.evaluate("scrollTo(0, 0)")
    planner.keep_picture(f"first-{size[0]}-{scheme}")


def test_dark_and_light_differ_and_change_at_once(planner: Planner) -> None:
    planner.open(SMALL)
    body = planner.page.locator("body")
    light = body.evaluate("body => getComputedStyle(body).color")
    picture = planner.pixels("front")
    planner.page.emulate_media(color_scheme="dark")
    expect(body).not_to_have_css("color", light)
    planner.drawn("front", unlike=picture)


def test_a_link_reproduces_the_page(opened: Open) -> None:
    first, second = opened(), opened()
    first.open(SMALL)
    page = first.page
    first.rows.nth(2).click()
    first.rows.nth(0).get_by_role("checkbox").check()
    first.rows.nth(1).get_by_role("checkbox").check()
    with page.expect_response("**/api/plan/stream"):  # else the answer before is taken for this one
        page.locator("#global_batch").fill("128")
    expect(first.command).to_contain_text("--global-batch 128")
    first.settled()
    first.rows.nth(1).click()
    expect(first.chosen).to_have_count(1)
    expect(page.get_by_role("heading", name="Start plan 2")).to_be_visible()
    page.wait_for_url(lambda url: "view" in state_of(url))
    asked = state_of(page.url)
    assert asked["global_batch"] == "128"
    assert asked["view"] == {"rank": 2}

    second.page.goto(page.url)
    second.settled()
    first.settled()  # an edit is painted a moment before its search begins
    assert second.page.url == page.url
    fields = "form input, form select, form textarea"
    values = "all => all.map((one) => [one.id, one.type === 'checkbox' ? one.checked : one.value])"
    assert second.page.locator(fields).evaluate_all(values) == page.locator(fields).evaluate_all(
        values
    )
    # What the answer before was is not part of the link.
    page.evaluate("document.querySelectorAll('.was').forEach((one) => one.remove())")
    for part in (".answer .figures", ".plans table", "#command"):
        assert second.page.locator(part).inner_text() == page.locator(part).inner_text()
    expect(second.page.get_by_role("heading", name="Start plan 2")).to_be_visible()


def test_the_link_is_copied(opened: Open) -> None:
    planner = opened(permissions=["clipboard-read", "clipboard-write"])
    planner.open(SMALL)
    button = planner.page.get_by_role("button", name="Copy link")
    button.click()
    expect(planner.page.get_by_text("Copied")).to_be_visible()
    copied = planner.page.evaluate("navigator.clipboard.readText()")
    assert state_of(copied) == SMALL
