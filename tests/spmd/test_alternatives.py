"""Meshes and micro-batches: what is tried, what is chosen, and what would be enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spmd_examples import EXAMPLES
from spmd_small import chain, mixed_devices

import astrarium
from astrarium.spmd.graph import KEEP, Graph, Node, Ref
from astrarium.spmd.price import Devices, devices_of
from astrarium.spmd.solve import Effort
from astrarium.spmd.synthesis import Alternatives, Attempt, fastest_of, leanest
from astrarium.spmd.synthesis.alternatives import CLEAR_GAIN, FLAT, NODES
from astrarium.spmd.synthesis.baselines import SPACES

BATCH = 512
MIXED = {"v100-16gb": 2, "p100": 2}
COUNTS = (1, 2, 4, 8)


def graph_of(count: int) -> Graph:
    return chain(BATCH // count, (256, 256, 256), blocks=True)


def meshes(memory: float | None = None, bandwidth: float = 1e9) -> dict[str, Devices]:
    cluster = mixed_devices(MIXED, inter_node_bandwidth=bandwidth).cluster
    return {name: devices_of(cluster, memory, levels) for name, levels in ((FLAT, 1), (NODES, 2))}


def alternatives(
    devices: dict[str, Devices],
    asked: tuple[str, ...] = (FLAT, NODES),
    effort: float = 5e6,
    counts: tuple[int, ...] = COUNTS,
) -> Alternatives:
    return Alternatives(
        graph_of, devices, asked, counts, "adam", lambda _: (), lambda _: None, Effort(effort)
    )


def settings(attempts: list[Attempt]) -> list[tuple[str, int]]:
    return [(one.mesh, one.micro_batches) for one in attempts]


def test_both_meshes_are_tried_and_the_faster_is_taken() -> None:
    tried = [*alternatives(meshes()).tried()]
    assert settings(tried) == [(FLAT, 1), (NODES, 1)]  # memory is plenty
    assert len({one.seconds for one in tried}) == 2
    assert fastest_of(tried).seconds == min(one.seconds for one in tried)
    assert set(tried[0].fixed) == {space.name for space in SPACES}
    assert settings([*alternatives(meshes(), (NODES,)).tried()]) == [(NODES, 1)]


def test_the_same_every_time_however_little_effort() -> None:
    found = [
        [(one.mesh, one.micro_batches, one.seconds) for one in alternatives(*given).tried()]
        for given in 2 * [(meshes(), (FLAT, NODES), 1.0)]
    ]
    assert found[0] == found[1]
    seconds = [one[2] for one in found[0]]
    assert np.isfinite(seconds[0])
    assert seconds[1:] == [np.inf]  # nothing was left for the other mesh


def peak(one: Attempt) -> float:
    assert one.found is not None
    return max(one.found.program.bytes)


def test_micro_batches_are_tried_where_memory_is_short() -> None:
    """One micro-batch fits with weights in pieces; with two, nothing need be sent for that."""
    (usual,) = alternatives(meshes(), (FLAT,)).tried()
    tried = [*alternatives(meshes(0.7 * peak(usual)), (FLAT,)).tried()]
    counts = [(one.micro_batches, one.recompute) for one in tried]
    assert counts[:3] == [(1, False), (1, True), (2, False)]
    chosen = fastest_of(tried)
    assert chosen.micro_batches > 1
    assert chosen.seconds < tried[0].seconds
    assert peak(chosen) <= 0.7 * peak(usual)


def test_statistics_are_not_taken_of_smaller_batches_unasked() -> None:
    (usual,) = alternatives(meshes(), (FLAT,)).tried()

    def with_state(count: int) -> Graph:
        graph = graph_of(count)
        loss = len(graph.nodes) - 1
        keep = Node(KEEP, KEEP, (), graph.nodes[loss].dtype, (Ref(loss), [], []))
        return Graph((*graph.nodes, keep), graph.name, (*graph.blocks, -1))

    given = alternatives(meshes(0.7 * peak(usual)), (FLAT,))
    given.captured = with_state
    assert {one.micro_batches for one in given.tried()} == {1}


def test_what_is_enough_is_enough() -> None:
    devices = meshes()
    least = float(leanest(graph_of(1), devices[FLAT], 1, "adam").peak.max())
    (enough,) = alternatives(meshes(least), (FLAT,), counts=(1,)).tried()
    assert enough.found is not None
    assert max(enough.found.program.bytes) <= least
    (short,) = alternatives(meshes(0.5 * least), (FLAT,), counts=(1,)).tried()
    assert short.found is None
    assert short.no_room is not None
    assert short.no_room.needed > short.no_room.room


@pytest.mark.parametrize("count", [2, 8])
def test_smaller_batches_need_less(count: int) -> None:
    devices = meshes()[FLAT]
    one, several = (leanest(graph_of(k), devices, k, "adam").peak.max() for k in (1, count))
    assert several < one


def test_what_comes_and_goes_counts_in_the_leanest_program() -> None:
    """Ways that keep least, but in which too much comes and goes, are left out."""
    cluster = mixed_devices(MIXED, inter_node_bandwidth=1e9).cluster
    devices = devices_of(cluster, 900e3, 1)
    graph = chain(2048, (64, 64, 64), blocks=True)
    assert (leanest(graph, devices, 1, "adam", ()).peak <= devices.room).all()
    asked = Alternatives(
        lambda _: graph, {FLAT: devices}, [FLAT], [1], "adam", lambda _: (), lambda _: None
    )
    assert fastest_of([*asked.tried()]).found is not None


@pytest.mark.parametrize(
    ("gpus", "left_out"),
    [
        ("h100:1,t4:1", ("T4-16GB",)),
        ("a100:2,t4:1,k80:1", ("T4-16GB", "K80-12GB")),
        ("v100:2,p100:2", ()),
        ("v100:2", ()),
    ],
)
def test_devices_that_cost_time_are_left_out(gpus: str, left_out: tuple[str, ...]) -> None:
    found = astrarium.synthesize(f"{EXAMPLES / 'mlp.py'}:make", batch=64, gpus=gpus, mesh="flat")
    document = found.document
    pools = {device.pool for device in document.devices}
    assert not pools & set(left_out)
    assert {pool.name for pool in document.cluster.pools} == pools
    assert document.ranks == len(document.program.bytes) == document.program.mesh[0]
    notes = [note for note in document.notes if "left out" in note]
    tried = {one.mesh: one.seconds for one in document.search.tried}
    if not left_out:
        assert not notes
        return
    (note,) = notes
    assert note.startswith(", ".join(f"1 x {name}" for name in left_out))
    assert found.iteration_seconds == tried[f"flat, without {', '.join(left_out)}"]
    assert found.iteration_seconds < min(document.baselines.values())
    all_of_them = tried["flat"]
    assert all_of_them is not None
    assert found.iteration_seconds < all_of_them


def test_what_cannot_be_told_from_data_parallel_training_gives_way_to_it() -> None:
    sizes = {"layers": 2}
    given: dict[str, Any] = {"batch": 64, "gpus": "v100:2", "sizes": sizes}
    document = astrarium.synthesize(f"{EXAMPLES / 'bert.py'}:make", **given).document
    plain = "data parallel, even"
    tried = {one.mesh: one.seconds for one in document.search.tried}
    fastest = tried["flat"]
    assert fastest is not None
    assert (1 - CLEAR_GAIN) * document.baselines[plain] < fastest < document.baselines[plain]
    assert document.program.seconds == tried[f"flat, {plain}"] == document.baselines[plain]
    assert any(note.startswith(f"{plain} is taken: the fastest program") for note in document.notes)
