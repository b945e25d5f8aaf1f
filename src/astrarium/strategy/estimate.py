"""What the stages of a strategy take: bytes by cause, seconds, and the links between them.

Parts of a plan, in memory as in its file: the fields are the keys of the document.
"""

from __future__ import annotations

from astrarium.strategy.types import Reach
from astrarium.value import Value

MEMORY_KEYS = ("weights", "gradients", "optimizer", "activations", "workspace", "reserved")


class StageMemory(Value, frozen=True):
    """Bytes on each GPU of a pipeline stage; the causes add up to the peak."""

    stage: int
    gpu: str
    peak_bytes: float
    capacity_bytes: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float
    reserved: float

    @property
    def by_cause(self) -> dict[str, float]:
        return {cause: getattr(self, cause) for cause in MEMORY_KEYS}

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def free_bytes(self) -> float:
        return self.capacity_bytes - self.peak_bytes

    @property
    def share(self) -> float:
        return self.peak_bytes / self.capacity_bytes


class StageSeconds(Value, frozen=True):
    """One pipeline stage: the passes of one micro-batch, what is once an iteration, its link.

    `chunk_*` are the parts of the passes on each virtual stage. `model_seconds` is a micro-batch
    through the whole model, both passes, had this stage's GPUs all the layers. `send_seconds` is
    one transfer to the next stage, one direction; with virtual stages the last one hands back to
    the first. `link` is how far that goes, `link_pools` between which pools. `busy_share` is the
    part of the iteration that the stage does not wait for others.
    """

    stage: int
    gpu: str
    pools: dict[str, int]
    forward_seconds: float
    backward_seconds: float
    chunk_forward_seconds: tuple[float, ...]
    chunk_backward_seconds: tuple[float, ...]
    after_seconds: float
    model_seconds: float
    send_seconds: float
    link: Reach
    link_pools: tuple[str, ...]
    busy_share: float

    @property
    def pass_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds
