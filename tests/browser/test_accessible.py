"""No mistake that axe finds, at all widths, in all colours, with answers and with mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser_page import ALIKE, AXE, WIDTHS, Planner, violations
from playwright.sync_api import expect
from web_server import LAUNCH

Open = Callable[..., Planner]
pytestmark = pytest.mark.skipif(not AXE.is_file(), reason="axe-core: `npm ci` in web/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_answers(opened: Open, scheme: str) -> None:
    planner = opened(color_scheme=scheme)
    planner.open(ALIKE, compare=[1, 2], strategy="tp=8")
    expect(planner.page.locator(".whynot dl")).to_be_visible()
    assert violations(planner, *WIDTHS) == []


@pytest.mark.parametrize(
    "change", [{"tokens": "many"}, {"budget": "10"}, {"pools": [{"type": "h100", "count": "3"}]}]
)
def test_mistakes(opened: Open, change: dict[str, Any]) -> None:
    planner = opened((390, 844))
    planner.open({**ALIKE, **change}, is_settled=False)
    expect(planner.answer).to_have_attribute("data-state", "failed")
    assert violations(planner) == []


def test_forced_colours(opened: Open) -> None:
    planner = opened((1024, 900), forced_colors="active")
    planner.open(ALIKE)
    assert violations(planner) == []
    # What is drawn is told apart by colours, which must not all become one.
    count: int = planner.picture("timeline").evaluate(
        """(box) => {
          const canvas = box.querySelector("canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 20);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    assert count >= 4


def test_a_script_beside_the_plans(planner: Planner) -> None:
    planner.open({"text": LAUNCH, "name": "run.sh", "gpus": "h100"}, rank=0, compare=[0, 1])
    expect(planner.page.locator(".own")).to_contain_text("It runs")
    assert violations(planner, *WIDTHS) == []
