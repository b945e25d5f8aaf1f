"""Megatron's settings: what its log prints, what a script gives, what its YAML holds.

Names are those of Megatron's namespace. A log states everything; what a script leaves out has
Megatron's default (`DEFAULTS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astrarium.catalog.optimizers import ADAMW, optimizer_called
from astrarium.catalog.runtimes import GRAPHS, offloading
from astrarium.configs.megatron.hybrid import segments_of
from astrarium.configs.megatron.model import shape_of
from astrarium.configs.pipeline import (
    counted_chunks,
    ends_chunks,
    filled_chunks,
    layout_chunks,
    stages_of,
)
from astrarium.configs.settings import Described, Settings
from astrarium.configs.values import table, vocabulary_of
from astrarium.model.workload import ExpertMessages, Numerics, Precision

# Of the options read here: what Megatron 0.19.2 takes where they are not given.
DEFAULTS: Final[Mapping[str, str]] = table("names")["defaults"]
# What tells a vocabulary, and sizes that are compared with those of a model.
_TOKENIZERS: Final = ("vocab_file", "tokenizer_model", "tokenizer_name_or_path")
_SIZES: Final = {
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "num_attention_heads": "attention heads",
    "num_experts": "experts",
    "vocab_size": "entries of the vocabulary",
}
MOMENTS: Final = {"bf16": "adamw-bf16", "bfloat16": "adamw-bf16", "fp8": "adamw-8bit"}
SHARDING: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def describe_megatron(settings: Settings, where: str = "log") -> Described:
    s = settings
    shape, why = shape_of(s, where)
    return Described(
        runtime=_runtime(s),
        shape=shape,
        why_no_shape=why,
        gpus=s.count("world_size"),
        seq_length=s.count("seq_length", "encoder_seq_length"),
        global_batch=s.count("global_batch_size"),
        batch_of_replica=s.count("micro_batch_size"),
        tokens=_tokens(s),
        iterations=s.count("train_iters"),
        precision=_precision(s),
        numerics=numerics_of(s),
        expert_messages=expert_messages_of(s),
        mtp_layers=s.count("mtp_num_layers"),
        optimizer=optimizer_of(s),
        strategy=_strategy(s) if s.count("tensor_model_parallel_size") else {},
        sizes=_sizes(s),
        vocabulary=vocabulary_of([s.text(name) for name in _TOKENIZERS], s.text("tokenizer_type")),
    )


def _sizes(s: Settings) -> dict[str, int]:
    """Sizes of the model that are stated, also where they do not make a whole model."""
    out = {word: size for name, word in _SIZES.items() if (size := s.count(name))}
    letters = sum(map(len, segments_of(s)))
    out |= {"layers": letters} if letters else {}
    return out if "layers" in out else {}


def _runtime(s: Settings) -> str:
    if s.flag("deepspeed"):
        return "deepspeed"
    implementation = s.text("transformer_impl")
    moved, layers = s.count("cpu_offloading_num_layers"), s.count("num_layers")
    if moved and layers:
        return offloading(moved, layers)
    if _captures_layers(s):
        return GRAPHS
    if implementation:
        return "megatron" if implementation == "transformer_engine" else "megatron-local"
    return "megatron-local" if s.flag("use_flash_attn") else "megatron-2021"


def _captures_layers(s: Settings) -> bool:
    """Whether whole layers run as CUDA graphs; graphs of parts of them are not predicted."""
    whole = not s.text("cuda_graph_modules").strip("[]") and not s.text("cuda_graph_scope")
    kinds = ("local", "transformer_engine")
    return s.text("cuda_graph_impl") in kinds and whole and not s.count("num_experts")


def _precision(s: Settings) -> Precision:
    if "fp4" in s and s.text("fp4") != "False":
        return Precision.FP4
    if "fp8" in s and s.text("fp8") != "False":
        return Precision.MXFP8 if s.text("fp8_recipe") == "mxfp8" else Precision.FP8
    return Precision.FP16 if s.flag("fp16") else Precision.BF16


def numerics_of(s: Settings) -> Numerics:
    """Both or neither: what is reduced alone is named among what is not predicted."""
    moments = {s.text(f"{state}_dtype") for state in ("exp_avg", "exp_avg_sq")}
    reduced = s.flag("grad_reduce_in_bf16") and moments <= {"bf16", "torch.bfloat16"}
    return Numerics.REDUCED if reduced and _named(s) == ADAMW else Numerics.STRICT


def expert_messages_of(s: Settings) -> ExpertMessages:
    """The messages of experts; of the flex dispatcher's backends only DeepEP is known."""
    overlapped = s.flag("overlap_moe_expert_parallel_comm")
    if s.text("moe_token_dispatcher_type") == "flex":
        return ExpertMessages.DEEPEP_OVERLAPPED if overlapped else ExpertMessages.DEEPEP
    return ExpertMessages.OVERLAPPED if overlapped else ExpertMessages.ALLTOALL


def optimizer_of(s: Settings) -> str:
    """The optimizer, and the format of Adam's moments where nothing else is reduced."""
    named = _named(s)
    moments = {s.text(f"{state}_dtype") for state in ("exp_avg", "exp_avg_sq")}
    if named != ADAMW or numerics_of(s) is Numerics.REDUCED:
        return named
    return MOMENTS.get("".join(moments).removeprefix("torch."), ADAMW)


def _named(s: Settings) -> str:
    return optimizer_called(s.text("optimizer") or ADAMW) or ADAMW


def _tokens(s: Settings) -> int | None:
    """Length of the run, where it is stated in iterations or samples."""
    length = s.count("seq_length", "encoder_seq_length")
    batch, iterations = s.count("global_batch_size"), s.count("train_iters")
    samples = s.count("train_samples")
    if s.count("train_tokens"):
        return s.count("train_tokens")
    if iterations and batch:
        samples = iterations * batch
    return samples * length if samples and length else None


def _strategy(s: Settings) -> dict[str, Any]:
    zero = zero_stage(s)
    virtual = virtual_stages(s)
    out: dict[str, Any] = {
        "tp": s.count("tensor_model_parallel_size") or 1,
        "pp": s.count("pipeline_model_parallel_size") or 1,
        "cp": s.count("context_parallel_size") or 1,
        "ep": s.count("expert_model_parallel_size") or 1,
        "micro_batch": s.count("micro_batch_size") or 1,
        "virtual_stages": virtual,
        "sequence_parallel": s.flag("sequence_parallel"),
        "zero_stage": zero,
        "recompute": _recompute(s),
        "overlap": {
            "grad_reduce": s.flag("overlap_grad_reduce"),
            "param_gather": s.flag("overlap_param_gather"),
            "p2p": s.flag("overlap_p2p_comm") and virtual > 1,
            "tp": s.flag("tp_comm_overlap"),
        },
    }
    if _shards_by_fsdp(s) or s.flag("deepspeed"):  # they never wait with either
        out["overlap"]["grad_reduce"] |= zero >= SHARDING["optim_grads"]
        out["overlap"]["param_gather"] |= zero == SHARDING["optim_grads_params"]
    if s.count("num_experts"):
        out["etp"] = s.count("expert_tensor_parallel_size") or out["tp"]
    if s.flag("optimizer_cpu_offload"):
        out["offload_optimizer"] = True
    if s.flag("use_tp_pp_dp_mapping"):
        out["pipeline_inside"] = True
    if (s.count("num_distributed_optimizer_instances") or 1) > 1:
        out["shard_groups"] = s.count("num_distributed_optimizer_instances")
    chunks = uneven_chunks(s)
    if chunks:
        out |= {"split": "free", "stages": stages_of(chunks)}
    return out


def _shards_by_fsdp(s: Settings) -> bool:
    names = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")
    return any(s.flag(name) for name in names)


def uneven_chunks(s: Settings) -> list[int]:
    """Layers of every chunk if stages differ, further predictions in the last; else empty."""
    if "pipeline_model_parallel_layout" in s:
        return layout_chunks(s.text("pipeline_model_parallel_layout"))
    counts = [len(segment) for segment in segments_of(s)]
    if len(counts) > 1:
        return counts if len(set(counts)) > 1 else []
    layers, pp = s.count("num_layers"), s.count("pipeline_model_parallel_size") or 1
    virtual, predictions = virtual_stages(s), s.count("mtp_num_layers") or 0
    if not layers or pp * virtual == 1:
        return []
    chunks = _decoder_chunks(s, layers, pp, virtual)
    if predictions and not chunks and layers % (pp * virtual) == 0:
        chunks = [layers // (pp * virtual)] * (pp * virtual)
    if predictions and chunks:
        chunks[-1] += predictions
    return chunks


def _decoder_chunks(s: Settings, layers: int, pp: int, virtual: int) -> list[int]:
    if pp == 1:
        return []
    if s.flag("deepspeed"):
        return filled_chunks(layers, pp, ends="embedding" in s.text("pp_partition_method"))
    first, last = (s.count(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    if first is not None or last is not None:
        return ends_chunks(layers, pp, virtual, first, last)
    embedding = s.flag("account_for_embedding_in_pipeline_split")
    loss = s.flag("account_for_loss_in_pipeline_split")
    if embedding or loss:
        return counted_chunks(layers, pp, virtual, embedding=embedding, loss=loss)
    return []


def virtual_stages(s: Settings) -> int:
    """Chunks of every pipeline rank, however they are asked for."""
    pp = s.count("pipeline_model_parallel_size") or 1
    if "pipeline_model_parallel_layout" in s:
        return max(len(layout_chunks(s.text("pipeline_model_parallel_layout"))) // pp, 1)
    if len(segments_of(s)) > 1:
        return max(len(segments_of(s)) // pp, 1)
    stated = s.count("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    per_stage, layers = s.count("num_layers_per_virtual_pipeline_stage"), s.count("num_layers")
    if stated or not (per_stage and layers):
        return stated or 1
    counted = ("embedding", "loss")
    layers += sum(s.flag(f"account_for_{end}_in_pipeline_split") for end in counted)
    return max(layers // (pp * per_stage), 1)


def zero_stage(s: Settings) -> int:
    """The ZeRO stage of these settings."""
    if s.flag("deepspeed"):
        # Its optimizer for bf16 shards the states by itself, at every stage.
        return max(s.count("zero_stage") or 0, int(s.flag("bf16")))
    if s.flag("use_torch_fsdp2"):
        return 3
    if s.flag("use_megatron_fsdp") or s.flag("use_custom_fsdp"):
        return SHARDING.get(s.text("data_parallel_sharding_strategy"), 3)
    return 1 if s.flag("use_distributed_optimizer") else 0


def _recompute(s: Settings) -> dict[str, Any]:
    granularity = s.text("recompute_granularity")
    if s.flag("checkpoint_activations") or s.text("activations_checkpoint_method"):
        granularity = "full"  # the names before 2022
    elif s.flag("recompute_activations") or s.flag("moe_layer_recompute"):
        granularity = granularity or "selective"
    if granularity == "full":
        method = s.text("recompute_method") or s.text("activations_checkpoint_method")
        layers = s.count("recompute_num_layers", "activations_checkpoint_num_layers") or 1
        return {"granularity": "full", "method": method or "uniform", "layers": layers}
    if granularity == "selective":
        names = s.text("recompute_modules").strip("[]").replace("'", "").replace('"', "")
        modules = [name.strip() for name in names.split(",") if name.strip()]
        modules += ["moe"] * (s.flag("moe_layer_recompute") and "moe" not in modules)
        return {"granularity": "selective", "modules": modules or ["core_attn"]}
    return {"granularity": "none"}
