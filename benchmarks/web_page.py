"""The page in a real browser: how long an edit takes, what a visit weighs, how long frames take.

Times are those of the browser's own clock; frames are the tasks of the page's thread in the
browser's own trace, by the clock and in processor time, which others on the machine do not add to.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import install_browser
from playwright.sync_api import Browser, FloatRect, Page, Route, ViewportSize, sync_playwright

WIDE: ViewportSize = {"width": 1280, "height": 900}
EDITS = ("512", "768", "1280", "1536", "640", "896", "1152", "1792", "2048", "384")
POINTS = 5000
STAGES, MICRO_BATCHES = 64, 256
TRACED = "devtools.timeline,disabled-by-default-devtools.timeline,toplevel"
REST_MILLISECONDS = 700  # between edits: timeline and pictures are drawn by then

# From the event of an edit to the frame after the one in which its plans are drawn.
WATCH = """() => {
  const marks = (window.marks = { since: 0, ready: null, done: null });
  document.addEventListener("input", (event) => (marks.since = event.timeStamp), true);
  const answer = document.querySelector(".answer");
  const drawn = () => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => marks.done?.(performance.now() - marks.since);
    channel.port2.postMessage(0);
  };
  new MutationObserver(() => {
    if (answer.dataset.state === "done") requestAnimationFrame(drawn);
  }).observe(answer, { attributes: true, attributeFilter: ["data-state"] });
}"""

PAINTED = """() => {
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return performance.timeOrigin + paint.startTime;
}"""
# Bytes of the page itself, as they were sent.
WEIGHT = """() => ["navigation", "resource"]
  .flatMap((kind) => performance.getEntriesByType(kind))
  .filter((one) => !one.name.includes("/api/"))
  .reduce((sum, one) => sum + one.transferSize, 0)"""


@contextmanager
def browser() -> Iterator[Browser]:
    path = install_browser.chromium()
    assert path is not None, "no Chromium: python tools/install_browser.py"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


def opened(chromium: Browser, address: str) -> Page:
    page = chromium.new_context(viewport=WIDE).new_page()
    page.goto(address)
    page.wait_for_selector('.answer[data-state="done"]')
    return page


def first_visit(chromium: Browser, address: str, begin: float) -> Mapping[str, float]:
    """Seconds from `begin` (by the wall clock) to paints; kB that came over the connection."""
    page = chromium.new_context(viewport=WIDE).new_page()
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    received: list[int] = []
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    page.goto(address)
    page.wait_for_selector('.answer[data-state="done"]')
    drawn = time.time() - begin
    paint = page.evaluate(PAINTED)
    assets = page.evaluate(WEIGHT)
    page.wait_for_timeout(REST_MILLISECONDS)
    page.context.close()
    return {
        "first paint": paint / 1000 - begin,
        "plans drawn": drawn,
        "page kB": assets / 1000,
        "all kB": sum(received) / 1000,
    }


def edits(chromium: Browser, address: str) -> list[float]:
    """Seconds from changing the batch to its plans, each time to one that was not asked before."""
    page = opened(chromium, address)
    page.wait_for_timeout(2 * REST_MILLISECONDS)
    page.evaluate(WATCH)
    found = []
    for value in EDITS:
        page.evaluate("marks.ready = new Promise((done) => (marks.done = done)); 0")
        page.fill("#global_batch", value)
        found.append(page.evaluate("marks.ready") / 1000)
        page.wait_for_timeout(REST_MILLISECONDS)
    page.context.close()
    return found


def frames(chromium: Browser, address: str, ask: Callable[..., bytes]) -> dict[str, Any]:
    """The longest tasks while a large front and a large timeline are drawn and used."""
    document = json.loads(ask(address, "api/plan", EXAMPLE_OF_FRONT))
    document["pareto"] = [_point(document["pareto"][0], index) for index in range(POINTS)]
    asked = {**EXAMPLE_OF_STAGES, "strategy": f"pp={STAGES},micro_batch=1"}
    predicted = json.loads(ask(address, "api/predict", asked))
    timeline = ask(address, "api/timeline", {"document": predicted})
    document["plans"][0] = {**predicted["plans"][0], "rank": 1}
    events = f"event: document\ndata: {json.dumps(document)}\n\n"

    def answered(content: str | bytes, kind: str) -> Callable[[Route], None]:
        return lambda route: route.fulfill(body=content, content_type=kind)

    page = chromium.new_context(viewport=WIDE).new_page()
    page.route("**/api/plan/stream", answered(events, "text/event-stream"))
    page.route("**/api/timeline", answered(timeline, "application/json"))
    found = {"drawn": _longest(page, lambda: _visit(page, address))}
    found["front"] = _longest(page, lambda: _hover(page, "#front-title"))
    found["timeline"] = _longest(page, lambda: _zoom(page, "#timeline-title"))
    page.context.close()
    return found


EXAMPLE_OF_FRONT = {
    "model": "llama-2-70b",
    "gpus": "h100:64",
    "global_batch": 1024,
    "tokens": "2T",
    "objective": "cost",
    "mode": "up-to",
    "top": 10,
}
EXAMPLE_OF_STAGES = {
    "model": "llama-2-70b",
    "gpus": f"h100:{STAGES}",
    "global_batch": MICRO_BATCHES,
}


def _point(point: dict[str, Any], index: int) -> dict[str, Any]:
    """Points of a front: each takes longer than the one before, and costs less."""
    scale = 1 + index / POINTS
    changed = {"train_seconds": point["train_seconds"] * scale}
    return {**point, **changed, "usd_total": point["usd_total"] / scale}


def _visit(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector('.answer[data-state="done"]')
    page.wait_for_timeout(2 * REST_MILLISECONDS)


def _box(page: Page, title: str) -> FloatRect:
    box = page.locator(f"section:has({title}) .chart-box").first
    box.scroll_into_view_if_needed()
    found = box.bounding_box()
    assert found is not None
    return found


def _hover(page: Page, title: str) -> None:
    box = _box(page, title)
    for step in range(40):
        across, down = (step * 37) % (box["width"] - 120), (step * 23) % (box["height"] - 60)
        page.mouse.move(box["x"] + 100 + across, box["y"] + 30 + down)


def _zoom(page: Page, title: str) -> None:
    box = _box(page, title)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    for step in range(40):
        page.mouse.wheel(0, -120 if step < 20 else 120)
    page.mouse.down()
    for step in range(20):
        page.mouse.move(box["x"] + box["width"] / 2 - 10 * step, box["y"] + 40)
    page.mouse.up()


def _longest(page: Page, act: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of the longest task of the page's thread, by the clock and of the processor."""
    session = page.context.browser.new_browser_cdp_session()  # type: ignore[union-attr]
    collected: list[dict[str, Any]] = []
    ended: list[bool] = []
    session.on("Tracing.dataCollected", lambda event: collected.extend(event["value"]))
    session.on("Tracing.tracingComplete", lambda _: ended.append(True))
    session.send("Tracing.start", {"traceConfig": {"includedCategories": TRACED.split(",")}})
    act()
    session.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(50)
    session.detach()
    named = [one for one in collected if one.get("name") == "thread_name"]
    main = {(one["pid"], one["tid"]) for one in named if one["args"]["name"] == "CrRendererMain"}
    tasks = [
        one
        for one in collected
        if one.get("name") == "RunTask" and (one["pid"], one["tid"]) in main and "dur" in one
    ]
    return {
        "tasks": len(tasks),
        "clock ms": max((one["dur"] for one in tasks), default=0) / 1000,
        "processor ms": max((one.get("tdur", 0) for one in tasks), default=0) / 1000,
    }


def report(address: str, ask: Callable[..., bytes], chromium: Browser) -> None:
    times = edits(chromium, address)
    middle, best = statistics.median(times), min(times)
    print(
        f"an edit of {EXAMPLE_OF_FRONT['model']} on {EXAMPLE_OF_FRONT['gpus']}, to plans drawn:"
        f" {best:.3f} s (best of {len(times)}), {middle:.3f} s (median), {max(times):.3f} s (worst)"
    )
    for name, longest in frames(chromium, address, ask).items():
        shown = ", ".join(f"{value:.0f} {unit}" for unit, value in longest.items())
        print(f"  {POINTS} points, {STAGES} x {MICRO_BATCHES} passes, {name}: longest of {shown}")
