"""Groups of replicas that share a batch: what they do together once an iteration.

Every group holds the whole model and works on its own part of the batch; between two meetings it
does its passes, reduces gradients among its replicas, updates and gathers as if it were alone. They
meet where gradients are added up across groups: each GPU then holds the sum over its own replicas
of a part of the gradients, and exchanges it with the GPUs of the other groups that hold the same.
An iteration is the longest of what the groups do alone, and the meeting.

Where groups divide the gradients differently, a GPU of the group with fewer GPUs exchanges with
several others; the largest part sets the pace. Nothing of it is hidden behind computation.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.collectives import Fabric, Group, all_reduce_seconds
from astrarium.cost.layouts import Layouts


def exchanged_bytes(layouts: Layouts) -> Floats:
    """Gradients that the fullest GPU holds once its own replicas have added theirs up."""
    dense = layouts.dense_parameters / layouts.dense_ranks
    expert = layouts.expert_parameters / layouts.expert_ranks
    return layouts.runtime.reduced_gradient_bytes * (dense + expert).max(axis=1)


def meeting_seconds(fabric: Fabric, num_groups: int, num_bytes: Floats) -> Floats:
    """Gradients added up across groups, over the links between their pools."""
    return all_reduce_seconds(fabric, num_bytes, Group(np.array(num_groups), np.array(1)))
