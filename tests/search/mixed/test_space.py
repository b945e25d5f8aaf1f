"""Which virtual stages a mixed search looks at."""

from __future__ import annotations

import pytest
from small import small_model, small_translator

from astrarium.cluster import parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.model.blocks import Model
from astrarium.model.workload import Workload
from astrarium.search.mixed.space import MixedSpace


@pytest.mark.parametrize(
    ("model", "pp", "most"),
    [
        (small_model(20), 4, 5),
        (small_model(18), 4, 5),  # the embedding and the head have a chunk of their own
        (small_model(17), 4, 4),
        (small_model(20), 1, 1),
        (small_translator(10), 4, 1),  # layers are not alike
    ],
)
def test_every_number_of_virtual_stages_is_looked_at(model: Model, pp: int, most: int) -> None:
    cluster = parse_gpus("h100:8,a100:8")
    costs = ClusterModel(Workload(model, seq_length=512, global_batch=8), cluster)
    space = MixedSpace(costs.workload, cluster, costs.pools[0].planner, exact=True)
    layouts = space.layouts(pp)
    assert [layout.virtual for layout in layouts] == list(range(1, most + 1))
    assert all(layout.chunk_layers >= 1 for layout in layouts)
