"""The program that a node runs, and its start: the two halves of an exported folder.

Training software gives a `RankProgram`. A launcher turns it into `LaunchFiles`: files that start it
on every node, and the command that the user types. `on_rocm` adapts a program to AMD's GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Final

from msgspec import field

from astrarium.plans.job import Job
from astrarium.value import Value

Files = Mapping[str, str]  # name, relative to the folder -> text
_TEMPLATES: Final = Path(__file__).parent / "software" / "data"


def filled(template: str, **values: object) -> str:
    """A template of `software/data` with its `${names}` replaced."""
    return Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)


class Data(Value, frozen=True):
    """Arguments that say what is read in training.

    `generated` needs no files. `own` replaces it if the environment variable `variable` is set;
    its words are those of a shell and may refer to other variables. `otherwise` says what is read
    without it.
    """

    generated: tuple[str, ...] = ()
    variable: str = ""
    own: tuple[str, ...] = ()
    otherwise: str = "Generated data"


class RankProgram(Value, frozen=True):
    """The program of every process.

    `script` is what follows `torchrun ...`, as words of a shell: `"$MEGATRON_PATH"/pretrain_gpt.py`
    or `-m torchtitan.train`. `arguments` are plain words. `variables` must be set by the user; each
    has a description. `checkpoints` are words of a shell that keep checkpoints and go on from the
    last one; `smoke` are arguments that make a short try of the run. Scripts hand what they are
    given themselves on, behind all arguments.
    """

    software: str  # with its version: "Megatron-LM 0.19.2"
    script: str
    arguments: tuple[str, ...] = ()
    data: Data = field(default_factory=Data)
    checkpoints: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()
    files: Files = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # what must be installed or at hand, in words
    notes: tuple[str, ...] = ()  # what else the user should know, a sentence each


class LaunchFiles(Value, frozen=True):
    """Files that start a program, and the command to type in their folder."""

    files: Files
    command: str
    where: str = ""  # on which machine it is typed, in words: "on every node"
    notes: tuple[str, ...] = ()


# Plans for AMD's GPUs. Left out is what AMD's own launch scripts switch off (ROCm/Megatron-LM,
# examples/llama/train_llama3.sh) or what PyTorch does not have on ROCm.
VENDOR: Final = "AMD"
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
    return any(group.pool.gpu.vendor == VENDOR for group in job.nodes)


def on_rocm(job: Job, program: RankProgram) -> RankProgram:
    """The program as ROCm runs it; unchanged on other GPUs."""
    if not on_amd(job):
        return program
    environment = {name: v for name, v in program.environment.items() if name not in CUDA_ONLY}
    return replace(program, environment=environment, needs=(*program.needs, BUILDS))
