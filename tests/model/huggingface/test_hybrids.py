"""Models with scans against transformers: the same parameters, and the layers where it has them."""

from __future__ import annotations

import importlib
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from joined_models import Values, ours

from astrarium.errors import InputError
from astrarium.model import Block, load_model
from astrarium.model.huggingface import from_config
from astrarium.model.scans import Recurrence

BASE: Values = {
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 211,
    "max_position_embeddings": 64,
}
MAMBA: Values = {
    **BASE,
    "mamba_n_heads": 8,
    "mamba_d_head": "auto",
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
    "mamba_d_conv": 3,
}
PURE: Values = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 24,
    "n_groups": 2,
    "state_size": 20,
    "vocab_size": 211,
}
NEMOTRON: Values = {
    **BASE,
    "head_dim": 10,
    "mamba_num_heads": 6,
    "mamba_head_dim": 14,
    "ssm_state_size": 18,
    "n_groups": 3,
    "n_routed_experts": 6,
    "moe_intermediate_size": 44,
    "moe_shared_expert_intermediate_size": 52,
}
DELTA: Values = {
    **BASE,
    "head_dim": 20,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "num_experts": 10,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}
MIXED = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]

CASES: list[tuple[str, str, Values]] = [
    ("mamba2", "Mamba2ForCausalLM", PURE),
    (
        "mamba2",
        "Mamba2ForCausalLM",
        {**PURE, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3}
        | {"tie_word_embeddings": True},
    ),
    ("nemotron_h", "NemotronHForCausalLM", {**NEMOTRON, "hybrid_override_pattern": "M-M*E-"}),
    (
        "nemotron_h",
        "NemotronHForCausalLM",
        {**NEMOTRON, "layers_block_type": ["linear_attention", "mlp", "full_attention"]}
        | {"mlp_bias": True, "use_bias": True},
    ),
    ("bamba", "BambaForCausalLM", {**MAMBA, "attn_layer_indices": [1, 3]}),
    (
        "bamba",
        "BambaForCausalLM",
        {**MAMBA, "mamba_proj_bias": True, "mamba_conv_bias": False}
        | {"attention_bias": True, "mlp_bias": True},
    ),
    (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {**MAMBA, "layer_types": MIXED, "num_local_experts": 6, "shared_intermediate_size": 72},
    ),
    (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {**MAMBA, "layer_types": MIXED, "num_local_experts": 0, "attention_bias": True},
    ),
    ("falcon_h1", "FalconH1ForCausalLM", {**MAMBA, "mamba_d_ssm": 112}),
    (
        "falcon_h1",
        "FalconH1ForCausalLM",
        {**MAMBA, "mamba_d_ssm": None, "mamba_rms_norm": True, "projectors_bias": True}
        | {"mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    ("qwen3_next", "Qwen3NextForCausalLM", DELTA),
    ("qwen3_next", "Qwen3NextForCausalLM", {**DELTA, "mlp_only_layers": [0, 3]}),
    ("qwen3_next", "Qwen3NextForCausalLM", {**DELTA, "layer_types": MIXED, "attention_bias": True}),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", DELTA),
    ("minimax", "MiniMaxForCausalLM", {**BASE, "num_local_experts": 6}),
    ("minimax", "MiniMaxForCausalLM", {**BASE, "layer_types": MIXED, "head_dim": 20}),
]
DEFAULTS = dict.fromkeys((model_type, class_name) for model_type, class_name, _ in CASES)


def reference(model_type: str, class_name: str, values: Values) -> Any:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    config = transformers.CONFIG_MAPPING[model_type](**values)
    with torch.device("meta"):
        return getattr(transformers, class_name)(config)


@pytest.mark.parametrize(("model_type", "class_name", "values"), CASES)
def test_parameters_equal_those_of_transformers(
    model_type: str, class_name: str, values: Values
) -> None:
    module = reference(model_type, class_name, values)
    expected = sum(parameter.numel() for parameter in module.parameters())
    assert ours(model_type, values).parameters == expected


@pytest.mark.parametrize(("model_type", "class_name"), DEFAULTS)
def test_absent_keys_take_the_defaults_of_the_class(model_type: str, class_name: str) -> None:
    values = {} if model_type == "nemotron_h" else {"num_hidden_layers": 2}
    module = reference(model_type, class_name, values)
    model = ours(model_type, values)
    assert model.parameters == sum(parameter.numel() for parameter in module.parameters())
    if hasattr(module.config, "max_position_embeddings"):
        assert model.max_seq_length == module.config.max_position_embeddings


@pytest.mark.parametrize(("model_type", "class_name", "values"), CASES)
def test_scans_are_where_the_class_has_them(
    model_type: str, class_name: str, values: Values
) -> None:
    """A layer of transformers has a scan if one of its modules convolves or decays."""
    module = reference(model_type, class_name, values)
    layers = module.get_decoder().layers
    words = ("conv1d", "slope_rate")
    names = [
        [name for name, _ in (*layer.named_modules(), *layer.named_buffers())] for layer in layers
    ]
    expected = [any(name.endswith(words) for name in one) for one in names]
    blocks = ours(model_type, values).blocks
    assert [isinstance(block, Block) and bool(block.scans) for block in blocks] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mamba2-2.7b", [("mamba", 64)]),
        ("qwen3-next-80b-a3b", [("delta-moe", 3), ("moe", 1)] * 12),
        ("minimax-text-01", [("lightning-moe", 7), ("moe", 1)] * 10),
        ("granite-4.0-h-micro", [("mamba-dense", 5), ("dense", 1), ("mamba-dense", 9)]),
        ("falcon-h1-7b", [("mamba-attention-dense", 44)]),
    ],
)
def test_layers_of_known_models(name: str, expected: list[tuple[str, int]]) -> None:
    blocks = load_model(name).blocks
    runs = [(kind, len(list(run))) for kind, run in groupby(block.name for block in blocks)]
    assert runs[: len(expected)] == expected


def test_nemotron_layers_are_one_part_each() -> None:
    model = load_model("nemotron-3-nano-30b-a3b")
    count = {kind.name: 0 for kind in model.kinds} | {
        name: sum(block.name == name for block in model.blocks)
        for name in ("mamba", "experts", "attention")
    }
    assert count == {"mamba": 23, "experts": 23, "attention": 6}
    assert all(len(block.norms) == 1 for block in model.kinds if isinstance(block, Block))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X"}, "a letter of M"),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "rwkv"]}, "got 'rwkv'"),
        ({"model_type": "nemotron_h", "moe_latent_size": 64}, "narrower projection"),
        ({"model_type": "bamba", "mamba_n_groups": 3}, "a divisor of the 128 heads"),
        ({"model_type": "bamba", "mamba_d_head": 65}, "8192 features, got 128 of 65"),
        ({"model_type": "qwen3_next", "linear_num_key_heads": 5}, "a divisor of the 32 heads"),
        (
            {"model_type": "qwen3_next", "num_hidden_layers": 1, "layer_types": ["rwkv"]},
            "got 'rwkv'",
        ),
    ],
)
def test_mistakes_name_the_key(values: Values, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_config(values, "model", "config.json")


def test_a_config_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba2", **PURE}))
    (block,) = load_model(str(path)).kinds
    assert isinstance(block, Block)
    assert [scan.kind for scan in block.scans] == [Recurrence.SSD]
    assert (block.attentions, block.gated, len(block.linears)) == ((), False, 2)
