"""What tables call GPUs, training programs and number formats, in the words of the project.

The rules are data: patterns tried in order on lower-case text, the first that matches wins.
A name that no rule knows is a reason not to predict the row, with the nearest known name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, TypeVar

from astrarium.catalog import Gpu, find_gpu
from astrarium.catalog.gpus import Dtype
from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.errors import InputError, did_you_mean
from astrarium.model.workload import Precision
from astrarium.validate.table import MeasuredRow

Meaning = TypeVar("Meaning")

# Remarks, counts, chassis and memory generations around the name of a GPU.
NOT_A_GPU: Final = r"\(.*?\)|^\s*\d+\s*x\s*|\b(?:dgx|hgx)\b|\bhbm\d\w*"
# Memory of a GPU as printed may differ so much from what the device reports, by units and by
# what the driver keeps (80 GB against 79.1 GiB), before it counts as another size.
SAME_MEMORY: Final = 0.1
GB: Final = 1e9
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Program:
    """A training program by what tables call it, and how it is usually launched.

    `tuned`: published runs switch on every overlap and whatever recomputation they need.
    `shards`: the ZeRO stage where nothing is said; `sequence`: whether tensor parallelism
    divides norms too; `balanced`: layers are dealt to stages by weight; `recompute`: what is
    recomputed where nothing is said.
    """

    pattern: str
    runtime: str
    tuned: bool = False
    shards: int = 0
    sequence: bool = False
    balanced: bool = False
    recompute: str = ""


PROGRAMS: Final = (
    # Megatron-Core as a library: its own kernels, or those of TransformerEngine.
    Program(
        r"(megatron|mcore).*(local|sdpa|(without|no|w/o)[ -]*(te\b|transformer ?engine|apex))",
        "megatron-local",
        sequence=True,
    ),
    Program(r"megatron.*\bci\b", "megatron", sequence=True),
    Program(r"nemo|megatron-?bridge|\bbridge\b", "megatron", True, 1, True),
    Program(r"megatron-?fsdp", "megatron", True, 3, True),
    Program(r"megatron.*(\+ *te\b|transformer ?engine)", "megatron", False, 1, True),
    Program(r"mcore|megatron[- ]core", "megatron", True, 1, True),
    Program(r"zero[- ]?bubble", "megatron", False, 0, True),
    # DeepSpeed; beside Megatron its pipeline runs Megatron's layers.
    Program(r"(megatron.*deepspeed|deepspeed.*megatron).*(zero|stage)[- ]*[23]", "deepspeed"),
    Program(r"megatron.*deepspeed|deepspeed.*megatron|deepspeed.*\b3d\b", "megatron-2021"),
    Program(r"ptd-?p|megatron(-lm)?[ -]?v?[12]\.", "megatron-2021"),
    Program(r"megatron|megascale|mindspeed|flagscale|megablocks", "megatron", True, 1, True),
    Program(r"aceso|superscaler|varuna|piper|alpa|merak|oobleck|neox", "megatron-2021"),
    # flash attention over kernels of torch or of their own.
    Program(r"nanotron|picotron", "nanotron", sequence=True, balanced=True),
    Program(r"internevo|internlm|paddle|llm\.c", "nanotron", shards=1, sequence=True),
    Program(r"torchtitan", "fsdp", shards=3, sequence=True, recompute="selective op"),
    Program(
        r"\bfsdp|fsdp\d?\b|llm-?foundry|composer|mosaic|torchtune|lit-?gpt|lightning|accelerate|"
        r"galvatron|olmo|pytorch|torch\b|thunder|axolotl|metaseq|fairs|colossal|vescale|gemini",
        "fsdp",
        shards=3,
        sequence=True,
    ),
    Program(
        r"deepspeed|\bzero\b|zero-?\d|bmtrain|transformers|hugging ?face|\bhf\b|llama-?factory",
        "deepspeed",
    ),
)
# Names for "did you mean".
KNOWN_PROGRAMS: Final = (
    "megatron-core",
    "megatron-lm",
    "megatron-bridge",
    "nemo",
    "megatron-deepspeed",
    "nanotron",
    "torchtitan",
    "llm-foundry",
    "fsdp",
    "deepspeed",
    "internevo",
)
# The attention kernel, where a table names it.
ATTENTION: Final = (
    (r"unfused|local|fused[ -]?softmax|eager|math|naive|vanilla", "unfused"),
    (r"flash[ -]?(attn|attention)?[- ]?3|\bte\b|cudnn|\bfused", "fused"),
    (r"flash|xformers|triton|efficient", "flash2"),
)
# torch chooses its attention kernel itself, flash-attention being one of several.
TORCH_ATTENTION: Final = r"sdpa|scaled[ _]dot"
FORCED_FLASH: Final = r"flash[ -]?(attn|attention)|fa2|forced"
# What flash attention does not run on, and sources from before Megatron had it.
OLD_GPUS: Final = r"(tesla[- ])?[pvt]\d"
OLD_YEARS: Final = r"(?:SC|20)(?:19|20|21|22)(?!\d)"
LOCAL: Final = "megatron-local"
PRECISIONS: Final = (
    # Four-bit recipes keep parts in 8 and 16 bits; published ones are no faster than 8-bit ones.
    (r"fp4|nvfp4|mxfp4", Precision.FP8),
    (r"fp8|float8|mxfp8|fp-8|e4m3", Precision.FP8),
    (r"bf16|bfloat16|bf-16", Precision.BF16),
    (r"fp16|float16|half|\bamp\b|mixed", Precision.FP16),
)
UNMODELLED_PRECISIONS: Final = r"fp32|float32|tf32|fp64|int8"


def resolve_gpu(text: str) -> Gpu:
    """The GPU type that a table means; a memory size of its own replaces the catalog's."""
    return _gpu(text)


@cache
def _gpu(text: str) -> Gpu:
    for candidate in _spellings(text):
        try:
            gpu = find_gpu(candidate)
        except InputError:
            continue
        return _with_memory(gpu, text)
    return find_gpu(text)  # raises, with the nearest name


def _spellings(text: str) -> list[str]:
    """The name as written, without remarks, then ever shorter beginnings of it."""
    bare = re.sub(NOT_A_GPU, " ", text, flags=re.IGNORECASE).strip()
    remarks = re.findall(r"\(([^)]*)\)", text)
    words = [word for word in re.split(r"[\s,_/-]+", bare) if word]
    shorter = ["-".join(words[:count]) for count in range(len(words), 0, -1)]
    cards = [f"{words[0]}-pcie"] if words and "pcie" in text.lower() else []
    named = [word for remark in remarks for word in re.split(r"[\s,]+", remark)]
    classes = [word.removesuffix("-class") for word in named]
    return [text, bare, *cards, *shorter, *classes]


def _with_memory(gpu: Gpu, text: str) -> Gpu:
    stated = re.search(r"(\d+(?:\.\d+)?)\s*gi?b?\b", text.lower())
    if stated is None or "gh200" in text.lower():
        return gpu
    size = float(stated[1])
    if abs(size * GIB / gpu.memory_bytes - 1) <= SAME_MEMORY or (
        abs(size * GB / gpu.memory_bytes - 1) <= SAME_MEMORY
    ):
        return gpu
    return replace(gpu, memory_bytes=round(size * GIB))


def resolve_program(row: MeasuredRow) -> tuple[Program, Runtime]:
    """The program of a row and its runtime, with the attention kernel the row names."""
    program = _program(row.framework)
    runtime = find_runtime(_runtime_name(program, row))
    attention = first_match(ATTENTION, row.attention_impl)
    if runtime.name == LOCAL and not re.search(FORCED_FLASH, row.attention_impl.lower()):
        attention = None
    if attention is not None and attention != runtime.attention:
        runtime = _with_attention(runtime.name, attention)
    return program, runtime


@cache
def _with_attention(runtime: str, attention: str) -> Runtime:
    return replace(find_runtime(runtime), attention=attention)


def _runtime_name(program: Program, row: MeasuredRow) -> str:
    """Megatron of the years before flash attention is told by its kernels or its GPUs.

    Attention by torch tells Megatron without TransformerEngine, which brings its own; so does one
    GPU, which nobody rents for a release's tables.
    """
    if program.runtime == "megatron" and not re.search(r"\bte\b|engine", row.framework.lower()):
        by_torch = re.search(TORCH_ATTENTION, row.attention_impl.lower())
        bare = row.num_gpus == 1 and re.search(r"core", row.framework.lower())
        if by_torch or bare:
            return LOCAL
    if program.runtime != "megatron" or re.search(r"core|nemo|bridge", row.framework.lower()):
        return program.runtime
    kernels = first_match(ATTENTION, row.attention_impl)
    old = re.match(OLD_GPUS, row.gpu.lower()) or re.search(OLD_YEARS, row.source)
    return "megatron-2021" if kernels == "unfused" or (old and kernels is None) else "megatron"


@cache
def _program(text: str) -> Program:
    if not text:
        raise InputError("framework is not stated")
    lowered = text.lower()
    for program in PROGRAMS:
        if re.search(program.pattern, lowered):
            return program
    known = ", ".join(KNOWN_PROGRAMS)
    hint = did_you_mean(text, KNOWN_PROGRAMS)
    raise InputError(f"unknown framework '{text}'{hint}; known are {known}")


def resolve_precision(text: str, gpu: Gpu) -> Precision:
    """The number format of the matrix products; where not stated, the GPU's usual 16 bits."""
    found: Precision | None = first_match(PRECISIONS, text)
    if found is None and text and re.search(UNMODELLED_PRECISIONS, text.lower()):
        raise InputError(f"precision {text} is not modelled")
    if found is None:
        found = Precision.BF16 if Dtype.BF16 in gpu.peak_flops else Precision.FP16
    if found.value not in gpu.peak_flops:
        raise InputError(f"{gpu.name} has no {found}")
    return found


def first_match(rules: tuple[tuple[str, Meaning], ...], text: str) -> Meaning | None:
    """What the first rule that matches says."""
    lowered = text.lower()
    return next((meaning for pattern, meaning in rules if re.search(pattern, lowered)), None)
