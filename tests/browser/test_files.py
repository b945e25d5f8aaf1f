"""Files: what the page hands out is what the command line writes; a report needs no server."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_page import ALIKE, NARROW, WIDE, Planner, command_line, printed
from playwright.sync_api import expect

Open = Callable[..., Planner]


def downloaded(planner: Planner, button: str, name: str) -> bytes:
    """The file that a button hands to the user."""
    with planner.page.expect_download() as download:
        planner.page.get_by_role("button", name=button, exact=True).click()
    assert download.value.suggested_filename == name
    return Path(download.value.path()).read_bytes()


def unpacked(content: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def written(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_files_of_a_plan_are_those_of_the_command_line(
    planner: Planner, tmp_path: Path
) -> None:
    planner.open(ALIKE, rank=2)
    page = planner.page
    plans = downloaded(planner, "Plans as JSON", "Llama-2-7B-plan-2.json")
    path = tmp_path / "plan.json"
    path.write_bytes(plans)
    megatron = downloaded(planner, "Download zip", "Llama-2-7B-plan-2-megatron.zip")
    out = tmp_path / "megatron"
    printed(["export", str(path), "--to", "megatron", "--rank", "2", "--out", str(out)])
    assert unpacked(megatron) == written(out)
    # A launcher starts a program of one's choice.
    page.get_by_label("Files for").select_option("slurm")
    page.get_by_label("starting").select_option("bridge")
    slurm = downloaded(planner, "Download zip", "Llama-2-7B-plan-2-slurm.zip")
    out = tmp_path / "slurm"
    chosen = ["--to", "slurm", "--program", "bridge", "--rank", "2"]
    printed(["export", str(path), *chosen, "--out", str(out)])
    assert unpacked(slurm) == written(out)
    page.get_by_role("button", name="Look at the files").click()
    names = page.locator(".export summary")
    expect(names).to_have_count(len(written(out)))
    assert sorted(names.all_inner_texts()) == sorted(written(out))
    names.first.click()
    shown = page.locator(".export details[open] pre").text_content()
    assert shown == written(out)[names.first.inner_text()]
    planner.keep_picture("export-1280-light")


def test_the_plans_are_those_of_the_command_line(planner: Planner) -> None:
    planner.open(ALIKE)
    found = json.loads(downloaded(planner, "Plans as JSON", "Llama-2-7B-plan-1.json"))
    asked = json.loads(printed([*command_line(ALIKE), "--json"]).stdout)
    assert found["schema"] == asked["schema"]
    assert found["plans"] == asked["plans"]
    assert found["pareto"] == asked["pareto"]


def test_a_trace_for_perfetto(planner: Planner) -> None:
    planner.open(ALIKE)
    packed = downloaded(planner, "Trace for Perfetto", "Llama-2-7B-plan-1-trace.json.gz")
    trace = json.loads(gzip.decompress(packed))
    assert any(event["ph"] == "X" for event in trace["traceEvents"])


def test_a_report_pictures_and_a_table(planner: Planner) -> None:
    planner.open(ALIKE)
    report = downloaded(planner, "Report to mail", "Llama-2-7B-plan-1.html").decode()
    assert "astrarium plan llama-2-7b" in report.replace(" \\\n ", "")
    table = downloaded(planner, "Plans as CSV", "Llama-2-7B-plan-1.csv").decode()
    assert len(table.splitlines()) == 1 + int(ALIKE["top"])
    title = "Save the picture: Memory of each stage, plan 1"
    picture = downloaded(planner, title, "memory-of-each-stage-plan-1.svg").decode()
    assert "var(--" not in re.sub(r"<pattern.*?</pattern>", "", picture)  # no style sheet is near
    title = "Save the picture: Timeline of an iteration, plan 1"
    image = downloaded(planner, title, "timeline-of-an-iteration-plan-1.png")
    assert image.startswith(b"\x89PNG")


def test_what_a_target_cannot_express_is_refused_with_the_nearest(planner: Planner) -> None:
    planner.watch.expected.add(422)
    planner.open()
    page = planner.page
    page.get_by_label("Files for").select_option("accelerate")
    page.get_by_role("button", name="Look at the files").click()
    refused = page.locator(".export .refused")
    expect(refused).to_contain_text("The nearest plan that it can express: ")
    planner.keep_picture("refused-1280-light")
    content = downloaded(planner, "Download the nearest plan", "Llama-2-70B-plan-1-accelerate.zip")
    assert "README.md" in unpacked(content)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "out.html"
    printed([*command_line(ALIKE), "--report", str(path)])
    return path


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(WIDE, "light", id="wide-light"),
        pytest.param(WIDE, "dark", id="wide-dark"),
        pytest.param(NARROW, "light", id="narrow-light"),
    ],
)
def test_a_report_needs_no_server(
    opened: Open, report: Path, size: tuple[int, int], scheme: str
) -> None:
    planner = opened(size, color_scheme=scheme, offline=True)
    page = planner.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    pictures = page.locator("[data-picture] .chart-box")
    expect(pictures).to_have_count(5)
    for number in range(5):
        expect(pictures.nth(number)).to_be_visible()
    second = page.get_by_role("button", name="Show plan 2")
    second.click()
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-rank]").first).to_have_text("2")
    page.get_by_role("button", name="Show plan 1", exact=True).click()
    expect(second).to_have_attribute("aria-pressed", "false")
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    assert [address for address in asked if not re.match("file:", address)] == []
    planner.keep_picture(f"report-{size[0]}-{scheme}")
