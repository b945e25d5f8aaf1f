"""Megatron-LM's own parser, validation and rank groups take what is exported, and read the plan."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from exported_plans import CASES, MODELS, document, job, jobs
from hypothesis import HealthCheck, given, settings
from launched import with_spot
from upstream.client import Driver, RefusedError

from astrarium.catalog.models import model_entries
from astrarium.export.software.megatron import flags, program
from astrarium.export.software.megatron_hybrid import is_hybrid, parts_per_layer, pattern_of
from astrarium.export.software.megatron_model import model_refused
from astrarium.model import Block, model_of_entry
from astrarium.model.prediction import without_predictions
from astrarium.model.scans import Recurrence, Scan
from astrarium.model.workload import ExpertMessages, Numerics
from astrarium.plans.document import Evaluation, Ramp, SearchPart
from astrarium.plans.job import Job, job_of
from astrarium.strategy.types import Granularity

OLD, NEW = (9, 0), (10, 0)  # compute capability before and from Blackwell on
SLOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


def parsed(megatron: Driver, one: Job, **changes: Any) -> Any:
    """What Megatron makes of the exported arguments."""
    made = program(one)
    blackwell = all(group.pool.gpu.architecture.startswith("Blackwell") for group in one.nodes)
    return megatron.ask(
        operation="arguments",
        argv=[*made.arguments, *made.data.generated],
        world_size=one.world_size,
        env=dict(made.environment),
        capability=NEW if blackwell else OLD,
        **changes,
    )


def test_checkpoints_of_spot_nodes_are_options_of_megatron(megatron: Driver) -> None:
    spot = with_spot(job("even"), {"H100-SXM5-80GB": 16})
    words = shlex.split(" ".join(program(spot).checkpoints).replace("$CHECKPOINTS", "/a b"))
    made = program(spot)
    assert "CHECKPOINTS" in made.variables
    args = megatron.ask(
        operation="arguments",
        argv=[*made.arguments, *made.data.generated, *words],
        world_size=spot.world_size,
        env=dict(made.environment),
        capability=OLD,
    )["args"]
    assert (args["save"], args["load"], args["save_interval"]) == ("/a b", "/a b", 300)


@pytest.mark.parametrize("case", ["even", "uneven", "sharded"])
def test_every_run_keeps_checkpoints_and_can_be_tried(megatron: Driver, case: str) -> None:
    one = job(case)
    made = program(one)
    assert "CHECKPOINTS" not in made.variables  # it has a default
    saves = shlex.split(" ".join(made.checkpoints).replace("$CHECKPOINTS", "/c"))
    for words, key, value in ((saves, "save", "/c"), (made.smoke, "train_iters", 20)):
        argv = [*made.arguments, *words, *made.data.generated]
        args = megatron.ask(
            operation="arguments",
            argv=argv,
            world_size=one.world_size,
            env=dict(made.environment),
            capability=OLD,
        )["args"]
        assert args[key] == value


def test_deepep_is_taken(megatron: Driver) -> None:
    one = job("experts")
    chosen = replace(one, workload=replace(one.workload, expert_messages=ExpertMessages.DEEPEP))
    args = parsed(megatron, chosen)["args"]
    assert args["moe_token_dispatcher_type"] == "flex"
    assert args["moe_flex_dispatcher_backend"] == "deepep"


def test_reduced_numerics_are_taken(megatron: Driver) -> None:
    """All checks pass but the last, which asks for a library that the driver does not have."""
    one = job("even")
    reduced = replace(one, workload=replace(one.workload, numerics=Numerics.REDUCED))
    with pytest.raises(RefusedError, match="requires FusedAdam from TransformerEngine"):
        parsed(megatron, reduced)
    whole = replace(reduced, strategy=replace(one.strategy, zero_stage=0))
    with pytest.raises(RefusedError, match="only supported with distributed optimizer"):
        parsed(megatron, whole)


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_other_optimizers_are_taken(megatron: Driver, name: str) -> None:
    """They deal whole matrices to ranks where Adam's states are cut."""
    one = job("even")
    args = parsed(megatron, replace(one, workload=replace(one.workload, optimizer=name)))
    made = args["optimizer"]
    assert made["optimizer"] == name
    assert made["use_layer_wise_distributed_optimizer"] == (one.strategy.zero_stage == 1)


@pytest.mark.parametrize("name", ["adamw-bf16", "adamw-8bit"])
def test_moments_in_fewer_bits_are_taken(megatron: Driver, name: str) -> None:
    """All checks pass but the last, as above."""
    one = job("even")
    with pytest.raises(RefusedError, match="requires FusedAdam from TransformerEngine"):
        parsed(megatron, replace(one, workload=replace(one.workload, optimizer=name)))


def test_a_batch_may_grow_and_evaluations_are_taken(megatron: Driver) -> None:
    one = job("even")
    search = SearchPart(
        objective="throughput",
        mode="exact",
        seconds=1.0,
        space=1,
        evaluated=1,
        rejected={},
        reasons={},
        optimal=True,
        bound_gap=0.0,
        rampup_batch=Ramp(16, 16, 300_000),
        evaluation=Evaluation(100, 7),
    )
    args = parsed(megatron, replace(one, document=replace(one.document, search=search)))["args"]
    assert list(map(int, args["rampup_batch_size"])) == [16, 16, 300_000]
    assert args["train_samples"] == -(-(10**12) // one.workload.seq_length)
    assert args["train_iters"] is None
    assert (args["eval_interval"], args["eval_iters"]) == (100, 7)


def check_equal(one: Job, read: Any) -> None:
    strategy, args, config = one.strategy, read["args"], read["config"]
    assert args["tensor_model_parallel_size"] == strategy.tp
    assert args["pipeline_model_parallel_size"] == strategy.pp
    assert args["context_parallel_size"] == strategy.cp
    assert args["data_parallel_size"] == strategy.dp
    assert args["expert_model_parallel_size"] == strategy.ep
    if one.model.max_experts:
        assert args["expert_tensor_parallel_size"] == strategy.etp
    assert config["sequence_parallel"] == strategy.sequence_parallel
    assert args["micro_batch_size"] == strategy.micro_batch
    assert args["global_batch_size"] == one.workload.global_batch
    assert read["num_micro_batches"] == strategy.num_micro_batches
    assert args["use_tp_pp_dp_mapping"] == strategy.pipeline_inside
    check_stages(one, read["stages"])
    check_recompute(one, config)
    check_memory(one, args)
    overlap = strategy.overlap
    assert args["overlap_grad_reduce"] == overlap.grad_reduce
    assert args["overlap_param_gather"] == overlap.param_gather
    assert args["overlap_p2p_comm"] == overlap.p2p
    assert args["tp_comm_overlap"] == overlap.tp
    assert args["seq_length"] == one.workload.seq_length


def check_stages(one: Job, stages: list[list[list[int]]]) -> None:
    held = {(stage.pipeline_rank, stage.chunk): stage for stage in one.strategy.stages}
    assert len(stages) == one.strategy.pp
    for rank, chunks in enumerate(stages):
        assert len(chunks) == one.strategy.virtual_stages
        for chunk, layers in enumerate(chunks):
            stage = held[rank, chunk]
            # Layers that predict further tokens are counted apart.
            behind = one.model.num_layers - one.model.mtp_layers
            assert layers == list(range(stage.first_layer, min(stage.last_layer, behind)))


def check_recompute(one: Job, config: Any) -> None:
    recompute = one.strategy.recompute
    if recompute.granularity is Granularity.NONE:
        assert config["recompute_granularity"] is None
        return
    assert config["recompute_granularity"] == recompute.granularity.value
    if recompute.granularity is Granularity.SELECTIVE:
        assert config["recompute_modules"] == [module.value for module in recompute.modules]
        return
    assert config["recompute_method"] == recompute.method.value
    assert config["recompute_num_layers"] == recompute.layers


def check_memory(one: Job, args: Any) -> None:
    zero = one.strategy.zero_stage
    assert args["use_distributed_optimizer"] == (zero > 0)
    assert args["use_megatron_fsdp"] == (zero > 1)
    if zero > 1:
        shared = {2: "optim_grads", 3: "optim_grads_params"}[zero]
        assert args["data_parallel_sharding_strategy"] == shared
    assert args["optimizer_cpu_offload"] == one.strategy.offload_optimizer
    assert args["accumulate_allreduce_grads_in_fp32"]
    assert (args["fp16"], args["bf16"]) == (
        one.workload.precision == "fp16",
        one.workload.precision != "fp16",
    )
    assert (args["fp8"] is not None) == (one.workload.precision == "fp8")


def check_model(one: Job, read: Any) -> None:
    """Sizes of the model as the configuration has them."""
    config, model = read["config"], without_predictions(one.model)
    assert (config["mtp_num_layers"] or 0) == one.model.mtp_layers
    parts = parts_per_layer(model) if is_hybrid(model) else 1
    assert config["num_layers"] == model.num_layers * parts
    assert config["hidden_size"] == model.hidden
    assert (config["num_moe_experts"] or 0) == model.max_experts
    assert read["args"]["vocab_size"] == model.vocab
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    check_scans(config, [scan for block in blocks for scan in block.scans])
    attention = next((a for block in blocks for a in block.attentions), None)
    if attention is None:
        return
    assert config["num_attention_heads"] == attention.heads
    assert config["attention_output_gate"] == attention.gated
    if not config["multi_latent_attention"]:
        assert config["num_query_groups"] == attention.kv_heads
        assert config["kv_channels"] == attention.key_dim


def check_scans(config: Any, scans: list[Scan]) -> None:
    if not scans:
        assert not config["is_hybrid_model"]
        assert config["experimental_attention_variant"] is None
        return
    delta = scans[0].kind is Recurrence.DELTA
    assert config["is_hybrid_model"] != delta
    heads = "linear_num_value_heads" if delta else "mamba_num_heads"
    groups = "linear_num_key_heads" if delta else "mamba_num_groups"
    state = "linear_key_head_dim" if delta else "mamba_state_dim"
    width = "linear_value_head_dim" if delta else "mamba_head_dim"
    for scan in scans:
        sizes = (scan.heads, scan.groups, scan.state, scan.head_dim)
        assert sizes == tuple(config[name] for name in (heads, groups, state, width))


@SLOW
@given(one=jobs())
def test_drawn_plans_are_read_back(megatron: Driver, one: Job) -> None:
    read = parsed(megatron, one)
    check_equal(one, read)
    check_model(one, read)


@pytest.mark.parametrize("case", CASES)
def test_written_plans_are_read_back(megatron: Driver, case: str) -> None:
    read = parsed(megatron, job(case))
    check_equal(job(case), read)
    check_model(job(case), read)


def first_of_each_family() -> list[str]:
    return list({entry.family: entry.name for entry in reversed(model_entries())}.values())


TAKEN = [
    "bamba",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "gpt2",
    "gpt_oss",
    "kimi_k2",
    "llama",
    "mamba2",
    "megatron_gpt",
    "mistral",
    "mixtral",
    "nemotron_h",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
]


@pytest.mark.parametrize("name", first_of_each_family())
def test_every_family_is_taken_or_refused(megatron: Driver, name: str) -> None:
    """On one node: what is not refused here, Megatron takes; and the rest is known."""
    entry = next(entry for entry in model_entries() if entry.name == name)
    model = model_of_entry(entry)
    lent = job("sinks")
    length = min(model.max_seq_length or 512, 4096)
    strategy = replace(lent.strategy, ep=1, dp=8)
    one = replace(
        lent,
        workload=replace(lent.workload, model=model, seq_length=length),
        strategy=replace(
            strategy,
            stages=(replace(strategy.stages[0], layers=(0, model.num_layers)),),
        ),
    )
    assert bool(model_refused(one)) == (entry.family not in TAKEN)
    if entry.family not in TAKEN:
        return
    check_model(one, parsed(megatron, one))


HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "stages": ("nemotron-h-8b", {"tp": 4, "pp": 4, "split": "balanced"}),
    "chunks": ("nemotron-h-8b", {"tp": 2, "pp": 2, "virtual_stages": 13}),
    "experts": ("nemotron-3-nano-30b-a3b", {"tp": 1, "ep": 8, "etp": 1, "zero_stage": 2}),
    "parts": (
        "bamba-9b",
        {"tp": 1, "pp": 4, "cp": 4, "recompute": "full", "recompute_layers": 3},
    ),
    "deltas": ("qwen3-next-80b-a3b", {"tp": 2, "pp": 4, "ep": 8, "etp": 1, "overlap_tp": False}),
}


def hybrid_job(case: str) -> Job:
    model, strategy = HYBRIDS[case]
    return job_of(document(model, "h100:64", strategy, seq_length=4096))


@pytest.mark.parametrize("case", HYBRIDS)
def test_layers_of_several_kinds_are_dealt_as_planned(megatron: Driver, case: str) -> None:
    """Megatron's own choice of a stage has the letters of the planned layers."""
    one = hybrid_job(case)
    assert not model_refused(one)
    read = parsed(megatron, one)
    check_model(one, read)
    args, model, strategy = read["args"], one.model, one.strategy
    if not is_hybrid(model):
        check_stages(one, read["stages"])
        assert args["linear_attention_freq"] == 4
        return
    parts = parts_per_layer(model)
    assert (args["virtual_pipeline_model_parallel_size"] or 1) == strategy.virtual_stages
    segments = megatron.ask(
        operation="segments",
        pattern=args["hybrid_layer_pattern"],
        pp=strategy.pp,
        chunks=strategy.virtual_stages,
    )
    whole = pattern_of(model)
    for stage, (letters, first) in zip(strategy.ordered_stages, segments, strict=True):
        assert first == stage.first_layer * parts
        assert letters == whole[first : stage.last_layer * parts]
    if strategy.recompute.granularity is Granularity.FULL:
        assert read["config"]["recompute_num_layers"] == strategy.recompute.layers * parts


def test_what_megatron_refuses_is_told(megatron: Driver) -> None:
    """The test above can fail: another world size, a layout that misses a layer."""
    one = job("uneven")
    made = program(one)
    argv = [*made.arguments, *made.data.generated]
    env = dict(program(one).environment)
    with pytest.raises(RefusedError, match="not divisible"):
        megatron.ask(operation="arguments", argv=argv, world_size=12, env=env)
    at = argv.index("--pipeline-model-parallel-layout") + 1
    argv[at] = "Et*20|t*11L"
    with pytest.raises(RefusedError):
        megatron.ask(operation="arguments", argv=argv, world_size=16, env=env)


def groups_of(megatron: Driver, one: Job) -> Any:
    strategy = one.strategy
    order = "tp-cp-ep-pp-dp" if strategy.pipeline_inside else "tp-cp-ep-dp-pp"
    degrees: dict[str, object] = {
        "tensor_model_parallel_size": strategy.tp,
        "pipeline_model_parallel_size": strategy.pp,
        "virtual_pipeline_model_parallel_size": (
            strategy.virtual_stages if strategy.virtual_stages > 1 else None
        ),
        "context_parallel_size": strategy.cp,
        "order": order,
    }
    said = flags(one)
    for key in ("expert-model-parallel-size", "expert-tensor-parallel-size"):
        if key in said:
            degrees[key.replace("-", "_")] = said[key]
    return megatron.ask(operation="groups", world_size=one.world_size, degrees=degrees)


@SLOW
@given(one=jobs(models=MODELS[:5]))
def test_ranks_lie_where_the_plan_puts_them(megatron: Driver, one: Job) -> None:
    """Every stage's ranks are on the nodes of its pool; neighbours are as the plan counts on."""
    strategy, groups = one.strategy, groups_of(megatron, one)
    pools = [group.pool.name for group in one.nodes for _ in range(group.gpus)]
    assert len(pools) == one.world_size
    for ranks in groups["PIPELINE_MODEL_PARALLEL_GROUP"]:
        for stage, rank in enumerate(ranks):
            held = next(s for s in strategy.stages if s.pipeline_rank == stage)
            assert pools[rank] in dict(held.pools)
    for ranks in groups["TENSOR_MODEL_PARALLEL_GROUP"]:
        assert ranks == list(range(ranks[0], ranks[0] + strategy.tp))
    step = strategy.tp * strategy.cp * (strategy.pp if strategy.pipeline_inside else 1)
    for ranks in groups["DATA_PARALLEL_GROUP"]:
        assert ranks == list(range(ranks[0], ranks[0] + step * strategy.dp, step))


@pytest.mark.parametrize("case", CASES)
def test_the_script_gives_megatron_the_same_words(case: str) -> None:
    """What is parsed above is what a shell makes of launch.sh."""
    from astrarium.export.launchers.torchrun import script

    made = program(job(case))
    body = script(job(case), made).split("arguments=(\n", 1)[1].split("\n)\n", 1)[0]
    assert tuple(shlex.split(body)) == made.arguments
