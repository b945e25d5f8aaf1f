"""Graphs of catalog models: as many parameters and FLOPs as the model layer counts, real shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.load import model_of_config
from astrarium.model.workload import Precision, Workload
from astrarium.spmd.graph import SOURCES, Graph, Ref
from astrarium.spmd.model_graph import graph_of, parameters_of, why_not

EXPRESSED = (
    "gpt2-small",
    "OPT-125M",
    "BLOOM-560M",
    "Pythia-160M",
    "GPT-J-6B",
    "Falcon-7B",
    "Llama-3.2-1B",
    "Qwen3-0.6B",
    "Gemma-2-2B",
    "OLMo-2-7B",
    "Command-R-35B",
    "Mixtral-8x7B",
    "Qwen1.5-MoE-A2.7B",
)
REFUSED = {
    "T5-small": "encoder-decoder",
    "ViT-B/16": "vision-encoder",
    "DeepSeek-V2-Lite": "latent attention",
    "TransGAN-AMP (generator)": "custom layers",
    "gpt-oss-20b": "attention sinks",
}


def workload_of(name: str, seq_length: int = 32) -> Workload:
    return Workload(load_model(name), seq_length, 4)


def tiny(**sizes: Any) -> Workload:
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "max_position_embeddings": 64, "hidden_act": "silu", **sizes,
    }  # fmt: skip
    return Workload(model_of_config(config, "tiny", "tiny"), 16, 4, precision=Precision.FP32)


def evaluated_shapes(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes that torch gives the nodes of a graph."""
    values: list[Any] = []

    def filled(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.node]
        if isinstance(argument, str) and argument.startswith("torch."):
            return getattr(torch, argument.removeprefix("torch."))
        return [filled(one) for one in argument] if isinstance(argument, list) else argument

    for node in graph.nodes:
        if node.op in SOURCES:
            dtype = getattr(torch, node.dtype)
            values.append(torch.empty(node.shape, dtype=dtype, device="meta"))
            continue
        if node.op == "getitem":
            several, number = node.args
            values.append(values[several.node][number])
            continue
        library, name, overload = node.op.split(".")
        run = getattr(getattr(getattr(torch.ops, library), name), overload)
        keywords = {key: filled(value) for key, value in node.kwargs}
        values.append(run(*(filled(argument) for argument in node.args), **keywords))
        first = values[-1][0] if node.op == "aten.split.Tensor" else values[-1]
        assert str(first.dtype) == f"torch.{node.dtype}", node
    return [tuple((one if hasattr(one, "shape") else one[0]).shape) for one in values]


@pytest.mark.parametrize("name", EXPRESSED)
def test_parameters_are_those_of_the_model(name: str) -> None:
    workload = workload_of(name)
    graph = graph_of(workload, 2)
    assert parameters_of(graph) == workload.model.parameters
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    assert len(graph.blocks) == len(graph.nodes)


@pytest.mark.parametrize(
    "name", ["gpt2-small", "Pythia-160M", "Qwen3-0.6B", "BERT-base-uncased", "Qwen1.5-MoE-A2.7B"]
)
def test_torch_gives_the_nodes_their_shapes(name: str) -> None:
    graph = graph_of(workload_of(name), 2)
    assert evaluated_shapes(graph) == [node.shape for node in graph.nodes]


def test_the_loss_is_last_and_gradients_flow_from_parameters() -> None:
    graph = graph_of(tiny(), 2)
    assert graph.nodes[graph.loss].op == "aten.cross_entropy_loss.default"
    assert graph.nodes[graph.loss].needs_gradient
    by_target = {node.target: node for node in graph.nodes if node.target}
    assert not by_target["labels"].needs_gradient
    assert by_target["model.layers.1.self_attn.q_proj.weight"].needs_gradient
    assert all(reader for node, reader in zip(graph.nodes[:-1], graph.readers, strict=False))


def test_tied_tables_are_one_parameter() -> None:
    targets = [node.target for node in graph_of(tiny(tie_word_embeddings=True)).nodes]
    assert "lm_head.weight" not in targets
    apart = [node.target for node in graph_of(tiny()).nodes]
    assert "lm_head.weight" in apart


def test_layers_are_blocks_alike() -> None:
    graph = graph_of(tiny())
    ops = [
        [node.op for node, of in zip(graph.nodes, graph.blocks, strict=True) if of == block]
        for block in (0, 1)
    ]
    assert ops[0] == ops[1]


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_models_that_cannot_be_expressed_say_why(name: str, why: str) -> None:
    workload = Workload(load_model(name), 64, 4)
    assert why in why_not(workload)
    with pytest.raises(InputError, match="cannot be expressed as one program"):
        graph_of(workload)


def test_programs_do_not_train_in_eight_bits() -> None:
    workload = Workload(load_model("gpt2-small"), 64, 4, precision=Precision.FP8)
    assert "bf16" in why_not(workload)
