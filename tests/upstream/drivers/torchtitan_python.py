"""torchtitan 0.3.0: a module with a function that returns a configuration."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from upstream.drivers.serving import serve, without_kernels

without_kernels("torch._functorch.partitioners")  # brings the whole compiler

from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402


def answer(request: dict[str, Any]) -> Any:
    """`path` of the module, the `function` to call, and `world_size`."""
    module = Path(request["path"])
    sys.path.insert(0, str(module.parent))
    try:
        importlib.invalidate_caches()
        sys.modules.pop(module.stem, None)
        config = ConfigManager().parse_args(
            ["--module", module.stem, "--config", request["function"]]
        )
    finally:
        sys.path.remove(str(module.parent))
        sys.modules.pop(module.stem, None)
    dims = ParallelDims.from_config(config.parallelism, request["world_size"])
    names = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
    config.model_spec.model = None  # every tensor of every layer
    return {"config": config, "degrees": {name: getattr(dims, name) for name in names}}


serve(answer)
