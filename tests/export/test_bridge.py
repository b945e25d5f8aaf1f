"""Megatron-Bridge: recipes that there are, and overrides that leave nothing of their strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exported_plans import CASES, GOLDEN, golden, job, jobs
from hypothesis import given, settings

from astrarium.catalog.models import find_model_entry, model_entries, model_names
from astrarium.configs.megatron.overrides import read_overrides
from astrarium.export.features import Feature
from astrarium.export.software.bridge import (
    ADAPTED,
    RECIPES,
    TARGET,
    overrides,
    program,
    recipe_of,
    word,
)
from astrarium.export.software.model_facts import trained_facts
from astrarium.export.target import refusals
from astrarium.model import load_model
from astrarium.model.adapters import Adapters, Finetune
from astrarium.model.load import model_of_config
from astrarium.model.workload import ExpertMessages, Numerics
from astrarium.plans.job import Job


def test_files_are_as_they_should_be() -> None:
    kept = {
        path.relative_to(GOLDEN).as_posix(): path.read_text(encoding="utf-8")
        for path in (GOLDEN / "bridge").rglob("*")
        if path.is_file()
    }
    assert golden("bridge") == kept, "run `python tests/exported_plans.py` if the change is meant"


def with_model(name: str) -> Job:
    lent = job("even")
    return replace(lent, workload=replace(lent.workload, model=load_model(name)))


def test_recipes_are_found_by_family_and_size() -> None:
    assert set(RECIPES) <= set(model_names())
    assert all(trained_facts(find_model_entry(name).config) for name in RECIPES)
    for entry in model_entries():
        if entry.name in RECIPES:
            assert recipe_of(with_model(entry.name)) == RECIPES[entry.name]


@pytest.mark.parametrize("model", ["llama-2-13b", "gpt3-175b", "bert-base-uncased"])
def test_models_without_a_recipe_are_refused(model: str) -> None:
    (found,) = refusals(with_model(model), TARGET)
    assert "no recipe" in found.why


@pytest.mark.parametrize(
    ("model", "config", "why"),
    [
        ("llama-3.1-8b", {"rope_theta": 10000.0}, "theta 500000 instead of 10000"),
        ("llama-3.1-8b", {"rms_norm_eps": 1e-3}, "epsilon 1e-05 instead of 0.001"),
        ("llama-3.1-8b", {"hidden_act": "gelu"}, "activation silu instead of gelu"),
        ("llama-2-7b", {"num_attention_heads": 64, "num_key_value_heads": 64}, "other ones"),
        ("gemma-2-2b", {"hidden_activation": "silu"}, "instead of silu"),
    ],
)
def test_models_like_one_with_a_recipe_are_refused(
    model: str, config: dict[str, object], why: str
) -> None:
    published = with_model(model)
    edited = model_of_config({**published.config, **config}, "edited", "test")
    assert edited.parameters == published.model.parameters
    one = replace(published, workload=replace(published.workload, model=edited))
    (found,) = [refusal for refusal in refusals(one, TARGET) if refusal.feature is None]
    assert why in found.why


@settings(max_examples=60)
@given(jobs(models=("llama-3-8b", "qwen3-30b-a3b")))
def test_all_keys_are_said_whatever_the_plan(one: Job) -> None:
    """A recipe's own value must not stay for what the plan does not use."""
    said, other = overrides(one), overrides(job("even"))
    optional = ("expert", "moe_", "init_model", "optimizer_offload", "delay_wgrad")
    for key in said.keys() ^ other.keys():
        assert any(part in key for part in optional), key
    strategy = one.strategy
    assert said["model.tensor_model_parallel_size"] == strategy.tp
    assert said["model.pipeline_model_parallel_size"] == strategy.pp
    assert (said["model.virtual_pipeline_model_parallel_size"] or 1) == strategy.virtual_stages
    assert said["train.micro_batch_size"] == strategy.micro_batch
    assert said["ddp.use_megatron_fsdp"] == (strategy.zero_stage > 1)
    assert said["model.recompute_num_layers"] == (strategy.recompute.layers or None)
    words = program(one).arguments
    assert len(words) == len(set(words)) == len(said) + 2


def test_values_are_written_in_the_grammar_of_overrides() -> None:
    assert word("a.b", None) == "a.b=null"
    assert word("a.b", True) == "a.b=true"
    assert word("a.b", ["core_attn", "mlp"]) == "a.b=[core_attn,mlp]"
    assert word("a.b", "Et*7|t*9L") == "a.b='Et*7|t*9L'"


@pytest.mark.parametrize("case", [case for case in CASES if not refusals(job(case), TARGET)])
def test_the_file_lists_the_overrides_of_the_command(case: str) -> None:
    made = program(job(case))
    lines = made.files["overrides.txt"].splitlines()
    assert [line for line in lines if not line.startswith("#")] == list(made.arguments[2:])


@pytest.mark.parametrize("case", [case for case in CASES if not refusals(job(case), TARGET)])
def test_what_is_written_is_known_when_it_is_read_back(case: str) -> None:
    text = program(job(case)).files["overrides.txt"]
    read = read_overrides(text, "overrides.txt")
    assert not read.unknown
    assert not any("grads_in_fp32" in one.option for one in read.as_if)


def test_reduced_numerics_are_refused_not_dropped() -> None:
    one = job("even")
    reduced = replace(one, workload=replace(one.workload, numerics=Numerics.REDUCED))
    assert refusals(one, TARGET) == ()
    assert [refusal.feature for refusal in refusals(reduced, TARGET)] == [Feature.REDUCED]


@pytest.mark.parametrize("messages", ExpertMessages)
def test_messages_of_experts_are_written_and_read(messages: ExpertMessages) -> None:
    one = job("experts")
    chosen = replace(one, workload=replace(one.workload, expert_messages=messages))
    assert not refusals(chosen, TARGET)
    keys = overrides(chosen)
    assert keys["model.overlap_moe_expert_parallel_comm"] is messages.is_overlapped
    assert keys["comm_overlap"] is None  # the settings of the model hold
    assert ("model.moe_flex_dispatcher_backend" in keys) is messages.is_deepep
    text = " ".join(word(key, value) for key, value in keys.items())
    assert read_overrides(text, "overrides.txt").described.expert_messages is messages


def test_layers_that_predict_further_tokens_are_written_and_read() -> None:
    keys = overrides(job("predicting"))
    assert keys["model.mtp_num_layers"] == 1
    text = " ".join(word(key, value) for key, value in keys.items())
    described = read_overrides(text, "overrides.txt").described
    assert described.mtp_layers == 1
    stages = [stage["layers"] for stage in described.strategy["stages"]]
    planned = job("predicting").strategy.ordered_stages
    assert stages == [list(stage.layers) for stage in planned]
    assert overrides(job("even"))["model.mtp_num_layers"] is None


def test_adapters_are_those_of_the_plan() -> None:
    lent = job("even")
    adapters = Adapters(Finetune.DORA, 8, ("attention",), "megatron_gpt")
    one = replace(lent, workload=replace(lent.workload, adapters=adapters))
    assert not refusals(one, TARGET)
    made, written = program(one), overrides(one)
    assert recipe_of(one) == ADAPTED[lent.model.name]
    assert made.arguments[:4] == ("--recipe", recipe_of(one), "--peft_scheme", "dora")
    assert written["peft.target_modules"] == ["linear_qkv", "linear_proj"]
    assert (written["peft.dim"], written["peft.alpha"]) == (8, 16)
    assert word("dataset.dataset_kwargs", {"pad_to_max_length": True}).endswith(
        "={pad_to_max_length:true}"
    )
    read = read_overrides(made.files["overrides.txt"], "overrides.txt").described
    assert (read.runtime, read.finetune, read.lora_rank) == ("megatron-bridge", "lora", 8)
    assert read.lora_modules == "linear_qkv,linear_proj"
    others = (
        (replace(adapters, names=""), "divides the weights with adapters into other modules"),
        (replace(adapters, kind=Finetune.QLORA), "it is written for lora, dora"),
    )
    for other, why in others:
        (found,) = refusals(replace(one, workload=replace(one.workload, adapters=other)), TARGET)
        assert why in found.why


def test_a_plan_of_other_software_says_so() -> None:
    one = job("even")
    assert any(
        note.startswith("The plan was made for Megatron-Core") for note in program(one).notes
    )
    own = replace(one, plan=replace(one.plan, runtimes=("megatron-bridge",)))
    assert any("The plan was made for this runtime" in note for note in program(own).notes)
