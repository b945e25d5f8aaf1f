"""Plans looked at: chosen on the front and in the table, sorted, filtered, compared, zoomed."""

from __future__ import annotations

import re

from browser_page import ALIKE, SMALL, Planner, state_of
from playwright.sync_api import expect


def number(text: str) -> float:
    """The figure that a cell begins with."""
    found = re.search(r"[\d.,]+", text)
    assert found, text
    return float(found[0].replace(",", ""))


def test_a_click_on_the_front_chooses_the_plan(planner: Planner) -> None:
    planner.open(SMALL)
    page = planner.page
    points = planner.points()
    assert len(points) == planner.rows.count() > 1
    cost = planner.answer.locator("dl div", has_text="Cost").locator("b")
    for text, (x, y) in points.items():
        page.mouse.move(x, y)
        expect(planner.tip("front")).to_be_visible()
        page.mouse.click(x, y)
        money = text.split("\n")[2].partition(" ")[0]
        expect(planner.chosen).to_have_count(1)
        # The table has as many digits in every row: $87.0k below $89.3k.
        number, unit = money[:-1], money[-1]
        padded = re.compile(rf"^{re.escape(number)}(\.?0+)?{re.escape(unit)}$")
        expect(planner.chosen.locator("td").last).to_have_text(padded)
        expect(cost).to_have_text(money)
        rank = planner.chosen.locator("td").nth(1).inner_text()
        expect(page.get_by_role("heading", name=f"Start plan {rank}", exact=True)).to_be_visible()
        expect(page.locator("#timeline-title")).to_have_text(
            f"Timeline of an iteration, plan {rank}"
        )
    planner.settled()
    planner.keep_picture("front-1280-light")


def test_a_row_chooses_the_plan_everywhere(planner: Planner) -> None:
    planner.open(ALIKE)
    page = planner.page
    assert planner.rows.count() > 5
    front, memory = planner.pixels("front"), planner.picture("memory").inner_html()
    planner.rows.nth(4).click()
    expect(planner.chosen.locator("td").nth(1)).to_have_text("5")
    expect(planner.answer.locator(".best")).to_contain_text("Plan 5")
    for title in (
        "Where the time goes, plan 5",
        "Timeline of an iteration, plan 5",
        "Memory of each stage, plan 5",
        "Which GPUs hold which stage, plan 5",
        "Start plan 5",
    ):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    planner.settled()
    assert state_of(page.url)["view"] == {"rank": 5}
    assert planner.pixels("front") != front
    assert planner.picture("memory").inner_html() != memory


def test_the_table_is_sorted(planner: Planner) -> None:
    planner.open(ALIKE)
    speed = planner.page.get_by_role("columnheader", name="Tokens/s")
    memory = planner.page.get_by_role("columnheader", name="Memory")
    memory.get_by_role("button").click()
    expect(memory).to_have_attribute("aria-sort", "ascending")
    shares = [number(text) for text in planner.column(8)]
    assert shares == sorted(shares)
    memory.get_by_role("button").click()
    expect(memory).to_have_attribute("aria-sort", "descending")
    assert [number(text) for text in planner.column(8)] == sorted(shares, reverse=True)
    speed.get_by_role("button").click()
    expect(speed).to_have_attribute("aria-sort", "descending")
    expect(memory).to_have_attribute("aria-sort", "none")
    speeds = [number(text) for text in planner.column(6)]
    assert speeds == sorted(speeds, reverse=True)


def test_the_table_is_filtered(planner: Planner) -> None:
    planner.open(ALIKE)
    field = planner.page.get_by_label("Filter the plans")
    message = planner.page.locator("#filter-message")
    all_rows = planner.rows.count()
    field.fill("rank<=3")
    expect(planner.rows).to_have_count(3)
    expect(message).to_contain_text(f"3 of {all_rows}")
    field.fill("pp=2")
    expect(planner.rows.filter(has_not_text=re.compile(r"(?<!v)pp 2(?!\d)"))).to_have_count(0)
    assert 0 < planner.rows.count() < all_rows
    field.fill("days<0")
    expect(planner.rows).to_have_count(0)
    field.fill("speeed=3")
    expect(message).to_contain_text("'speeed=3' is no condition; expected such as tp=8")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("")
    expect(planner.rows).to_have_count(all_rows)


def test_two_plans_are_compared(planner: Planner) -> None:
    planner.open(ALIKE)
    page = planner.page
    section = page.get_by_role("region", name="Compare")
    planner.rows.nth(0).get_by_role("checkbox").check()
    expect(section).to_contain_text("Tick a second plan in the table.")
    planner.rows.nth(4).get_by_role("checkbox").check()
    speed = section.get_by_role("row", name=re.compile("^tokens a second"))
    cells = speed.get_by_role("cell")
    expect(cells.nth(0)).to_have_text(planner.column(6)[0])
    expect(cells.nth(1)).to_have_text(planner.column(6)[4])
    for title in ("Result", "Time", "Memory of the fullest GPU"):
        expect(section.get_by_role("rowheader", name=title, exact=True)).to_be_visible()
    planner.keep_picture("compare-1280-light")
    # A third tick takes the place of the first.
    planner.rows.nth(2).get_by_role("checkbox").check()
    expect(planner.rows.get_by_role("checkbox", checked=True)).to_have_count(2)
    expect(cells.nth(0)).to_have_text(planner.column(6)[2])
    assert sorted(state_of(page.url)["view"]["compare"]) == [3, 5]
    section.get_by_role("button", name="Clear").click()
    expect(section).to_have_count(0)


def test_the_timeline_is_zoomed_and_panned(planner: Planner) -> None:
    planner.open()
    page = planner.page
    box = planner.picture("timeline")
    section = page.locator("section[aria-labelledby=timeline-title]")
    whole = planner.drawn("timeline")
    section.get_by_role("button", name="Zoom in").click()
    planner.drawn("timeline", unlike=whole)
    section.get_by_role("button", name="Zoom out").click()
    planner.drawn("timeline", like=whole)

    place = box.bounding_box()
    assert place is not None
    x, y = place["x"] + place["width"] / 2, place["y"] + 12
    page.mouse.click(x, y)
    chosen = planner.drawn("timeline", unlike=whole)
    expect(planner.tip("timeline")).to_contain_text("Stage 0")
    page.mouse.wheel(0, -300)
    near = planner.drawn("timeline", unlike=chosen)
    page.mouse.down()
    page.mouse.move(x - 80, y, steps=4)
    page.mouse.up()
    planner.drawn("timeline", unlike=near)
    section.get_by_role("button", name="All", exact=True).click()
    planner.drawn("timeline", like=chosen)
    section.get_by_role("button", name="Memory").click()
    planner.drawn("timeline", unlike=chosen)
    planner.keep_picture("timeline-memory-1280-light")


def test_the_timeline_opens_without_its_middle_and_sums_up(planner: Planner) -> None:
    planner.open()
    page = planner.page
    section = page.locator("section[aria-labelledby=timeline-title]")
    sums = section.locator(".chart-sums")
    expect(sums).to_contain_text("of the middle, which repeats itself, are not drawn")
    expect(sums).to_contain_text(re.compile(r"forward \d.*backward \d.*waiting \d"))
    planner.picture("timeline").scroll_into_view_if_needed()
    place = planner.picture("timeline").bounding_box()
    assert place is not None
    x, y = place["x"] + 200, place["y"] + 12
    page.keyboard.down("Shift")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(sums).to_contain_text("Marked: ")
    whole = planner.pixels("timeline")
    section.get_by_role("button", name="Middle").click()
    expect(sums).to_contain_text("Shown: 0.0 to ")
    expect(sums).not_to_contain_text("not drawn")
    shown = planner.drawn("timeline", unlike=whole)
    planner.picture("timeline").focus()
    page.keyboard.press("w")
    near = planner.drawn("timeline", unlike=shown)
    page.keyboard.press("d")
    planner.drawn("timeline", unlike=near)


def test_fewer_and_more_gpus_are_a_click_away(planner: Planner) -> None:
    planner.open(ALIKE)
    page = planner.page
    page.get_by_role("button", name="What would fewer or more GPUs do?").click()
    more = page.get_by_role("button", name=re.compile(r"^32 x H100.*days, \$"))
    more.click()
    expect(planner.lead).to_contain_text("on 32 x H100")
    planner.settled()
    assert state_of(page.url)["pools"][0]["count"] == "32"


def test_pictures_tell_what_they_show(planner: Planner) -> None:
    """What the pointer is on is told beside it, and to screen readers as a whole."""
    planner.open()
    for name, words in (
        ("front", "with their intervals"),
        ("breakdown", "forward"),
        ("timeline", "pipeline stages"),
        ("memory", "Fullest is stage"),
        ("topology", "stages 0 to 3 on H100"),
    ):
        expect(planner.picture(name)).to_have_attribute("aria-label", re.compile(words))
    for name in ("breakdown", "timeline", "memory", "topology"):
        box = planner.picture(name)
        box.scroll_into_view_if_needed()
        size = box.bounding_box()
        assert size is not None
        y = 60 if name == "topology" else 30
        box.hover(position={"x": size["width"] / 2, "y": y})
        expect(planner.tip(name)).to_be_visible()
