"""Costs of a frozen model beside the trained one: its forward pass and its weights.

Every layer of the trained model carries an equal share of the frozen layers: so both models are
dealt to the stages of a pipeline in the same proportions. Embeddings and heads stand at the ends.
The pass saves nothing for a backward pass, and recomputation does not repeat it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.efficiency import OperatorModel
from astrarium.cost.ends import EndCosts, dealt
from astrarium.cost.tally import LayerCosts, Shards
from astrarium.model.frozen import Role
from astrarium.model.workload import Workload

_FORWARD: Final = (
    *("forward", "launch_forward", "tp_forward", "tp_forward_overlapped"),
    *("cp_forward", "ep_forward"),
)
_PARAMETERS: Final = ("dense", "expert")


def with_frozen_layers(
    workload: Workload, runtime: Runtime, trained: LayerCosts, frozen: LayerCosts
) -> LayerCosts:
    """Layers of the trained model that carry those of the frozen one with them."""
    assert workload.beside is not None
    model = workload.beside.model
    kinds = np.bincount(model.kind_of_layer, minlength=len(model.kinds))

    def share(per_layer: Floats) -> Floats:
        return (per_layer @ kinds / workload.model.num_layers)[:, None]

    added = {name: share(getattr(frozen, name)) for name in _FORWARD}
    changed = {name: getattr(trained, name) + more for name, more in added.items()}
    sent = sum(added[f"{kind}_forward"] for kind in ("tp", "cp", "ep"))
    weighs = not workload.shares_weights
    for kind in _PARAMETERS:
        held = share(getattr(frozen, f"{kind}_parameters") + getattr(frozen, f"frozen_{kind}"))
        changed[f"frozen_{kind}"] = getattr(trained, f"frozen_{kind}") + held * weighs
        # Weights of both models are read three times instead of two.
        read = held if weighs else -held
        changed[f"once_{kind}"] = np.broadcast_to(read, trained.forward.shape)
    # At most what a layer would keep: a pass that saves nothing frees some of it on its way.
    alive = (frozen.activations + frozen.transient).max(axis=1, keepdims=True)
    # What gathers a layer whole makes room for its gradients, too, where all weights train.
    gradients = runtime.reduced_gradient_bytes * (workload.adapters is None)
    part = weighs * runtime.weight_bytes / (runtime.weight_bytes + gradients)
    return replace(
        trained,
        **changed,
        forward_once=np.broadcast_to(added["forward"], trained.forward.shape),
        sent_once=np.broadcast_to(sent, trained.forward.shape),
        pass_bytes=np.broadcast_to(alive, trained.forward.shape),
        unit=np.maximum(trained.unit, part * frozen.unit.max(axis=1, keepdims=True)),
    )


def with_frozen_ends(
    workload: Workload,
    shards: Shards,
    ops: OperatorModel,
    runtime: Runtime,
    trained: EndCosts,
    frozen: EndCosts,
) -> EndCosts:
    """Embedding and head of both models, and the loss, which reads what the frozen one makes."""
    assert workload.beside is not None
    head, weighs = workload.beside.model.head, not workload.shares_weights
    outputs = dealt(head.outputs, shards.tp, pads=runtime.pads_vocabulary)
    logits = shards.tokens(workload.seq_length) * outputs * runtime.logit_bytes
    # A teacher's logits stay until the gradient of the loss; of a reference, a number a token does.
    stays = workload.beside.role is Role.TEACHER
    # With sequence parallelism, half of the message is of the way back.
    entering = frozen.embedding_message * np.where(shards.sequence_parallel, 0.5, 1.0)
    tied = frozen.tied_parameters
    return replace(
        trained,
        embedding_forward=trained.embedding_forward + frozen.embedding_forward,
        embedding_message=trained.embedding_message + entering,
        head_forward=trained.head_forward + frozen.head_forward,
        head_backward=trained.head_backward + (ops.streaming(logits) if stays else 0.0),
        head_message_forward=trained.head_message_forward + frozen.head_message_forward,
        head_activations=trained.head_activations + logits * stays,
        head_transient=np.maximum(trained.head_transient, 0.0 if stays else logits),
        frozen_embedding=frozen.embedding_parameters * weighs,
        frozen_head=frozen.head_parameters * weighs,
        frozen_tied=tied * weighs,
        # They go forward only: half of them in each direction stands for that.
        boundary_bytes=trained.boundary_bytes
        + frozen.boundary_bytes.max(axis=1, keepdims=True) / 2,
    )
