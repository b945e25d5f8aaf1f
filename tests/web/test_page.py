"""The built page in the package: is it of these sources, small, and free of other sites?"""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from astrarium.web.example import EXAMPLE
from astrarium.web.static import FOLDER

SOURCES: Final = Path(__file__).parents[2] / "web"
READ: Final = ("index.html", "package-lock.json", "public", "src")
CONFIGS: Final = re.compile(r"vite\.|tsconfig|package\.json")
MOST_BYTES: Final = 80_000
BUILT: Final = sorted(path for path in FOLDER.rglob("*") if path.is_file())


def digest_of_sources() -> str:
    """As web/vite.sources.ts does it."""
    tops = [path for path in SOURCES.iterdir() if path.name in READ or CONFIGS.match(path.name)]
    files = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))]
    paths = {path.relative_to(SOURCES).as_posix(): path for path in files if path.is_file()}
    digest = sha256()
    for name in sorted(paths):
        content = paths[name].read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def test_built_of_these_sources() -> None:
    stamp = json.loads((FOLDER / "build.json").read_text(encoding="utf-8"))
    assert stamp["sources"] == digest_of_sources(), "run `npm run build` in web/"


def test_opens_on_the_example_of_the_catalog() -> None:
    """The page does not wait for the catalog to ask for its first plan."""
    example = json.loads((SOURCES / "src/page/example.json").read_text(encoding="utf-8"))
    assert example == EXAMPLE


def test_weight() -> None:
    """Of a visit; the script of reports is another file."""
    visited = [path for path in BUILT if not path.name.startswith("report.")]
    assert sum(len(gzip.compress(path.read_bytes())) for path in visited) < MOST_BYTES


@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.name)
def test_asks_no_other_site(path: Path) -> None:
    addresses = set(re.findall(r"https?://[\w.-]+", path.read_text(encoding="utf-8")))
    assert addresses <= {"http://www.w3.org"}  # namespaces, which are only names
