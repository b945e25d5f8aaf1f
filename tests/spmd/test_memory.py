"""What is kept for the backward pass: torch's own count of it, and data parallel by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spmd_priced import CORE, cluster, data_parallel, perceptron, rules_and_axes, solved

from astrarium.spmd.capture import capture, load_factory
from astrarium.spmd.graph import PARAMETER, Graph
from astrarium.spmd.price import price_program
from astrarium.spmd.price.memory import extra_kept_bytes, kept_values
from astrarium.spmd.price.work import call_of, is_view

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = {"layers": 2, "hidden": 16, "heads": 4, "sequence": 8, "vocabulary": 50}
MODELS: dict[str, dict[str, Any]] = {
    "bert": TEXT,
    "gpt2": TEXT,
    "vit": {"layers": 2, "hidden": 16, "heads": 4, "image": 8, "patch": 4},
    "vgg19": {"image": 32, "channels": 2, "hidden": 8, "classes": 5},
    "moe": {**TEXT, "layers": 4, "experts": 4},
}


def kept_by_torch(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    """Bytes of memory that autograd holds, less parameters and inputs."""
    known = [*module.parameters(), *module.buffers(), *inputs.values()]
    others = {tensor.untyped_storage().data_ptr() for tensor in known}
    held: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in others:
            held[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(**inputs)
    return sum(storage.nbytes() for storage in held.values())


def kept_by_graph(graph: Graph) -> float:
    kept = kept_values(graph)
    total = 0.0
    for index, node in enumerate(graph.nodes):
        if node.is_source:
            continue
        if kept.value[index] and not is_view(graph, index):
            total += node.bytes
        total += float(extra_kept_bytes(call_of(graph, index), on_processor=1.0))
    return total


@pytest.mark.parametrize("name", MODELS)
def test_as_much_is_kept_as_torch_keeps(name: str) -> None:
    module, inputs = load_factory(f"{EXAMPLES / name}.py:make")(batch=8, **MODELS[name])
    expected = kept_by_torch(module.train(), inputs)
    assert kept_by_graph(capture(module, inputs)) == pytest.approx(expected, rel=0.015)


def test_data_parallel_training_by_hand() -> None:
    graph = perceptron(batch=24, width=48, inner=96)
    rules, _ = rules_and_axes(graph)
    devices = cluster("v100:4")
    program = solved(graph, devices, (3, 2, 1, 0), rules=data_parallel(graph, rules))
    price = price_program(program, devices)
    parameters = 2 * 48 * 96 + 96 + 48
    memory = price.memory
    assert memory.parameters.tolist() == [4 * parameters] * 4
    assert memory.gradients.tolist() == [4 * parameters] * 4
    assert memory.optimizer.tolist() == [8 * parameters] * 4
    # Of a row: the input, both sides of the GELU, the logits' softmax, and the target.
    row = 4 * (48 + 96 + 96 + 48) + 8
    rows = np.array([12, 8, 4, 0])
    assert memory.activations == pytest.approx(rows * row)
    assert np.all(memory.transient >= rows * 4 * 2 * 96)
    assert memory.peak == pytest.approx(16 * parameters + rows * row + memory.transient)
    assert program.bytes == tuple(memory.peak.tolist())


def test_data_parallel_bert_by_hand() -> None:
    layers, hidden, heads, length, words = 2, 64, 4, 16, 128
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": length}
    with torch.device("meta"):
        made = load_factory(f"{EXAMPLES / 'bert'}.py:make")(
            batch=8, **sizes, vocabulary=words, dropout=0.0, attention_dropout=0.0
        )
    graph = capture(*made)
    rules, _ = rules_and_axes(graph)
    devices = cluster("v100:4")
    program = solved(graph, devices, rules=data_parallel(graph, rules))
    memory = price_program(program, devices).memory
    parameters = sum(node.elements for node in graph.nodes if node.op == PARAMETER)
    assert parameters == sum(weight.numel() for weight in made[0].parameters())
    assert memory.optimizer == pytest.approx([8 * parameters] * 4)
    tokens = 2 * length  # of a device
    # By token and layer: queries, keys, values, attention's output and what enters them; inputs
    # and outputs of two norms; both sides of the GELU; statistics of attention and of norms.
    layer = 4 * (8 * hidden + 8 * hidden + heads + 4)
    # Embeddings and their norm; the head's map, both sides of its GELU, its norm; the softmax.
    ends = 4 * (2 * hidden + 2) + 4 * (3 * hidden + 2) + 4 * words
    assert memory.activations[0] == pytest.approx(tokens * (layers * layer + ends), rel=0.05)


def test_a_product_of_pieces_keeps_pieces() -> None:
    graph = perceptron(batch=24, width=48, inner=96)
    devices = cluster("cpu-core:2", tuning=CORE)
    price = price_program(solved(graph, devices), devices)
    assert np.all(price.bytes >= 0)
    assert price.bytes.sum(axis=0) + price.memory.transient == pytest.approx(price.memory.peak)
