"""Adapters: as many parameters as PEFT counts, and what a model can have."""

from __future__ import annotations

import pytest

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.adapters import (
    Adapters,
    Finetune,
    adapter_parameters,
    check_finetuning,
    checked,
    default_modules,
)
from astrarium.model.load import model_of_config
from astrarium.model.workload import Workload

ALL = "all-linear"
# Trained parameters of `get_peft_model` (peft 0.21.2, transformers 5.22.2) of the model's config.
PEFT = [
    ("llama-3.1-8b", 16, ALL, 41943040),
    ("llama-3.1-70b", 16, ALL, 207093760),
    ("llama-2-7b", 8, "q_proj,v_proj", 4194304),
    ("gpt2-small", 8, ALL, 1179648),
    ("phi-3-mini", 8, ALL, 12582912),
    ("phi-1.5", 8, ALL, 7077888),
    ("falcon-7b", 8, ALL, 16318464),
    ("falcon-40b", 8, ALL, 55541760),
    ("bloom-560m", 8, ALL, 3145728),
    ("gpt-j-6b", 8, ALL, 16515072),
    ("gpt-neox-20b", 8, ALL, 34603008),
    ("gpt-neox-20b", 8, "query_key_value", 8650752),
    ("opt-125m", 8, ALL, 1327104),
    ("gemma-2-2b", 8, ALL, 10383360),
    ("gemma-3-1b", 8, ALL, 6522880),
    ("qwen2-0.5b", 8, ALL, 4399104),
    ("qwen3-0.6b", 8, ALL, 5046272),
    ("olmo-2-7b", 8, ALL, 19988480),
    ("command-r-35b", 8, ALL, 50462720),
    ("mistral-7b-v0.1", 64, "gate_proj,up_proj,down_proj", 113246208),
    ("deepseek-v2-lite", 8, "q_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj", 3552768),
    ("mixtral-8x7b", 16, "attention", 13631488),
]


@pytest.mark.parametrize(("name", "rank", "modules", "count"), PEFT)
def test_parameters_are_those_that_peft_counts(
    name: str, rank: int, modules: str, count: int
) -> None:
    model = load_model(name)
    adapters = checked(model, Adapters(Finetune.LORA, rank, tuple(modules.split(","))))
    assert adapter_parameters(model, adapters) == count


SMALL = {
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 211,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *(("smollm3", 42752), ("glm4", 162560), ("seed_oss", 165632), ("cohere2", 42752)),
        *(("arcee", 35328), ("starcoder2", 35328), ("nemotron", 35328), ("glm", 162560)),
    ],
)
def test_parameters_of_other_types_are_those_that_peft_counts(kind: str, count: int) -> None:
    model = model_of_config({"model_type": kind, **SMALL}, "small", "test")
    assert adapter_parameters(model, Adapters(Finetune.LORA, 8)) == count


def test_magnitudes_of_dora_are_parameters_too() -> None:
    model = load_model("llama-2-7b")
    assert adapter_parameters(model, Adapters(Finetune.DORA, 8)) == 21348352  # as PEFT counts
    assert adapter_parameters(model, Adapters(Finetune.QLORA, 8)) == 19988480


def test_a_module_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"'q_pro': .* module \(did you mean 'q_proj'.*v_proj"):
        checked(load_model("llama-2-7b"), Adapters(Finetune.LORA, modules=("q_pro",)))


def test_experts_are_not_adapted() -> None:
    model = load_model("mixtral-8x7b")
    assert default_modules(model) == ("attention",)
    with pytest.raises(InputError, match="adapters of experts are priced for megatron-bridge"):
        checked(model, Adapters(Finetune.LORA))


def test_encoders_have_no_adapters() -> None:
    with pytest.raises(InputError, match="decoders alone"):
        checked(load_model("bert-base-uncased"), Adapters(Finetune.LORA))


def test_software_whose_export_has_no_adapters_is_refused_by_name() -> None:
    check_finetuning(None, "megatron")
    check_finetuning(Adapters(Finetune.LORA), "fsdp")
    with pytest.raises(InputError, match=r"megatron: plans with adapters \(qlora\) are made for"):
        check_finetuning(Adapters(Finetune.QLORA), "megatron")


def test_flops_without_gradients_of_frozen_weights() -> None:
    """Weights: forward and one backward product; scores and adapters: all three."""
    model = load_model("llama-2-7b")
    whole = Workload(model, 4096, 1)
    tuned = Workload(model, 4096, 1, adapters=Adapters(Finetune.LORA, 8))
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000
    assert tuned.flops_per_token == pytest.approx(
        whole.flops_per_token - 2 * weights + 6 * 19988480
    )
    assert tuned.trained_parameters == 19988480
