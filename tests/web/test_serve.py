"""`astrarium serve`: says where it is, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from web_server import LONG, PATIENCE_SECONDS, SMALL, wait_for

from astrarium.cli.app import app

TOGETHER = 200
MOST_SERVER_BYTES = 250 * 2**20
MOST_WORKER_BYTES = 400 * 2**20


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a session of its own, and the address that it prints."""
    command = [sys.executable, "-m", "astrarium", "serve", "--json", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, "it ended"
                text += line
            yield process, json.loads(text)["address"]
        finally:
            process.kill()


def session(pid: int) -> dict[int, int]:
    """Bytes of memory of all processes of a session, by their ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            status = (folder / "status").read_text()
        except OSError:
            continue
        if int(fields[3]) == pid and fields[0] not in "ZX":
            size = re.search(r"RssAnon:\s+(\d+) kB", status)
            found[int(folder.name)] = int(size[1]) * 1024 if size else 0
    return found


def test_control_c_ends_it_and_all_its_processes() -> None:
    with served("--port", "0") as (process, address):
        with httpx.Client(base_url=address, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            assert client.post("/api/plan", json=SMALL).status_code == 200
            assert len(session(process.pid)) > 2
            # A search under way does not keep it.
            with ThreadPoolExecutor(1) as threads:
                asked = threads.submit(client.post, "/api/plan", json=LONG)
                wait_for(lambda: client.get("/api/health").json()["working"] == 1)
                os.killpg(process.pid, signal.SIGINT)
                assert process.wait(PATIENCE_SECONDS) == 0
                assert asked.exception() or asked.result().status_code >= 500
        wait_for(lambda: not session(process.pid))
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_its_workers_end_with_it_whatever_ends_it() -> None:
    with served("--port", "0") as (process, address):
        httpx.post(f"{address}api/plan", json=SMALL, timeout=PATIENCE_SECONDS, trust_env=False)
        process.kill()
        wait_for(lambda: not session(process.pid))


def test_many_at_once_are_all_answered_in_bounded_memory() -> None:
    with served("--port", "0") as (process, address):
        limits = httpx.Limits(max_connections=TOGETHER)
        most: dict[int, int] = {}
        with (
            httpx.Client(base_url=address, timeout=240, limits=limits, trust_env=False) as client,
            ThreadPoolExecutor(TOGETHER) as threads,
        ):
            asked = [
                threads.submit(client.post, "/api/plan", json={**SMALL, "global_batch": 8 + n % 8})
                for n in range(TOGETHER)
            ]
            while not all(one.done() for one in asked):
                for pid, size in session(process.pid).items():
                    most[pid] = max(size, most.get(pid, 0))
                time.sleep(0.2)
            batches = [one.result().json()["workload"]["global_batch"] for one in asked]
            assert batches == [8 + n % 8 for n in range(TOGETHER)]
            assert client.get("/api/health").json()["waiting"] == 0
        assert most.pop(process.pid) < MOST_SERVER_BYTES
        assert max(most.values()) < MOST_WORKER_BYTES


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
        assert result.exit_code == 2
        assert f"--port {port}: cannot listen there: Address already in use" in result.stderr


def test_the_next_port_is_taken_where_none_was_asked_for() -> None:
    from astrarium.web.server import listen
    from astrarium.web.settings import ServerSettings

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listen(ServerSettings(port=port), port_asked=False) as found:
            assert found.getsockname()[1] != port


def test_beyond_the_loopback_a_token_is_made_up() -> None:
    with served("--port", "0", "--host", "0.0.0.0") as (_, address):
        token = address.partition("?token=")[2]
        assert len(token) >= 16
        where = address.partition("?")[0]
        assert httpx.get(f"{where}api/health", trust_env=False).status_code == 401
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{where}api/health", headers=headers, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port '70000': too large; the most is 65,535"),
        (["--port", "x"], "--port 'x'"),
        (["--search-seconds", "0"], "--search-seconds '0'"),
        (["--most-waiting", "-1"], "--most-waiting '-1'"),
        (["--token", "short"], "--token: 5 characters are easily guessed; give at least 16"),
        (["--token", "with a space in it, and more"], "--token: expected letters, digits"),
        (["--host", "nowhere.invalid"], "--host nowhere.invalid --port 8000: cannot listen there"),
        (["--host", ""], "--host: the address is empty"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {message}")


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "uvicorn", missing)
    monkeypatch.delitem(sys.modules, "astrarium.web.server", raising=False)
    monkeypatch.delattr("astrarium.web.server", raising=False)
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 2
    assert "pip install 'astrarium[web]'" in result.stderr
