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
CHANGES: list[Edit] = [
    lambda data: data.pop("axes"),
    key("source", "batch", 0),
    key("mesh", [3]),
    key("devices", 1, "rank", 5),
    key("cluster", "pools", 0, "gpu", "x"),
    key("axes", 0, "pieces", [[4, 3]]),
    key("graph", "nodes", 0, "shape", [7, 8]),
    key("graph", "nodes", 2, "args", [{"ref": 4}]),
    lambda data: data["instructions"].pop(2),
    lambda data: data["instructions"].insert(0, data["instructions"].pop(3)),
]
OTHER_RULES: list[Edit] = [
    instruction(3, rules=[{"name": "magic"}]),
    instruction(3, rules=[{"name": "shard 0", "needs": ["magic"]}]),
    instruction(2, conversion={"level": 0, "forward": "teleport", "backward": "all-reduce"}),
    instruction(2, conversion={"level": 1, "forward": "none", "backward": "none"}),
    instruction(2, gives="replicate"),
    instruction(0, gives="sharded"),
    key("graph", "nodes", 2, "op", "aten.foo.default"),
    key("graph", "nodes", 2, "args", [{"node": 0}]),
]


@pytest.mark.parametrize(("edit", "said"), OTHER_SCHEMAS)
def test_files_of_other_schemas_are_named(written: Path, edit: Edit, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit))
    assert said in str(refused.value)
    assert "astrarium synthesize ... --out FILE" in str(refused.value)


@pytest.mark.parametrize("edit", [*CHANGES, *OTHER_RULES])
def test_a_file_that_changed_is_refused(written: Path, edit: Edit) -> None:
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit))
    assert str(refused.value) == (
        f"{written}: changed since it was written: its checksum does not match; synthesise it"
        " again with `astrarium synthesize ... --out FILE`"
    )


@pytest.mark.parametrize("edit", OTHER_RULES)
def test_a_file_with_rules_of_another_version_is_refused(written: Path, edit: Edit) -> None:
    """Its checksum is right, and yet this version would compute something else."""
    with pytest.raises(InputError) as refused:
        load_program(edited(written, edit, summed=True))
    said = "not as `astrarium synthesize` writes it; synthesise it again"
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
