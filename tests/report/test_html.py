"""Reports in HTML: self-contained, escaped, with the figures of the document, and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import astrarium
from astrarium.plans.document import PlanDocument, to_dict
from astrarium.report import page as report_page
from astrarium.report.page import MARK, MOST_BYTES, report_html
from astrarium.units import format_seconds

HOSTILE = "</script><script>alert(1)</script><!--&\"'\u2028<img src=x onerror=alert(2)>"
COMMAND = ("astrarium", "plan", "llama-2-7b", "--gpus", "h100:8")
# Elements and attributes that make a browser ask for something.
LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "formaction"}


class Page(HTMLParser):
    """The elements of a page with their attributes, the texts of scripts, and all other text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.titles: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text += data
            if self.open and self.open[-1] == "h2":
                self.titles.append(data)
            if self.open and self.open[-1] in ("td", "th"):
                self.cells[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        """What is embedded for the pictures."""
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def planned() -> PlanDocument:
    found = astrarium.plan(
        "llama-2-7b", gpus="h100:16", seq_length=4096, global_batch=64, tokens="100B", top=5
    )
    return found.document


def test_nothing_is_loaded(planned: PlanDocument) -> None:
    text = report_html(planned, COMMAND)
    page = Page(text)
    assert page.open == []
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "base", "object", "embed", "image")
        assert not LOADING & set(attributes), (tag, attributes)
    policies = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policies == [report_page.POLICY]
    assert "default-src 'none'" in report_page.POLICY
    styles = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert styles is not None
    assert "url(" not in styles[1]
    assert "@import" not in styles[1]
    # Names of XML are no addresses that are asked for.
    addresses = set(re.findall(r"https?://[^\s\"'`)<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(", text)


def test_embedded_data_are_those_of_the_document(planned: PlanDocument) -> None:
    page = Page(report_html(planned, COMMAND))
    expected = to_dict(planned)
    expected["workload"]["model_config"] = None
    data = page.data
    assert data["document"] == json.loads(json.dumps(expected))
    assert data["rank"] == 1
    assert sorted(data["timelines"]) == ["1", "2", "3"]
    timeline = data["timelines"]["1"]
    assert timeline["seconds"] == planned.plans[0].iteration_seconds
    assert len({len(column) for column in timeline["events"].values()}) == 1
    last = max(timeline["events"]["end"])
    assert last == pytest.approx(timeline["seconds"], rel=1e-4)


def test_tables_have_the_figures_without_a_script(planned: PlanDocument) -> None:
    page = Page(report_html(planned, COMMAND))
    for plan in planned.listed:
        assert format_seconds(plan.iteration_seconds) in page.cells
        assert f"{100 * plan.mfu:.1f} %" in page.cells
    best = planned.plans[0]
    for stage in best.memory:
        assert f"{stage.peak_bytes / 2**30:.1f}" in page.cells
    for seconds in best.breakdown_seconds.values():
        assert seconds == 0 or format_seconds(seconds) in page.cells
    assert "strategies considered" in page.text
    assert "astrarium plan llama-2-7b \\\n  --gpus h100:8" in page.text
    assert "The run of plan 1" in page.titles
    for note in planned.notes:
        assert note in page.text
    opened = [a for tag, a in page.elements if tag == "details"]
    assert opened
    assert all("open" in attributes for attributes in opened)


def test_hostile_names_stay_text(document: PlanDocument) -> None:
    workload = replace(document.workload, model=HOSTILE, model_as_given=HOSTILE)
    pools = tuple(replace(pool, price_source=HOSTILE) for pool in document.cluster.pools)
    cluster = replace(document.cluster, pools=pools)
    hostile = replace(document, workload=workload, cluster=cluster, notes=(HOSTILE,))
    command = ("astrarium", "plan", HOSTILE)
    page, usual = (Page(report_html(one, command)) for one in (hostile, document))
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert len(page.scripts) == len(usual.scripts) == 2
    assert page.scripts[1] == usual.scripts[1]
    assert not any(tag == "img" for tag, _ in page.elements)
    assert page.text.count(HOSTILE) >= 3
    assert page.data["document"]["workload"]["model"] == HOSTILE
    assert "<" not in page.scripts[0]
    assert page.scripts[0].isascii()


def test_the_plan_of_a_rank_is_the_chosen_one(planned: PlanDocument) -> None:
    page = Page(report_html(planned, COMMAND, rank=4))
    assert page.data["rank"] == 4
    assert sorted(page.data["timelines"]) == ["1", "2", "4"]
    rows = [a for tag, a in page.elements if tag == "tr" and a.get("class") == "chosen"]
    assert [row["data-plan"] for row in rows] == ["4"]


def test_the_same_document_gives_the_same_file(planned: PlanDocument) -> None:
    assert report_html(planned, COMMAND) == report_html(planned, COMMAND)
    assert MARK in report_html(planned, COMMAND)[:256]


def test_the_size_is_bounded_and_what_is_left_out_is_said(
    planned: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report_html(planned, COMMAND)
    assert len(whole.encode()) < MOST_BYTES
    assert "Left out" not in whole
    sizes = [len(report_page._timeline_text(plan)) for plan in planned.plans[:3]]
    most = len(whole) + 10_000 - min(sizes) // 2
    monkeypatch.setattr(report_page, "MOST_BYTES", most)
    smaller = report_html(planned, COMMAND)
    assert len(smaller.encode()) <= most
    assert "Left out, to keep this file small: the timeline of plan " in Page(smaller).text


def test_a_long_front_is_thinned(make_front: Callable[..., PlanDocument]) -> None:
    front = make_front(90)
    every = report_page.embedded(front, 1, MOST_BYTES)
    assert every.left_out == ()
    room = len(every.text) // 2
    fewer = report_page.embedded(front, 1, room)
    assert len(fewer.text) <= room
    document = json.loads(fewer.text)["document"]
    kept = {plan["rank"] for plan in document["plans"]}
    assert 1 in kept
    for point in document["pareto"]:
        assert point["plan"] < len(document["plans"])
        assert all(other < len(document["pareto"]) for other in point["tied_with"])
    assert f"of {len(front.plans)} plans" in fewer.left_out[0]


def test_an_older_plan_has_no_timeline(document: PlanDocument) -> None:
    assert all(not plan.stage_seconds for plan in document.plans)
    assert Page(report_html(document, COMMAND)).data["timelines"] == {}
