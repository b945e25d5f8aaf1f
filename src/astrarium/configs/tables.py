"""What readers know about other programs, as data: `data/NAME.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(name: str) -> Mapping[str, Any]:
    path = Path(__file__).parent / "data" / f"{name}.json"
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
