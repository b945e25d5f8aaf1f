"""torchtune's own parser and builders take what is exported: the plan's model and adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exported_others import CASES, job
from upstream.client import Driver

from astrarium.catalog.models import model_names
from astrarium.export.software import torchtune as exporter
from astrarium.export.target import refusals
from astrarium.model import load_model
from astrarium.model.adapters import Adapters, Finetune, adapter_parameters
from astrarium.plans.job import Job


def check(driver: Driver, one: Job) -> None:
    s, adapters = one.strategy, one.workload.adapters
    made = exporter.program(one)
    recipe, _, config = made.script.partition(" --config ")
    read = driver.ask(
        recipe=recipe.rpartition("/")[2].removesuffix(".py"),
        config=config.partition("/configs/")[2].removesuffix(".yaml"),
        arguments=list(made.arguments),
    )
    settings, trained = read["settings"], read["trained"]
    assert read["unread"] == []
    assert read["parameters"] - trained == one.model.parameters
    assert trained == (adapter_parameters(one.model, adapters) if adapters else 0)
    assert settings["batch_size"] == s.micro_batch
    assert settings["gradient_accumulation_steps"] == s.num_micro_batches
    assert settings["fsdp_reshard_after_forward"] == (s.zero_stage == 3)
    assert settings["tokenizer"]["max_seq_len"] == one.workload.seq_length
    assert settings["optimizer"]["_component_"] == "torch.optim.AdamW"
    if adapters:
        model = settings["model"]
        assert (model["lora_rank"], model["lora_alpha"]) == (adapters.rank, 2 * adapters.rank)
        kinds = model["quantize_base"], model.get("use_dora", False)
        assert kinds == (adapters.is_quantised, adapters.has_magnitudes)


@pytest.mark.parametrize("case", CASES["torchtune"])
def test_exported_cases_are_taken(torchtune: Driver, case: str) -> None:
    check(torchtune, job("torchtune", case))


@pytest.mark.parametrize("name", exporter.CONFIGS)
def test_every_model_has_the_parameters_of_the_plan(torchtune: Driver, name: str) -> None:
    assert name in model_names()
    made = {"full": None, "lora": Adapters(Finetune.LORA, 8, names="torchtune")}
    for kind in exporter.CONFIGS[name].keys() & made.keys():
        check(torchtune, trained(name, made[kind]))


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma-2-2b"])
@pytest.mark.parametrize("kind", [Finetune.QLORA, Finetune.DORA])
@pytest.mark.parametrize("modules", ["all-linear", "attention", "q_proj,v_proj", "mlp", "w1"])
def test_adapters_are_those_of_the_plan(
    torchtune: Driver, name: str, kind: Finetune, modules: str
) -> None:
    one = trained(name, Adapters(kind, 4, tuple(modules.split(",")), "torchtune"))
    lacks = "w1" in modules or modules == "mlp"
    assert bool(refusals(one, exporter.TARGET)) == lacks
    if not lacks:
        check(torchtune, one)


def test_adapters_that_it_lacks_for_a_model_are_refused() -> None:
    one = trained("llama-3.1-405b", Adapters(Finetune.DORA, names="torchtune"))
    (found,) = refusals(one, exporter.TARGET)
    assert "has no dora for it" in found.why


def trained(name: str, adapters: Adapters | None) -> Job:
    lent = job("torchtune", "weights")
    work = replace(lent.workload, model=load_model(name), adapters=adapters)
    stage = replace(lent.strategy.stages[0], layers=(0, work.model.num_layers))
    return replace(lent, workload=work, strategy=replace(lent.strategy, stages=(stage,)))
