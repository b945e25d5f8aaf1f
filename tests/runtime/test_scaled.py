"""A scaled plan is legal, small, and keeps what the plan divides and how."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.blocks import Model
from astrarium.model.workload import Workload
from astrarium.runtime.scaled.job import ScaledJob, as_planned, scaled
from astrarium.search.refusals import why_refused
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)

MODELS = ("gpt3-2.7B", "llama-2-70b", "qwen3-8b", "mixtral-8x7b", "deepseek-v2", "qwen2.5-7b")
POOLS = parse_gpus("h100:8").pools
AXES = ("tp", "pp", "dp", "cp", "ep", "virtual_stages")
RECOMPUTE = (
    Recompute(),
    Recompute(Granularity.FULL, Method.UNIFORM, 1),
    Recompute(Granularity.FULL, Method.BLOCK, 3),
    Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
)
few = st.sampled_from([1, 1, 2, 4, 8])


@cache
def model_of(name: str) -> Model:
    return load_model(name)


@st.composite
def stages_of(draw: st.DrawFn, layers: int, pp: int, virtual: int) -> tuple[Stage, ...]:
    """Layers cut anywhere, also with stages that hold none; ranks on one pool after another."""
    chunks = pp * virtual
    empty = draw(st.booleans())
    places = st.integers(0, layers) if empty else st.integers(1, layers - 1)
    inner = st.lists(places, min_size=chunks - 1, max_size=chunks - 1, unique=not empty)
    bounds = [0, *sorted(draw(inner)), layers] if chunks > 1 else [0, layers]
    border = draw(st.integers(0, pp))
    return tuple(
        Stage(
            gpu="",
            layers=(bounds[number], bounds[number + 1]),
            devices=1,
            pipeline_rank=number % pp,
            chunk=number // pp,
            pools={"first" if number % pp < border else "second": 1},
        )
        for number in range(chunks)
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[Workload, Strategy]:
    """Strategies that Megatron takes, for models of all sorts."""
    model = model_of(draw(st.sampled_from(MODELS)))
    tp, pp, dp, cp = (draw(few) for _ in range(4))
    sparse = model.max_experts > 0
    ep = draw(few) if sparse else 1
    virtual = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    micro_batches = pp * draw(st.integers(1, 4)) if virtual > 1 else draw(st.integers(1, 9))
    stages = draw(stages_of(model.num_layers, pp, virtual))
    sizes = {stage.last_layer - stage.first_layer for stage in stages}
    zero = draw(st.sampled_from([0, 1] if pp > 1 else [0, 1, 3]))
    strategy = Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        etp=draw(st.sampled_from([1, tp])) if sparse else 1,
        micro_batch=draw(st.integers(1, 4)),
        num_micro_batches=micro_batches,
        virtual_stages=virtual,
        sequence_parallel=tp > 1 and (sparse or draw(st.booleans())),
        pipeline_inside=not sparse and draw(st.booleans()),
        split=LayerSplit.EVEN if len(sizes) == 1 else LayerSplit.FREE,
        zero_stage=zero,
        recompute=draw(st.sampled_from(RECOMPUTE)),
        overlap=Overlap(param_gather=zero > 0, p2p=virtual > 1, tp=False),
        stages=stages,
    )
    workload = Workload(model, 4096, strategy.sequences)
    assume(not why_refused(workload, POOLS, strategy))
    return workload, strategy


def sizes(strategy: Strategy) -> list[int]:
    ordered = sorted(strategy.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
    return [stage.last_layer - stage.first_layer for stage in ordered]


@given(plans(), st.integers(1, 16))
def test_a_scaled_plan_is_legal_and_small(plan: tuple[Workload, Strategy], most: int) -> None:
    workload, strategy = plan
    small = scaled(workload, strategy, most, 4)
    assert why_refused(small.workload, POOLS, small.job.strategy) == ()
    assert small.job.ranks <= min(most, strategy.gpus)
    assert small.model.parameters < 10e6
    assert sum(sizes(small.job.strategy)) == small.job.shape.layers
    for axis in (*AXES, "etp", "num_micro_batches", "micro_batch"):
        assert getattr(small.job.strategy, axis) <= getattr(strategy, axis)


@given(plans())
def test_three_axes_stay_above_one_on_eight_processes(plan: tuple[Workload, Strategy]) -> None:
    workload, strategy = plan
    small = scaled(workload, strategy, 8, 4).job.strategy
    used = [axis for axis in ("tp", "pp", "dp", "cp") if getattr(strategy, axis) > 1]
    kept = [axis for axis in used if getattr(small, axis) > 1]
    assert kept == used or (len(kept) == 3 and "cp" not in kept)
    assert (small.virtual_stages > 1) == (strategy.virtual_stages > 1)
    assert (small.ep > 1) == (strategy.ep > 1)
    assert small.recompute.granularity is strategy.recompute.granularity
    assert (small.zero_stage > 0) == (strategy.zero_stage > 0)


@given(plans())
def test_stages_keep_their_order_of_sizes_and_their_pools(plan: tuple[Workload, Strategy]) -> None:
    workload, strategy = plan
    small = scaled(workload, strategy, 16, 4).job.strategy
    assume(small.pp > 1)
    if len(set(sizes(strategy))) > 1:
        columns = {tuple(sizes(strategy)[rank :: strategy.pp]) for rank in range(strategy.pp)}
        uneven = len(columns) > 1 or small.virtual_stages == strategy.virtual_stages > 1
        assert len(set(sizes(small))) > 1 or not uneven
    pools = [name for stage in strategy.stages for name in stage.pools]
    kept = [name for stage in small.stages if stage.chunk == 0 for name in stage.pools]
    assert set(kept) == set(pools)
    assert kept == sorted(kept)  # the first pool comes first


def test_the_order_of_sizes_is_that_of_the_plan() -> None:
    bounds = [0, 9, 12, 27, 32]
    stages = tuple(Stage("", (a, b), 1, i, 0) for i, (a, b) in enumerate(pairwise(bounds)))
    strategy = Strategy(pp=4, num_micro_batches=8, stages=stages, split=LayerSplit.FREE)
    workload = Workload(model_of("qwen3-8b"), 2048, 8)
    four = replace(workload, model=replace(workload.model, blocks=workload.model.blocks[:32]))
    assert sizes(scaled(four, strategy, 8, 4).job.strategy) == [2, 1]
    pools = [replace(s, pools={f"p{s.pipeline_rank}": 1}) for s in stages]
    mixed = replace(strategy, stages=tuple(pools))
    assert sizes(scaled(four, mixed, 8, 4).job.strategy) == [3, 1, 4, 2]


def changes(small: ScaledJob) -> dict[str, tuple[str, str]]:
    return {change.what: (change.planned, change.run) for change in small.changes}


def test_what_was_scaled_is_said() -> None:
    strategy = Strategy(tp=8, pp=4, dp=2, num_micro_batches=16, sequence_parallel=True)
    small = scaled(Workload(model_of("llama-2-70b"), 4096, 32), strategy, 8, 4)
    said = changes(small)
    assert said["tp"] == ("8", "2")
    assert said["layers of stages"] == ("20 20 20 20", "1 1")
    assert said["hidden"] == ("8192", "64")
    assert said["seq length"] == ("4096", "32")
    assert "dp" not in said  # is two already
    assert any("TransformerEngine" in note for note in small.notes)


def test_axes_that_were_given_up_are_said() -> None:
    strategy = Strategy(tp=2, pp=2, dp=2, num_micro_batches=4)
    small = scaled(Workload(model_of("llama-2-70b"), 4096, 8), strategy, 2, 4)
    assert small.job.ranks == 2
    assert small.job.strategy.pp == 2
    assert small.notes[0] == "tp, dp became 1: there are too few processes; give more with --ranks"


def test_both_kinds_of_layers_stay() -> None:
    strategy = Strategy(pp=2, dp=2, ep=2, num_micro_batches=4)
    small = scaled(Workload(model_of("deepseek-v2"), 4096, 8), strategy, 8, 4)
    assert set(small.job.shape.expert_layers) == {True, False}
    assert small.job.shape.latent is not None


def test_the_layout_is_megatrons() -> None:
    stages = (Stage("", (0, 30), 1, 0, 0), Stage("", (30, 80), 1, 1, 0))
    strategy = Strategy(pp=2, num_micro_batches=4, stages=stages, split=LayerSplit.FREE)
    small = scaled(Workload(model_of("llama-2-70b"), 4096, 4), strategy, 8, 4)
    assert small.job.layout == "Et|ttL"


def test_a_single_process_does_the_same_sequences() -> None:
    strategy = Strategy(tp=2, dp=2, micro_batch=2, num_micro_batches=3)
    job = scaled(Workload(model_of("llama-2-70b"), 4096, 12), strategy, 4, 4).job
    alone = job.alone()
    assert alone.ranks == 1
    assert alone.strategy.sequences == job.strategy.sequences
    assert alone.strategy.micro_batch == job.strategy.micro_batch


def test_its_own_size_stays_but_for_padding() -> None:
    strategy = Strategy(tp=2, zero_stage=3, overlap=Overlap(p2p=False))
    job = as_planned(Workload(model_of("qwen2.5-7b"), 4096, 1), strategy, 4).job
    assert job.shape.hidden == 3584
    assert job.shape.vocab == 152064
    assert job.seq_length == 4096
    assert job.strategy.zero_stage == 1
