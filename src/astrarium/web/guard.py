"""Checks of requests: token, own origin, own name, size.

A page of another site can reach a server on this machine through the browser, under its own name
(cross-origin) or under one that it lets point here (DNS rebinding). So the Host must be one that
the server was started for, and the Origin, where there is one, the server's own.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from html import escape
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrarium.web.reply import problem
from astrarium.web.settings import LOOPBACK, ServerSettings

COOKIE: Final = "astrarium_token"
BEARER: Final = "bearer "
TOKEN: Final = "token"
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; worker-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# Requests that carry a plan document may be larger than others.
WITH_DOCUMENT: Final = ("explain", "compare", "timeline", "trace", "export", "targets")
ANYWHERE: Final = ("0.0.0.0", "::")
PIECE: Final = 2**18  # bytes of an answer that are sent at once
LARGE: Final = 2**20  # bytes of a request; one of these is read at a time


def error_response(status: int, message: str, scope: Scope | None = None) -> Response:
    """An error from before any worker is asked; as a page if the client opens one."""
    if scope and scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", ""):
        title = "<title>Astrarium</title><h1>Astrarium</h1>"
        text = f"<!doctype html><html lang=en>{title}<p>{escape(message)}</p></html>"
        return Response(text, status, media_type="text/html")
    given = problem(status, message)
    return Response(given.content, given.status, media_type=given.media_type)


class Guard:
    """Lets through what may be asked, with the headers that keep a browser careful."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/api"):
                    headers.setdefault("cache-control", "no-store")
            for part in _parts(message):
                await _sent(send, part, self.settings.send_seconds)

        refused = self._refused(scope)
        # A client that does not read loses its connection: its answer would stay in memory.
        with suppress(_SlowError):
            await (refused or self.app)(scope, receive, send_guarded)

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own_name(host):
            wrong = f"Host '{host}' is not this server's name; use the address that it printed"
            return error_response(403, wrong, scope)
        origin = headers.get("origin")
        if origin is not None and _place(origin) != host.lower():
            return error_response(403, f"requests from another site ('{origin}') are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and (
            scope["method"] not in ("GET", "HEAD") or scope["path"].startswith("/api")
        ):
            return error_response(403, "requests from another site are refused")
        return self._without_token(scope, headers)

    def _is_own_name(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "") if _is_host(host) else ""
        if not name:
            return False
        if self.settings.is_loopback:
            return name in LOOPBACK
        # Other hosts get no answer without the token, which no other site has.
        return name in (*LOOPBACK, self.settings.host.lower()) or (
            self.settings.host in ANYWHERE or _is_address(name)
        )

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse clients without the token; a link that contains it sets a cookie."""
        token = self.settings.token
        if token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        in_link = [value for name, value in query if name == TOKEN]
        if scope["method"] == "GET" and any(_is_same(one, token) for one in in_link):
            rest = urlencode([pair for pair in query if pair[0] != TOKEN])
            response = RedirectResponse(f"/{'?' + rest if rest else ''}", 303)
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
            return response
        given = headers.get("authorization", "")
        if given.lower().startswith(BEARER) and _is_same(given[len(BEARER) :].strip(), token):
            return None
        if _is_same(_cookie(headers), token):
            return None
        refused = error_response(
            401, "a token is needed: open the address that the server printed", scope
        )
        refused.headers["www-authenticate"] = "Bearer"
        return refused


class _SlowError(Exception):
    """A client does not read what it asked for."""


async def _sent(send: Send, part: Message, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await send(part)
    except TimeoutError:
        raise _SlowError from None


def _parts(message: Message) -> Iterator[Message]:
    """A body in pieces: of each the system takes over what the client has room for."""
    body = message.get("body", b"")
    for start in range(0, len(body) - PIECE, PIECE):
        yield {"type": message["type"], "body": body[start : start + PIECE], "more_body": True}
    rest = max(0, -(-len(body) // PIECE) - 1) * PIECE
    yield {**message, "body": body[rest:]} if rest else message


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_host(text: str) -> bool:
    try:
        split = urlsplit(f"//{text}")
        return split.netloc == text and split.username is None and split.port != 0
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class BodyLimit:
    """Reads a request whole, within its size, its time and the memory for all of them."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings
        self.held = 0  # bytes of all requests under way
        self._one_large = asyncio.Semaphore(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        settings, name = self.settings, scope["path"].rpartition("/")[2]
        most = settings.most_document_bytes if name in WITH_DOCUMENT else settings.most_body_bytes
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(settings.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    part, more = message.get("body", b""), message.get("more_body", False)
                    parts.append(part)
                    size += len(part)
                    self.held += len(part)
                    if size > most or self.held > settings.most_bodies_bytes:
                        break
            body = b"".join(parts)
            refused = self._refused(body, most)
            if refused is not None:
                await refused(scope, receive, send)
                return
            async with self._one_large if size > LARGE else nullcontext():
                await self.app(scope, _replayed(body, receive), send)
        except TimeoutError:
            await error_response(
                408, f"the request did not arrive within {settings.body_seconds:g} s"
            )(scope, receive, send)
        finally:
            self.held -= size

    def _refused(self, body: bytes, most: int) -> Response | None:
        most_values = self.settings.most_values
        if len(body) > most:
            return error_response(413, f"the request is larger than {most:,} bytes, the limit")
        # Every value but the first of a list or object stands behind a comma.
        if sum(map(body.count, (b",", b"[", b"{"))) > most_values:
            return error_response(
                413, f"the request holds more than {most_values:,} values, the limit"
            )
        if self.held > self.settings.most_bodies_bytes:
            return error_response(429, "too many large requests at once; try again in a moment")
        return None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once, as a whole, and then what comes after it: the news that the client left."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
