"""What our rules say of a strategy is what Megatron says of it.

What no rule rejects, Megatron's parser and its groups of ranks accept. For every rule there is a
strategy that only this rule rejects: Megatron refuses it, unless the table says why it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from upstream.client import Driver, RefusedError
from upstream.megatron_writer import groups_request_of, request_of

from astrarium.strategy.validity import COLUMNS, megatron_rules

DENSE: Final[Mapping[str, Any]] = {
    "layers": 12,
    "hidden": 512,
    "ffn": 1024,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
    "scan_heads": 0,
    "scan_groups": 0,
    "delta_net": False,
    "vocab": 1024,
    "experts": 0,
    "topk": 0,
    "moe_ffn": 0,
    "shared_ffn": 0,
    "expert_bias": False,
    "mla": False,
    "sliding_window": False,
    "parameters": 1,
    "tied_embeddings": False,
    "lora_rank": 0,
    "pairs": False,
    "precision": "bf16",
    "seq_length": 512,
    "gpu": "H100",
    "nodes": 1,
    "gpus_per_node": 8,
    "nvlink_domain": 8,
    "nvlink": True,
    "rdma": True,
    "compute_capability": 9.0,
    "reduced_numerics": False,
    "expert_messages": "alltoall",
    "optimizer": "adamw",
    "memory_bytes": 1,
    "host_memory_bytes": 0,
}
EXPERTS: Final = {**DENSE, "experts": 8, "topk": 2, "moe_ffn": 256, "ffn": 0}
MODELS: Final = {
    "dense": DENSE,
    "grouped": {**DENSE, "kv_heads": 2},
    "latent": {**DENSE, "mla": True},
    "experts": EXPERTS,
    "shared": {**EXPERTS, "shared_ffn": 256},
    "biased": {**EXPERTS, "expert_bias": True},
    "mamba": {**DENSE, "scan_heads": 8, "scan_groups": 4},
    "delta": {**DENSE, "scan_heads": 8, "scan_groups": 4, "delta_net": True},
}
PLAIN: Final[Mapping[str, Any]] = {
    "tp": 1,
    "pp": 1,
    "dp": 2,
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "micro_batch": 1,
    "num_micro_batches": 4,
    "virtual_stages": 1,
    "sequence_parallel": False,
    "pipeline_inside": False,
    "shard_groups": 1,
    "split": "even",
    "zero_stage": 1,
    "recompute_granularity": "none",
    "recompute_method": "none",
    "recompute_layers": 0,
    "recompute_modules": "",
    "offload_optimizer": False,
    "overlap_grad_reduce": True,
    "overlap_param_gather": False,
    "overlap_p2p": False,
    "overlap_tp": False,
}


def columns_of(model: str, **changes: Any) -> dict[str, Any]:
    """A strategy as rules read it; what follows from other fields is filled in unless given."""
    columns = {**MODELS[model], **PLAIN, **changes}
    c = columns
    followed = {
        "gpus": c["tp"] * c["pp"] * c["cp"] * c["dp"],
        "global_batch": c["num_micro_batches"] * c["micro_batch"] * c["dp"],
        "schedule": "interleaved" if c["virtual_stages"] > 1 else "1f1b",
    }
    return {**followed, **columns}


def rejected_by(columns: Mapping[str, Any]) -> list[str]:
    return [rule.id for rule in megatron_rules() if bool(rule.rejects(columns).any())]


def refusal(megatron: Driver, columns: Mapping[str, Any]) -> str | None:
    """What Megatron says against a strategy; nothing if it takes it."""
    try:
        megatron.ask(**request_of(columns))
        megatron.ask(**groups_request_of(columns))
    except RefusedError as refused:
        return str(refused)
    return None


LIBRARY = "asserted by DeepEP"
OURS = "keeps strategies free of contradictions, or names what is not modelled"
MODULES = "asserted when layers are built"
SCHEDULE = "asserted when an iteration starts"
BRIDGE = "Megatron-LM has no adapters; those of Megatron-Bridge are built on it"
SILENT = "Megatron switches it off itself"
FSDP = "asserted when Megatron-FSDP wraps the model"


@dataclass(frozen=True)
class Case:
    """A strategy that one rule rejects, and what Megatron says or why it cannot tell."""

    rule: str
    changes: Mapping[str, Any]
    says: str = ""
    unseen: str = ""
    model: str = "dense"


def case(rule: str, says: str = "", unseen: str = "", model: str = "dense", **changes: Any) -> Case:
    return Case(rule, changes, says, unseen, model)


SEQUENCE_TP2: Final[Mapping[str, Any]] = {"tp": 2, "sequence_parallel": True}
FULL: Final[Mapping[str, Any]] = {
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_layers": 1,
}
INTERLEAVED: Final[Mapping[str, Any]] = {"pp": 4, "virtual_stages": 3, "overlap_p2p": True}
FSDP_PARTS: Final[Mapping[str, Any]] = {"zero_stage": 3, "overlap_param_gather": True}

EP4: Final[Mapping[str, Any]] = {"ep": 4, "dp": 4}
DEEPEP: Final[Mapping[str, Any]] = {"model": "experts", **EP4, "expert_messages": "deepep"}

CASES: Final = (
    case("degrees_positive", "by zero", pp=0, gpus=0),
    case("world_size", "is not divisible by total_model_size", tp=4, gpus=6),
    case("expert_grid", "is not divisible by expert_tensor", model="experts", ep=4),
    case("micro_batch_positive", "args.micro_batch_size > 0", micro_batch=0),
    case("batch_division", "eval_global_batch_size (9)", global_batch=9),
    case("batch_count", unseen=OURS, global_batch=16),
    case("whole_pairs", unseen=OURS, pairs=True),
    case("heads_by_tp", "num_attention_heads (12)", tp=8, heads=12, kv_heads=1),
    case("kv_heads_by_tp", "num_query_groups (6)", tp=4, heads=12, kv_heads=6),
    case("scan_heads_by_ranks", unseen=MODULES, model="mamba", cp=2, scan_heads=5, scan_groups=1),
    case("scan_groups_by_tp", unseen=MODULES, model="mamba", tp=2, scan_groups=1),
    case("scan_groups_by_cp", "linear_num_key_heads=4", model="delta", tp=2, cp=4),
    case("ffn_by_tp", unseen=MODULES, tp=4, ffn=1022),
    case("moe_ffn_by_etp", unseen=MODULES, model="experts", etp=2, moe_ffn=257),
    case("shared_ffn_by_tp", unseen=MODULES, model="shared", **SEQUENCE_TP2, shared_ffn=257),
    case("ep_needs_experts", "num_experts must be non None", ep=2),
    case("etp_needs_experts", unseen=OURS, etp=2),
    case("experts_by_ep", "Number of experts should be a multiple", "", "experts", ep=3, dp=3),
    case("experts_tp_needs_sequence_parallel", unseen=MODULES, model="experts", tp=2),
    case("expert_bias_needs_etp_1", "Bias in Moe", model="biased", etp=2),
    case("sequence_parallel_needs_tp", unseen=SILENT, sequence_parallel=True),
    case("sequence_by_tp", unseen=MODULES, **SEQUENCE_TP2, seq_length=511),
    case("sequence_by_cp", "multiple of 2 * context-parallel-size", cp=2, seq_length=510),
    case("reduced_numerics", unseen=OURS, zero_stage=0, reduced_numerics=True),
    case("reduced_moments", unseen=OURS, zero_stage=0, optimizer="adamw-bf16"),
    case("sgd_whole", unseen=OURS, zero_stage=1, optimizer="sgd"),
    case("emerging_optimizers", unseen=OURS, zero_stage=2, optimizer="muon"),
    case(
        "cp_needs_ampere",
        unseen="asserted by Transformer Engine",
        cp=2,
        dp=1,
        num_micro_batches=8,
        compute_capability=7.5,
    ),
    case("window_with_cp", unseen="asserted by Transformer Engine", cp=2, sliding_window=True),
    case("interleaving_needs_pipeline", "greater than 1", virtual_stages=2, overlap_p2p=True),
    case("interleaving_on_two_stages", "greater than 2", virtual_stages=2, pp=2),
    case("interleaving_micro_batches", unseen=SCHEDULE, **INTERLEAVED, num_micro_batches=6),
    case("even_layers_by_pp", "divisible by the pipeline-model-parallel size", pp=8),
    case("even_layers_by_chunks", "divisible by vp_size", pp=4, virtual_stages=2, overlap_p2p=True),
    case("layers_per_chunk", unseen=OURS, **INTERLEAVED, split="balanced", layers=10),
    case(
        "pipeline_inside_without_experts", unseen=OURS, model="experts", pp=2, pipeline_inside=True
    ),
    case("schedule_is_interleaved", unseen=OURS, schedule="interleaved"),
    case("p2p_overlap_needs_interleaving", unseen=SILENT, pp=2, overlap_p2p=True),
    case("zero_stage_range", "invalid choice", **{**FSDP_PARTS, "zero_stage": 4}),
    case("shard_groups_by_dp", "divisible by partial DistOpt shard factor", shard_groups=3),
    case("shard_groups_divide", unseen=OURS, shard_groups=2),
    case(
        *("shard_groups_by_experts", "divisible by partial DistOpt shard factor"),
        model="experts",
        **EP4,
        shard_groups=2,
    ),
    case("optimizer_instances", unseen=OURS, dp=4, zero_stage=0, shard_groups=2),
    case("fsdp_without_pipeline", unseen=FSDP, **FSDP_PARTS, pp=2),
    case("fsdp_overlaps_grad_reduce", unseen=FSDP, zero_stage=2, overlap_grad_reduce=False),
    case("fsdp_overlaps_param_gather", unseen=FSDP, zero_stage=3),
    case(
        "param_gather_needs_sharding",
        "only supported with distributed optimizer",
        zero_stage=0,
        overlap_param_gather=True,
    ),
    case(
        "param_gather_needs_grad_reduce",
        "with --overlap-grad-reduce",
        overlap_param_gather=True,
        overlap_grad_reduce=False,
    ),
    case(
        "offload_needs_sharding",
        "only supported with distributed optimizer",
        zero_stage=0,
        offload_optimizer=True,
    ),
    case("offload_without_fsdp", unseen=FSDP, **FSDP_PARTS, offload_optimizer=True),
    case("deepep_needs_ampere", unseen=LIBRARY, **DEEPEP, compute_capability=7.5),
    case("deepep_needs_rdma", unseen=LIBRARY, **DEEPEP, nvlink_domain=2, rdma=False),
    case(
        "overlapped_experts_need_ep",
        "only supported with expert model parallelism",
        model="experts",
        **INTERLEAVED,
        expert_messages="overlapped",
    ),
    case(
        "overlapped_experts_need_virtual_stages",
        "virtual_pipeline_model_parallel_size must be specified",
        model="experts",
        **{**EP4, "pp": 2, "dp": 4, "expert_messages": "overlapped"},
    ),
    case(
        "overlapped_experts_need_micro_batches",
        unseen=OURS,
        model="experts",
        **{**EP4, "num_micro_batches": 4, "expert_messages": "overlapped"},
    ),
    case(
        "overlapped_experts_without_full_recompute",
        "disable full recomputation",
        model="experts",
        **{**EP4, **INTERLEAVED, **FULL, "expert_messages": "overlapped"},
    ),
    case(
        "overlapped_experts_without_recomputed_experts",
        "disable moe in recompute_modules",
        model="experts",
        recompute_granularity="selective",
        recompute_modules="moe",
        **{**EP4, **INTERLEAVED, "expert_messages": "overlapped"},
    ),
    case(
        "offload_needs_host_memory",
        unseen=OURS,
        offload_optimizer=True,
        zero_stage=1,
        parameters=2**30,
        host_memory_bytes=2**30,
    ),
    case("tp_overlap_needs_sequence_parallel", "sequence parallelism", tp=2, overlap_tp=True),
    case(
        "tp_overlap_needs_nvlink",
        unseen="asserted by Transformer Engine",
        **{**SEQUENCE_TP2, "overlap_tp": True, "nvlink": False},
    ),
    case(
        "tp_overlap_domain",
        unseen="asserted by Transformer Engine",
        **{**SEQUENCE_TP2, "overlap_tp": True, "nvlink_domain": 1},
    ),
    case("tp_overlap_without_mla", unseen=SILENT, model="latent", **SEQUENCE_TP2, overlap_tp=True),
    case(
        "full_recompute_needs_method",
        'must be "block" or "uniform"',
        **{**FULL, "recompute_method": "none"},
    ),
    case(
        "full_recompute_needs_layers",
        "recompute_num_layers must be between",
        **{**FULL, "recompute_layers": 0},
    ),
    case(
        "selective_recompute_has_no_method",
        "not yet supported for selective",
        recompute_granularity="selective",
        recompute_method="block",
        recompute_modules="core_attn",
    ),
    case(
        "selective_recompute_has_no_layers",
        "recompute_num_layers must be None",
        recompute_granularity="selective",
        recompute_layers=1,
        recompute_modules="core_attn",
    ),
    case("selective_recompute_needs_modules", unseen=OURS, recompute_granularity="selective"),
    case("modules_need_selective_recompute", unseen=OURS, recompute_modules="core_attn"),
    case("recompute_needs_granularity", unseen=OURS, recompute_method="block", recompute_layers=1),
    case(
        "moe_act_module",
        "moe_act",
        recompute_granularity="selective",
        recompute_modules="moe_act",
    ),
    case("moe_module", unseen=OURS, recompute_granularity="selective", recompute_modules="moe"),
    case(
        "shared_experts_module",
        unseen=OURS,
        model="experts",
        recompute_granularity="selective",
        recompute_modules="shared_experts",
    ),
    case(
        "mla_module",
        "mla_up_proj",
        recompute_granularity="selective",
        recompute_modules="mla_up_proj",
    ),
    case(
        "gated_delta_net_module",
        "gdn_norm_out",
        recompute_granularity="selective",
        recompute_modules="gdn_norm_out",
    ),
    case("adapters_by_tp", unseen=BRIDGE, tp=2, lora_rank=15),
    case("adapters_without_fsdp", unseen=BRIDGE, zero_stage=2, lora_rank=16),
    case(
        "adapters_without_tp_overlap",
        unseen=BRIDGE,
        **{**SEQUENCE_TP2, "overlap_tp": True, "lora_rank": 16},
    ),
)


def test_every_rule_has_a_case() -> None:
    assert [one.rule for one in CASES] == [rule.id for rule in megatron_rules()]
    assert set(columns_of("dense")) == set(COLUMNS)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.rule)
def test_megatron_refuses_what_a_rule_rejects(megatron: Driver, one: Case) -> None:
    columns = columns_of(one.model, **one.changes)
    assert rejected_by(columns) == [one.rule]
    said = refusal(megatron, columns)
    if one.unseen:
        assert said is None
    else:
        assert said is not None
        assert one.says in said


def _degree(*values: int) -> st.SearchStrategy[int]:
    return st.sampled_from(values)


@st.composite
def accepted(draw: st.DrawFn) -> dict[str, Any]:
    """A strategy that no rule rejects: fields that go together are drawn together."""
    model = draw(st.sampled_from(sorted(MODELS)))
    experts = MODELS[model]["experts"] > 0
    tp, pp, virtual = draw(_degree(1, 2, 4)), draw(_degree(1, 2, 4)), draw(_degree(1, 2, 3))
    sharding = draw(_degree(0, 1, 1, 2, 3)) if pp == 1 else draw(_degree(0, 1))
    changes = {
        "tp": tp,
        "pp": pp,
        "cp": draw(_degree(1, 2)),
        "dp": draw(_degree(1, 2, 4)),
        "ep": draw(_degree(1, 2)) if experts else 1,
        "etp": draw(_degree(1, 2)) if experts else 1,
        "layers": draw(_degree(2, 12, 13, 24)),
        "split": draw(st.sampled_from(["even", "balanced", "free"])),
        "virtual_stages": virtual if pp > 1 else 1,
        "num_micro_batches": draw(_degree(4, 8)),
        "micro_batch": draw(_degree(1, 3)),
        "sequence_parallel": tp > 1 and (experts or draw(st.booleans())),
        "pipeline_inside": not experts and draw(st.booleans()),
        "zero_stage": sharding,
        "shard_groups": draw(_degree(1, 2)) if sharding == 1 else 1,
        "offload_optimizer": sharding == 1 and draw(st.booleans()),
        "overlap_grad_reduce": sharding >= 2 or draw(st.booleans()),
        "overlap_p2p": pp > 1 and virtual > 1,
        **draw(_recomputations(model)),
    }
    changes["overlap_param_gather"] = sharding == 3 or (
        sharding > 0 and bool(changes["overlap_grad_reduce"]) and draw(st.booleans())
    )
    changes["overlap_tp"] = (
        bool(changes["sequence_parallel"]) and model != "latent" and draw(st.booleans())
    )
    return columns_of(model, **changes)


def _recomputations(model: str) -> st.SearchStrategy[dict[str, Any]]:
    modules = ["core_attn", "layernorm", "mlp", "core_attn,mlp"]
    modules += ["moe_act", "moe,layernorm"] if MODELS[model]["experts"] else []
    modules += ["shared_experts"] if MODELS[model]["shared_ffn"] else []
    modules += ["mla_up_proj"] if MODELS[model]["mla"] else []
    selective = st.sampled_from(modules).map(
        lambda names: {"recompute_granularity": "selective", "recompute_modules": names}
    )
    full = st.tuples(st.sampled_from(["uniform", "block"]), st.integers(1, 30)).map(
        lambda chosen: {
            "recompute_granularity": "full",
            "recompute_method": chosen[0],
            "recompute_layers": chosen[1],
        }
    )
    return st.one_of(st.just({}), selective, full)


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)
@given(accepted().filter(lambda columns: not rejected_by(columns)))
def test_megatron_accepts_what_no_rule_rejects(megatron: Driver, columns: dict[str, Any]) -> None:
    parsed = megatron.ask(**request_of(columns))
    megatron.ask(**groups_request_of(columns))
    assert parsed["args"]["data_parallel_size"] == columns["dp"]
    assert parsed["num_micro_batches"] == columns["num_micro_batches"]
    assert (parsed["args"]["virtual_pipeline_model_parallel_size"] or 1) == columns[
        "virtual_stages"
    ]
    every = [layer for rank in parsed["stages"] for chunk in rank for layer in chunk]
    assert sorted(every) == list(range(columns["layers"]))
    assert parsed["args"]["sequence_parallel"] == columns["sequence_parallel"]
    assert parsed["args"]["use_distributed_optimizer"] == (columns["zero_stage"] > 0)
