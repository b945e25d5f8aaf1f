"""Bytes of units (layers, embedding, head) that ZeRO 3 makes whole for a while.

torch FSDP gathers into memory of a stream of its own, which nothing else gets: two units that
follow each other. A layer's backward pass has its weights, its gradients and the message of those
before it. A head stays whole from its forward to its backward pass. If both ends are in the
outermost unit, its weights stay, and its gradients wait for each other. Other software holds so
many of the largest units.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.catalog.runtimes import Runtime
from astrarium.value import Value


class Units(Value, frozen=True):
    """Parameters of the largest layer, of the embedding and of the head, on each rank."""

    layer: Floats
    table: Floats
    head: Floats
    trains: bool  # whether the weights themselves do, not adapters alone

    def of_backward(self, runtime: Runtime) -> Floats:
        """Bytes in the backward pass of a layer beside the parts that stay whole."""
        weight, together = runtime.weight_bytes, runtime.ends_in_one_unit
        before = self.layer if together else np.maximum(self.layer, self.head)
        waiting = self.trains * self.head if together else -self.head
        passing = weight * ((1 + self.trains) * self.layer + waiting)
        return np.maximum(passing + runtime.reduced_gradient_bytes * self.trains * before, 0.0)

    def gathered(
        self, runtime: Runtime, every: Floats, several: Bools, alone: Bools
    ) -> dict[str, Floats]:
        """As `Layouts` has them.

        every: parameters on each rank; several: whether ranks share them; alone: whether there is
        no pipeline, behind which gradients are reduced when activations are gone.
        """
        weight, largest = runtime.weight_bytes, np.maximum(self.table, self.head)
        if not runtime.own_unit_memory:
            each = weight + runtime.reduced_gradient_bytes * self.trains
            largest = np.maximum(self.layer, largest)
            whole, none = np.minimum(runtime.gathered_layers * largest, every), np.zeros_like(every)
            return {"whole_units": each * whole, "unit_messages": none, "unit_gradients": none}
        together = runtime.ends_in_one_unit
        outer = self.table + self.head if together else largest
        sent = outer + self.layer * np.where(self.layer > outer, 2, 1)
        return {
            "whole_units": weight * (outer if together else self.head),
            "unit_messages": np.where(several[:, None], weight * sent, 0.0),
            "unit_gradients": np.where(alone[:, None], self.of_backward(runtime), 0.0),
        }
