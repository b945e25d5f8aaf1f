"""Lists of overrides, recognised without loading what reads them."""

from __future__ import annotations

import re
from typing import Final

from astrarium.configs.tables import table

OVERRIDE: Final = re.compile(rf"\+*(?:{'|'.join(table('names')['bridge_sections'])})(?:\.\w+)*=")


def is_overrides(text: str) -> bool:
    """Whether a text is a list of overrides such as model.tensor_model_parallel_size=8."""
    return bool(OVERRIDE.match(text.strip())) or bool(
        re.search(rf"(?:^|\s){OVERRIDE.pattern}", text)
    )
