"""On paper: all that the plan says, in dark ink, and nothing that only asks to be typed into."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from browser_page import ALIKE, Planner, command_line, printed
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(
    shutil.which("pdftotext") is None, reason="poppler-utils are not installed"
)
INCHES_72 = 72  # dots of an inch: enough to count what is dark


def words_of(pdf: Path) -> str:
    """What stands on the pages, with single spaces."""
    text = subprocess.run(
        ["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True
    ).stdout
    return " ".join(text.split())


def dark_share(pdf: Path) -> float:
    """The share of dark dots on all pages: text of the dark theme would be white on white."""
    prefix = pdf.with_suffix("")
    command = ["pdftoppm", "-r", str(INCHES_72), "-gray", str(pdf), str(prefix)]
    subprocess.run(command, check=True)
    dark = every = 0
    for page in sorted(prefix.parent.glob(f"{prefix.name}-*.pgm")):
        head, _, pixels = page.read_bytes().partition(b"\n255\n")
        assert head.startswith(b"P5")
        dark += sum(one < 100 for one in pixels)
        every += len(pixels)
    return dark / every


def images_of(pdf: Path) -> int:
    """Pictures that were drawn on canvases."""
    found = subprocess.run(
        ["pdfimages", "-list", str(pdf)], capture_output=True, text=True, check=True
    ).stdout
    return sum(" image " in line for line in found.splitlines())


def test_page_on_paper(planner: Planner, tmp_path: Path) -> None:
    planner.page.emulate_media(color_scheme="dark")
    planner.open(ALIKE)
    plans = [row.replace("\n", " ") for row in planner.plan_texts()]
    stages = planner.page.evaluate(
        """() => [...document.querySelectorAll(
          'section[aria-labelledby=memory-title] svg text')].map((text) => text.textContent)"""
    )
    paper = tmp_path / "page.pdf"
    planner.page.pdf(path=paper, format="A4")
    text = words_of(paper)
    # Every row of the table, also those that are scrolled out of sight.
    for plan in plans:
        assert plan in text
    assert text.count("micro-batch") >= len(plans)
    # The memory of every stage beside what its GPU has.
    capacities = re.findall(r"[\d.]+ / 79\.2 GiB, \d+ %", text)
    assert len(capacities) >= sum(one.endswith("%") for one in stages) > 0
    # Placeholders are no values, and buttons cannot be pressed.
    for unsaid in ("$tp > 8", "Put in your own", "Filter:", "Copy link", "Download zip", "Such as"):
        assert unsaid not in text
    assert "astrarium plan llama-2-7b" in text
    assert "fastest" in text  # beside its interval
    assert images_of(paper) >= 1  # the timeline
    assert dark_share(paper) > 0.005
    # Back on the screen everything is as it was.
    assert planner.page.evaluate("document.documentElement.className") == ""


def test_report_on_paper(browser: Browser, tmp_path: Path) -> None:
    report, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    printed([*command_line(ALIKE), f"--report={report}"])
    page: Page = browser.new_context(color_scheme="dark").new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("[data-picture=timeline] canvas")
    rows = page.locator("tr[data-plan]").count()
    page.pdf(path=paper, format="A4")
    text = words_of(paper)
    assert rows == int(ALIKE["top"])
    assert "79.2 GiB" in text
    assert "stage 0" in text or "16 GPUs" in text
    assert images_of(paper) >= 2
    assert dark_share(paper) > 0.005
    page.context.close()
