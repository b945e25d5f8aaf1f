"""The graph of a model's description against the capture of its module: the same programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.blocks import Block
from astrarium.model.workload import Precision, Workload
from astrarium.runtime.spmd.hf import make
from astrarium.spmd.baselines import space_of
from astrarium.spmd.capture import capture
from astrarium.spmd.devices import devices_of
from astrarium.spmd.graph import PARAMETER
from astrarium.spmd.model_graph import graph_of, parameters_of
from astrarium.spmd.synthesis import synthesize
from astrarium.spmd.work import graph_flops, node_work

BATCH, LENGTH, WORDS = 8, 128, 4096
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "vocab_size": WORDS,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 768,
        "max_position_embeddings": LENGTH, "hidden_act": "silu",
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
def test_programs_cost_what_those_of_the_captured_module_cost(config: str) -> None:
    with torch.device("meta"):
        module, inputs = make(BATCH, config, LENGTH)
    captured = capture(module, inputs)
    made = graph_of(Workload(load_model(config), LENGTH, BATCH, precision=Precision.FP32))
    assert parameters_of(made) == parameters_of(captured)
    assert graph_flops(made) == pytest.approx(graph_flops(captured), rel=1e-9)
    devices = devices_of(parse_gpus("v100:1,t4:1"))
    names = ["data parallel, by speed", *(["tensor parallel, even"] * ("llama" not in config))]
    spaces = [space_of(name) for name in names]
    # More of them of smaller graphs: of others the search takes longer.
    for space in (*spaces, *([None] if "bert" in config else [])):
        ours, theirs = (
            synthesize(one, devices, cuts=False, space=space).program.seconds
            for one in (made, captured)
        )
        assert ours == pytest.approx(theirs, rel=0.02), space


@pytest.mark.parametrize("config", ["llama"], indirect=True)
def test_sixteen_bits_are_casts_of_parameters_in_both(config: str) -> None:
    with torch.device("meta"):
        module, inputs = make(BATCH, config, LENGTH, "bfloat16")
    captured = capture(module, inputs)
    made = graph_of(Workload(load_model(config), LENGTH, BATCH))
    for graph in (captured, made):
        stored = [node for node in graph.nodes if node.op == PARAMETER]
        assert {node.dtype for node in stored} == {"float32"}
        products = [node.dtype for node in graph.nodes if node.op == "aten.linear.default"]
        assert set(products) == {"bfloat16"}
        assert graph.nodes[graph.loss].dtype == "float32"
    assert graph_flops(made) == pytest.approx(graph_flops(captured), rel=1e-9)


def test_modules_that_cannot_be_made_say_why() -> None:
    with pytest.raises(InputError, match="experts"):
        make(2, "Mixtral-8x7B", 16)
    with pytest.raises(InputError, match="float32, bfloat16, float16"):
        make(2, "gpt2-small", 16, "int8")


@pytest.mark.parametrize("name", ["gpt2-small", "Llama-3.2-1B", "Qwen3-0.6B", "Mixtral-8x7B"])
def test_flops_are_those_of_the_model(name: str) -> None:
    """Forward; but for half a token of attention, and products that seat tokens at experts."""
    length = 256
    workload = Workload(load_model(name), length, 2)
    graph = graph_of(workload)
    seats = 0.0
    total = 0.0
    for index, node in enumerate(graph.nodes):
        work = node_work(graph, index).forward_flops
        total += work
        if node.op == "aten.einsum.default" and node.args[0] != "becd,edf->becf":
            seats += work
    expected = workload.flops_per_iteration / 3.0
    attention = 0.0
    for block in workload.model.blocks:
        assert isinstance(block, Block)
        attention += 2.0 * block.attentions[0].heads * 2 * block.attentions[0].key_dim
    half_a_token = 0.5 * attention * workload.tokens_per_iteration
    assert total - seats == pytest.approx(expected - half_a_token, rel=1e-3)
