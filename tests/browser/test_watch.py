"""The watch over all other tests sees what goes wrong without being seen on the page."""

from __future__ import annotations

import pytest
from browser_page import MOST_FRAMES, SMALL, Planner, Watch
from playwright.sync_api import Browser

UNSEEN = {
    "console: told": "console.error('told')",
    "page: thrown": "setTimeout(() => { throw new Error('thrown'); })",
    "refused: {address}nowhere: 404": "fetch('/nowhere')",
    "asks another host: http://127.0.0.2:9/": "fetch('http://127.0.0.2:9/').catch(() => null)",
}


@pytest.mark.parametrize(("mistake", "script"), UNSEEN.items(), ids=lambda text: text.split(":")[0])
def test_it_sees(browser: Browser, address: str, mistake: str, script: str) -> None:
    # Without the page's own policy, which would refuse other hosts before they are asked.
    context = browser.new_context(bypass_csp=True)
    watch = Watch(context, address)
    planner = Planner(context.new_page(), address, watch)
    planner.open(SMALL)
    assert watch.mistakes == []
    planner.page.evaluate(f"() => {{ {script}; }}")
    for _ in range(MOST_FRAMES):
        if watch.mistakes:
            break
        planner.page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
    context.close()
    assert mistake.format(address=address) in watch.mistakes
