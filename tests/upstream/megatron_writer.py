"""The fields of a strategy as Megatron's flags, written plainly: one line for each field.

For strategies that rules reject: the exporter never writes those. What it does write is held
against Megatron in test_megatron_exports.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Columns = Mapping[str, Any]


def request_of(columns: Columns) -> dict[str, Any]:
    """What the driver is asked to parse a strategy."""
    connections = {} if columns["zero_stage"] >= 2 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {
        "operation": "arguments",
        "argv": arguments_of(columns),
        "world_size": columns["gpus"],
        "env": connections,
    }


def groups_request_of(columns: Columns) -> dict[str, Any]:
    """What the driver is asked to make the groups of ranks of a strategy."""
    inside = columns["pipeline_inside"]
    degrees = {
        "tensor_model_parallel_size": columns["tp"],
        "pipeline_model_parallel_size": columns["pp"],
        "context_parallel_size": columns["cp"],
        "expert_model_parallel_size": columns["ep"],
        "expert_tensor_parallel_size": expert_tp_of(columns),
        "order": "tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp",
    }
    return {"operation": "groups", "world_size": columns["gpus"], "degrees": degrees}


def expert_tp_of(columns: Columns) -> int | None:
    """The degree inside experts. Where stages of a replica are neighbours, Megatron wants as many
    replicas of experts as of the rest, also in a model that has none; so cp has to count here.
    """
    if columns["experts"]:
        return int(columns["etp"])
    inside = columns["pipeline_inside"] and columns["cp"] > 1 and columns["pp"] > 1
    return columns["tp"] * columns["cp"] if inside else None


def arguments_of(columns: Columns) -> list[str]:
    parts = [_model(columns), _degrees(columns), _pipeline(columns), _options(columns)]
    return [str(word) for part in parts for word in part]


def _model(c: Columns) -> list[Any]:
    words: list[Any] = ["--num-layers", c["layers"], "--hidden-size", c["hidden"]]
    words += ["--num-attention-heads", c["heads"], "--kv-channels", c["head_dim"]]
    words += ["--ffn-hidden-size", c["ffn"] or c["moe_ffn"], "--seq-length", c["seq_length"]]
    words += ["--max-position-embeddings", c["seq_length"], "--position-embedding-type", "rope"]
    words += ["--swiglu", "--normalization", "RMSNorm", "--bf16", "--lr", "1e-4"]
    words += ["--train-iters", 10, "--tokenizer-type", "NullTokenizer", "--vocab-size", c["vocab"]]
    words += ["--untie-embeddings-and-output-weights"]
    words += [] if c["expert_bias"] else ["--disable-bias-linear"]
    if c["mla"]:
        words += ["--multi-latent-attention"]
    elif c["kv_heads"] != c["heads"]:
        words += ["--group-query-attention", "--num-query-groups", c["kv_heads"]]
    if c["experts"]:
        words += ["--num-experts", c["experts"], "--moe-router-topk", c["topk"]]
        words += ["--moe-ffn-hidden-size", c["moe_ffn"], "--moe-grouped-gemm"]
        words += ["--moe-token-dispatcher-type"]
        words += ["flex" if c["expert_messages"].startswith("deepep") else "alltoall"]
        if c["expert_messages"].endswith("overlapped"):
            words += ["--overlap-moe-expert-parallel-comm"]
    if c["shared_ffn"]:
        words += ["--moe-shared-expert-intermediate-size", c["shared_ffn"]]
    if c["delta_net"]:
        words += ["--experimental-attention-variant", "gated_delta_net"]
        words += ["--linear-attention-freq", 4, "--linear-num-key-heads", c["scan_groups"]]
        words += ["--linear-num-value-heads", c["scan_heads"]]
    return words


def _degrees(c: Columns) -> list[Any]:
    words: list[Any] = ["--tensor-model-parallel-size", c["tp"]]
    words += ["--pipeline-model-parallel-size", c["pp"], "--context-parallel-size", c["cp"]]
    words += ["--expert-model-parallel-size", c["ep"]]
    words += ["--expert-tensor-parallel-size", expert_tp_of(c)] if expert_tp_of(c) else []
    words += ["--micro-batch-size", c["micro_batch"], "--global-batch-size", c["global_batch"]]
    words += ["--sequence-parallel"] if c["sequence_parallel"] else []
    words += ["--use-tp-pp-dp-mapping"] if c["pipeline_inside"] else []
    return words


def layout_of(layers: int, stages: int) -> str:
    """Layers dealt to stages as Megatron's layout: the first stages get one more."""
    least, more = divmod(layers, stages)
    parts = ["t" * (least + (stage < more)) for stage in range(stages)]
    return "E" + "|".join(parts) + "L"


def _pipeline(c: Columns) -> list[Any]:
    words: list[Any] = []
    if c["split"] != "even":
        stages = c["pp"] * c["virtual_stages"]
        words += ["--pipeline-model-parallel-layout", layout_of(c["layers"], stages)]
    elif c["virtual_stages"] > 1:
        words += ["--num-virtual-stages-per-pipeline-rank", c["virtual_stages"]]
    if c["virtual_stages"] > 1 and not c["overlap_p2p"]:
        words += ["--no-overlap-p2p-communication"]
    return words


_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def _options(c: Columns) -> list[Any]:
    words: list[Any] = []
    if c["zero_stage"] == 1:
        words += ["--use-distributed-optimizer"]
    elif c["zero_stage"] >= 2:
        words += ["--use-megatron-fsdp", "--ckpt-format", "fsdp_dtensor"]
        words += ["--data-parallel-sharding-strategy", _SHARDING.get(c["zero_stage"], "none")]
        words += ["--init-model-with-meta-device", "--no-gradient-accumulation-fusion"]
    flags = {
        "overlap_grad_reduce": ["--overlap-grad-reduce"],
        "overlap_param_gather": ["--overlap-param-gather"],
        "overlap_tp": ["--tp-comm-overlap"],
        "offload_optimizer": ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"],
    }
    words += [word for field, flag in flags.items() if c[field] for word in flag]
    return words + _recompute(c)


def _recompute(c: Columns) -> list[Any]:
    words: list[Any] = []
    if c["recompute_granularity"] != "none":
        words += ["--recompute-granularity", c["recompute_granularity"]]
    if c["recompute_method"] != "none":
        words += ["--recompute-method", c["recompute_method"]]
    if c["recompute_layers"]:
        words += ["--recompute-num-layers", c["recompute_layers"]]
    if c["recompute_modules"]:
        words += ["--recompute-modules", *c["recompute_modules"].split(",")]
    return words
