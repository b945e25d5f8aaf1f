"""Size, number and time of requests are bounded, and nobody works for those who have left."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from web_server import LONG, PATIENCE_SECONDS, SMALL, Running, running, wait_for

from astrarium.web import worker
from astrarium.web.reply import Answer

MIB = 2**20


def pids(server: Running) -> set[int]:
    return {worker.process.pid for worker in server.workers.all}


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def wait_for_workers(server: Running) -> None:
    """Until all of them wait for questions, and none is being replaced."""
    wait_for(lambda: server.workers.idle == server.workers.settings.workers)


@contextmanager
def sent(server: Running, path: str, body: object) -> Iterator[socket.socket]:
    """A request whose answer nobody reads; the connection is left at the end."""
    host, port = server.address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(head.encode() + content)
        yield connection


def read_late(server: Running, path: str, body: object, seconds: float) -> int:
    """Bytes of an answer that can be read so long after it was there."""
    with sent(server, path, body) as connection:
        wait_for(lambda: server.workers.asked == 1)
        wait_for(lambda: server.workers.asked == 0)
        time.sleep(seconds)
        read = 0
        while part := connection.recv(2**16):
            read += len(part)
    return read


def test_a_request_that_is_too_large(client: httpx.Client) -> None:
    response = client.post("/api/plan", json={**SMALL, "config": {"note": "x" * MIB}})
    assert response.status_code == 413
    assert "1,048,576 bytes" in response.json()["error"]["message"]
    # Documents may be larger: this one is read, and found to be none.
    body = {"document": {"schema": "x" * 2 * MIB}}
    assert client.post("/api/explain", json=body).status_code == 422
    body = {"document": {"schema": "x" * 16 * MIB}}
    assert client.post("/api/explain", json=body).status_code == 413


def test_a_size_that_is_not_stated_is_counted(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    parts = (b"x" * 65536 for _ in range(40))
    assert client.post("/api/plan", content=parts, headers=headers).status_code == 413


def test_a_request_of_too_many_values(client: httpx.Client) -> None:
    """Each of them takes far more memory than the few bytes that it is written in."""
    headers = {"content-type": "application/json"}
    for value in ("[]", "{}", "1"):
        content = '{"document":{"x":[' + ",".join([value] * 1_000_001) + "]}}"
        response = client.post("/api/explain", content=content, headers=headers)
        assert response.status_code == 413
        assert "1,000,000 values" in response.json()["error"]["message"]


def test_an_answer_that_is_too_large() -> None:
    most = worker.MOST_ANSWER_BYTES
    assert worker._bounded(Answer(200, bytes(most))).status == 200
    given = worker._bounded(Answer(200, bytes(most + 1)))
    assert given.status == 413
    assert "the command line writes it to a file" in given.content.decode()


def test_whoever_does_not_read_is_let_go() -> None:
    with running(workers=1, send_seconds=0.3) as server, server.client() as client:
        asked = {"model": "llama-2-7b", "gpus": "h100:32", "global_batch": 1024}
        body = {**asked, "strategy": "pp=32,micro_batch=1"}
        plan = client.post("/api/predict", json=body).json()
        whole = len(client.post("/api/timeline", json={"document": plan}).content)
        for seconds in (1, 2, 4, 8, 16):  # on a busy machine it takes longer to be noticed
            read = read_late(server, "/api/timeline", {"document": plan}, seconds)
            if read < whole:
                break
        # What the system had taken over, and the end of the connection.
        assert 0 < read < whole
        assert client.post("/api/plan", json=SMALL).status_code == 200


def test_large_requests_together_are_bounded() -> None:
    with running(workers=1, most_bodies_bytes=3 * MIB) as server, server.client() as client:
        body = {"document": {"schema": "x" * 4 * MIB}}
        assert client.post("/api/explain", json=body).status_code == 429
        assert client.post("/api/plan", json=SMALL).status_code == 200


def test_a_request_that_does_not_arrive_is_given_up() -> None:
    with running(workers=1, body_seconds=0.2) as server:
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST /api/plan HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 408 " in connection.recv(65536)


@pytest.fixture(scope="module")
def busy() -> Iterator[Running]:
    with running(workers=1, most_waiting=1, search_seconds=120.0) as server:
        yield server


def test_too_many_are_sent_away(busy: Running) -> None:
    with busy.client() as client, ThreadPoolExecutor(2) as threads:
        wait_for_workers(busy)
        with client.stream("POST", "/api/plan/stream", json=LONG) as first:
            lines = first.iter_lines()  # whose end would close the connection
            next(lines)
            wait_for(lambda: busy.workers.working == 1)
            second = threads.submit(client.post, "/api/plan", json=SMALL)
            wait_for(lambda: busy.workers.waiting == 1)
            third = client.post("/api/plan", json=SMALL)
            assert third.status_code == 429
            assert "try again" in third.json()["error"]["message"]
        # The first has left: its turn is over, and the second has its answer.
        assert second.result(60).status_code == 200


def _leave_plan(server: Running) -> None:
    with sent(server, "/api/plan", LONG):
        wait_for(lambda: server.workers.working == 1)


def _leave_stream(server: Running) -> None:
    with server.client() as client, client.stream("POST", "/api/plan/stream", json=LONG) as events:
        lines = events.iter_lines()
        while '"phase":"front"' not in next(lines):
            pass
        assert server.workers.working == 1


@pytest.mark.parametrize("leave", [_leave_plan, _leave_stream])
def test_whoever_leaves_ends_the_search(busy: Running, leave: Callable[[Running], None]) -> None:
    wait_for_workers(busy)
    before = pids(busy)
    leave(busy)
    wait_for(lambda: busy.workers.asked == 0)
    wait_for(lambda: not any(map(is_alive, before)))
    wait_for_workers(busy)
    assert not before & pids(busy)
    with busy.client() as client:
        assert client.post("/api/plan", json=SMALL).status_code == 200


def test_whoever_waits_may_leave(busy: Running) -> None:
    wait_for_workers(busy)
    before = pids(busy)
    with busy.client() as client, client.stream("POST", "/api/plan/stream", json=LONG) as first:
        lines = first.iter_lines()
        next(lines)
        wait_for(lambda: busy.workers.working == 1)
        with sent(busy, "/api/plan", SMALL):
            wait_for(lambda: busy.workers.waiting == 1)
        wait_for(lambda: busy.workers.waiting == 0)
        assert busy.workers.working == 1
        assert pids(busy) == before
    wait_for(lambda: busy.workers.asked == 0)


def test_a_search_that_takes_too_long() -> None:
    with running(workers=1, search_seconds=0.5) as server, server.client() as client:
        wait_for_workers(server)
        before = pids(server)
        response = client.post("/api/plan", json=LONG)
        assert response.status_code == 504
        assert "longer than 0.5 s" in response.json()["error"]["message"]
        wait_for(lambda: not any(map(is_alive, before)))
        with client.stream("POST", "/api/plan/stream", json=LONG) as streamed:
            lines = [line for line in streamed.iter_lines() if line]
        assert lines[-2] == "event: error"
        assert '"status": 504' in lines[-1]


def test_a_worker_that_dies_is_replaced() -> None:
    with running(workers=1) as server, server.client() as client, ThreadPoolExecutor(1) as threads:
        wait_for_workers(server)
        asked = threads.submit(client.post, "/api/plan", json=LONG)
        wait_for(lambda: server.workers.working == 1)
        for worker in list(server.workers.all):
            worker.process.kill()
        assert asked.result(60).status_code == 503
        assert client.post("/api/plan", json=SMALL).status_code == 200


def test_nothing_is_left_when_the_server_ends() -> None:
    with running() as server:
        wait_for_workers(server)
        left = pids(server)
    wait_for(lambda: not any(map(is_alive, left)))
