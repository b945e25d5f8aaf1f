"""The example models in sizes that tests can afford, captured once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from spmd_training import module_gradients
from torch import Tensor

from astrarium.runtime.spmd.model import MadeModule
from astrarium.spmd.capture import capture, load_factory, taken_apart
from astrarium.spmd.graph import Graph

EXAMPLES = Path(__file__).parents[1] / "examples"
BATCH = 5
# Llama and GPT-2 compute parts of their loss in single precision, whatever the module's is.
TOLERANCE = {"llama": 2e-6, "gpt2": 2e-6}
NEGLIGIBLE = 1e-3  # of the largest gradient: what is so much smaller is its rounding error
_QUIET = {"dropout": 0.0, "attention_dropout": 0.0}
_TRANSFORMER = {"layers": 2, "hidden": 12, "heads": 3, "sequence": 4}
SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"features": 6, "hidden": 8, "classes": 5},
    "bert": {**_TRANSFORMER, "vocabulary": 11, "feed_forward": 10, **_QUIET},
    "gpt2": {**_TRANSFORMER, "vocabulary": 11, **_QUIET},
    "llama": {
        "layers": 2, "hidden": 16, "heads": 4, "key_value_heads": 2, "feed_forward": 10,
        "sequence": 4, "vocabulary": 11,
    },
    "vit": {"layers": 2, "hidden": 12, "heads": 3, "image": 8, "patch": 4, "classes": 5},
    "vgg19": {"image": 32, "channels": 2, "hidden": 6, "classes": 5, "dropout": 0.0},
    "moe": {**_TRANSFORMER, "vocabulary": 11, "experts": 4, **_QUIET},
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A module in double precision, its graph, and what it gives by itself."""

    model: MadeModule
    graph: Graph
    loss: float
    gradients: dict[str, Tensor]


Found = tuple[float, dict[str, Tensor]]  # a loss, and gradients by name


def assert_equal(found: Found, expected: Found, tolerance: float = 1e-12) -> None:
    """Relative to the largest gradient of each parameter, if that is not a rounding error."""
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    assert found[1].keys() == expected[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        size = max(float(gradient.abs().max()), NEGLIGIBLE * largest)
        difference = float((found[1][name] - gradient).abs().max())
        assert difference <= tolerance * size, name


def factory(name: str) -> str:
    return f"{EXAMPLES / name}.py:make"


@cache
def example(name: str, batch: int = BATCH, **changes: float) -> Example:
    """An example by the name of its file, with sizes changed."""
    torch.manual_seed(0)
    module, inputs = load_factory(factory(name))(batch=batch, **{**SIZES[name], **changes})
    module = module.double().train()
    doubled = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
    graph = taken_apart(capture(module, doubled))
    loss, gradients = module_gradients(module, [doubled])
    return Example(MadeModule(module, doubled), graph, loss, gradients)
