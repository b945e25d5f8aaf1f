"""Public architectures, tiny and with random weights: what `benchmarks/spmd_models.py` tries.

`make(batch, model)` is a factory as `astrarium synthesize` takes it. Modules that transformers has
come from there; others are written here as their papers and usual code bases have them, so that
nothing but torch is needed. None was changed to suit this project.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from spmd_zoo import generative, hugging_face, recommendation, sequences, vision
from spmd_zoo.entry import Entry, Made

MODELS: Mapping[str, Entry] = {
    **hugging_face.MODELS,
    **vision.MODELS,
    **sequences.MODELS,
    **recommendation.MODELS,
    **generative.MODELS,
}


def make(batch: int, model: str, dtype: str = "float32") -> Made:
    """A module that gives its loss, and inputs for it, from torch's current seed."""
    module, inputs = MODELS[model].make(batch)
    kind = getattr(torch, dtype)
    numbers = {n: x.to(kind) if x.is_floating_point() else x for n, x in inputs.items()}
    return module.to(kind), numbers


__all__ = ["MODELS", "Entry", "make"]
