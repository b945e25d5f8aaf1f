"""Names of GPUs, training programs and number formats in tables, in the words of the project.

The rules are data: patterns tried in order on lower-case text, the first that matches wins.
A name that no rule knows is a reason not to predict the row, with the nearest known name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from astrarium.catalog import Gpu, find_gpu
from astrarium.catalog.gpus import Dtype
from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.errors import InputError, did_you_mean
from astrarium.model.workload import Precision
from astrarium.validate.readings import corrections_of
from astrarium.validate.table import MeasuredRow
from astrarium.value import Value

Meaning = TypeVar("Meaning")

# What stands between the names of several GPU types.
BETWEEN_GPUS: Final = r"\s*[+,/&;]\s*|\s+(?:and|with|plus)\s+"
# Remarks, counts, chassis and memory generations around the name of a GPU.
NOT_A_GPU: Final = r"\(.*?\)|^\s*\d+\s*x\s*|\bx\s*\d+\s*$|\b(?:dgx|hgx)\b|\bhbm\d\w*"
# H100 boards with HBM2e, on which torchtitan's figures were taken. Bandwidth as published for such
# boards (arXiv 2604.11391), power limit as torchtitan's page of 2024-12 states it.
HBM2E: Final = r"h100.*hbm2e"
HBM2E_BANDWIDTH: Final = 2410e9
HBM2E_WATTS: Final = 500.0
POWER_LIMIT: Final = r"\b(\d{2,4}) ?w(?:atts?)?\b"  # as `nvidia-smi --power-limit` sets it
# Memory of a GPU as printed may differ so much from what the device reports, by units and by
# what the driver keeps (80 GB against 79.1 GiB), before it counts as another size.
SAME_MEMORY: Final = 0.1
GB: Final = 1e9
GIB: Final = 2**30


class TrainingProgram(Value, frozen=True):
    """A training program by what tables call it, and how it is usually launched.

    `tuned`: published runs switch on every overlap and all recomputation they need.
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
    reason: str = ""


class _Programs(Value, frozen=True):
    """`programs` in the order in which they are tried; `known` are names for "did you mean"."""

    known: tuple[str, ...]
    programs: tuple[TrainingProgram, ...]


PROGRAMS: Final = msgspec.json.decode(
    (Path(__file__).parent / "data" / "programs.json").read_bytes(), type=_Programs
)
# The attention kernel, where a table names it.
ATTENTION: Final = (
    (
        r"unfused|\b(no|not|non|without|w/o)[ -]+(fused|flash)|local|fused[ -]?softmax|eager|"
        r"math|naive|vanilla",
        "unfused",
    ),
    (r"flash[ -]?(attn|attention)?[- ]?3|\bte\b|cudnn|\bfused", "fused"),
    (r"flash|xformers|triton|efficient", "flash2"),
)
# torch chooses its attention kernel itself, flash-attention being one of several.
TORCH_ATTENTION: Final = r"sdpa|scaled[ _]dot"
FORCED_FLASH: Final = r"flash[ -]?(attn|attention)|fa2|forced"


class Statement(Value, frozen=True):
    """Words of a row, and in what its runtime then differs from its program's usual.

    `runtimes` is a pattern of the runtimes that the words mean something to.
    """

    pattern: str
    constants: tuple[tuple[str, object], ...] = ()
    fuses: frozenset[str] = frozenset()
    leaves_plain: frozenset[str] = frozenset()
    runtimes: str = ""


FSDP_FAMILY: Final = r"^(fsdp|torchtitan|llm-foundry|deepspeed$)"
EIGHT_BIT_ADAM: Final = r"8-bit (bnb |bitsandbytes )?adam"
PURE_HALF: Final = r"pure[ -]?(bf16|fp16|half)"
CHUNKED_LOSS: Final = r"chunked (ce\b|cross|loss)|loss in \d+ chunks"
STATED: Final = (
    # The recipe of GPT-OSS leaves rotary embedding and loss to plain kernels.
    Statement(
        r"gpt[- _]?oss",
        leaves_plain=frozenset({"rotary", "cross_entropy"}),
        runtimes=r"^(megatron|nemo)",
    ),
    Statement(r"\bfused (ce|cross[- ]entropy|loss)\b", fuses=frozenset({"cross_entropy"})),
    # Experts of a fixed size go with a plain all-to-all.
    Statement(
        r"token ?drop|capacity factor|qwen3.*\b25\.0\d\b|tokens sent all to all",
        (("dispatch", "copy"),),
    ),
    # ZeRO inside nodes only.
    Statement(
        r"\bzero[- ]?(stage[- ]?)?\d?( sharded)? over \d+ ranks", (("broadcast_seconds", 0.0),)
    ),
    Statement(EIGHT_BIT_ADAM, (("optimizer_bytes", 6),)),
    # FSDP's policy of reducing in fp32, which is llm-foundry's DEFAULT.
    Statement(
        r"mixed_precision ?= ?default|reduce_dtype ?= ?(fp|float)32",
        (("reduced_gradient_bytes", 4), ("tied_gradient_bytes", 4)),
    ),
    # Training without fp32 at all, as torchtune's: under FSDP the weights are the optimizer's own.
    Statement(PURE_HALF, (("gradient_bytes", 2), ("optimizer_bytes", 4))),
    # The update reads a gradient, and reads and writes the weight and both moments.
    Statement(
        PURE_HALF, (("optimizer_bytes", 6), ("optimizer_moved_bytes", 14)), runtimes=FSDP_FAMILY
    ),
    Statement(f"{PURE_HALF}.*{EIGHT_BIT_ADAM}", (("optimizer_bytes", 4),), runtimes=FSDP_FAMILY),
    # Each gradient is used as soon as it is there, and freed.
    Statement(r"optimizer in backward", (("gradient_bytes", 0),), runtimes=FSDP_FAMILY),
    Statement(r"activation offload", (("checkpoints_on_host", True),), runtimes=FSDP_FAMILY),
    # The head and its loss go over an eighth of the tokens at a time (torchtitan, torchtune).
    Statement(CHUNKED_LOSS, (("logit_bytes", 1.5),), runtimes=FSDP_FAMILY),
    Statement(CHUNKED_LOSS, (("logit_bytes", 0.5),), runtimes=r"^torchtitan$"),
    # torchtune compiles the loss, but not the fp32 copy of the logits; their parts for a loss in
    # chunks are made before it, all of them.
    Statement(r"^torchtune", (("logit_bytes", 10),), runtimes=r"^torchtitan$"),
    Statement(rf"^torchtune.*({CHUNKED_LOSS})", (("logit_bytes", 2.5),), runtimes=r"^torchtitan$"),
)
# Words before and after a statement that turn it round.
DENIED_BEFORE: Final = r"(\b(no|not|non|never|without|disabled?)|w/o)[ -]*(a |the )?$"
DENIED_AFTER: Final = r"^( is| was|:| ?=)? ?(off|false|disabled|not)\b"
# What flash attention does not run on.
OLD_GPUS: Final = r"(\d+ ?x ?)?(nvidia[- ])?(tesla[- ])?[pvt]\d"
LOCAL: Final = "megatron-local"
# Dense layers run as CUDA graphs; capturing those with experts failed in megatron-core 0.19.2.
GRAPHS: Final = "megatron-graphs"
CAPTURED: Final = r"cuda[- ]?graphs?"
# What tells that torchtitan compiled its layers: the word, or products in 8 bits and pipelined
# tensor parallelism, which it offers with torch.compile only.
COMPILED: Final = r"compile|fp8|float8|fp4|async[- ]?tp"
OLD: Final = "megatron-2021"
PRECISIONS: Final = (
    # Four-bit recipes keep parts in 8 and 16 bits; published ones are no faster than 8-bit ones.
    (r"fp4|nvfp4|mxfp4", Precision.FP4),
    (r"fp8|float8|mxfp8|fp-8|e4m3", Precision.FP8),
    (r"bf16|bfloat16|bf-16", Precision.BF16),
    (r"fp16|float16|half|\bamp\b|mixed", Precision.FP16),
)
# A number format in the name of a model or GPU.
NAMED_PRECISION: Final = r"(?<![a-z0-9])(?:mx|nv)?(?:fp|float|bf)-?(?:4|8|16|32)(?![0-9])"
UNMODELLED_PRECISIONS: Final = r"fp32|float32|tf32|fp64|int8"


@cache
def resolve_gpu(text: str) -> Gpu:
    """The GPU type that a table means; a memory size of its own replaces the catalog's."""
    several = _types_named(text)
    if len(several) > 1:
        raise InputError(
            f"a row on GPUs of several types ({', '.join(several)}) says nothing of its stages;"
            " `astrarium predict --gpus` prices one with several pools"
        )
    for candidate in _spellings(text):
        try:
            gpu = find_gpu(candidate)
        except InputError:
            continue
        return _with_memory(_variant(gpu, text), text)
    return find_gpu(text)  # raises, with the nearest name


def _types_named(text: str) -> list[str]:
    """The GPU types of a list, none if it is not a list; a part that is no GPU says nothing."""
    bare = re.sub(r"\(.*?\)", " ", text)
    named: dict[str, None] = {}
    parts = re.split(BETWEEN_GPUS, bare, flags=re.IGNORECASE)
    for part in parts if len(parts) > 1 else ():
        for candidate in _spellings(part.strip()):
            try:
                gpu = _with_memory(find_gpu(candidate), part)
            except InputError:
                continue
            named[f"{gpu.name} of {gpu.memory_bytes / GIB:.0f} GiB"] = None
            break
    return list(named)


def _variant(gpu: Gpu, text: str) -> Gpu:
    """The board of a type that the text means, where it differs from the catalog's."""
    if re.search(HBM2E, text.lower()):
        gpu = replace(
            gpu,
            name=f"{gpu.name}-HBM2e",
            memory_bandwidth=HBM2E_BANDWIDTH,
            tdp_watts=HBM2E_WATTS,
            measured_matmul_flops={},
        )
    limit = re.search(POWER_LIMIT, text.lower())
    if limit is None or float(limit[1]) >= gpu.tdp_watts:
        return gpu
    name = f"{gpu.name}-{limit[1]}W"
    return replace(gpu, name=name, tdp_watts=float(limit[1]), measured_matmul_flops={})


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


def resolve_program(row: MeasuredRow) -> tuple[TrainingProgram, Runtime]:
    """The program of a row and its runtime, with the attention kernel the row names."""
    program = _program(row.framework)
    runtime = find_runtime(_runtime_name(program, row))
    kernel = first_match(ATTENTION, row.attention_impl)
    if runtime.name == LOCAL and not re.search(FORCED_FLASH, row.attention_impl.lower()):
        kernel = None
    stated = _kernel_stated(runtime, kernel)
    changes = _stated(runtime, row)
    if runtime.name == OLD and program.runtime != OLD:
        # Neither sequence parallelism nor overlaps were there yet.
        program = replace(program, runtime=OLD, tuned=False, shards=0, sequence=False)
    return program, _as_stated(runtime.name, tuple((changes | stated).items()))


def _stated(runtime: Runtime, row: MeasuredRow) -> dict[str, object]:
    """Constants in which the runtime of a row differs, by what the row says."""
    words = "; ".join(
        (row.framework, row.model, row.precision, row.notes, row.zero_or_fsdp)
    ).lower()
    changes: dict[str, object] = {}
    fused = runtime.fused
    for statement in STATED:
        if re.search(statement.runtimes, runtime.name) and _says(statement.pattern, words):
            changes |= dict(statement.constants)
            fused = fused - statement.leaves_plain | statement.fuses
    return changes if fused == runtime.fused else changes | {"fused": fused}


def _says(pattern: str, words: str) -> bool:
    """Whether the words say it, and not that it is not so."""
    return any(
        not re.search(DENIED_BEFORE, words[: found.start()])
        and not re.search(DENIED_AFTER, words[found.end() :])
        for found in re.finditer(pattern, words)
    )


def _kernel_stated(runtime: Runtime, kernel: str | None) -> dict[str, object]:
    """Another attention kernel than the program's runs at that kernel's own speed."""
    if kernel is None or kernel == runtime.attention:
        return {}
    return {"attention": kernel, "attention_forward_ratio": 1.0, "attention_backward_ratio": 1.0}


@cache
def _as_stated(name: str, changes: tuple[tuple[str, object], ...]) -> Runtime:
    """The runtime with what a row says of it; the same object for the same changes."""
    return replace(find_runtime(name), **dict(changes))  # type: ignore[arg-type]


def _runtime_name(program: TrainingProgram, row: MeasuredRow) -> str:
    """Megatron of the years before flash attention is known by its kernels or its GPUs.

    Attention by torch tells Megatron without TransformerEngine, which brings its own; so does one
    GPU, which nobody rents for a release's tables.
    """
    known = [correction.program for correction in corrections_of(row) if correction.program]
    if known:
        return known[0]
    if program.runtime == "megatron" and not re.search(r"\bte\b|engine", row.framework.lower()):
        by_torch = re.search(TORCH_ATTENTION, row.attention_impl.lower())
        bare = row.num_gpus == 1 and re.search(r"core", row.framework.lower())
        if by_torch or bare:
            return LOCAL
    words = f"{row.framework} {row.precision} {row.overlap} {row.notes}".lower()
    if program.runtime == "megatron" and not row.moe_experts and _says(CAPTURED, words):
        return GRAPHS
    if program.runtime == "torchtitan":
        return program.runtime if re.search(COMPILED, words) else "torchtitan-eager"
    if program.runtime == "fsdp" and "compile" in words:
        return "torchtitan"
    if program.runtime != "megatron" or re.search(r"core|nemo|bridge", row.framework.lower()):
        return program.runtime
    kernels = first_match(ATTENTION, row.attention_impl)
    old = re.match(OLD_GPUS, row.gpu.lower())
    return OLD if kernels == "unfused" or (old and kernels is None) else "megatron"


@cache
def _program(text: str) -> TrainingProgram:
    if not text:
        raise InputError("framework is not stated")
    lowered = text.lower()
    for program in PROGRAMS.programs:
        if re.search(program.pattern, lowered):
            return program
    known = ", ".join(PROGRAMS.known)
    hint = did_you_mean(text, PROGRAMS.known)
    raise InputError(f"unknown framework '{text}'{hint}; known are {known}")


def resolve_precision(row: MeasuredRow, gpu: Gpu) -> Precision:
    """The number format of the matrix products.

    Where the row does not state it, the name of its model or GPU may; otherwise it is the GPU's
    usual 16 bits.
    """
    text = row.precision or " ".join(re.findall(NAMED_PRECISION, f"{row.model} {row.gpu}".lower()))
    found: Precision | None = first_match(PRECISIONS, text)
    if found is None and text and re.search(UNMODELLED_PRECISIONS, text.lower()):
        raise InputError(f"precision {text} is not modelled")
    if found is None:
        found = Precision.BF16 if Dtype.BF16 in gpu.peak_flops else Precision.FP16
    if found.value not in gpu.peak_flops:
        raise InputError(f"{gpu.name} has no {found}")
    return found


def first_match(rules: tuple[tuple[str, Meaning], ...], text: str) -> Meaning | None:
    """The meaning of the first rule that matches."""
    lowered = text.lower()
    return next((meaning for pattern, meaning in rules if re.search(pattern, lowered)), None)
