"""The files of the page: all of them are known at the start, so that no path leads elsewhere."""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from astrarium.value import Value

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
HASHED: Final = "assets/"  # names there hold a hash of their content
FOREVER: Final = "public, max-age=31536000, immutable"
LEAST_COMPRESSED: Final = 512  # bytes; below, gzip adds more than it saves
TEXTS: Final = ("text/", "application/javascript", "application/json", "image/svg")


class File(Value, frozen=True):
    content: bytes
    compressed: bytes | None
    media_type: str
    etag: str
    cache: str

    def response(self, request: Request) -> Response:
        headers = {"etag": self.etag, "cache-control": self.cache, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        content = self.content
        if self.compressed and "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["content-encoding"] = self.compressed, "gzip"
        return Response(content, headers=headers, media_type=self.media_type)


def files(folder: Path = FOLDER, mark: str = "") -> Mapping[str, File]:
    """All files of the page by path; a `mark` on its first element says what it shows."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    found = {
        name: _file(name, path.read_bytes(), names.get(f"{name}.gz"))
        for name, path in names.items()
        if not (name.endswith(".gz") and name.removesuffix(".gz") in names)
    }
    if mark and INDEX in found:
        marked = found[INDEX].content.replace(b"<html ", f"<html {mark} ".encode(), 1)
        found[INDEX] = _file(INDEX, marked, None)
    return found


def _file(name: str, content: bytes, compressed: Path | None) -> File:
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if name.endswith(".js"):
        media_type = "text/javascript"  # also where the system's own table says otherwise
    packed = compressed.read_bytes() if compressed else None
    if packed is None and len(content) >= LEAST_COMPRESSED and media_type.startswith(TEXTS):
        packed = gzip.compress(content, 9, mtime=0)
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    cache = FOREVER if name.startswith(HASHED) else "no-cache"
    return File(content, packed, media_type, etag, cache)
