"""Modules of models that are called by their name, as `astrarium synthesize` captures them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.runtime.spmd.hf import make
from astrarium.spmd.capture import capture
from astrarium.spmd.graph import PARAMETER
from astrarium.spmd.rules import EXPERTS

BATCH, LENGTH, WORDS = 8, 128, 4096
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "vocab_size": WORDS,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 768,
        "max_position_embeddings": LENGTH, "hidden_act": "silu",
    },
    "mixtral": {
        "model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 1, "vocab_size": WORDS,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 256,
        "max_position_embeddings": LENGTH, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 8, "vocab_size": WORDS,
        "n_positions": LENGTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    },
    "bert": {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 256,
        "num_hidden_layers": 2, "vocab_size": WORDS, "num_attention_heads": 8,
        "intermediate_size": 1024, "max_position_embeddings": LENGTH, "type_vocab_size": 2,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / f"{request.param}.json"
    path.write_text(json.dumps(CONFIGS[request.param]))
    return str(path)


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_parameters_are_those_of_the_model(config: str) -> None:
    with torch.device("meta"):
        module, inputs = make(BATCH, config, LENGTH)
    stored = [node for node in capture(module, inputs).nodes if node.op == PARAMETER]
    assert sum(prod(node.shape) for node in stored) == load_model(config).parameters


@pytest.mark.parametrize("config", ["llama"], indirect=True)
def test_sixteen_bits_are_casts_of_parameters(config: str) -> None:
    with torch.device("meta"):
        module, inputs = make(BATCH, config, LENGTH, "bfloat16")
    graph = capture(module, inputs)
    stored = [node for node in graph.nodes if node.op == PARAMETER]
    assert {node.dtype for node in stored} == {"float32"}
    products = [node.dtype for node in graph.nodes if node.op == "aten.linear.default"]
    assert set(products) == {"bfloat16"}
    assert graph.nodes[graph.loss].dtype == "float32"


@pytest.mark.parametrize("config", ["mixtral"], indirect=True)
def test_experts_are_products_of_rows_by_their_matrices(config: str) -> None:
    with torch.device("meta"):
        module, inputs = make(BATCH, config, LENGTH)
    graph = capture(module, inputs)
    products = [node for node in graph.nodes if node.op == EXPERTS]
    assert [node.shape for node in products] == [
        (2 * BATCH * LENGTH, 512),
        (2 * BATCH * LENGTH, 256),
    ]
    # No matrix is there for every row.
    assert max(node.elements for node in graph.nodes) <= BATCH * LENGTH * WORDS


def test_modules_that_cannot_be_made_say_why() -> None:
    with pytest.raises(InputError, match="float32, bfloat16, float16"):
        make(2, "gpt2-small", 16, "int8")
