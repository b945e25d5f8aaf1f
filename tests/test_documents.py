"""Documents: each format reads the same, each failure names file, line, key and way out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrarium import documents
from astrarium.documents import parsing
from astrarium.errors import InputError


class Speed(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Pool(msgspec.Struct, forbid_unknown_fields=True):
    gpu: str
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    speed: Speed = Speed.FAST
    kind: Literal["cloud", "local"] = "local"


class Block(msgspec.Struct, forbid_unknown_fields=True, tag="block"):
    hidden: int

    def __post_init__(self) -> None:
        if self.hidden % 2:
            raise ValueError(f"hidden must be even, got {self.hidden}")


class Head(msgspec.Struct, forbid_unknown_fields=True, tag="head"):
    vocab: int


class Cluster(msgspec.Struct, forbid_unknown_fields=True):
    pools: list[Pool]
    efficiency: dict[int, float] = {}
    named: dict[str, Pool] = {}
    layers: list[Block | Head] = []
    pair: tuple[int, str] = (0, "")
    note: str | None = None


Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


YAML = """\
# a comment
pools:
  - {gpu: h100, nodes: 2}
  - gpu: t4
    speed: slow
efficiency: {8: 0.5}
layers:
  - {type: block, hidden: 8}
  - {type: head, vocab: 1000}
"""
TOML = """\
efficiency = {8 = 0.5}
layers = [{type = "block", hidden = 8}, {type = "head", vocab = 1_000}]
[[pools]]
gpu = "h100"
nodes = 2
[[pools]]
gpu = "t4"
speed = "slow"
"""
JSON = """\
{"pools": [{"gpu": "h100", "nodes": 2}, {"gpu": "t4", "speed": "slow"}],
 "efficiency": {"8": 0.5},
 "layers": [{"type": "block", "hidden": 8}, {"type": "head", "vocab": 1000}]}
"""


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", YAML), ("a.YML", YAML), ("a.toml", TOML), ("a.json", JSON)]
)
def test_every_format_reads_the_same(write: Write, name: str, text: str, bom: bytes) -> None:
    assert documents.load(write(name, bom + text.encode()), Cluster) == Cluster(
        pools=[Pool("h100", 2), Pool("t4", speed=Speed.SLOW)],
        efficiency={8: 0.5},
        layers=[Block(8), Head(1000)],
    )


def complaint(path: Path, schema: type = Cluster) -> str:
    """Return the message of the error, without the folder of the file."""
    with pytest.raises(InputError) as caught:
        documents.load(path, schema)
    return str(caught.value).replace(f"{path.parent}{os.sep}", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools:\n- gpu: a\n  nodes: x\n", "a.yaml:3: pools[0].nodes: expected int, got 'x'"),
        ("pools:\n- gpu: a\n  nodes: 0\n", "a.yaml:3: pools[0].nodes: expected int >= 1, got 0"),
        ("pools:\n- gpu: 7\n", "a.yaml:2: pools[0].gpu: expected text, got 7"),
        ("pools:\n- gpu:\n", "a.yaml:2: pools[0].gpu: expected text, got nothing"),
        ("pools:\n- nodes: 2\n", "a.yaml:2: pools[0]: the required key 'gpu' is missing"),
        ("pools:\n  gpu: a\n", "a.yaml:1: pools: expected list, got a mapping"),
        ("note: 1\npools: []\n", "a.yaml:1: note: expected text | nothing, got 1"),
        ("pools: []\npair: [1]\n", "a.yaml:2: pair: expected list of length 2, got a list of 1"),
        ("pools: []\npair: [1,\n  2]\n", "a.yaml:3: pair[1]: expected text, got 2"),
        ("- 1\n", "a.yaml: expected mapping, got a list of 1"),
        ("{}\n", "a.yaml: the required key 'pools' is missing"),
        ("pools: []\nefficiency:\n  x: 1\n", "a.yaml:2: efficiency: expected int as key"),
        ("pools: []\n3: 1\n", "a.yaml: expected text as key"),
        (
            "pools:\n- gpu: a\n  nodez: 2\n",
            "a.yaml:3: pools[0].nodez: unknown key (did you mean 'nodes'?); "
            "known keys: gpu, nodes, speed, kind",
        ),
        (
            "pools:\n- gpu: a\n  speed: fat\n",
            "a.yaml:3: pools[0].speed: expected one of fast, slow, "
            "got 'fat' (did you mean 'fast'?)",
        ),
        (
            "pools:\n- gpu: a\n  kind: x\n",
            "a.yaml:3: pools[0].kind: expected one of cloud, local, got 'x'",
        ),
        (
            "pools: []\nlayers:\n- type: blok\n  hidden: 2\n",
            "a.yaml:3: layers[0].type: expected one of block, head, "
            "got 'blok' (did you mean 'block'?)",
        ),
        (
            "pools: []\nlayers:\n- type: head\n  hidden: 2\n",
            "a.yaml:4: layers[0].hidden: unknown key; known keys: type, vocab",
        ),
        (
            "pools: []\nlayers:\n- type: block\n  hidden: 3\n",
            "a.yaml:3: layers[0]: hidden must be even, got 3",
        ),
        (
            "pools: []\nnamed:\n  a: {gpu: x}\n  b:\n    gpu: x\n    nodes: y\n",
            "a.yaml:6: named.b.nodes: expected int, got 'y'",
        ),
        (
            "base: &b {gpu: 1}\n",
            "a.yaml:1: base: unknown key; known keys: " + ", ".join(Cluster.__struct_fields__),
        ),
        (
            "pools:\n- &p {gpu: a, nodes: 0}\n- {<<: *p, gpu: b}\n",
            "a.yaml:2: pools[0].nodes: expected int >= 1, got 0",
        ),
    ],
)
def test_what_a_schema_refuses_in_yaml(write: Write, text: str, message: str) -> None:
    assert complaint(write("a.yaml", text)) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[pools]]\ngpu = "a"\n\n[[pools]]\ngpu = 3\n', "a.toml:5: pools[1].gpu: expected text"),
        ('[[pools]]\ngpu = "a"\nnodez = 3\n', "a.toml:3: pools[0].nodez: unknown key"),
        ("[[pools]]\nnodes = 3\n", "a.toml:1: pools[0]: the required key 'gpu' is missing"),
        ('note = "a"\npools = 3\n', "a.toml:2: pools: expected list, got 3"),
        ('pools = []\n"note" = 3\n', "a.toml:2: note: expected text | nothing, got 3"),
        ("pools = []\n[named.b]\ngpu = 1\n", "a.toml:3: named.b.gpu: expected text, got 1"),
        ("pools = []\nnamed.b.gpu = 1\n", "a.toml:2: named.b.gpu: expected text, got 1"),
        ("pools = [\n {gpu = 1},\n]\n", "a.toml:1: pools[0].gpu: expected text, got 1"),
        (
            'note = """\n[named.b]\nnot a key = "\n"""\npools = 3\n',
            "a.toml:5: pools: expected list, got 3",
        ),
    ],
)
def test_what_a_schema_refuses_in_toml(write: Write, text: str, message: str) -> None:
    assert complaint(write("a.toml", text)).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"pools":\n\t[\n\t{"gpu":3}]}', "a.json:3: pools[0].gpu: expected text, got 3"),
        ('{"pools": [],\n "pols": []}', "a.json:2: pols: unknown key (did you mean 'pools'?)"),
        ('{"pools": [],\n "efficiency":\n {"8": "x"}}', "a.json:3: efficiency.8: expected float"),
        ('{"pools": 1, "note": "\\ud83d\\ude00"}', "a.json: pools: expected list, got 1"),
    ],
)
def test_what_a_schema_refuses_in_json(write: Write, text: str, message: str) -> None:
    assert complaint(write("a.json", text)).startswith(message)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: 1\nb: [1,\n", "a.yaml:3: malformed YAML: "),
        ("a.yaml", "a: 1\n\tb: 2\n", "a.yaml:2: malformed YAML: "),
        ("a.yaml", "a: 1\n---\nb: 2\n", "a.yaml:2: malformed YAML: "),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []\n", "a.yaml:1: malformed YAML: "),
        ("a.yaml", "a: 1\nb: *nowhere\n", "a.yaml:2: malformed YAML: "),
        ("a.yaml", "a: 1\n? [1, 2]\n: 3\n", "a.yaml:2: malformed YAML: "),
        ("a.yaml", "a: 2024-02-31\n", "a.yaml: malformed YAML: day is out of range"),
        ("a.yaml", "a: \x01\n", "a.yaml: malformed YAML: "),
        ("a.yaml", "a: {b: 1,\n  b: 2}\n", "a.yaml:2: the key 'b' appears twice"),
        ("a.yaml", "a: &x [*x]\n", "a.yaml:1: a YAML alias contains itself"),
        ("a.yaml", "# nothing\n", "a.yaml: is empty"),
        ("a.yaml", "a: 1\nb:\n- .nan\n", "a.yaml:3: b[0]: expected a finite number, got nan"),
        ("a.yaml", "a: -1.0e+999\n", "a.yaml:1: a: expected a finite number, got -inf"),
        ("a.toml", "a = 1\nb = \n", "a.toml:2: malformed TOML: "),
        ("a.toml", "a = 1\nb = [1,\n\n", "a.toml:2: malformed TOML: "),
        ("a.toml", "a = 1\na = 2\n", "a.toml:2: malformed TOML: "),
        ("a.toml", "a = " + "9" * 5000, "a.toml: malformed TOML: "),
        ("a.toml", "b = 1\na = inf\n", "a.toml:2: a: expected a finite number, got inf"),
        ("a.json", '{"a": 1,\n "b": }', "a.json:2: malformed JSON: "),
        ("a.json", '{"a": {"b": 1,\n "b": 2}}', "a.json: the key 'b' appears twice"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "a.json: malformed JSON: "),
        ("a.json", '{"b": 1,\n "a": NaN}', "a.json:2: a: expected a finite number, got nan"),
        ("a.json", "[1,\n 1e999]", "a.json:2: [1]: expected a finite number, got inf"),
        ("a.json", "", "a.json: is empty"),
        ("a.toml", " \n", "a.toml: is empty"),
        ("a.yaml", "a: b\0", "a.yaml: is a binary file"),
        ("a.csv", "a,b\n", "a.csv: unknown kind of file '.csv'; expected one of .yaml, .yml, "),
        ("a", "a: b\n", "a: unknown kind of file ''"),
    ],
)
def test_malformed_files(write: Write, name: str, text: str, message: str) -> None:
    assert complaint(write(name, text), dict).startswith(message)


@pytest.mark.parametrize("count", [parsing.DEEPEST_NESTING + 1, 1000, 300_000])
@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "{0}{1}"), ("a.json", "{0}{1}"), ("a.toml", "a = {0}{1}")],
)
def test_deep_nesting_is_refused(write: Write, name: str, text: str, count: int) -> None:
    path = write(name, text.format("[" * count, "]" * count))
    assert "nested deeper than the limit of 64 levels" in complaint(path, list)


def test_the_deepest_nesting_allowed(write: Write) -> None:
    deepest = "[" * parsing.DEEPEST_NESTING + "]" * parsing.DEEPEST_NESTING
    for name in ("a.yaml", "a.json"):
        assert json.dumps(documents.read(write(name, deepest))) == deepest


@pytest.mark.parametrize(
    "line", ["{new}: &{new} [{old}, {old}]", "{new}: &{new} {{<<: [{old}, {old}], {new}: 1}}"]
)
def test_alias_bombs_are_refused(write: Write, line: str) -> None:
    lines = [line.format(new=f"a{i}", old=f"*a{i - 1}") for i in range(1, 40)]
    path = write("a.yaml", "a0: &a0 {x: 1}\n" + "\n".join(lines))
    assert "YAML aliases expand to more than 1,000,000 values" in complaint(path)


def test_aliases_and_merges_are_understood(write: Write) -> None:
    path = write("a.yaml", "pools:\n- &p {gpu: a, nodes: 3}\n- *p\n- {<<: *p, gpu: b}\n")
    expected = [Pool("a", 3), Pool("a", 3), Pool("b", 3)]
    assert documents.load(path, Cluster).pools == expected


def test_files_too_large_are_refused(write: Write) -> None:
    path = write("a.json", b" " * (parsing.LARGEST_FILE_BYTES + 1))
    assert complaint(path) == "a.json: larger than the limit of 10 MB; keep the part that counts"


def test_text_in_another_encoding_is_refused(write: Write) -> None:
    path = write("a.yaml", "a: 1\nb: \xfc\n".encode("latin-1"))
    assert complaint(path) == "a.yaml:2: is not UTF-8 text; save it as UTF-8"


def test_missing_files(write: Write, tmp_path: Path) -> None:
    write("cluster.yaml", YAML)
    missing = complaint(tmp_path / "cluser.yaml")
    assert missing == "cluser.yaml: no such file (did you mean 'cluster.yaml'?)"
    assert complaint(tmp_path / "no" / "folder.yaml") == "folder.yaml: no such file; check the path"
    (tmp_path / "folder.json").mkdir()
    assert complaint(tmp_path / "folder.json") == "folder.json: is a folder; name a file in it"
    assert "cannot be read" in complaint(tmp_path / ("x" * 300 + ".yaml"))


def test_unreadable_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write("a.yaml", YAML)
    monkeypatch.setattr(Path, "open", refuse)  # file modes do not stop a privileged user
    assert complaint(path) == "a.yaml: cannot be read: Permission denied"


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert complaint(tmp_path / "pipe.yaml") == "pipe.yaml: is not a regular file"


def test_numbers_with_exponents(write: Write) -> None:
    numbers = [1e12, 2.5e-3, -1e3]
    path = write("a.yaml", "[1e12, 2.5e-3, -1E+3]")
    assert documents.load(path, list[float]) == numbers  # YAML 1.1 would see text
    assert documents.read(write("a.yaml", "[e12, 1e, v1e3]")) == ["e12", "1e", "v1e3"]


names = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
scalars = st.one_of(
    st.integers(-(10**12), 10**12), st.booleans(), st.text("abc \u00e9", max_size=5)
)
trees = st.recursive(
    scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(names, t, max_size=3)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, trees, min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_json_is_read_as_json_and_as_yaml(
    write: Write, tree: dict[str, object], indent: int | None
) -> None:
    text = json.dumps(tree, indent=indent)
    assert documents.read(write("a.json", text)) == tree
    assert documents.read(write("a.yaml", text)) == tree


junk = st.text(st.sampled_from("{}[]:-=,#&*!|>'\"\\.\n\t ax1\u00e9"), max_size=4)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([("a.yaml", YAML), ("a.toml", TOML), ("a.json", JSON)]), junk, st.data())
def test_a_damaged_file_is_read_or_refused(
    write: Write, sample: tuple[str, str], patch: str, data: st.DataObject
) -> None:
    name, text = sample
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 20, len(text))))
    path = write(name, text[:start] + patch + text[end:])
    try:
        result: object = documents.load(path, Cluster)
    except InputError as error:
        result = str(error)
    assert isinstance(result, Cluster) or str(result).startswith(str(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=1, max_size=30, unique=True), st.data())
def test_the_line_is_that_of_the_key(write: Write, keys: list[str], data: st.DataObject) -> None:
    wrong = data.draw(st.integers(0, len(keys) - 1))
    values = ["'x'" if i == wrong else "1" for i in range(len(keys))]
    fields = [(f"{key}_", int, msgspec.field(name=key)) for key in keys]
    schema = msgspec.defstruct("Schema", fields)
    for name, sign in (("a.yaml", ": "), ("a.toml", " = ")):
        text = "\n".join(key + sign + value for key, value in zip(keys, values, strict=True))
        message = complaint(write(name, text), schema)
        assert message == f"{name}:{wrong + 1}: {keys[wrong]}: expected int, got 'x'"


def test_write_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    documents.write_atomic(path, "one\n")
    documents.write_atomic(path, "two \u00e9\n")
    assert path.read_bytes() == "two \u00e9\n".encode()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match=re.escape(f"cannot write {path}: No space left")):
        documents.write_atomic(path, "three\n")
    assert path.read_bytes() == "two \u00e9\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_write_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    documents.write_atomic(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_write_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        documents.write_atomic(tmp_path / "nowhere" / "plan.json", "")
    with pytest.raises(InputError, match="it is a folder; name a file"):
        documents.write_atomic(tmp_path, "")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Not a directory"):
        documents.write_atomic(tmp_path / "file" / "plan.json", "")
    with pytest.raises(InputError, match="not a regular file"):
        documents.write_atomic(Path(os.devnull), "")
    assert Path(os.devnull).is_char_device()
