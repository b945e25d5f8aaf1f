"""Captured graphs compute what their modules compute: losses, gradients, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from astrarium.errors import InputError
from astrarium.spmd.capture import capture, load_factory, operator_of, torch_arguments
from astrarium.spmd.graph import CONSTANT, INPUT, KEEP, PARAMETER, Graph, Node
from astrarium.spmd.rules import operators_without_rule, without_rule
from astrarium.spmd.rules.table import DESCRIBED

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = {"layers": 2, "hidden": 16, "heads": 4, "sequence": 8, "vocabulary": 50}
TINY: dict[str, dict[str, Any]] = {
    "mlp": {"features": 6, "hidden": 8},
    "bert": TEXT,
    "gpt2": TEXT,
    "llama": {**TEXT, "key_value_heads": 2, "feed_forward": 24},
    "vit": {"layers": 2, "hidden": 16, "heads": 4, "image": 8, "patch": 4},
    "vgg19": {"image": 32, "channels": 2, "hidden": 8, "classes": 5},
    "moe": {**TEXT, "layers": 4, "experts": 4, "balance": 0.1},
}


def make(name: str, batch: int = 4, **sizes: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return load_factory(f"{EXAMPLES / name}.py:make")(batch=batch, **{**TINY[name], **sizes})


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    """Every example, captured without weights."""
    with torch.device("meta"):
        return {name: capture(*make(name)) for name in TINY}


def source_of(node: Node, module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    if node.op == INPUT:
        return inputs[node.target]
    if not node.target:
        return torch.tensor(node.args[0], dtype=getattr(torch, node.dtype))
    value: Any = module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value


def interpret(graph: Graph, module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Run the graph node by node."""
    values: dict[int, Any] = {}
    for index, node in enumerate(graph.nodes):
        if node.is_source:
            values[index] = source_of(node, module, inputs)
            continue
        args, kwargs = torch_arguments(node, values.__getitem__, "cpu")
        if node.op == KEEP:
            values[index] = args[0]
        elif node.op == "aten.batch_norm.default":  # its new statistics are written in place
            values[index] = operator_of(node.op)(*args, **kwargs), *args[3:5]
        else:
            values[index] = operator_of(node.op)(*args, **kwargs)
        first = values[index][0] if isinstance(values[index], tuple | list) else values[index]
        assert tuple(first.shape) == node.shape
        assert str(first.dtype) == f"torch.{node.dtype}"
        if not isinstance(values[index], tuple | list) and node.needs_gradient:
            assert first.requires_grad
    return values[graph.loss]


def assert_same(graph: Graph, module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """The same loss, and the same gradients into the same parameters."""
    module.train()
    torch.manual_seed(7)
    result = module(**inputs)
    loss = result if isinstance(result, torch.Tensor) else result.loss
    loss.backward()
    expected = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    torch.manual_seed(7)
    again = interpret(graph, module, inputs)
    again.backward()
    torch.testing.assert_close(again, loss, rtol=1e-5, atol=1e-6)
    trained = {node.target for node in graph.nodes if node.op == PARAMETER and node.needs_gradient}
    assert trained == set(expected)
    for name, parameter in module.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TINY)
def test_examples_give_the_loss_and_gradients_of_their_modules(
    graphs: dict[str, Graph], name: str
) -> None:
    torch.manual_seed(0)
    assert_same(graphs[name], *make(name))


@pytest.mark.parametrize("name", TINY)
def test_graphs_are_in_order_and_end_in_the_loss(graphs: dict[str, Graph], name: str) -> None:
    graph = graphs[name]
    assert all(read < index for index, reads in enumerate(graph.inputs) for read in reads)
    assert all(graph.readers[index] for index in range(graph.loss))
    assert graph.nodes[graph.loss].shape == ()
    assert graph.nodes[graph.loss].needs_gradient
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    assert not any(node.needs_gradient for node in graph.nodes if "float" not in node.dtype)


@pytest.mark.parametrize("name", ["bert", "vgg19"])
def test_shapes_alone_matter(graphs: dict[str, Graph], name: str) -> None:
    assert capture(*make(name)) == graphs[name]


def test_inputs_go_by_their_names() -> None:
    module, inputs = make("mlp")
    inputs = dict(reversed(inputs.items()))
    graph = capture(module, inputs)
    shapes = {node.target: node.shape for node in graph.nodes if node.op == INPUT}
    assert shapes == {"x": (4, 6), "labels": (4,)}
    assert_same(graph, module, inputs)
    with pytest.raises(InputError, match="unexpected keyword argument 'y'"):
        capture(module, {**inputs, "y": inputs["x"]})


@pytest.mark.parametrize("name", TINY)
def test_graphs_survive_json(graphs: dict[str, Graph], name: str) -> None:
    text = json.dumps(graphs[name].to_dict(), allow_nan=False)
    assert Graph.from_dict(json.loads(text)) == graphs[name]


def test_infinite_arguments_survive_json() -> None:
    class Masked(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.linear(x).masked_fill(x > 0, float("-inf"))
            return scores.softmax(-1).square().sum()

    graph = capture(Masked(), {"x": torch.randn(3, 4)})
    assert any(float("-inf") in node.args for node in graph.nodes)
    text = json.dumps(graph.to_dict(), allow_nan=False)
    assert Graph.from_dict(json.loads(text)) == graph


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op.removeprefix("aten.").split(".")[0] for node in graph.nodes)


def test_operators_stay_whole(graphs: dict[str, Graph]) -> None:
    bert = operators(graphs["bert"])
    assert bert["linear"] == 2 * 6 + 2
    assert bert["layer_norm"] == 2 * 2 + 2
    assert bert["scaled_dot_product_attention"] == 2
    assert bert["cross_entropy_loss"] == 1
    assert operators(graphs["vgg19"])["conv2d"] == 16
    assert operators(graphs["moe"])["einsum"] == 2 * 4


def test_masks_that_say_nothing_are_gone(graphs: dict[str, Graph]) -> None:
    for name, causal in (("bert", False), ("gpt2", True), ("llama", True), ("vit", False)):
        attention = [node.args for node in graphs[name].nodes if "scaled_dot_product" in node.op]
        assert len(attention) == 2
        assert {(args[3], args[5]) for args in attention} == {(None, causal)}
        assert not {"index", "cumsum", "diff"} & set(operators(graphs[name]))


def test_a_mask_of_the_inputs_stays() -> None:
    module, inputs = make("bert", dropout=0.0, attention_dropout=0.0)
    inputs["attention_mask"] = torch.ones(4, 8, dtype=torch.int64)
    inputs["attention_mask"][1, 5:] = 0
    graph = capture(module, inputs)
    assert all(node.args[3] is not None for node in graph.nodes if "scaled_dot" in node.op)
    assert_same(graph, module, inputs)


def test_a_mask_that_is_neither_whole_nor_causal_stays() -> None:
    class Window(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            place = torch.arange(x.shape[2])
            near = (place[:, None] - place[None, :]).abs() < 3
            hidden = self.linear(x)
            return nn.functional.scaled_dot_product_attention(hidden, x, x, near).square().mean()

    module, inputs = Window(), {"x": torch.randn(2, 3, 6, 4)}
    graph = capture(module, inputs)
    assert operators(graph)["abs"] == 1
    assert_same(graph, module, inputs)


def test_tied_weights_are_one_node(graphs: dict[str, Graph]) -> None:
    graph = graphs["bert"]
    words = [i for i, node in enumerate(graph.nodes) if node.shape == (50, 16) and node.is_source]
    assert len(words) == 1
    assert graph.nodes[words[0]].target == "bert.embeddings.word_embeddings.weight"
    readers = [graph.nodes[index].op for index in graph.readers[words[0]]]
    assert readers == ["aten.embedding.default", "aten.linear.default"]


def test_dropout_stays_unless_it_drops_nothing() -> None:
    with torch.device("meta"):
        dropping = operators(capture(*make("moe", layers=2, dropout=0.3)))
        keeping = operators(capture(*make("moe", layers=2, dropout=0.0)))
    assert dropping["dropout"] == 2 * 2
    assert keeping["dropout"] == 0


def test_nodes_say_where_they_come_from(graphs: dict[str, Graph]) -> None:
    query = next(
        node for node in graphs["bert"].nodes
        if node.path == "bert.encoder.layer.1.attention.self.query" and not node.is_source
    )  # fmt: skip
    path, line = query.source.split(", ")
    assert path == query.path
    assert line.startswith("modeling_bert.py:")
    loss = graphs["mlp"].nodes[-1]
    lines = (EXAMPLES / "mlp.py").read_text().splitlines()
    assert "cross_entropy" in lines[int(loss.source.removeprefix("mlp.py:")) - 1]


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("bert", 2), ("gpt2", 2), ("llama", 2), ("vit", 2), ("moe", 2), ("vgg19", 4), ("mlp", 0)],
)
def test_repeated_layers_are_found(graphs: dict[str, Graph], name: str, blocks: int) -> None:
    graph = graphs[name]
    found = Counter(graph.blocks)
    inside = sorted(set(found) - {-1})
    assert inside == list(range(blocks))
    assert len({found[number] for number in inside}) <= 1
    # Each is one run of neighbours, and runs follow each other.
    order = [number for number in graph.blocks if number >= 0]
    assert order == sorted(order)
    for number in inside[:-1]:
        assert graph.blocks.index(number + 1) == graph.blocks.index(number) + found[number]


def test_layers_that_differ_are_not_repetitions() -> None:
    class Stack(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4 + i, 5 + i) for i in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x.sum()

    assert set(capture(Stack(), {"x": torch.randn(2, 4)}).blocks) == {-1}


class InPlace(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Changes values in place in the ways that modules do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        kept = hidden
        if self.kind == "whole":
            hidden.mul_(2).add_(1)
            nn.functional.relu_(hidden)
        elif self.kind == "part":
            hidden[:, 0] += 1
            hidden[1:3] = 3.0
        elif self.kind == "view":
            hidden.view(-1).mul_(2)
            hidden = nn.functional.dropout(hidden, 0.5)
        return (kept * hidden).mean()


@pytest.mark.parametrize("kind", ["whole", "part", "view"])
def test_changes_in_place_become_new_values(kind: str) -> None:
    module, inputs = InPlace(kind), {"x": torch.randn(6, 4)}
    graph = capture(module, inputs)
    assert not any(node.op.split(".")[1].endswith("_") for node in graph.nodes if "." in node.op
                   and not node.is_source)  # fmt: skip
    assert_same(graph, module, inputs)


class Mixed(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Constants of all kinds, a frozen parameter, a part without gradients, batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.attribute = torch.arange(4.0)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.linear(x) * self.frozen)
        with torch.no_grad():
            level = hidden.abs().mean()
        made = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        first, second = (hidden / level * self.scale + made).chunk(2, dim=1)
        largest = hidden.topk(2, dim=1).values
        return ((first - second) * largest).mean() + (
            hidden.detach() * self.attribute * hidden
        ).sum()


def test_constants_frozen_parameters_and_parts_without_gradient() -> None:
    module, inputs = Mixed(), {"x": torch.randn(6, 4)}
    graph = capture(module, inputs)
    constants = {node.target: node for node in graph.nodes if node.op == CONSTANT}
    running = {f"norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert set(constants) == {"", "frozen", "scale", "attribute"} | running
    assert constants[""].args == ([1.0, 2.0, 3.0, 4.0],)
    assert operators(graph)["detach"] == 2
    assert "unused.weight" not in {node.target for node in graph.nodes}
    assert_same(graph, module, inputs)
    with torch.device("meta"):
        bare, given = Mixed(), {"x": torch.randn(6, 4)}
    assert capture(bare, given) == graph


def test_what_depends_on_constants_alone_is_marked(graphs: dict[str, Graph]) -> None:
    graph = graphs["llama"]
    marked = {
        node.op for node, constant in zip(graph.nodes, graph.constant, strict=True) if constant
    }
    assert {"aten.arange.default", "aten.cos.default", "aten.sin.default"} <= marked
    assert not any(
        constant and (node.needs_gradient or node.op in (INPUT, PARAMETER))
        for node, constant in zip(graph.nodes, graph.constant, strict=True)
    )


def test_operators_without_a_rule_are_listed_together(
    graphs: dict[str, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graphs["llama"]
    for op in ("silu", "rsqrt", "cos"):  # rotations are constants: every device computes its own
        monkeypatch.delitem(DESCRIBED, op)
    missing = operators_without_rule(graph)
    assert Counter(node.op for node in missing) == {"aten.rsqrt.default": 5, "aten.silu.default": 2}
    message = str(without_rule(missing, "Llama"))
    first, second = message.index("aten.rsqrt.default"), message.index("aten.silu.default")
    assert message.startswith("Llama: no rule")
    assert first < second
    assert "aten.rsqrt.default, 5 times: model.layers.0.input_layernorm, modeling_llama" in message
    assert "and 2 more" in message
    assert "--allow-replicate aten.rsqrt.default --allow-replicate aten.silu.default" in message
    assert operators_without_rule(graph, ("silu", "aten.rsqrt.default")) == []
    once = [node for node in graph.nodes if node.op == "aten.pad.default"]
    assert "aten.pad.default, once: modeling_llama.py:" in str(without_rule(once))


class Refused(nn.Module):  # type: ignore[misc]  # torch has no types here
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.linear(x)
        match self.kind:
            case "branch":
                return hidden.mean() if hidden.sum() > 0 else hidden.sum()
            case "shape":
                return hidden[hidden > 0].mean()
            case "item":
                return hidden.mean() * hidden.max().item()
            case "nonzero":
                return hidden.view(-1)[torch.nonzero(x.view(-1))].mean()
            case "no loss":
                return {"scores": hidden}
            case "several":
                return hidden.sum(0)
            case "untrained":
                return x.mean()
            case "autocast":
                with torch.autocast("cpu", torch.bfloat16):
                    return self.linear(x).float().mean()
            case _:
                raise RuntimeError("out of order")


REFUSALS = {
    "branch": ("test_capture.py:", "depends on the values of tensors"),
    "shape": ("aten.index.Tensor", "test_capture.py:", "fixed capacity"),
    "item": ("aten.item.default", "test_capture.py:", "values of tensors"),
    "nonzero": ("aten.nonzero.default", "test_capture.py:", "fixed capacity"),
    "no loss": ("dict without a loss", "labels"),
    "several": ("float32 of shape [4]", "one floating-point number"),
    "untrained": ("no trainable parameter",),
    "autocast": ("autocast (linear, test_capture.py:", "make the module in the dtype"),
    "broken": ("RuntimeError: out of order", "test_capture.py:"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals_name_the_line_and_the_way_out(kind: str) -> None:
    with pytest.raises(InputError) as refusal:
        capture(Refused(kind), {"x": torch.randn(3, 4)})
    for part in REFUSALS[kind]:
        assert part in str(refusal.value)


def test_layers_of_seven_billion_parameters_need_no_memory() -> None:
    with torch.device("meta"):
        graph = capture(*load_factory(f"{EXAMPLES / 'llama.py'}:make")(batch=256, layers=2))
    parameters = sum(node.elements for node in graph.nodes if node.op == PARAMETER)
    assert parameters == 2 * (4 * 4096**2 + 3 * 4096 * 11_008 + 2 * 4096) + 4096 * 64_001
    assert len(set(graph.blocks)) == 3
    # Nor does a mask of 256 sequences of 2048 tokens.
    assert all(node.args[5] for node in graph.nodes if "scaled_dot" in node.op)
