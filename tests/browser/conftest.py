"""One browser and one server for all tests; whatever goes wrong unseen fails the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import install_browser
import pytest

pytest.importorskip("playwright", reason="tests in a browser: pip install 'astrarium[dev]'")

from browser_page import PATIENCE, WIDE, Planner, Watch, served
from playwright.sync_api import Browser, expect, sync_playwright

Open = Callable[..., Planner]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = install_browser.chromium()
    if path is None:
        tool = install_browser.CHROMIUM
        told = f"{tool.work}: {tool.way_out}"
        if install_browser.is_required():
            pytest.fail(told)
        pytest.skip(told)
    # Chromium's sandbox refuses to work for root, as in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="session")
def address(browser: Browser) -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Open]:
    """Makes pages, each as in a browser that was never used."""
    watches: list[Watch] = []
    contexts = []

    def make(size: tuple[int, int] = WIDE, **options: Any) -> Planner:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        watches.append(Watch(context, address))
        return Planner(context.new_page(), address, watches[-1])

    yield make
    for context in contexts:
        context.close()
    assert [mistake for watch in watches for mistake in watch.mistakes] == []


@pytest.fixture
def planner(opened: Open) -> Planner:
    """A page that is not opened yet."""
    return opened()
