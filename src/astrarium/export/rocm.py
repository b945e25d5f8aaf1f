"""Plans for AMD's GPUs: the ROCm builds that they need, and what these builds lack.

What is left out is what AMD's own launch scripts switch off (ROCm/Megatron-LM,
examples/llama/train_llama3.sh) or what PyTorch does not have on ROCm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from astrarium.export.program import RankProgram
from astrarium.plans.job import Job

VENDOR: Final = "AMD"
# Fused kernels that AMD's scripts switch off.
MEGATRON_OFF: Final = ("no-gradient-accumulation-fusion", "no-masked-softmax-fusion")
BRIDGE_OFF: Final[Mapping[str, object]] = {
    "model.gradient_accumulation_fusion": False,
    "model.masked_softmax_fusion": False,
}
# Expandable segments are an option of CUDA's allocator alone.
CUDA_ONLY: Final = ("PYTORCH_CUDA_ALLOC_CONF",)
BUILDS: Final = (
    "The ROCm builds of all of it, as the GPUs are AMD's: PyTorch for ROCm; where it is named here,"
    " Transformer Engine from github.com/ROCm/TransformerEngine and Apex from github.com/ROCm/apex."
    " AMD's image rocm/megatron-lm holds them."
)


def on_amd(job: Job) -> bool:
    """Whether GPUs of AMD are among those of the plan."""
    return any(group.pool.gpu.vendor == VENDOR for group in job.nodes)


def on_rocm(job: Job, program: RankProgram) -> RankProgram:
    """The program as ROCm runs it; unchanged on other GPUs."""
    if not on_amd(job):
        return program
    environment = {name: v for name, v in program.environment.items() if name not in CUDA_ONLY}
    return replace(program, environment=environment, needs=(*program.needs, BUILDS))
