"""Program files: read as they were written, and refused with the place where they were edited."""

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
from astrarium.spmd.document import (
    ProgramDocument,
    parse_placement,
    placement_text,
    to_dict,
    to_text,
)
from astrarium.spmd.files import load_program, save_program
from astrarium.spmd.layout import COPIED, PARTIAL, REPLICATE, shard

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    save_program(hand_programs.document(), path)
    return path


def edited(path: Path, edit: Edit) -> Path:
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
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


EDITS: list[tuple[Edit, str]] = [
    (key("schema", "astrarium.program/1"), "made by another version of Astrarium"),
    (key("schema", "astrarium.plan/1"), "not a program (its schema is 'astrarium.plan/1'"),
    (lambda data: data.pop("schema"), "not a program (it has no schema"),
    (lambda data: data.pop("axes"), "the required key 'axes' is missing"),
    (key("mesh", [3]), "devices: 2 entries for the 3 devices of mesh [3]"),
    (key("mesh", [0]), "mesh: expected devices by level"),
    (key("micro_batches", 0), "micro_batches: expected a number above zero"),
    (key("source", "batch", "six"), "source.batch: expected int, got 'six'"),
    (key("devices", 1, "rank", 5), "devices[1].rank: expected rank 1"),
    (key("devices", 1, "pool", "T4"), "devices[1].pool: no pool of the cluster is called 'T4'"),
    (key("devices", 1, "gpu", "T4"), "devices[1].gpu: pool V100-SXM2-32GB has V100-SXM2-32GB"),
    (key("cluster", "pools", 0, "gpu", "x"), "cluster: unknown GPU type 'x'"),
    (key("cluster", "pools", []), "cluster: a cluster needs at least one pool"),
    (key("cluster", "pools", 0, "nodes", "two"), "cluster.pools[0].nodes: expected int, got 'two'"),
    (key("cluster", "pools", 1, "name", [1]), "cluster.pools[1].name: expected text"),
    (key("iteration_seconds", 0), "iteration_seconds: expected a number above zero"),
    (key("iteration_seconds", 1.0), "breakdown_seconds: the causes add up to 0.0075 s, the iter"),
    (key("baselines", "data parallel, even", -1), "baselines.data parallel, even: expected"),
    (key("memory", 1, "optimizer", 7), "memory[1].peak_bytes: the causes add up to"),
    (key("memory", 0, "capacity_bytes", 0), "memory[0].capacity_bytes: expected bytes above"),
    (key("axes", 0, "pieces", [[4, 3]]), "add up to 7 granules, axis 'batch' has 6"),
    (key("axes", 0, "pieces", [[7, -1]]), "expected pieces of zero granules or more, got -1"),
    (key("axes", 0, "pieces", [[6]]), "axes[0].pieces[0]: 1 pieces for 2 devices"),
    (key("axes", 0, "pieces", [[4, 2], [6, 0]]), "pieces for 2 levels, of a mesh with 1"),
    (key("axes", 0, "granules", 0), "axes[0]: expected granules above zero"),
    (key("axis_of", 0, [0]), "axis_of[0]: 1 axes for node x of 2 dimensions"),
    (key("axis_of", 0, [0, 9]), "axis_of[0][1]: there is no axis 9"),
    (key("graph", "nodes", 0, "shape", [7, 8]), "the 7 of node x are no multiple of the 6 gran"),
    (lambda data: data["axis_of"].pop(), "axis_of: 5 entries for 6 nodes"),
    (key("graph", "nodes", []), "graph.nodes: the graph has no nodes"),
    (key("graph", "nodes", 3, "name", "w0"), "two nodes are called 'w0': 1 and 3"),
    (key("graph", "nodes", 0, "dtype", "float31"), "graph.nodes[0].dtype: expected one of"),
    (key("graph", "nodes", 0, "shape", [-6, 8]), "graph.nodes[0].shape: expected sizes"),
    (key("graph", "nodes", 2, "args", [{"ref": 4}]), "reads node 4; expected a node before"),
    (key("graph", "nodes", 2, "args", [{"node": 0}]), "is no argument"),
    (key("graph", "nodes", 1, "args", [{"ref": 0}]), "parameter reads nodes; sources read none"),
    (key("graph", "nodes", 5, "args", [{"ref": 4}, "x"]),
        "graph.nodes[5]: no call of aten.mean.default has these arguments (TypeError: "),
    (key("graph", "nodes", 5, "op", "keep"), "graph.nodes[5].args: expected the loss, values, and"),
    (key("graph", "nodes", 4, "op", "keep"), "graph.nodes[4]: keep is the last of all nodes"),
    (lambda data: data["graph"]["nodes"][1].update(op="constant", target="", args=["x"]),
        "graph.nodes[1].args: expected the values of a constant without a target"),
    (key("graph", "blocks", [0]), "graph.blocks: 1 entries for 6 nodes"),
    (instruction(0, node=17), "instructions[0].node: there is no node 17; the graph has 6"),
    (instruction(0, gives="sharded"), "instructions[0].gives: expected a layout (replicate, cop"),
    (instruction(0, gives="shard(2)"), "shard(2): the value has 2 dimensions"),
    (instruction(0, gives="shard(x)"), "instructions[0].gives: expected a layout"),
    (instruction(0, gives="shard(0)/partial"), "has layouts for 2 levels of 1"),
    (instruction(3, needs=["shard(0)"]), "1 layouts for the 2 inputs of linear0"),
    (instruction(3, needs=["shard(1)", "copied"]), "instructions[3].needs[0]: needs x as shard(1);"
        " so far it is there as shard(0)"),
    (instruction(3, rules=[]), "instructions[3].rules: 0 rules, expected 1"),
    (instruction(3, bytes=[1]), "instructions[3].bytes: expected bytes of 2 devices"),
    (instruction(2, conversion={"level": 1, "forward": "none", "backward": "none"}),
        "instructions[2].conversion.level: there is no level 1"),
    (instruction(2, conversion={"level": 0, "forward": "teleport", "backward": "all-reduce"}),
        "instructions[2].conversion: from replicate to copied is none and all-reduce back"),
    (instruction(2, gives="replicate"), "expected another layout of level 0 alone"),
    (instruction(3, rules=[{"name": "magic"}]),
        "instructions[3].rules[0]: no rule of aten.linear.default called 'magic' takes (shard(0),"),
    (key("graph", "nodes", 2, "op", "aten.foo.default"), "no rule says how to divide"),
    (instruction(5, rules=[{"name": "x", "messages": [{"collective": "sing", "elements": 1}]}]),
        "instructions[5].rules[0].messages[0].collective: expected one of all-reduce, all-gather,"),
    (lambda data: data["instructions"].pop(2), "needs w0 as copied; so far it is there as repl"),
    (lambda data: data["instructions"].pop(0), "needs node 0 (x), which is not computed before"),
    (lambda data: data["instructions"].append(data["instructions"][0]),
        "instructions[8]: node 0 (x) is computed a second time"),
    (lambda data: data["instructions"].insert(0, data["instructions"].pop(3)),
        "instructions[0].needs[0]: needs node 0 (x), which is not computed before"),
    (lambda data: data["instructions"].pop(), "no instruction gives the whole loss"),
    (lambda data: data["instructions"].__delitem__(slice(6, 8)),
        "instructions: no instruction computes node 5 (loss)"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "said"), EDITS, ids=[said[:40] for _, said in EDITS])
def test_an_edited_file_is_refused_at_the_place(written: Path, edit: Edit, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit))
    assert said in str(refused.value)
    assert str(written) in str(refused.value)


def test_the_line_is_named(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    wrong = text.replace('"needs": ["shard(0)", "copied"]', '"needs": ["partial", "copied"]')
    written.write_text(wrong, encoding="utf-8")
    line = next(i for i, one in enumerate(wrong.splitlines(), 1) if '"partial", "copied"' in one)
    with pytest.raises(InputError, match=rf"program\.json:{line}: instructions\[3\]\.needs\[0\]"):
        load_program(written)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_program(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="not a program"):
        load_program(tmp_path / "list.json")
