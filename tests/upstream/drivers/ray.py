"""Ray Train 2.60: the scaling of a job."""

from __future__ import annotations

from typing import Any

from ray.train.v2.api.config import ScalingConfig
from upstream.drivers.serving import serve


def answer(request: dict[str, Any]) -> Any:
    """`config`: the arguments of ScalingConfig."""
    scaling = ScalingConfig(**request["config"])
    return {**vars(scaling), "total_resources": scaling.total_resources}


serve(answer)
