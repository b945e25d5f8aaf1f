"""Facts about rows from other places than the table.

Habits of programs go by the words for the framework and the number format. What is known of single
published tables goes by their address (`url_or_repo_path`), each with the reason; what a row's
source is called changes nothing, so that rows of users are read as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import field

from astrarium.catalog.runtimes import MICROSCALED, Runtime, find_runtime
from astrarium.validate.table import MeasuredRow
from astrarium.value import Value


class TableCorrection(Value, frozen=True):
    """The cells that one published table leaves out, or states otherwise than it was run.

    `address` and `models` are patterns; `fills` gives cells that are blank, `replaces` cells
    that are filled, too, `runtime` constants of the program, `program` the runtime to start from.
    """

    title: str
    address: str
    reason: str
    models: str = ""
    fills: Mapping[str, Any] = field(default_factory=dict)
    replaces: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, bool | int | float | frozenset[str]] = field(default_factory=dict)
    program: str = ""

    def is_for(self, row: MeasuredRow) -> bool:
        found = re.search(self.address, row.address)
        return bool(found and re.search(self.models, row.model.lower()))


CORRECTIONS: Final = msgspec.json.decode(
    (Path(__file__).parent / "data" / "tables.json").read_bytes(), type=tuple[TableCorrection, ...]
)
BLOCKWISE: Final = 1.35
EAGER: Final[dict[str, Any]] = {"fused": frozenset(), "fuses_mask": False}
BOTH: Final = r"(?=.*megatron)(?=.*deepspeed)"  # in either order
SHARING_GRADIENTS: Final = r"zero[- ]?(stage[- ]?)?[23]"
# Constants of the runtime, by a pattern of framework and precision.
FRAMEWORKS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    # Models of Transformers leave the vocabulary as the tokenizer has it, and run eager kernels.
    # nanotron is by Hugging Face too, but has kernels of its own.
    (r"^(?!.*nanotron).*(transformers|hugging ?face)", {"pads_vocabulary": False} | EAGER),
    # Before v2.0 Megatron's fusions were options, which the scripts of DeepSpeed leave off.
    (r"megatron-lm v1\.", EAGER | {"fused": frozenset({"layer_norm"})}),
    # torchao's float8 with one scale for a tensor, all that torchtitan had until 2025: compiled
    # kernels take as long as copies of 10 to 24 bytes for an element, 13 in the median of
    # iterations, against 4 of megatron's casts (H200, own measurement, 2026-11-18).
    (r"torchtitan(?!.*row-?wise).*(fp8|float8)", {"cast_rate": 0.31}),
    # Scales for blocks of elements, which Hopper's tensor cores do not apply: products and casts
    # take 1.28 times as long as with one scale for a tensor, and iterations are met best with 1.35
    # for products (TransformerEngine 2.20.2 on H200, own measurement, shapes not kept apart).
    (r"block-?wise|fp8-?bs\b|sub-?channel", {"scaled_product_ratio": BLOCKWISE}),
    # Scales for 32 elements, which Blackwell's tensor cores apply.
    (r"mxfp8|fp8-?mx\b|quantisation granularity", MICROSCALED),
    # With one scale each rank casts its shard by three plain kernels: 30 bytes, not 6.
    (r"torchtitan.*tensor-?wise", {"sharded_moved_bytes": 34}),
    # Scales for blocks come from kernels that torchao has written by hand.
    (r"torchtitan.*(mxfp8|nvfp4)", {"cast_rate": 0.47}),
    # torchtune on one GPU: no FSDP, whose shards would have to be cast and gathered.
    (
        r"single[- ]device",
        {
            "sharded_moved_bytes": 0,
            "gathered_moved_bytes": 0,
            "own_unit_memory": False,
            "gathered_layers": 0,
        },
    ),
    # torchao's NVFP4 trains no faster than its 8 bits yet (README of its MX formats, 2025-11).
    # Its products keep their inputs in 4 bits.
    (r"torchtitan.*nvfp4", {"scaled_product_ratio": 3.48 / 1.92, "scaled_input_bytes": 1}),
    # Gradients that are reduced in fp32 though the usual is 16 bits.
    (r"fp32[ -]?all-?reduce", {"reduced_gradient_bytes": 4, "tied_gradient_bytes": 4}),
    # Megatron's tests leave dropout at its default of 0.1. What stays between two iterations is
    # 70 MB more than weights, gradients and optimizer: workspaces of libraries.
    (r"\(megatron-core ci\)", {"dropout": True, "workspace_bytes": 7e7}),
    # DeepSpeed's optimizer holds fp16 gradients and the fp32 copies that the update reads:
    # BigScience, 1.3B on 8 V100 under ZeRO-1, 10 bytes for a parameter.
    (rf"^{BOTH}(?!.*{SHARING_GRADIENTS})", {"gradient_bytes": 6}),
    # DeepSpeed's script for Megatron with ZeRO keeps what recomputation starts from on the host
    # (ds_pretrain_gpt2-zero3.sh: partitioned activations, PA_CPU).
    (rf"^{BOTH}.*{SHARING_GRADIENTS}", {"checkpoints_on_host": True}),
)
# Recipes of Megatron-Bridge (scripts/performance/configs, 2025-11) capture models with experts in
# CUDA graphs on GB200 and GB300. On other machines they do so only without pipelines, and where
# tokens are dropped, as in all of its tables up to release 25.09: then sizes are fixed.
CAPTURING_GPUS: Final = r"gb\d00"
CAPTURED: Final = r"cuda ?graphs"
DROPPING: Final = r"token ?drop|\b25\.0\d\b"
# Its recipes under FSDP (use_megatron_fsdp, pipelines of one stage) move what some layers keep to
# the host (cpu_offloading_num_layers in scripts/performance, read 2026-11-19): of the 70B 40 of 80
# on GB200, 20 on GB300, of the 405B 95 of 126, of the 8B none.
FSDP_ON_HOST: Final = {("70B", "GB200"): 0.5, ("70B", "GB300"): 0.25, ("405B", ""): 0.75}
SHARDS_ALL: Final = r"fsdp|zero[- ]?(stage[- ]?)?3|optim_grads_params"
# Our iterations with TransformerEngine are timed from the fourth of a process on (median of five or
# eight), when products of experts still have sizes for which cuBLAS has to choose a kernel first.
FRESH: Final = r"benchmarks/te_iterations"
ITERATIONS_BEFORE: Final = 6
UNCAPTURED: Final = (
    "router_launch_seconds",
    "expert_launch_seconds",
    "latent_launch_seconds",
    "latent_cast_launch_seconds",
)


def corrections_of(row: MeasuredRow) -> tuple[TableCorrection, ...]:
    """The corrections of the table that a row is from."""
    return tuple(correction for correction in CORRECTIONS if correction.is_for(row))


def as_run(row: MeasuredRow) -> MeasuredRow:
    """The row with what is known about its table."""
    for known in corrections_of(row):
        blank = {name: value for name, value in known.fills.items() if not getattr(row, name)}
        row = replace(row, **blank, **known.replaces)
    return row


def runtime_as_run(row: MeasuredRow, runtime: Runtime) -> Runtime:
    """The runtime with what the row's framework and table say about it."""
    words = f"{row.framework} {row.precision}".lower()
    found: dict[str, Any] = {}
    for pattern, values in FRAMEWORKS:
        if re.search(pattern, words):
            found |= values
    for known in corrections_of(row):
        found |= known.runtime
    if runtime.name == "megatron-bridge" and not _captures(row):
        plain = find_runtime("megatron")
        found |= {name: getattr(plain, name) for name in UNCAPTURED}
    if runtime.name == "megatron-bridge" and _offloads(row):
        found["activations_on_host"] = _share_on_host(row)
    if row.moe_experts and re.search(FRESH, row.address):
        layers = (row.layers or 1) * (row.num_micro_batches or 1)
        found["expert_rows_met"] = float(ITERATIONS_BEFORE * layers * row.moe_experts)
    if "plain" in found:
        found["fused"] = runtime.fused - found.pop("plain")
    elif "fused" in found:  # what the row itself says to be fused stays
        found["fused"] |= runtime.fused - find_runtime(runtime.name).fused
    return _with(runtime, tuple(found.items()))


def _offloads(row: MeasuredRow) -> bool:
    """Whether a recipe under FSDP moves activations to the host."""
    shards = re.search(SHARDS_ALL, f"{row.framework} {row.zero_or_fsdp}".lower())
    return bool(shards) and row.pp in (None, 1) and not row.moe_experts


def _share_on_host(row: MeasuredRow) -> float:
    shares = (
        share for (size, gpu), share in FSDP_ON_HOST.items() if size in row.model and gpu in row.gpu
    )
    return next(shares, 0.0)


def _captures(row: MeasuredRow) -> bool:
    """Whether layers with experts run as CUDA graphs, which take no launches."""
    words = f"{row.model} {row.overlap} {row.notes}".lower()
    if re.search(CAPTURING_GPUS, row.gpu.lower()) or re.search(CAPTURED, words):
        return True
    return row.pp in (None, 1) and bool(re.search(DROPPING, words))


@cache
def _with(runtime: Runtime, constants: tuple[tuple[str, Any], ...]) -> Runtime:
    """One object for equal runtimes, so that rows can share a cost model."""
    return replace(runtime, **dict(constants))
