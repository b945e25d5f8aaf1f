"""An answer as it is sent: bytes, made by a worker; the server itself never reads a document."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import to_builtins

from astrarium.value import Value, replace

Body = Mapping[str, Any]
IN_FORM: Final = "in_form"  # in a body: the message is for the form of the page
JSON_TYPE: Final = "application/json"
ZIP_TYPE: Final = "application/zip"
HTML_TYPE: Final = "text/html; charset=utf-8"
OK, NOTHING_FEASIBLE, REFUSED, FAILED = 200, 409, 422, 500
LEAST_COMPRESSED: Final = 2**19  # bytes; below, a connection to the same machine is faster


class Answer(Value, frozen=True):
    status: int
    content: bytes
    media_type: str = JSON_TYPE
    encoding: str = ""  # of the content: gzip, or none


def compressed(given: Answer, body: Body, least: int = LEAST_COMPRESSED) -> Answer:
    """The answer, compressed if the client accepts gzip and it is large enough."""
    if not body.get("gzip") or len(given.content) < least:
        return given
    return replace(given, content=gzip.compress(given.content, 1, mtime=0), encoding="gzip")


def encoded(data: Any) -> bytes:  # noqa: ANN401  any JSON value
    return json.dumps(to_builtins(data), allow_nan=False, separators=(",", ":")).encode()


def problem(
    status: int, message: str, field: str | None = None, more: Mapping[str, Any] | None = None
) -> Answer:
    """An error as the API reports it."""
    content: Body = {"message": message, "field": field, "repairs": [], "asks": []}
    return Answer(status, encoded({"error": content, **(more or {})}))
