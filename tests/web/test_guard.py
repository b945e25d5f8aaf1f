"""Who may ask: no other site, under no other name, beyond the loopback with a token only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from web_server import SMALL, Running, running, wait_for

from astrarium.web import server as listening

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(host="0.0.0.0", token=TOKEN, workers=1) as server:
        yield server


def port(server: Running) -> str:
    return server.address.rpartition(":")[2]


def test_other_origins_are_refused(server: Running, client: httpx.Client) -> None:
    own = f"http://127.0.0.1:{port(server)}"
    others = ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1.evil.example"]
    others += ["http://[", "", "//", "http://[::1", "x" * 5000]
    for origin in others:
        response = client.post("/api/plan", json=SMALL, headers={"origin": origin})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
    assert client.post("/api/plan", json=SMALL, headers={"origin": own}).status_code == 200
    headers = {"sec-fetch-site": "cross-site"}
    assert client.post("/api/plan", json=SMALL, headers=headers).status_code == 403
    assert client.get("/api/catalog", headers=headers).status_code == 403
    preflight = client.options("/api/plan", headers={"origin": others[0]})
    assert preflight.status_code == 403


def test_a_form_of_another_site_is_no_request(client: httpx.Client) -> None:
    headers = {"content-type": "text/plain"}
    response = client.post("/api/plan", content=b'{"model": "gpt2"}', headers=headers)
    assert response.status_code == 422


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil", "", "@"])
def test_other_names_are_refused(client: httpx.Client, host: str) -> None:
    assert client.get("/api/health", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]:8000", "LOCALHOST"])
def test_names_of_the_loopback(client: httpx.Client, host: str) -> None:
    assert client.get("/api/health", headers={"host": host}).status_code == 200


def test_a_token_is_needed(guarded: Running) -> None:
    with guarded.client() as client:
        for path in ("/", "/api/health", "/openapi.json"):
            response = client.get(path)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.post("/api/plan", json=SMALL).status_code == 401
        for wrong in ("Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
            headers = {b"authorization": wrong.encode()}
            assert client.get("/api/health", headers=headers).status_code == 401
        assert client.get("/api/health?token=wrong").status_code == 401
        right = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/health", headers=right).status_code == 200
        assert client.post("/api/plan", json=SMALL, headers=right).status_code == 200


def test_a_link_with_the_token_gives_a_cookie(guarded: Running) -> None:
    with guarded.client() as client:
        response = client.get(f"/?token={TOKEN}&x=1")
        assert response.status_code == 303
        assert response.headers["location"] == "/?x=1"
        cookie = response.headers["set-cookie"].lower()
        assert "samesite=strict" in cookie
        assert "httponly" in cookie
        assert client.get("/api/health").status_code == 200
        headers = {"origin": "http://evil.example"}
        assert client.post("/api/plan", json=SMALL, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/assets/../../app.py",
        "/assets/%2e%2e/%2e%2e/settings.py",
        "//etc/passwd",
        "/%00",
        "/etc/passwd",
        "/..\\app.py",
    ],
)
def test_no_path_leads_out_of_the_page(server: Running, path: str) -> None:
    with server.client() as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())
        response = client.send(request)
        assert response.status_code == 404
        assert set(response.json()) == {"error"}


def test_headers_keep_a_browser_careful(client: httpx.Client) -> None:
    for path in ("/", "/api/health", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    assert client.get("/api/health").headers["cache-control"] == "no-store"


def test_who_opens_the_page_without_the_token_is_told_in_words(guarded: Running) -> None:
    with guarded.client() as client:
        page = client.get("/", headers={"accept": "text/html,*/*"})
        assert page.status_code == 401
        assert page.headers["content-type"].startswith("text/html")
        assert "open the address that the server printed" in page.text
        assert "{" not in page.text
        assert client.get("/api/catalog").json()["error"]["message"]
    own = {"host": "evil.example<script>", "accept": "text/html"}
    with running(workers=1) as server, server.client() as client:
        refused = client.get("/", headers=own)
        assert refused.status_code in (400, 403)
        assert "<script>" not in refused.text


def test_half_a_request_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEADER_SECONDS", 0.3)
    with running(workers=1) as server:
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"):
            with socket.create_connection(("127.0.0.1", int(port(server))), timeout=20) as half:
                half.sendall(sent)
                with suppress(ConnectionResetError):
                    assert half.recv(1) == b""  # closed by the server


def test_half_open_connections_do_not_starve_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MOST_HALF_OPEN", 8)
    with running(workers=1) as server, ExitStack() as opened, server.client() as client:
        address = ("127.0.0.1", int(port(server)))
        for _ in range(40):
            opened.enter_context(socket.create_connection(address, timeout=20))
        wait_for(lambda: len(listening.ImpatientProtocol.half_open) <= 8)
        assert client.get("/api/health").status_code == 200
