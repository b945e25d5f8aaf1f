"""Program files: read as they were written, and refused when they changed since."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hand_programs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.spmd.program import (
    ProgramDocument,
    load_program,
    placement_text,
    save_program,
    to_dict,
    to_text,
)
from astrarium.spmd.program.document import checksum_of, parse_placement
from astrarium.spmd.rules import COPIED, PARTIAL, REPLICATE
from astrarium.spmd.rules.layout import shard

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    save_program(hand_programs.document(), path)
    return path


def edited(path: Path, edit: Edit, *, summed: bool = False) -> Path:
    """Edit a file; `summed`: as someone does who gives it the checksum of what it holds then."""
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    if summed:
        content = {key: data[key] for key in data if key not in ("schema", "checksum")}
        data["checksum"] = checksum_of(content)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def equal(one: ProgramDocument, other: ProgramDocument) -> bool:
    """Dataclasses compare themselves; arrays do not."""
    ours, theirs = (d.program for d in (one, other))
    pairs = zip(ours.divisions, theirs.divisions, strict=True)
    if not all(np.array_equal(a.granules, b.granules) for a, b in pairs):
        return False
    same = replace(theirs, divisions=ours.divisions)
    return replace(other, program=same) == replace(one, program=ours)


def test_what_is_read_is_what_was_written(written: Path) -> None:
    document = hand_programs.document()
    read = load_program(written)
    assert equal(read, document)
    assert to_text(read) == to_text(document) == written.read_text(encoding="utf-8")


def test_the_file_has_a_line_for_each_node_and_instruction(written: Path) -> None:
    document = hand_programs.document()
    lines = [line.strip().rstrip(",") for line in written.read_text(encoding="utf-8").splitlines()]
    for entry in (*to_dict(document)["graph"]["nodes"], *to_dict(document)["instructions"]):
        assert json.dumps(entry) in lines


def test_equal_bytes_are_one_number(written: Path) -> None:
    data = json.loads(written.read_text(encoding="utf-8"))
    assert data["instructions"][1]["bytes"] == 1024
    assert data["instructions"][0]["bytes"] == [200, 100]
    assert load_program(written).program.instructions[1].bytes == (1024.0, 1024.0)


placements = st.lists(
    st.sampled_from((REPLICATE, COPIED, PARTIAL)) | st.integers(0, 9).map(shard),
    min_size=1,
    max_size=3,
).map(tuple)


@given(placements)
def test_placements_are_read_as_written(placement: Any) -> None:
    assert parse_placement(placement_text(placement)) == placement


def instruction(index: int, **changes: Any) -> Edit:
    return lambda data: data["instructions"][index].update(changes)


def key(*path: Any) -> Edit:
    """Set what stands under a path to its last entry."""

    def edit(data: Any) -> None:
        *way, last, value = path
        for part in way:
            data = data[part]
        data[last] = value

    return edit


OTHER_SCHEMAS: list[tuple[Edit, str]] = [
    (key("schema", "astrarium.program/2"), "made by another version of Astrarium"),
    (key("schema", "astrarium.plan/1"), "not a program (its schema is 'astrarium.plan/1'"),
    (lambda data: data.pop("schema"), "not a program (it has no schema"),
]  # fmt: skip
# What a file with the right checksum may still hold, and the key that is named.
HOSTILE: list[tuple[Edit, str]] = [
    (lambda data: data.pop("axes"), "the required key 'axes' is missing"),
    (key("source", "batch", "six"), "source.batch: expected int, got 'six'"),
    (key("source", "batch", 0), "micro_batches: "),
    (key("mesh", [3]), "bytes: "),
    (key("mesh", [0]), "mesh: "),
    (key("mesh", []), "mesh: "),
    (key("mesh", [2**20, 2**20]), "mesh: "),
    (key("micro_batches", 0), "micro_batches: "),
    (key("devices", 1, "rank", 5), "devices: "),
    (key("devices", 1, "pool", "T4"), "devices: "),
    (key("devices", 1, "gpu", "T4"), "devices: "),
    (key("cluster", "pools", 0, "gpu", "x"), "cluster: "),
    (key("cluster", "pools", []), "cluster: "),
    (key("cluster", "pools", 0, "nodes", "two"), "cluster.pools[0].nodes: expected int, got 'two'"),
    (key("cluster", "pools", 1, "name", [1]), "cluster.pools[1].name: expected text"),
    (key("iteration_seconds", 0), "iteration_seconds: "),
    (key("baselines", "data parallel, even", -1), "baselines: "),
    (key("memory", 0, "capacity_bytes", 0), "memory: "),
    (key("memory", 0, "rank", 1), "memory: "),
    (key("axes", 0, "pieces", [[4, 3]]), "axes[0]: "),
    (key("axes", 0, "pieces", [[7, -1]]), "axes[0]: "),
    (key("axes", 0, "pieces", [[6]]), "axes[0]: "),
    (key("axes", 0, "pieces", [[]]), "axes[0]: "),
    (key("axes", 0, "pieces", [[4, 2], [6, 0]]), "axes[0]: "),
    (key("axes", 0, "granules", 0), "axes[0]: "),
    (key("axis_of", 0, [0]), "axis_of[0]: "),
    (key("axis_of", 0, [0, 9]), "axis_of[0]: "),
    (key("graph", "nodes", 0, "shape", [7, 8]), "axis_of[0]: "),
    (lambda data: data["axis_of"].pop(), "axis_of: "),
    (key("graph", "nodes", []), "graph.nodes: "),
    (key("graph", "nodes", 3, "name", "w0"), "graph.nodes: "),
    (key("graph", "nodes", 3, "name", 7), "graph.nodes: "),
    (lambda data: data["graph"]["nodes"][3].pop("shape"), "graph.nodes: "),
    (key("graph", "nodes", 0, "dtype", "float31"), "graph.nodes[0]: "),
    (key("graph", "nodes", 0, "shape", [-6, 8]), "graph.nodes[0]: "),
    (key("graph", "nodes", 2, "args", [{"ref": 4}]), "graph.nodes[2]: "),
    (key("graph", "nodes", 2, "args", [{"ref": -1}]), "graph.nodes[2]: "),
    (key("graph", "nodes", 2, "args", [{"ref": [0]}]), "graph.nodes: "),
    (key("graph", "nodes", 2, "args", [{"node": 0}]), "graph.nodes: "),
    (key("graph", "nodes", 2, "args", [{"float": "x"}]), "graph.nodes: "),
    (key("graph", "nodes", 1, "args", [{"ref": 0}]), "graph.nodes[1]: "),
    (key("graph", "nodes", 5, "args", [{"ref": 4}, "x"]), "instructions[6]: "),
    (key("graph", "nodes", 5, "op", "keep"), "graph.nodes[5]: "),
    (key("graph", "nodes", 4, "op", "keep"), "graph.nodes[4]: "),
    (lambda data: data["graph"]["nodes"][1].update(op="constant", target="", args=["x"]),
        "graph.nodes[1]: "),
    (key("graph", "blocks", [0]), "graph.blocks: "),
    (instruction(0, node=17), "instructions[0]: "),
    (instruction(0, gives="sharded"), "instructions[0]: "),
    (instruction(0, gives="shard(2)"), "instructions[0]: "),
    (instruction(0, gives="shard(x)"), "instructions[0]: "),
    (instruction(0, gives="shard(0)/partial"), "instructions[0]: "),
    (instruction(3, needs=["shard(0)"]), "instructions[3]: "),
    (instruction(3, needs=["shard(1)", "copied"]), "instructions[3]: "),
    (instruction(3, rules=[]), "instructions[3]: "),
    (instruction(3, bytes=[1]), "instructions[3]: "),
    (instruction(2, conversion={"level": 1, "forward": "none", "backward": "none"}),
        "instructions[2]: "),
    (instruction(2, conversion={"level": 0, "forward": "teleport", "backward": "all-reduce"}),
        "instructions[2]: "),
    (instruction(2, gives="replicate"), "instructions[2]: "),
    (instruction(3, rules=[{"name": "magic"}]), "instructions[3]: "),
    (instruction(3, rules=[{"name": "shard 0", "needs": ["magic"]}]), "instructions: "),
    (key("graph", "nodes", 2, "op", "aten.foo.default"), "instructions[3]: "),
    (instruction(5, rules=[{"name": "x", "messages": [{"collective": "sing", "elements": 1}]}]),
        "instructions[5].rules[0].messages[0].collective: expected one of all-reduce, all-gather,"),
    (lambda data: data["instructions"].pop(2), "instructions[2]: "),
    (lambda data: data["instructions"].pop(0), "instructions[2]: "),
    (lambda data: data["instructions"].append(data["instructions"][0]), "instructions[8]: "),
    (lambda data: data["instructions"].insert(0, data["instructions"].pop(3)), "instructions[0]: "),
    (lambda data: data["instructions"].pop(), "instructions: "),
    (lambda data: data["instructions"].__delitem__(slice(6, 8)), "instructions: "),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "said"), OTHER_SCHEMAS)
def test_files_of_other_schemas_are_named(written: Path, edit: Edit, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit))
    assert said in str(refused.value)
    assert "astrarium synthesize ... --out FILE" in str(refused.value)


def names_of(edits: list[tuple[Edit, str]]) -> list[str]:
    return [f"{number} {said}" for number, (_, said) in enumerate(edits)]


@pytest.mark.parametrize(("edit", "_"), HOSTILE, ids=names_of(HOSTILE))
def test_a_file_that_changed_is_refused(written: Path, edit: Edit, _: str) -> None:
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit))
    assert str(refused.value) == (
        f"{written}: changed since it was written: its checksum does not match; synthesise it"
        " again with `astrarium synthesize ... --out FILE`"
    )


@pytest.mark.parametrize(("edit", "said"), HOSTILE, ids=names_of(HOSTILE))
def test_a_hostile_file_is_refused_at_its_key(written: Path, edit: Edit, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit, summed=True))
    assert f"{written}: {said}" in str(refused.value)


def test_every_value_counts(written: Path) -> None:
    """Numbers that no check could tell from others, too: seconds, bytes, a note."""
    for edit in (
        key("iteration_seconds", 0.25),
        key("breakdown_seconds", "compute", 0.0046),
        key("memory", 1, "optimizer", 7),
        key("notes", ["all is well"]),
        key("source", "factory", "evil.py:make"),
        lambda data: data.pop("checksum"),
        key("checksum", "sha256:0"),
        key("checksum", None),
    ):
        save_program(hand_programs.document(), written)
        with pytest.raises(InputError, match="checksum does not match"):
            load_program(edited(written, edit))


def test_spaces_and_the_order_of_keys_do_not_count(written: Path) -> None:
    def turn(data: dict[str, Any]) -> None:
        for name in reversed(list(data)):
            data[name] = data.pop(name)

    assert equal(load_program(edited(written, turn)), hand_programs.document())


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_program(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="not a program"):
        load_program(tmp_path / "list.json")
