"""How fast the page is: cold start, edits, frames, one plan after the other, 200 at once, memory.

PYTHONPATH=tools python benchmarks/web.py   (what needs a browser is left out without one)
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

EXAMPLE = {
    "model": "llama-2-70b",
    "gpus": "h100:64",
    "seq_length": 4096,
    "global_batch": 1024,
    "tokens": "2T",
}
SMALL = {"model": "tinyllama-1.1b", "gpus": "h100:1", "global_batch": 8, "top": 1}
WARM = 11
COLD = 3
TOGETHER = 200


def asked(address: str, path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{address}{path}", data, {"content-type": "application/json"})
    with urlopen(request, timeout=300) as response:
        content: bytes = response.read()
    return content


def timed(address: str, path: str, body: object = None) -> float:
    begin = time.perf_counter()
    asked(address, path, body)
    return time.perf_counter() - begin


def started() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "astrarium", "serve", "--json", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        text += process.stdout.readline()
    return process, json.loads(text)["address"]


def memory(pid: int) -> float:
    """MiB of a process that no other shares; 0 where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else 0.0


def in_browser() -> None:
    """What a visitor sees, from before the server starts."""
    import web_page

    with web_page.browser() as chromium:
        best: dict[str, float] = {}
        for _ in range(COLD):
            begin = time.time()
            process, address = started()
            try:
                visit = web_page.first_visit(chromium, address, begin)
                best = {name: min(value, best.get(name, value)) for name, value in visit.items()}
            finally:
                process.terminate()
                process.wait()
        shown = ", ".join(f"{name} {value:.2f}" for name, value in best.items())
        print(f"cold start to a visitor's page, seconds (best of {COLD}): {shown}")
        process, address = started()
        try:
            web_page.report(address, asked, chromium)
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    if importlib.util.find_spec("playwright") and importlib.util.find_spec("install_browser"):
        in_browser()
    else:
        print("no browser: Playwright or tools/ are not at hand")
    begin = time.perf_counter()
    process, address = started()
    try:
        print(f"cold start: listens after {time.perf_counter() - begin:.2f} s")
        asked(address, "api/catalog")
        print(f"  lists to choose from after {time.perf_counter() - begin:.2f} s")
        asked(address, "api/plan", EXAMPLE)
        print(f"  first plan, 64 GPUs, after {time.perf_counter() - begin:.2f} s")
        for top in (5, 20):
            times = [timed(address, "api/plan", {**EXAMPLE, "top": top}) for _ in range(WARM)]
            middle, worst = statistics.median(times), max(times)
            print(f"warm, {top} plans for 64 GPUs: {middle:.3f} s (median), {worst:.3f} s (worst)")
        before = memory(process.pid)
        begin = time.perf_counter()
        with ThreadPoolExecutor(TOGETHER) as threads:
            asks = [threads.submit(timed, address, "api/plan", SMALL) for _ in range(TOGETHER)]
            times = [one.result() for one in asks]
        seconds = time.perf_counter() - begin
        print(
            f"{TOGETHER} at once: all answered in {seconds:.1f} s, the last after"
            f" {max(times):.1f} s; server {before:.0f} MiB before, {memory(process.pid):.0f} after"
        )
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
