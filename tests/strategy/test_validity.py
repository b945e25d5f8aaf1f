"""The validity rules: stored trees, reasons, and one strategy that only each of them rejects."""

from __future__ import annotations

import json
import string
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from astrarium.catalog.runtimes import find_runtime, planned_runtimes
from astrarium.strategy import validity
from astrarium.strategy.expression import compile_rule, freeze
from astrarium.strategy.rule_parser import tree_of
from astrarium.strategy.validity import (
    COLUMN_CHOICES,
    COLUMN_TYPES,
    COLUMNS,
    ValidityRule,
    megatron_rules,
    rules_of,
    violations,
)

# A strategy Megatron-LM 0.19.2 accepts; every case below changes as little of it as possible.
VALID: Mapping[str, Any] = {
    "tp": 2,
    "pp": 4,
    "dp": 4,
    "cp": 2,
    "ep": 1,
    "etp": 1,
    "micro_batch": 1,
    "num_micro_batches": 16,
    "virtual_stages": 2,
    "sequence_parallel": True,
    "pipeline_inside": False,
    "shard_groups": 1,
    "split": "even",
    "schedule": "interleaved",
    "zero_stage": 1,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_layers": 0,
    "recompute_modules": "",
    "offload_optimizer": False,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "overlap_p2p": True,
    "overlap_tp": True,
    "seq_length": 4096,
    "global_batch": 64,
    "layers": 32,
    "hidden": 4096,
    "ffn": 14336,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "scan_heads": 0,
    "scan_groups": 0,
    "delta_net": False,
    "vocab": 128256,
    "experts": 0,
    "topk": 0,
    "moe_ffn": 0,
    "shared_ffn": 0,
    "expert_bias": False,
    "mla": False,
    "sliding_window": False,
    "parameters": 8_030_261_248,
    "tied_embeddings": False,
    "lora_rank": 0,
    "pairs": False,
    "precision": "bf16",
    "reduced_numerics": False,
    "expert_messages": "alltoall",
    "optimizer": "adamw",
    "gpu": "H100-SXM5-80GB",
    "gpus": 64,
    "nodes": 8,
    "gpus_per_node": 8,
    "nvlink_domain": 8,
    "nvlink": True,
    "rdma": True,
    "compute_capability": 9.0,
    "memory_bytes": 80 * 2**30,
    "host_memory_bytes": 2048 * 2**30,
}
MOE: Mapping[str, Any] = {
    **VALID,
    "experts": 64,
    "topk": 8,
    "ffn": 0,
    "moe_ffn": 1408,
    "shared_ffn": 2816,
    "ep": 8,
}
PLAIN: Mapping[str, Any] = {
    **VALID,
    "virtual_stages": 1,
    "schedule": "1f1b",
    "overlap_p2p": False,
}
FSDP: Mapping[str, Any] = {
    **PLAIN,
    "pp": 1,
    "dp": 16,
    "num_micro_batches": 4,
    "zero_stage": 3,
}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": "core_attn,layernorm"}
FULL = {"recompute_granularity": "full", "recompute_method": "block", "recompute_layers": 3}

ORIGINS = (
    *("Megatron-LM 0.19.2 ", "Transformer Engine ", "Astrarium: ", "torch 2.13 "),
    *("torchtune 0.6.1 ", "Megatron-Bridge 0.6.2 "),
    *("torchtitan 0.3.0 ", "accelerate 1.15.0", "DeepSpeed 0.19.8 ", "Transformers 5.22.2"),
)

CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "degrees_positive": (PLAIN, {"etp": -1}),
    "world_size": (VALID, {"gpus": 72}),
    "expert_grid": (MOE, {"ep": 32}),
    "micro_batch_positive": (VALID, {"micro_batch": -1, "num_micro_batches": -16}),
    "batch_division": (PLAIN, {"global_batch": 62}),
    "batch_count": (VALID, {"num_micro_batches": 8}),
    "heads_by_tp": (VALID, {"heads": 33}),
    "kv_heads_by_tp": (VALID, {"kv_heads": 3}),
    "scan_heads_by_ranks": (VALID, {"scan_heads": 6, "scan_groups": 2}),
    "scan_groups_by_tp": (VALID, {"scan_heads": 8, "scan_groups": 1}),
    "scan_groups_by_cp": (VALID, {"scan_heads": 24, "scan_groups": 6}),
    "ffn_by_tp": (VALID, {"ffn": 14335}),
    "moe_ffn_by_etp": (MOE, {"etp": 2, "ep": 8, "moe_ffn": 1407}),
    "shared_ffn_by_tp": (MOE, {"shared_ffn": 2815}),
    "ep_needs_experts": (VALID, {"ep": 4}),
    "etp_needs_experts": (VALID, {"etp": 2}),
    "experts_by_ep": (MOE, {"experts": 60}),
    "experts_tp_needs_sequence_parallel": (
        MOE,
        {"sequence_parallel": False, "overlap_tp": False},
    ),
    "expert_bias_needs_etp_1": (MOE, {"expert_bias": True, "etp": 2}),
    "sequence_parallel_needs_tp": (VALID, {"tp": 1, "dp": 8, "num_micro_batches": 8}),
    "sequence_by_tp": (VALID, {"tp": 8, "dp": 1, "num_micro_batches": 64, "seq_length": 4100}),
    "sequence_by_cp": (
        {**VALID, "sequence_parallel": False, "overlap_tp": False},
        {"seq_length": 4098},
    ),
    "window_with_cp": (VALID, {"sliding_window": True}),
    "interleaving_needs_pipeline": (
        VALID,
        {"pp": 1, "dp": 16, "num_micro_batches": 4},
    ),
    "interleaving_on_two_stages": (
        VALID,
        {"pp": 2, "dp": 8, "num_micro_batches": 8, "overlap_p2p": False},
    ),
    "interleaving_micro_batches": (VALID, {"global_batch": 72, "num_micro_batches": 18}),
    "even_layers_by_pp": (PLAIN, {"layers": 30}),
    "even_layers_by_chunks": (VALID, {"layers": 36}),
    "layers_per_chunk": (VALID, {"split": "balanced", "layers": 7}),
    "schedule_is_interleaved": (VALID, {"schedule": "1f1b"}),
    "pipeline_inside_without_experts": (MOE, {"pipeline_inside": True}),
    "p2p_overlap_needs_interleaving": (PLAIN, {"overlap_p2p": True}),
    "zero_stage_range": (FSDP, {"zero_stage": 4}),
    "shard_groups_by_dp": (VALID, {"shard_groups": 3}),
    "shard_groups_divide": (VALID, {"shard_groups": 4, "cp": 1, "tp": 4}),
    "shard_groups_by_experts": (MOE, {"shard_groups": 2, "ep": 16}),
    "optimizer_instances": (FSDP, {"shard_groups": 2}),
    "fsdp_without_pipeline": (VALID, {"zero_stage": 2}),
    "fsdp_overlaps_grad_reduce": (
        FSDP,
        {"zero_stage": 2, "overlap_grad_reduce": False, "overlap_param_gather": False},
    ),
    "fsdp_overlaps_param_gather": (FSDP, {"overlap_param_gather": False}),
    "param_gather_needs_sharding": (VALID, {"zero_stage": 0}),
    "param_gather_needs_grad_reduce": (VALID, {"overlap_grad_reduce": False}),
    "offload_needs_sharding": (
        VALID,
        {"offload_optimizer": True, "zero_stage": 0, "overlap_param_gather": False},
    ),
    "offload_without_fsdp": (FSDP, {"offload_optimizer": True}),
    "deepep_needs_ampere": (
        MOE,
        {"expert_messages": "deepep", "nvlink": False, "overlap_tp": False},
    ),
    "deepep_needs_rdma": (MOE, {"expert_messages": "deepep", "ep": 16, "rdma": False}),
    "overlapped_experts_need_ep": (MOE, {"expert_messages": "overlapped", "ep": 1}),
    "overlapped_experts_need_virtual_stages": (
        MOE,
        {
            **{"expert_messages": "overlapped", "virtual_stages": 1, "schedule": "1f1b"},
            "overlap_p2p": False,
        },
    ),
    "overlapped_experts_need_micro_batches": (
        MOE,
        {
            **{"expert_messages": "overlapped", "virtual_stages": 1, "schedule": "1f1b"},
            **{"pp": 1, "dp": 16, "overlap_p2p": False, "num_micro_batches": 4},
        },
    ),
    "overlapped_experts_without_full_recompute": (MOE, {"expert_messages": "overlapped", **FULL}),
    "overlapped_experts_without_recomputed_experts": (
        MOE,
        {"expert_messages": "overlapped", **SELECTIVE, "recompute_modules": "layernorm,moe"},
    ),
    "offload_needs_host_memory": (VALID, {"offload_optimizer": True, "host_memory_bytes": 2**34}),
    "tp_overlap_needs_sequence_parallel": (VALID, {"sequence_parallel": False}),
    "tp_overlap_needs_nvlink": (VALID, {"nvlink": False}),
    "reduced_numerics": (FSDP, {"reduced_numerics": True}),
    "adapters_by_tp": ({**VALID, "overlap_tp": False}, {"lora_rank": 15}),
    "adapters_without_fsdp": ({**FSDP, "overlap_tp": False}, {"lora_rank": 16}),
    "adapters_without_tp_overlap": (VALID, {"lora_rank": 16}),
    "whole_pairs": (VALID, {"pairs": True}),
    "reduced_moments": (FSDP, {"optimizer": "adamw-8bit"}),
    "sgd_whole": (VALID, {"optimizer": "sgd"}),
    "emerging_optimizers": (FSDP, {"optimizer": "muon"}),
    "cp_needs_ampere": (VALID, {"compute_capability": 7.5}),
    "tp_overlap_domain": (VALID, {"nvlink_domain": 1}),
    "tp_overlap_without_mla": (VALID, {"mla": True}),
    "full_recompute_needs_method": (VALID, {**FULL, "recompute_method": None}),
    "full_recompute_needs_layers": (VALID, {**FULL, "recompute_layers": 0}),
    "selective_recompute_has_no_method": (VALID, {**SELECTIVE, "recompute_method": "block"}),
    "selective_recompute_has_no_layers": (VALID, {**SELECTIVE, "recompute_layers": 1}),
    "selective_recompute_needs_modules": (VALID, {**SELECTIVE, "recompute_modules": ""}),
    "modules_need_selective_recompute": (VALID, {**FULL, "recompute_modules": "mlp"}),
    "recompute_needs_granularity": (VALID, {"recompute_layers": 2}),
    "moe_act_module": (VALID, {**SELECTIVE, "recompute_modules": "core_attn,moe_act"}),
    "moe_module": (VALID, {**SELECTIVE, "recompute_modules": "moe"}),
    "shared_experts_module": (VALID, {**SELECTIVE, "recompute_modules": "shared_experts"}),
    "mla_module": (VALID, {**SELECTIVE, "recompute_modules": "mla_up_proj"}),
    "gated_delta_net_module": (VALID, {**SELECTIVE, "recompute_modules": "gdn_norm_out"}),
}

RULES = {rule.id: rule for rule in megatron_rules()}
# Of the other runtimes: a strategy that each accepts, and what only one rule of theirs rejects.
ALONE: Mapping[str, Any] = {
    **FSDP,
    "tp": 1,
    "dp": 32,
    "num_micro_batches": 2,
    "sequence_parallel": False,
    "overlap_tp": False,
}
TITAN: Mapping[str, Any] = {**VALID, "kv_heads": 8}
ZERO: Mapping[str, Any] = {**ALONE, "cp": 1, "dp": 64, "num_micro_batches": 1}
EXPERTS = {"experts": 64, "topk": 8, "ffn": 0, "moe_ffn": 1408}
WITHOUT_FSDP = {**FSDP, "zero_stage": 1}
OTHERS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "graphs_recompute_no_layer": ("megatron-graphs", VALID, FULL),
    "graphs_without_fsdp": ("megatron-graphs", WITHOUT_FSDP, {"zero_stage": 2}),
    "graphs_without_experts": ("megatron-graphs", VALID, {**EXPERTS, "ep": 8}),
    "activation_offload_without_pipeline": (
        "megatron-offload",
        WITHOUT_FSDP,
        {"pp": 2, "dp": 8, "num_micro_batches": 8},
    ),
    "activation_offload_without_recompute": ("megatron-offload", ALONE, SELECTIVE),
    "replicas_are_neighbours": ("torchtitan", TITAN, {"pipeline_inside": True}),
    "no_scans": ("torchtitan", TITAN, {"scan_heads": 8, "scan_groups": 8}),
    "scan_without_splits": ("fsdp", ALONE, {"scan_heads": 8, "scan_groups": 8}),
    "no_tensor_parallel": ("fsdp", ALONE, {"tp": 2, "dp": 16, "num_micro_batches": 4}),
    "no_pipeline": ("deepspeed", ZERO, {"pp": 2, "dp": 32, "num_micro_batches": 2}),
    "no_context_parallel": ("deepspeed", ZERO, {"cp": 2, "dp": 32, "num_micro_batches": 2}),
    "no_expert_parallel": ("fsdp", {**ALONE, **EXPERTS}, {"ep": 8}),
    "no_sequence_parallel": (
        "deepspeed",
        {**ZERO, "tp": 2, "dp": 32, "num_micro_batches": 2},
        {"sequence_parallel": True},
    ),
    "whole_experts": ("torchtitan", {**TITAN, **EXPERTS, "ep": 8}, {"etp": 2}),
    "experts_by_tp": ("torchtitan", {**TITAN, **EXPERTS, "etp": 2}, {"etp": 1}),
    "whole_kv_heads": ("torchtitan", TITAN, {"kv_heads": 1}),
    "equal_halves": ("torchtitan", TITAN, {"seq_length": 4100}),
    "untied_pipeline": ("torchtitan", TITAN, {"tied_embeddings": True}),
    "pipeline_is_full": (
        "torchtitan",
        {**PLAIN, "num_micro_batches": 4, "global_batch": 16},
        {"num_micro_batches": 3, "global_batch": 12},
    ),
    "send_beside": ("torchtitan", TITAN, {"overlap_p2p": False}),
    "fsdp_shards_gradients": ("fsdp", ALONE, {"zero_stage": 1}),
    "shard_groups_need_sharding": (
        "fsdp",
        {**ALONE, "cp": 1, "dp": 64, "num_micro_batches": 1, "zero_stage": 0}
        | {"overlap_param_gather": False},
        {"shard_groups": 8},
    ),
    "shard_groups_of_several": ("fsdp", ALONE, {"shard_groups": 32}),
    "one_shard_group": ("deepspeed", ZERO, {"shard_groups": 8}),
    "pipeline_keeps_weights": ("torchtitan", TITAN, {"zero_stage": 2}),
    "groups_share_parameters": (
        "torchtitan",
        {**FSDP, "cp": 1, "dp": 32, "num_micro_batches": 2, "zero_stage": 0}
        | {"overlap_param_gather": False},
        {"cp": 2, "dp": 16, "num_micro_batches": 4},
    ),
    "reduce_beside": (
        "fsdp",
        {**ALONE, "cp": 1, "dp": 64, "num_micro_batches": 1, "zero_stage": 0}
        | {"overlap_param_gather": False},
        {"overlap_grad_reduce": False},
    ),
    "gather_beside": ("fsdp", {**ALONE, "zero_stage": 2}, {"overlap_param_gather": False}),
    "gather_at_the_end": ("deepspeed", ZERO, {"zero_stage": 2}),
    "always_divides": (
        "fsdp-torchtune",
        {**ZERO, "cp": 1, "overlap_param_gather": True},
        {"zero_stage": 0, "overlap_param_gather": False},
    ),
    "no_module_recompute": ("fsdp", ALONE, SELECTIVE),
    "recompute_every_layer": ("fsdp", ALONE, FULL),
    "recompute_by_operator": ("torchtitan", TITAN, FULL),
    "offload_of_shards": ("fsdp", {**ALONE, "zero_stage": 2}, {"offload_optimizer": True}),
    "no_microscaling": ("torchtitan", TITAN, {"precision": "mxfp8"}),
    "no_fp8": ("deepspeed", ZERO, {"precision": "fp8"}),
    "fp8_of_experts": ("torchtitan", {**TITAN, **EXPERTS, "etp": 2}, {"precision": "fp8"}),
    "no_fp16": ("torchtitan", TITAN, {"precision": "fp16"}),
    "no_reduced_numerics": ("fsdp", ALONE, {"reduced_numerics": True}),
    "adafactor_whole": ("fsdp", ALONE, {"optimizer": "adafactor"}),
    "deepspeed_states_on_gpu": (
        "deepspeed",
        {**ZERO, "optimizer": "sgd"},
        {"offload_optimizer": True},
    ),
}


def rejecting(columns: Mapping[str, Any], rule_set: str = "megatron") -> set[str]:
    return {rule.id for rule in rules_of(rule_set) if rule.rejects(columns).any()}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES)
    assert len(RULES) == len(megatron_rules())
    assert {rule.id for rule in validity.all_rules()} == {*CASES, *OTHERS}


def test_every_set_of_rules_is_that_of_a_runtime() -> None:
    named = {name for rule in validity.all_rules() for name in rule.runtimes}
    assert named == {find_runtime(name).rules for name in planned_runtimes()}


@pytest.mark.parametrize("name", list(OTHERS))
def test_a_rule_of_another_runtime_rejects_what_no_other_does(name: str) -> None:
    rule_set, base, change = OTHERS[name]
    assert rejecting(base, rule_set) == set()
    assert rejecting({**base, **change}, rule_set) == {name}


@pytest.mark.parametrize("name", list(CASES))
def test_a_rule_rejects_what_no_other_rule_rejects(name: str) -> None:
    base, change = CASES[name]
    assert rejecting(base) == set()
    assert rejecting({**base, **change}) == {name}


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 16, "dp": 1, "cp": 1, "num_micro_batches": 64, "nvlink_domain": 16},
        {"kv_heads": 1},
        {"scan_heads": 8, "scan_groups": 2},
        {"scan_heads": 8, "scan_groups": 4, "delta_net": True},
        {"split": "balanced", "layers": 30},
        {**FULL, "recompute_layers": 1_000},
        {**FULL, "recompute_method": "uniform", "recompute_layers": 3},
        SELECTIVE,
        {"zero_stage": 0, "overlap_param_gather": False},
        {"offload_optimizer": True},
        {"offload_optimizer": True, "host_memory_bytes": 0},
        {"virtual_stages": 1, "schedule": "1f1b", "overlap_p2p": False, "global_batch": 8}
        | {"num_micro_batches": 2},
    ],
)
def test_what_megatron_accepts_is_not_rejected(change: Mapping[str, Any]) -> None:
    assert rejecting({**VALID, **change}) == set()


def test_every_shard_group_has_its_states_in_host_memory() -> None:
    """16 bytes x 8 billion parameters are 120 GiB; eight nodes leave 8 x 36 GiB to them."""
    offloaded = {**FSDP, "offload_optimizer": True, "host_memory_bytes": 40 * 2**30}
    refused = [rejecting({**offloaded, "shard_groups": n}, "torchtitan") for n in (1, 2, 4)]
    assert refused == [set(), set(), {"offload_needs_host_memory"}]


def test_stored_trees_are_those_of_the_texts() -> None:
    entries = json.loads(validity._RULES.read_text(encoding="utf-8"))["rules"]
    for entry in entries:
        assert freeze(entry["tree"]) == tree_of(entry["when"]), (
            f"{entry['id']}: run python tools/compile_rules.py"
        )


@pytest.mark.parametrize("rule", validity.all_rules(), ids=lambda rule: rule.id)
def test_rules_are_well_formed(rule: ValidityRule) -> None:
    checked = compile_rule(rule.rule.text, COLUMNS, types=COLUMN_TYPES, choices=COLUMN_CHOICES)
    assert checked.names == rule.names
    placeholders = {name for _, name, _, _ in string.Formatter().parse(rule.reason) if name}
    assert placeholders <= set(COLUMNS)
    assert rule.origin.startswith(ORIGINS)
    assert rule.category


def test_a_batch_is_many_single_strategies() -> None:
    rows = [{**base, **change} for base, change in CASES.values()]
    columns = {name: np.array([row[name] for row in rows], object) for name in COLUMNS}
    for name, kind in COLUMN_TYPES.items():
        if kind is not str:
            columns[name] = columns[name].astype(kind)
    for rule in megatron_rules():
        expected = [bool(rule.rejects(row)) for row in rows]
        assert np.broadcast_to(rule.rejects(columns), len(rows)).tolist() == expected


def test_violations_are_sentences_with_values() -> None:
    assert violations(VALID) == ()
    assert violations({**VALID, "heads": 33, "kv_heads": 33}) == (
        "33 attention heads cannot be divided by tp 2",
        "33 key/value heads are neither a multiple nor a divisor of tp 2",
    )
    assert violations({**VALID, "gpus": 72}) == ("tp 2 x pp 4 x cp 2 x dp 4 does not make 72 GPUs",)


def test_rules_do_not_import_the_parser() -> None:
    code = (
        "import sys; from astrarium.strategy.validity import megatron_rules; megatron_rules();"
        "sys.exit('lark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
