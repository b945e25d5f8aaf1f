"""The small things that make a page pleasant, each as a visitor meets it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from browser_page import ALIKE, NARROW, SMALL, Planner, Watch
from playwright.sync_api import Browser, Route, expect

Open = Callable[..., Planner]
BIG = {**ALIKE, "model": "llama-2-13b", "pools": [{"type": "a100-40gb", "count": "8"}]}


@contextmanager
def serving(port: int) -> Iterator[str]:
    """A server on this port, until it is ended."""
    command = [sys.executable, "-m", "astrarium", "serve", "--json", f"--port={port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                text += process.stdout.readline()
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def test_after_a_lost_server_everything_goes_on(browser: Browser) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    with serving(port) as address:
        planner = Planner(page, address, Watch(context, address))
        planner.open(ALIKE, strategy="tp=2,pp=1,micro_batch=1")
    page.locator("#global_batch").fill("128")
    expect(planner.status).to_contain_text("does not answer")
    with serving(port):
        # Nothing is clicked: the search, the timeline, the verdict and the targets come back.
        planner.settled()
        expect(planner.page.locator("#strategy-message")).to_contain_text("It runs")
        expect(page.locator("#target option").first).to_contain_text("as it is")
        expect(page.locator("section[aria-labelledby=timeline-title] canvas").last).to_be_visible()
    context.close()


def test_a_mistake_does_not_flash_while_one_types(planner: Planner) -> None:
    planner.open(ALIKE)
    page = planner.page
    page.evaluate(
        """() => {
          window.flashes = 0;
          new MutationObserver((all) => {
            if (all[0].target.classList.contains("mistake")) window.flashes += 1;
          }).observe(document.querySelector("#tokens-message"), { attributes: true });
        }"""
    )
    field = page.locator("#tokens")
    field.fill("")
    field.press_sequentially("2.5e3B", delay=60)
    planner.settled()
    assert page.evaluate("window.flashes") == 0
    field.press_sequentially("x")
    expect(page.locator("#tokens-message")).to_have_class(re.compile("mistake"))


def test_why_not_follows_the_form(planner: Planner) -> None:
    planner.open(ALIKE, strategy="tp=2,pp=1,micro_batch=1")
    verdict = planner.page.locator("#strategy-message dl")
    before = verdict.inner_text()
    planner.page.locator("#seq_length").fill("2048")
    planner.settled()
    expect(verdict).not_to_have_text(before)


def test_all_models_can_be_found_by_family(planner: Planner) -> None:
    planner.open(ALIKE)
    model = planner.page.locator("#model")
    options = planner.page.locator("[role=option]")
    model.click()
    options.last.scroll_into_view_if_needed()
    expect(options.last).to_be_visible()
    every = options.count()
    assert every > 100
    model.fill("mixtral")
    expect(options.first).to_have_text(re.compile("mixtral", re.IGNORECASE))
    expect(options.first).to_be_in_viewport()
    assert options.count() < every / 10


def test_an_old_answer_is_not_told_under_a_new_name(planner: Planner) -> None:
    """What is shown beside "Searching" names the model that it is about, and is marked as old."""
    planner.open(ALIKE)
    held: list[Route] = []
    planner.page.route("**/api/plan/stream", lambda route: held.append(route))
    planner.page.locator("#model").fill("llama-2-13b")
    expect(planner.answer).to_have_attribute("data-state", "searching")
    expect(planner.lead).to_contain_text("Llama-2-7B")
    expect(planner.answer.locator(".figures.stale")).to_have_count(1)
    expect(planner.page).to_have_title("Astrarium")
    held.pop().continue_()
    expect(planner.lead).to_contain_text("Llama-2-13B")


def test_the_first_screen_of_a_phone_leads_to_the_question(opened: Open) -> None:
    planner = opened(NARROW)
    planner.open(ALIKE)
    expect(planner.lead).to_be_in_viewport()
    planner.page.get_by_role("button", name="Change the question").click()
    expect(planner.page.locator("#model")).to_be_in_viewport()
    ticks = planner.page.locator("section[aria-labelledby=front-title] svg text.faint")
    assert ticks.count() >= 2
    assert len(set(ticks.all_text_contents())) == ticks.count()


def test_skip_links_lead_to_the_plans_and_the_form(planner: Planner) -> None:
    planner.open(ALIKE)
    page = planner.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Skip to the plans")).to_be_focused()
    expect(page.get_by_role("button", name="Skip to the plans")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#plans-title")).to_be_focused()


def test_what_is_free_costs_nothing_and_is_said_to_be_stated(planner: Planner) -> None:
    rows = [{"type": "h100", "count": "16", "usd_per_gpu_hour": "0"}]
    planner.open({**ALIKE, "pools": rows})
    expect(planner.lead).to_contain_text("for $0")
    expect(planner.page.locator("section.run")).to_contain_text("as you state it")
    assert "--" not in planner.page.locator("section.run").inner_text()


def test_memory_beyond_the_limit_looks_like_it(planner: Planner) -> None:
    planner.open(BIG, strategy="tp=1,pp=1,micro_batch=8,recompute=none")
    verdict = planner.page.locator("#strategy-message .mistake")
    expect(verdict).to_contain_text("It does not fit")
    expect(verdict).to_contain_text("⚠")


def test_intervals_are_seen_where_plans_take_many_times_as_long(planner: Planner) -> None:
    planner.open({**SMALL, "top": "12"})
    widths = planner.rows.locator("svg.interval line:first-of-type").evaluate_all(
        "all => all.map((line) => line.getBoundingClientRect().width)"
    )
    assert len(widths) > 3
    assert min(widths) > 8


def test_software_and_adapters_are_asked_for_and_told_apart(planner: Planner) -> None:
    planner.open({**ALIKE, "finetune": "all"})
    page = planner.page
    expect(page.locator("#finetune")).to_have_value("all")
    for text in ("all weights", "lora"):
        expect(planner.rows.filter(has_text=text).first).to_be_visible()
    page.locator("summary", has_text="Software, fine-tuning").click()
    page.get_by_label("What trains").select_option("lora")
    page.get_by_label("Rank of adapters").fill("64")
    expect(planner.command).to_contain_text("--finetune lora --lora-rank 64")
    planner.settled()
