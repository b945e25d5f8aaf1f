"""The question that the page opens with, and its answer, kept from one start to the next.

What is kept was found by the same files of the package, with the same catalog, on the same day: a
start does not wait for a search that would find it again. Whoever has no folder to keep it in
waits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from astrarium.catalog import overrides
from astrarium.web.reply import IN_FORM

EXAMPLE: Final = {
    "model": "llama-2-70b",
    "gpus": "h100:64",
    "seq_length": 4096,
    "global_batch": 1024,
    "tokens": "2T",
    "objective": "throughput",
    "mode": "exact",
    "precision": "bf16",
    "top": 10,
}
PACKAGE: Final = Path(__file__).parents[1]


def is_example(body: Mapping[str, Any]) -> bool:
    """Whether the form asks it: a row of GPUs without a price, and all else as texts."""
    asked = {name: str(value) for name, value in body.items() if name not in ("pools", IN_FORM)}
    rows = body.get("pools") or ()
    if rows and all(row.get("usd_per_gpu_hour") is None for row in rows):
        asked["gpus"] = ",".join(f"{row['type']}:{row['count']}" for row in rows)
    return asked == {name: str(value) for name, value in EXAMPLE.items()}


def kept() -> bytes | None:
    """The answer, if it is still what would be found."""
    with suppress(OSError, ValueError):
        key, _, content = _file().read_bytes().partition(b"\n")
        if key == _key():
            return content
    return None


def keep(content: bytes) -> None:
    """Keep the answer for the next start."""
    with suppress(OSError, ValueError):
        path = _file()
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.{os.getpid()}")
        whole.write_bytes(_key() + b"\n" + content)
        whole.replace(path)


def _file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "astrarium" / "example.json"


def _key() -> bytes:
    """Changes with everything that the answer depends on."""
    parts = [sys.version, str(date.today()), os.environ.get("SOURCE_DATE_EPOCH", "")]
    parts += map(str, overrides.stamps())
    parts += sorted(_stamps(str(PACKAGE)))
    return sha256("\0".join(parts).encode()).hexdigest().encode()


def _stamps(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in ("__pycache__", "static"):
                    yield from _stamps(entry.path)
            else:
                state = entry.stat()
                yield f"{entry.path} {state.st_size} {state.st_mtime_ns}"
