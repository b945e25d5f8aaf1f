"""The page in a real browser: its server, what is asked of it, and what must not happen."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from click.testing import CliRunner, Result
from playwright.sync_api import (
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Response,
    expect,
)

from astrarium.cli.app import app

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "build/screenshots"
PATIENCE: Final = 60_000  # milliseconds; a slow machine is no failure
MOST_SHIFT: Final = 0.1  # what browsers call good
MOST_FRAMES: Final = 500
WIDE: Final = (1280, 900)
NARROW: Final = (390, 844)

# Quickly searched, with a front of few points.
SMALL: Final[dict[str, Any]] = {
    "model": "llama-2-7b",
    "pools": [{"type": "h100", "count": "32"}, {"type": "a100", "count": "32"}],
    "global_batch": "256",
    "seq_length": "4096",
    "tokens": "1T",
    "objective": "cost",
    "mode": "up-to",
    "mix": "1",
    "top": "8",
}
# Quickly searched, with many plans for the same GPUs.
ALIKE: Final[dict[str, Any]] = {
    "model": "llama-2-7b",
    "pools": [{"type": "h100", "count": "16"}],
    "global_batch": "64",
    "seq_length": "4096",
    "tokens": "1T",
    "top": "12",
}
# Takes many seconds: all GPU types of all clouds, for the front of time against money.
LONG: Final[dict[str, Any]] = {
    "model": "llama-2-70b",
    "market": "all",
    "global_batch": "1024",
    "tokens": "2T",
    "objective": "cost",
}


@contextmanager
def served(*options: str) -> Iterator[str]:
    """`astrarium serve` as a process of its own on a free port; gives its address."""
    command = [sys.executable, "-m", "astrarium", "serve", "--json", "--port", "0", *options]
    with (
        TemporaryDirectory() as cache,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": cache},
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, process.stderr.read()
                text += line
            yield json.loads(text)["address"]
        finally:
            process.terminate()
            process.communicate()


def hash_of(request: Mapping[str, Any], **view: Any) -> str:
    """What follows the address of a page with this state: `web/src/page/link.ts`."""
    state = {**request, "view": view} if view else request
    text = base64.urlsafe_b64encode(json.dumps(state).encode()).decode()
    return f"#{text.rstrip('=')}"


def state_of(address: str) -> dict[str, Any]:
    """The state in the address of a page."""
    text = urlsplit(address).fragment
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


WIDTHS: Final = (1440, 1024, 390, 320)
AXE: Final = ROOT / "web/node_modules/axe-core/axe.min.js"
RUN: Final = """async () => (await axe.run()).violations.map(
  ({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`)"""


def violations(planner: Planner, *widths: int) -> list[str]:
    """What axe finds; at each of the widths, where nothing may be wider than the page."""
    # Evaluated, not added as an element: the page lets no other script in.
    planner.page.evaluate(AXE.read_text(encoding="utf-8"))
    if not widths:
        found: list[str] = planner.page.evaluate(RUN)
        return found
    every = []
    for width in widths:
        planner.page.set_viewport_size({"width": width, "height": 900})
        planner.drawn_anew()
        every += [f"{width}: {mistake}" for mistake in planner.page.evaluate(RUN)]
        wide = planner.page.evaluate("document.documentElement.scrollWidth")
        every += [f"{width}: {wide} wide"] * (wide > width)
    return every


class Watch:
    """Everything that goes wrong in a browser without being seen on the page."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.host = urlsplit(address).netloc
        self.mistakes: list[str] = []
        # Statuses that a test provokes; the browser's console tells of them, too.
        self.expected: set[int] = set()
        context.on("console", self._console)
        context.on("weberror", lambda told: self.mistakes.append(f"page: {told.error}"))
        context.on("request", self._request)
        context.on("requestfailed", self._failed)
        context.on("response", self._response)

    def _console(self, told: ConsoleMessage) -> None:
        if told.type not in ("error", "warning"):
            return
        refused = re.search(r"responded with a status of (\d+)", told.text)
        if not (refused and int(refused[1]) in self.expected):
            self.mistakes.append(f"console: {told.text}")

    def _request(self, request: Request) -> None:
        where = urlsplit(request.url)
        if where.scheme not in ("file", "blob", "data") and where.netloc != self.host:
            self.mistakes.append(f"asks another host: {request.url}")

    def _failed(self, request: Request) -> None:
        # A question that the page itself takes back, as a newer one takes its place; and the icon
        # of a page that is left before it came.
        path = urlsplit(request.url).path
        is_question = request.method == "POST" and path.startswith("/api/")
        is_withdrawn = request.failure == "net::ERR_ABORTED" and (
            is_question or path == "/icon.svg"
        )
        if not is_withdrawn:
            self.mistakes.append(f"failed: {request.url}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.mistakes.append(f"refused: {response.url}: {response.status}")


class Planner:
    """One page, in the words of its parts."""

    def __init__(self, page: Page, address: str, watch: Watch) -> None:
        self.page = page
        self.address = address
        self.watch = watch
        self.answer = page.locator(".answer")
        self.status = self.answer.get_by_role("status")
        # The answer in one sentence: which model on which GPUs.
        self.lead = self.answer.locator(".lead")
        self.rows = page.locator(".plans tbody tr")
        self.chosen = page.locator(".plans tbody tr[aria-current=true]")
        self.command = page.locator("#command")

    def open(
        self, request: Mapping[str, Any] | None = None, is_settled: bool = True, **view: Any
    ) -> None:
        """Opens the page, with a state or as it comes; waits for all of its answers."""
        self.page.goto(self.address + ("" if request is None else hash_of(request, **view)))
        if is_settled:
            self.settled()

    def settled(self) -> None:
        """Waits until the answer to what is in the form is there, and drawn."""
        expect(self.answer).to_have_attribute("data-state", "done")
        expect(self.page.locator(".results.stale")).to_have_count(0)
        expect(self.page.locator(".picture[aria-busy=true]")).to_have_count(0)

    def drawn_anew(self) -> None:
        """Waits until pictures have the size of the window."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        self.settled()

    def picture(self, name: str) -> Locator:
        """The box of a picture, by the id of its title."""
        return self.page.locator(f"section[aria-labelledby={name}-title] .chart-box")

    def tip(self, name: str) -> Locator:
        return self.page.locator(f"section[aria-labelledby={name}-title] .chart-tip")

    def pixels(self, name: str) -> str:
        """What is drawn of a picture."""
        found: str = self.picture(name).evaluate(
            "box => [...box.querySelectorAll('canvas')].map(one => one.toDataURL()).join()"
            " + (box.querySelector('svg')?.innerHTML ?? '')"
        )
        return found

    def drawn(self, name: str, like: str | None = None, unlike: str | None = None) -> str:
        """What a picture shows once it is one thing, or no longer another."""
        for _ in range(MOST_FRAMES):
            found = self.pixels(name)
            if found != unlike and like in (None, found):
                return found
            self.page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        raise AssertionError(f"{name}: the picture does not become what it should")

    def points(self) -> dict[str, tuple[float, float]]:
        """Where on the page the points of the front are, by what is told of them.

        Looked for by pointing everywhere: what is drawn on a canvas has no elements.
        """
        box = self.picture("front")
        box.scroll_into_view_if_needed()
        found: list[tuple[str, float, float]] = box.evaluate(
            """(box) => {
              const tip = box.parentElement.querySelector(".chart-tip");
              const { left, top, width, height } = box.getBoundingClientRect();
              const found = [];
              for (let y = top + 2; y < top + height; y += 5) {
                for (let x = left + 2; x < left + width; x += 5) {
                  const where = { clientX: x, clientY: y, bubbles: true };
                  box.dispatchEvent(new PointerEvent("pointermove", where));
                  if (tip.style.visibility !== "visible") continue;
                  found.push([[...tip.children].map((line) => line.textContent).join("\\n"), x, y]);
                }
              }
              box.dispatchEvent(new PointerEvent("pointerleave"));
              return found;
            }"""
        )
        places: dict[str, list[tuple[float, float]]] = {}
        for text, x, y in found:
            places.setdefault(text, []).append((x, y))
        return {text: sorted(places[text])[len(places[text]) // 2] for text in places}

    def plan_texts(self) -> list[str]:
        """The strategies of the table, from its top."""
        return self.rows.locator("td.strategy button").all_inner_texts()

    def column(self, number: int) -> list[str]:
        return self.rows.locator(f"td:nth-child({number})").all_inner_texts()

    def layout_shift(self) -> float:
        """How far parts of the page have moved without being asked to, as browsers count it."""
        found: float = self.page.evaluate(
            """() => new Promise((done) => {
              let sum = 0;
              const add = (list) => {
                for (const one of list.getEntries()) if (!one.hadRecentInput) sum += one.value;
              };
              const observer = new PerformanceObserver(add);
              observer.observe({ type: "layout-shift", buffered: true });
              // What is buffered comes before the frame after the next.
              requestAnimationFrame(() => requestAnimationFrame(() => done(sum)));
            })"""
        )
        return found

    def keep_picture(self, name: str) -> None:
        """Keeps what is seen, for people who ask to look at it."""
        if os.environ.get("ASTRARIUM_PICTURES") != "1":
            return
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def command_line(request: Mapping[str, Any], **changes: str) -> list[str]:
    """The arguments of `astrarium` that ask the same, apart from some flags."""
    pools = request.get("pools", ())
    flags = {name: text for name, text in request.items() if name not in ("model", "pools")}
    flags["gpus"] = ",".join(f"{pool['type']}:{pool['count']}" for pool in pools)
    flags |= changes
    model = flags.pop("model", request["model"])
    named = [f"--{name.replace('_', '-')}={text}" for name, text in flags.items()]
    return ["plan", model, *named]


def printed(arguments: list[str], code: int = 0) -> Result:
    """What `astrarium` prints."""
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def refusal(arguments: list[str], code: int = 2) -> str:
    """What the command line says of bad input, in one line."""
    return " ".join(printed(arguments, code).stderr.removeprefix("Error: ").split())
