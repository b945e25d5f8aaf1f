"""SkyPilot 0.14.1: a task as `sky launch` reads it, before any cloud is asked."""

from __future__ import annotations

import os
import tempfile
from typing import Any

# SkyPilot keeps its state under the home folder; a test must leave none behind.
HOME = tempfile.TemporaryDirectory()
os.environ["HOME"] = HOME.name
os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"

import sky  # noqa: E402
from upstream.drivers.serving import serve  # noqa: E402


def answer(request: dict[str, Any]) -> Any:
    """`config`: the mapping of one task."""
    task = sky.Task.from_yaml_config(request["config"])
    return task.to_yaml_config()


serve(answer)
