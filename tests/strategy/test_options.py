"""Every option of Megatron's parser has a place, and every strategy field comes from one."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from astrarium.strategy.expression import compile_rule
from astrarium.strategy.options import (
    WORKLOAD_SOURCES,
    Option,
    Takes,
    Treatment,
    implied_fields,
    megatron_aliases,
    megatron_options,
)
from astrarium.strategy.validity import COLUMNS

# Of the flags of megatron-core 0.19.2's parser, sorted, one a line. An option that is added or
# left out changes it.
FLAGS_SHA256 = "5da5cc43a3d5bd0478df71963a6637c7319159bcd75b4f90bb42af1c963dae97"
NUM_OPTIONS = 808

STRATEGY_FIELDS = (
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "micro_batch",
    "num_micro_batches",
    "virtual_stages",
    "sequence_parallel",
    "pipeline_inside",
    "split",
    "schedule",
    "zero_stage",
    "shard_groups",
    "recompute_granularity",
    "recompute_method",
    "recompute_layers",
    "recompute_modules",
    "offload_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
    "overlap_tp",
)

# Options known to decide time or memory: none of them may be called neutral.
DECIDING = (
    "attention_backend",
    "bf16",
    "cp_comm_type",
    "cpu_offloading_num_layers",
    "cross_entropy_loss_fusion",
    "cuda_graph_impl",
    "ddp_bucket_size",
    "empty_unused_memory_level",
    "fp8",
    "gradient_accumulation_fusion",
    "grad_reduce_in_bf16",
    "hidden_size",
    "moe_expert_capacity_factor",
    "moe_token_dispatcher_type",
    "nccl_ub",
    "num_distributed_optimizer_instances",
    "optimizer",
    "seq_length",
    "transformer_impl",
    "use_precision_aware_optimizer",
    "use_tp_pp_dp_mapping",
    "vocab_size",
)


def test_all_options_are_there() -> None:
    flags = sorted(flag for option in megatron_options() for flag in option.flags)
    assert len(megatron_options()) == NUM_OPTIONS
    assert len(flags) == len(set(flags))
    assert hashlib.sha256("\n".join(flags).encode()).hexdigest() == FLAGS_SHA256


def test_what_follows_an_option_is_known() -> None:
    """As many of each sort as the parser has, so that a line that is changed shows."""
    options = megatron_options()
    takes = Counter(option.takes for option in options)
    assert dict(takes) == {
        Takes.ON: 250,
        Takes.OFF: 51,
        Takes.SWITCH: 13,
        Takes.INT: 214,
        Takes.FLOAT: 102,
        Takes.TEXT: 178,
    }
    assert Counter(option.many for option in options if option.many) == {"+": 16, "*": 6, 3: 1}
    assert not [o for o in options if o.takes.is_flag and (o.many or o.choices)]
    assert all(len(o.flags) > 1 for o in options if o.takes is Takes.SWITCH)


@pytest.mark.parametrize("treatment", list(Treatment))
def test_options_say_what_is_done_and_why(treatment: Treatment) -> None:
    options = [option for option in megatron_options() if option.treatment is treatment]
    assert options
    for option in options:
        assert _is_complete(option), option


def _is_complete(option: Option) -> bool:
    match option.treatment:
        case Treatment.SEARCHED:
            return bool(option.why) and option.field in STRATEGY_FIELDS
        case Treatment.DERIVED:
            return bool(option.why) and (
                option.field in COLUMNS or option.field in WORKLOAD_SOURCES
            )
        case Treatment.FIXED:
            return bool(option.why) and option.field is None
        case Treatment.NEUTRAL:
            return bool(option.category) and not option.why


def test_every_strategy_field_comes_from_an_option() -> None:
    searched = {o.field for o in megatron_options() if o.treatment is Treatment.SEARCHED}
    assert searched | set(implied_fields()) == set(STRATEGY_FIELDS)
    assert not searched & set(implied_fields())


def test_what_decides_time_or_memory_is_not_neutral() -> None:
    by_dest = {option.dest: option for option in megatron_options()}
    neutral = [name for name in DECIDING if by_dest[name].treatment is Treatment.NEUTRAL]
    assert not neutral


def test_values_that_differ_from_the_default_are_marked() -> None:
    marked = {o.dest: o.value for o in megatron_options() if o.differs_from_default}
    assert marked["moe_router_dtype"] == "fp32"
    assert marked["hidden_dropout"] == 0.0
    assert "cp_comm_type" not in marked


def test_aliases_name_fields() -> None:
    aliases = megatron_aliases()
    assert aliases["tensor_model_parallel_size"] == "tp"
    assert aliases["recompute_num_layers"] == "recompute_layers"
    assert "use_distributed_optimizer" not in aliases
    assert set(aliases.values()) <= set(COLUMNS)
    assert not set(aliases) & set(COLUMNS)
    rule = compile_rule("$micro_batch_size * $data_parallel_size > 4", COLUMNS, aliases)
    assert rule.names == {"micro_batch", "dp"}
