"""The files of the page: compressed, and kept by browsers as long as they may be."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from starlette.requests import Request

from astrarium.web.static import files

SCRIPT = b"console.log('one line of many');\n" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(b"<!doctype html><title>Page</title>")
    (tmp_path / "assets" / "index-4f2c.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "packed-11aa.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "packed-11aa.js.gz").write_bytes(gzip.compress(SCRIPT, 1, mtime=1))
    (tmp_path / "icon.svg").write_bytes(b"<svg/>")
    return tmp_path


def asking(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": pairs})


def test_all_files_are_known_and_packed_ones_are_not_listed_twice(folder: Path) -> None:
    names = ["assets/index-4f2c.js", "assets/packed-11aa.js", "icon.svg", "index.html"]
    assert list(files(folder)) == names
    assert files(folder / "nowhere") == {}


def test_texts_are_compressed_for_those_who_can_read_it(folder: Path) -> None:
    file = files(folder)["assets/index-4f2c.js"]
    packed = file.response(asking(accept_encoding="br, gzip"))
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert gzip.decompress(packed.body) == SCRIPT
    plain = file.response(asking())
    assert "content-encoding" not in plain.headers
    assert plain.body == SCRIPT
    assert plain.headers["content-type"].startswith("text/javascript")
    given = files(folder)["assets/packed-11aa.js"].response(asking(accept_encoding="gzip"))
    assert given.body == gzip.compress(SCRIPT, 1, mtime=1)


def test_names_with_a_hash_are_kept_for_ever_and_others_asked_for_again(folder: Path) -> None:
    found = files(folder)
    assert "immutable" in found["assets/index-4f2c.js"].response(asking()).headers["cache-control"]
    page = found["index.html"].response(asking())
    assert page.headers["cache-control"] == "no-cache"
    again = found["index.html"].response(asking(if_none_match=page.headers["etag"]))
    assert again.status_code == 304
    assert again.body == b""
