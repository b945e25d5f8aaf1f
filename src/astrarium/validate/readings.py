"""What sources say about their rows in other places than the table.

The rules are data, by source, address, framework and the like; each says why.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any, Final

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.validate.table import MeasuredRow

Rules = tuple[tuple[str, dict[str, Any]], ...]

# Columns to read otherwise, by a pattern of source and address.
ROWS: Final[Rules] = (
    # The vocabulary is that of vTrain's configuration. Its times are sums of one layer's trace
    # (linear in layers and micro-batches to 1e-5), without recomputation whatever the
    # configuration says: with it the layers would run at 203 of 312 TFLOP/s (hidden 2048,
    # micro-batch 4), softmax, dropout and norms included, which no A100 does; without it at 152.
    (r"vtrain.*ground_truth_single", {"vocab": 50257, "recompute": "none"}),
    # Jean Zay, V100 nodes: four GPUs, four Omni-Path links of 100 Gb/s (IDRIS, 2021).
    (r"bigscience-v100", {"inter_link_gbps_per_gpu": 100.0}),
    # 200 million tokens in 760 steps of 128 sequences.
    (r"torchtitan-nvfp4", {"seq_len": 2048}),
)
EAGER: Final[dict[str, Any]] = {"fused": frozenset(), "fuses_mask": False}
# Constants of the runtime, by a pattern of source, framework, model and precision.
RUNTIMES: Final[Rules] = (
    # vTrain, and models of Transformers, leave the vocabulary as the tokenizer has it; the latter
    # run eager kernels.
    (r"vtrain", {"pads_vocabulary": False}),
    (r"transformers|hugging ?face", {"pads_vocabulary": False} | EAGER),
    # Before v2.0 Megatron's fusions were options, which the scripts of DeepSpeed leave off.
    (r"megatron-lm v1\.", EAGER | {"fused": frozenset({"layer_norm"})}),
    # Gradients that are reduced in fp32 though the usual is 16 bits.
    (r"fp32[ -]?all-?reduce", {"reduced_gradient_bytes": 4}),
    # Megatron's tests of GPT and BERT leave dropout at its default of 0.1. What stays between two
    # iterations is 70 MB more than weights, gradients and optimizer: workspaces of libraries.
    (r"megatron-core ci\)(?!.*mixtral)", {"dropout": True, "workspace_bytes": 7e7}),
    # NeMo's configurations of GPT-3 keep dropout of 0.1 (hidden_dropout, attention_dropout).
    (r"nemo-\d.*gpt-?3", {"dropout": True}),
    # DeepSpeed's optimizer holds fp16 gradients and the fp32 copies that the update reads:
    # BigScience, 1.3B on 8 V100 under ZeRO-1, 10 bytes for a parameter.
    (r"(megatron.*deepspeed|deepspeed.*megatron)(?!.*zero-?[23])", {"gradient_bytes": 6}),
    # DeepSpeed's script for Megatron with ZeRO keeps what recomputation starts from on the host
    # (ds_pretrain_gpt2-zero3.sh: partitioned activations, PA_CPU).
    (r"megatron.*zero-?[23]", {"checkpoints_on_host": True}),
)
# Recipes of Megatron-Bridge (scripts/performance/configs, 2025-11) capture models with experts in
# CUDA graphs on GB200 and GB300. On other machines they do so only without pipelines, and where
# tokens are dropped, as in all of its tables up to release 25.09: then sizes are fixed.
CAPTURING_GPUS: Final = r"gb\d00"
CAPTURED: Final = r"cuda ?graphs"
DROPPING: Final = r"token ?drop|\b25\.0\d\b"
UNCAPTURED: Final = ("router_launch_seconds", "expert_launch_seconds")


def as_run(row: MeasuredRow) -> MeasuredRow:
    """The row with what its source says elsewhere."""
    return replace(row, **_found(ROWS, row.source, row.cells.get("url_or_repo_path", "")))


def runtime_as_run(row: MeasuredRow, runtime: Runtime) -> Runtime:
    """The runtime with what the row says about it."""
    found = _found(RUNTIMES, row.source, row.framework, row.model, row.precision)
    if runtime.name == "megatron-bridge" and not _captures(row):
        plain = find_runtime("megatron")
        found |= {name: getattr(plain, name) for name in UNCAPTURED}
    return _with(runtime, tuple(found.items()))


def _captures(row: MeasuredRow) -> bool:
    """Whether layers with experts run as CUDA graphs, which take no launches."""
    words = f"{row.model} {row.overlap} {row.notes}".lower()
    if re.search(CAPTURING_GPUS, row.gpu.lower()) or re.search(CAPTURED, words):
        return True
    return row.pp in (None, 1) and bool(re.search(DROPPING, words))


def _found(rules: Rules, *words: str) -> dict[str, Any]:
    text = " ".join(words).lower()
    matching = (values for pattern, values in rules if re.search(pattern, text))
    return {name: value for values in matching for name, value in values.items()}


@cache
def _with(runtime: Runtime, constants: tuple[tuple[str, Any], ...]) -> Runtime:
    """One object for equal runtimes, so that rows can share a cost model."""
    return replace(runtime, **dict(constants))
