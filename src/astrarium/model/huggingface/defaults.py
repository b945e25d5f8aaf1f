"""Class defaults of transformers 5.22.2 for the keys that decide sizes, by `model_type`.

Spelled as in `config.ALIASES`. A null means that the value is derived: key/value heads equal the
heads, the head size is hidden / heads, the feed-forward width is 4 x hidden. `megatron_gpt` and
`vit_parallel` are types of our own, see `published`. Qwen's images have any size: 448 pixels, 256
tokens, are our guess. The head size of latent attention has no effect on sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

Defaults = Mapping[str, object]

_DATA: Final = Path(__file__).parent / "data" / "defaults.json"
_TABLES: Final[Mapping[str, Mapping[str, Defaults]]] = json.loads(_DATA.read_bytes())

DEFAULTS: Final = _TABLES["models"]
TOWERS: Final = _TABLES["towers"]  # the parts of models that see
PARTS: Final = _TABLES["parts"]  # sections of a config
