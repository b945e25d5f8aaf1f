"""SkyPilot 0.14.1: a task as `sky launch` reads it, before any cloud is asked."""

from __future__ import annotations

from typing import Any

import sky
from upstream.drivers.serving import serve


def answer(request: dict[str, Any]) -> Any:
    """`config`: the mapping of one task."""
    task = sky.Task.from_yaml_config(request["config"])
    return task.to_yaml_config()


serve(answer)
