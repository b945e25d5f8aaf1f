"""torchtitan 0.3.0: configurations say what the plan says, or are refused."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from exported_others import expressible, job, kept, written
from exported_plans import document, jobs
from hypothesis import given, settings

from astrarium.errors import InputError
from astrarium.export.features import Feature
from astrarium.export.folder import folder_of
from astrarium.export.software import torchtitan
from astrarium.export.target import refusals
from astrarium.model.workload import Precision
from astrarium.plans.job import Job, job_of
from astrarium.strategy.types import Granularity

MODELS = ("llama-3-8b", "llama-2-7b", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite")


def test_files_are_as_they_should_be() -> None:
    assert written("torchtitan") == kept("torchtitan"), (
        "run `python tests/exported_others.py` if it is meant"
    )


class Recorded(dict[str, Any]):
    """What a name of torchtitan was called with."""

    def __getattr__(self, name: str) -> Recorded:
        return self

    def __call__(self, *arguments: object, **named: object) -> Recorded:
        return Recorded(named, arguments=arguments)

    def traverse(self, kind: object) -> tuple[()]:
        """Parts of a model: there are none here."""
        return ()


def read_module(text: str) -> Any:
    """The configuration that the module's function returns, with torchtitan's names recorded."""
    body = ast.parse(text).body
    foreign = [node for node in body if isinstance(node, ast.ImportFrom)]
    names: dict[str, Any] = {alias.name: Recorded() for node in foreign for alias in node.names}
    own = [node for node in body if node not in foreign]
    exec(compile(ast.Module(own, []), "planned.py", "exec"), names)
    return names[torchtitan.FUNCTION]()


def check_degrees(one: Job, parallelism: Any, training: Any) -> None:
    s = one.strategy
    replicas = parallelism["data_parallel_replicate_degree"]
    shards = parallelism["data_parallel_shard_degree"]
    copies = s.dp if s.zero_stage == 0 else s.shard_groups
    assert (replicas, shards) == (copies, s.dp // copies)
    assert parallelism["tensor_parallel_degree"] == s.tp
    assert parallelism["pipeline_parallel_degree"] == s.pp
    assert parallelism["context_parallel_degree"] == s.cp
    assert parallelism["expert_parallel_degree"] == s.ep
    kept_whole = parallelism["fsdp_reshard_after_forward"] == "never"
    assert kept_whole == (s.zero_stage < 3)
    local, total = training["local_batch_size"], training["global_batch_size"]
    assert total == one.workload.global_batch
    accumulated = total // (local * replicas * shards)
    micro = parallelism.get("pipeline_parallel_microbatch_size", local)
    assert micro == s.micro_batch
    assert accumulated * (local // micro) == s.num_micro_batches
    assert training["seq_len"] == one.workload.seq_length
    if s.pp > 1:
        assert accumulated == 1
        check_stages(one, parallelism)


def check_stages(one: Job, parallelism: Any) -> None:
    s = one.strategy
    parts = parallelism["module_fqns_per_model_part"]
    interleaved = parallelism["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert interleaved == (s.virtual_stages > 1)
    held = {(stage.pipeline_rank, stage.chunk): stage for stage in s.stages}
    for index, names in enumerate(parts):
        stage = held[index % s.pp, index // s.pp]  # as torchtitan deals parts to ranks
        layers = [f"layers.{n}" for n in range(stage.first_layer, stage.last_layer)]
        assert [name for name in names if name.startswith("layers.")] == layers
    assert [n for names in parts for n in names if not n.startswith("layers.")] == [
        "tok_embeddings",
        "norm",
        "lm_head",
    ]
    assert (parts[0][0], parts[-1][-1]) == ("tok_embeddings", "lm_head")


@settings(max_examples=40)
@given(expressible(torchtitan.TARGET, MODELS))
def test_a_module_says_what_the_plan_says(one: Job) -> None:
    found = read_module(torchtitan.module(one))
    check_degrees(one, found["parallelism"], found["training"])
    s = one.strategy
    assert found["parallelism"]["enable_sequence_parallel"] == (s.sequence_parallel or s.tp == 1)
    assert found["compile"]["enable_async_tensor_parallel"] == (s.tp > 1 and s.overlap.tp)
    recomputed = found["activation_checkpoint"] is not None
    assert recomputed == (s.recompute.granularity is Granularity.FULL)
    assert found["training"]["disable_cuda_graphs"]
    assert s.ep == 1 or s.etp == 1


@settings(max_examples=40)
@given(jobs())
def test_whatever_is_not_refused_is_written(one: Job) -> None:
    found = refusals(one, torchtitan.TARGET)
    assert all(refusal.why and refusal.asked for refusal in found)
    if not found:
        assert torchtitan.module(one)


def features(one: Job) -> set[Feature | None]:
    return {refusal.feature for refusal in refusals(one, torchtitan.TARGET)}


def planned(model: str, gpus: str, work: dict[str, Any] | None = None, **strategy: Any) -> Job:
    return job_of(document(model, gpus, strategy, **(work or {})))


def test_stages_of_zero_exist_where_torch_keeps_as_much_whole() -> None:
    alone = planned("llama-3-8b", "h100:8", zero_stage=1)
    assert features(alone) == {Feature.ZERO_1_ALONE}
    assert not features(planned("llama-3-8b", "h100:8", zero_stage=2))
    assert not features(planned("llama-3-8b", "h100:8", pp=2, zero_stage=1))
    assert not features(planned("llama-3-8b", "h100:8", zero_stage=0))
    assert features(planned("llama-3-8b", "h100:8", cp=2, zero_stage=0)) == {Feature.ZERO_0_GROUPS}


def test_overlap_cannot_be_switched_off() -> None:
    apart = planned("llama-3-8b", "h100:8", zero_stage=0, overlap_grad_reduce=False)
    assert features(apart) == {Feature.REDUCE_APART_ALONE}
    stages = planned("llama-3-8b", "h100:8", pp=2, zero_stage=0, overlap_grad_reduce=False)
    assert not features(stages)
    chunks: dict[str, Any] = {"pp": 4, "virtual_stages": 2, "zero_stage": 1}
    assert not features(planned("llama-3-8b", "h100:8", **chunks))
    assert features(planned("llama-3-8b", "h100:8", **chunks, overlap_p2p=False)) == {
        Feature.SEND_APART
    }


def test_keys_and_values_that_are_gathered_are_said() -> None:
    one = planned("llama-3.1-8b", "h100:8", cp=2, zero_stage=2)
    assert any("gathers all keys" in note for note in torchtitan.program(one).notes)


def test_what_the_current_release_takes() -> None:
    assert not features(planned("llama-3.1-8b", "h100:8", tp=2, zero_stage=0))
    assert not features(planned("llama-3.1-8b", "h100:8", tp=8))
    whole = planned("llama-3.1-8b", "h100:8", tp=2, zero_stage=2, sequence_parallel=False)
    assert not features(whole)


@pytest.mark.parametrize(
    ("model", "strategy", "why"),
    [
        ("gpt3-1.3b", {"zero_stage": 2}, "only models of type llama and mistral"),
        ("mistral-7b-v0.1", {"zero_stage": 2}, "no sliding window"),
        ("qwen2.5-7b", {"zero_stage": 2}, "llama3 1B, 3B, 8B, 70B, 405B"),
    ],
)
def test_models_without_a_builder_are_refused_with_those_there_are(
    model: str, strategy: dict[str, Any], why: str
) -> None:
    (refusal,) = refusals(planned(model, "h100:8", **strategy), torchtitan.TARGET)
    assert refusal.feature is None
    assert why in refusal.why


def test_limits_of_a_family_are_said() -> None:
    assert not refusals(planned("qwen3-8b", "h100:8", pp=2), torchtitan.TARGET)
    long = planned("deepseek-v2-lite", "h100:8", {"seq_length": 32768}, zero_stage=2)
    (refusal,) = refusals(long, torchtitan.TARGET)
    assert refusal.why == "deepseek_v3 16B takes sequences of up to 16384 tokens, not 32768"


def test_the_rest_of_what_torch_refuses() -> None:
    few = planned("llama-3-8b", "h100:8", {"global_batch": 8}, pp=4, dp=2, micro_batch=2)
    assert features(few) == {Feature.FEW_MICRO_BATCHES}
    tied = planned("llama-3.2-1b", "h100:8", pp=2)
    assert features(tied) == {Feature.TIED_PIPELINE}
    copied = planned("qwen3-30b-a3b", "h100:8", tp=8, ep=8, etp=1, zero_stage=2)
    assert features(copied) == {Feature.KV_HEADS_COPIED}
    odd = planned("llama-3-8b", "h100:8", {"seq_length": 2056}, tp=2, cp=4, zero_stage=2)
    assert features(odd) == {Feature.SEQUENCE_REMAINDER}
    halved = replace(copied.workload, precision=Precision.FP16)
    assert Feature.FP16 in features(replace(copied, workload=halved))


def test_positions_are_scaled_as_the_config_says() -> None:
    one = job("torchtitan", "own-model")
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for config, expected in (
        ({"rope_theta": 5e5}, "theta=500000.0)"),
        ({"rope_theta": 5e5, "rope_scaling": scaling}, "scaling='llama', scaling_factor=32.0"),
        ({"rope_parameters": {**scaling, "rope_theta": 7e5}}, "theta=700000.0, scaling="),
    ):
        model = replace(one.model, config={**one.config, **config})
        changed = replace(one, workload=replace(one.workload, model=model))
        assert expected in torchtitan.module(changed)
    scaled = {**one.config, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    model = replace(one.model, config=scaled)
    assert "yarn" in torchtitan.workload_refused(
        (replace(one, workload=replace(one.workload, model=model))).workload
    )


def with_config(one: Job, **config: object) -> Job:
    model = replace(one.model, config={**one.config, **config})
    return replace(one, workload=replace(one.workload, model=model))


def test_a_flavor_is_the_model_of_the_plan_or_not_used() -> None:
    one = planned("llama-3.1-8b", "h100:16", tp=2, zero_stage=2)
    registered = 'model_registry("8B", attn_backend="flex")'
    assert registered in torchtitan.module(one)
    other = with_config(one, rope_theta=10000.0)
    assert not torchtitan.workload_refused(other.workload)
    assert registered not in torchtitan.module(other)
    assert "theta=10000.0" in torchtitan.module(other)
    gelu = with_config(one, hidden_act="gelu")
    why = torchtitan.workload_refused(gelu.workload)
    assert "activation silu instead of gelu, and its Llama" in why


def test_the_epsilon_of_norms_is_set() -> None:
    one = with_config(planned("qwen3-8b", "h100:8", zero_stage=2), rms_norm_eps=1e-3)
    assert "norm.eps = 0.001\n" in torchtitan.module(one)
    router = with_config(planned("qwen3-30b-a3b", "h100:8", zero_stage=2), norm_topk_prob=False)
    assert "normalised True instead of False" in torchtitan.workload_refused(router.workload)


def test_a_readme_has_the_figures_of_the_runtime() -> None:
    one = job("torchtitan", "flavor")
    folder = folder_of(one, torchtitan.TARGET, torchtitan.TARGET)
    assert "astrarium plan --runtime torchtitan" in folder.files["README.md"]
    assert "  --module planned\n  --config plan\n" in folder.files["launch.sh"]


def test_a_plan_without_its_stages_is_refused() -> None:
    one = job("torchtitan", "flavor")
    bare = replace(one, strategy=replace(one.strategy, stages=()))
    with pytest.raises(InputError, match="which layers each stage holds"):
        torchtitan.module(bare)
