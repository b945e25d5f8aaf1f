"""A launch script of one's own: what it leaves open is asked, and it stands beside the plans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from browser_page import ALIKE, Planner, command_line, printed, state_of
from playwright.sync_api import Browser, expect
from web_server import LAUNCH

OPEN = LAUNCH.replace("--nnodes 2", "--nnodes $N").replace("--vocab-size 32000", "--vocab-size $V")


def test_a_script_is_pasted_and_its_questions_are_fields(planner: Planner) -> None:
    planner.watch.expected.add(422)
    planner.open(ALIKE)
    page = planner.page
    page.get_by_role("button", name="bring a launch script").click()
    expect(planner.status).to_contain_text("Paste a launch script")
    page.get_by_label("Its text").fill(OPEN)
    variable = page.get_by_label("$V")
    variable.fill("32000")
    count = page.get_by_label("Number of GPUs in row 1")
    expect(page.locator("#pools-message")).to_contain_text("fill in their count")
    count.fill("16")
    planner.settled()
    expect(planner.command).to_contain_text("astrarium explain pasted --gpus h100:16")
    expect(planner.command).to_contain_text("--set V=32000")

    # The verdict is that of the command line, and the row has its place on top.
    verdict = page.locator(".own")
    expect(verdict).to_contain_text("It runs, with")
    expect(verdict).to_contain_text("times as fast")
    expect(planner.rows.first).to_contain_text("yours")
    planner.rows.first.click()
    for title in ("Timeline of an iteration, yours", "Memory of each stage, yours"):
        expect(page.get_by_role("heading", name=title)).to_be_visible()
    planner.settled()
    verdict.get_by_role("button", name="Compare with plan 1").click()
    expect(page.locator(".compare thead")).to_contain_text("yours: ")
    asked = state_of(page.url)
    assert asked["text"] == OPEN
    assert asked["view"]["rank"] == 0

    # Another who opens the link sees the same; without the script all is as it was before.
    page.reload()
    planner.settled()
    expect(page.get_by_role("heading", name="Memory of each stage, yours")).to_be_visible()
    planner.keep_picture("own-1280-light")


def test_a_dropped_script_is_taken_away_again(planner: Planner, tmp_path: Path) -> None:
    planner.open(ALIKE)
    page = planner.page
    page.get_by_role("button", name="bring a launch script").click()
    script = tmp_path / "run.sh"
    script.write_text(LAUNCH)
    page.locator("#own-file").set_input_files(script)
    planner.settled()
    expect(page.get_by_role("heading", name="Your run.sh, read for")).to_be_visible()
    page.get_by_role("button", name="Remove run.sh").click()
    expect(planner.lead).to_contain_text("Llama-2-7B")
    planner.settled()


def test_a_script_for_other_gpus_is_repaired(planner: Planner) -> None:
    planner.watch.expected.add(422)
    asked = {"text": LAUNCH, "name": "run.sh", "gpus": "h100:2"}
    planner.open(asked, is_settled=False)
    planner.page.get_by_role("button", name="Use 16 GPUs").click()
    planner.settled()
    expect(planner.lead).to_contain_text("on 16 x H100")


def test_a_saved_answer_is_only_shown(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(printed([*command_line(ALIKE), "--json"]).stdout)
    command = [sys.executable, "-m", "astrarium", "serve", "--json", "--port=0", f"--share={path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                text += server.stdout.readline()
            page = browser.new_page()
            address = json.loads(text)["address"]
            page.goto(address)
            expect(page.locator(".lead")).to_contain_text("Llama-2-7B")
            expect(page.locator(".picture[aria-busy=true]")).to_have_count(0)
            assert page.locator("form").count() == 0
            assert page.request.post(f"{address}api/plan", data=ALIKE).status == 405
            page.locator(".plans tbody tr").nth(1).click()
            expect(page.locator(".plans tbody tr").nth(1)).to_have_attribute("aria-current", "true")
            page.close()
        finally:
            server.terminate()
