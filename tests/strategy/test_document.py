"""Strategies as text: short form, files, and the object in a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.strategy.document import read_strategy, strategy_from_dict, strategy_to_dict
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Strategy,
)


def read(text: str, gpus: int = 64, batch: int = 1024, layers: int = 80) -> Strategy:
    return read_strategy(text, gpus=gpus, global_batch=batch, layers=layers).strategy


def test_what_is_left_out_is_derived() -> None:
    strategy = read("tp=8,pp=4")
    assert (strategy.dp, strategy.num_micro_batches) == (2, 512)
    assert strategy.sequence_parallel
    assert strategy.overlap == Overlap(grad_reduce=True, param_gather=True, p2p=False, tp=True)
    assert strategy.split is LayerSplit.EVEN


def test_layers_that_do_not_divide_are_balanced() -> None:
    assert read("tp=8,pp=8", layers=61).split is LayerSplit.BALANCED


def test_recompute_in_the_short_form() -> None:
    full = read("tp=8,recompute=full,recompute_method=block,recompute_layers=3").recompute
    assert full == Recompute(Granularity.FULL, Method.BLOCK, 3)
    chosen = read("recompute=selective,recompute_modules=core_attn+mlp").recompute
    assert chosen.modules == (RecomputeModule.CORE_ATTN, RecomputeModule.MLP)
    assert read("recompute=full").recompute == Recompute(Granularity.FULL, Method.UNIFORM, 1)
    assert read("recompute=selective").recompute.modules == (RecomputeModule.CORE_ATTN,)


def test_short_and_megatron_names_are_understood() -> None:
    plain = read("tp=4,pp=4,virtual_stages=2,zero_stage=1,micro_batch=2")
    assert read("tp=4,pp=4,vpp=2,zero=1,mbs=2") == plain
    megatron = "tensor_model_parallel_size=4,pipeline_model_parallel_size=4,micro_batch_size=2"
    assert read(megatron + ",virtual_pipeline_model_parallel_size=2") == plain


def test_what_the_user_set_is_remembered() -> None:
    given = read_strategy("tp=8,overlap_tp=false", gpus=64, global_batch=1024, layers=80)
    assert given.overlap_given == {"tp"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=8", "unknown key 'colour'; known are tp, pp"),
        ("tpp=8", r"unknown key 'tpp' \(did you mean 'tp'"),
        ("tp=8,tp=4", "tp is given twice"),
        ("tp=0", "tp is 0; expected a whole number from 1"),
        ("tp=-2", "expected a whole number"),
        ("tp=1e3", "expected a whole number"),
        ("tp", "'tp' is neither key=value,... nor a file"),
        ("tp=8,pp", "'pp' is not of the form key=value"),
        ("zero_stage=4", "zero_stage is 4; expected a whole number from 0 to 3"),
        ("tp=7", "tp 7 x pp 1 x cp 1 = 7 does not divide 64 GPUs .4 and 8 do"),
        ("shard_groups=3", "shard_groups 3 does not divide the dp 64 x cp 1 = 64 ranks"),
        ("tp=8,dp=4", "= 32 GPUs, but 64 are given"),
        (
            "tp=1,micro_batch=3",
            "= 192 does not divide the global batch of 1024; take a batch of 960 or 1152",
        ),
        ("tp=8,num_micro_batches=5", "makes 128"),
        ("recompute=some", "expected one of none, selective, full"),
        ("sequence_parallel=maybe", "expected true or false"),
        ("recompute=5", "recompute is 5; expected a table of granularity"),
        ("overlap=true", "overlap is True; expected a table of grad_reduce"),
        ("recompute=selective,recompute_modules=5", "expected names of modules"),
        ("schedule=foo", "expected one of 1f1b, interleaved"),
        ("schedule=interleaved", "expected 1f1b"),
        ("stages=5", "expected a list of tables"),
        ("split=odd", "expected one of even, balanced"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


def test_a_plan_file_gives_its_best_strategy(tmp_path: Path) -> None:
    strategy = read("tp=4,pp=2,virtual_stages=2,micro_batch=2,zero_stage=1")
    plan = {"plans": [{"strategy": strategy_to_dict(strategy)}]}
    for content in (plan, plan["plans"][0], strategy_to_dict(strategy)):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(content))
        assert read(str(path)) == strategy


@pytest.mark.parametrize("text", ["1: 2", "recompute: [full]", "recompute: {1: 2}", "overlap: 3"])
def test_odd_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"strategy\.yaml"):
        read(str(path))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tp: 4\npp: zwei\n", 2),
        ("tp: 4\nrecompute:\n  granularty: full\n", 3),
        ("\ncolour: 1\n", 2),
    ],
)
def test_files_are_blamed_by_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"strategy\.yaml:{line}: "):
        read(str(path))


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
    granularity=st.sampled_from(list(Granularity)),
    offload=st.booleans(),
    overlap=st.builds(Overlap, st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_round_trip(
    tp: int, pp: int, zero: int, granularity: Granularity, offload: bool, overlap: Overlap
) -> None:
    recompute = {
        Granularity.NONE: Recompute(),
        Granularity.SELECTIVE: Recompute(granularity, modules=(RecomputeModule.LAYERNORM,)),
        Granularity.FULL: Recompute(granularity, Method.UNIFORM, 2),
    }[granularity]
    dp = 64 // tp // pp
    strategy = Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        num_micro_batches=1024 // dp,
        zero_stage=zero,
        recompute=recompute,
        offload_optimizer=offload,
        overlap=overlap,
        sequence_parallel=tp > 1,
    )
    document = json.loads(json.dumps(strategy_to_dict(strategy)))
    back = strategy_from_dict(document, where="x", gpus=64, global_batch=1024, layers=80)
    assert back == strategy
