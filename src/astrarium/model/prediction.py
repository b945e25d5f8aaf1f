"""Layers that predict further tokens (multi-token prediction), as in Megatron and DeepSeek-V3.

Behind the last layer comes one more of its kind for each further token. It reads what the layer
before it made and, through the model's token table, the tokens moved by one; both pass a norm and
a product that halves their width. The head computes a loss for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from astrarium.errors import InputError
from astrarium.model.blocks import (
    PREDICTION,
    Block,
    Carried,
    Embedding,
    Linear,
    Model,
    Module,
    Norm,
    Split,
)

MOST: Final = 8  # layers; published models train one
_KEYS: Final = ("num_nextn_predict_layers", "mtp_num_layers", "num_mtp_modules")


def without_predictions(model: Model) -> Model:
    if not model.mtp_layers:
        return model
    blocks = model.blocks[: model.num_layers - model.mtp_layers]
    return replace(model, blocks=blocks, head=replace(model.head, passes=1), carried=())


def with_predictions(model: Model, count: int) -> Model:
    """The model with so many layers behind it, each of which predicts a further token."""
    if count == model.mtp_layers:
        return model
    if not 0 <= count <= MOST:
        what = f"expected 0 to {MOST} layers that predict further tokens, got {count}"
        raise InputError(what, "mtp_layers")
    model = without_predictions(model)
    if not count:
        return model
    last = model.blocks[-1]
    usual = isinstance(last, Block) and last.attentions and not last.scans
    if not usual or not isinstance(last, Block) or model.later_inputs or model.carried:
        raise InputError(
            f"{model.name}: layers that predict further tokens follow attention and a feed-forward"
            " part of a model of one input; leave them out",
            "mtp_layers",
        )
    hidden, vectors = last.hidden, last.norms[0].vectors
    layer = replace(
        last,
        name=PREDICTION,
        linears=(
            Linear("eh_proj", 2 * hidden, hidden, Split.COLUMN, Module.ATTENTION),
            *last.linears,
        ),
        norms=(*last.norms, *(Norm(name, hidden, vectors) for name in ("enorm", "hnorm", "norm"))),
        embedding=Embedding(model.vocab, model.embedding.hidden, shared=True),
    )
    layers = model.num_layers
    # The head reads all of them: what each made travels along with what the next one makes.
    made = range(layers - 1, layers + count - 1)
    return replace(
        model,
        blocks=(*model.blocks, *(layer,) * count),
        head=replace(model.head, passes=1 + count),
        carried=tuple(Carried(source, layers + count) for source in made),
        left_out=tuple(text for text in model.left_out if not any(key in text for key in _KEYS)),
    )
