"""Published models that software has recipes for, and what tells the plan's model from them."""

from __future__ import annotations

from collections.abc import Container

from astrarium.catalog.models import ModelEntry, model_entries
from astrarium.export.software.model_facts import differing, trained_facts
from astrarium.model import model_of_entry
from astrarium.model.blocks import Model
from astrarium.model.prediction import without_predictions


def published_as(model: Model, names: Container[str]) -> str:
    """The one of these models with the same layers and facts; "" if there is none.

    Some models differ only in what they were trained on; then the name decides.
    """
    model = without_predictions(model)
    alike = [one.name for one in _as_large(model, names) if not _differences(model, one)]
    return min(alike, key=lambda name: name != model.name, default="")


def why_unpublished(model: Model, names: Container[str]) -> str:
    """The nearest of these models, in words for a refusal; "" if the model is one of them."""
    if published_as(model, names):
        return ""
    model = without_predictions(model)
    near = [
        f"{one.name} has {', '.join(_differences(model, one))}" for one in _as_large(model, names)
    ]
    return f" ({near[0]})" if near else " (none has its sizes)"


def _as_large(model: Model, names: Container[str]) -> list[ModelEntry]:
    """Models of the same family and number of parameters."""
    return [
        entry
        for entry in model_entries()
        if entry.name in names
        and (entry.family, entry.parameters) == (model.family, model.parameters)
    ]


def _differences(model: Model, entry: ModelEntry) -> tuple[str, ...]:
    """The differences between the model and a published one."""
    published = model_of_entry(entry)
    if (published.blocks, published.head) != (model.blocks, model.head):
        return ("its layers are other ones",)
    planned, offered = trained_facts(model.config or {}), trained_facts(entry.config)
    return tuple(differing(planned or {}, offered or {}).values())
