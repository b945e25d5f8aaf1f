"""Factories are found by name, and what they give is checked before anything else is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.errors import InputError
from astrarium.spmd.capture.factory import load_factory

FILE = """
number = 3
class Module:
    def named_parameters(self): return []
class Tensor:
    shape, dtype = (4, 2), "float32"
def make(batch, layers=2): return Module(), {"x": Tensor()}
def make_any(batch, **sizes): return Module(), {"x": sizes["width"]}
def make_module(batch): return Module()
def make_nothing(batch): return Module(), {}
def make_other(batch): return 7, {"x": Tensor()}
def make_none(batch): return None
def make_of_nothing(): return Module(), {"x": Tensor()}
def fail(batch): raise MemoryError
def explain(batch): raise ValueError("hidden must divide")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("import no_such_package")
    return tmp_path / "model.py"


def test_a_function_of_a_file(path: Path) -> None:
    module, inputs = load_factory(f"{path}:make")(batch=4, layers=3)
    assert module.named_parameters() == []
    assert inputs["x"].shape == (4, 2)


def test_a_function_of_a_module() -> None:
    with pytest.raises(InputError, match="gave a value of type bytes"):
        load_factory("struct:pack")("b", 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{path}", ["give it as", "file.py:function"]),
        (":make", ["give it as"]),
        ("{folder}/modle.py:make", ["no file", "did you mean", "model.py"]),
        ("{folder}/none/model.py:make", ["no file"]),
        ("{folder}/broken.py:make", ["ModuleNotFoundError", "no_such_package"]),
        ("no_such_package.models:make", ["ModuleNotFoundError", "file.py:function"]),
        ("{path}:mkae", ["no 'mkae'", "did you mean 'make'"]),
        ("{path}:zzz", ["its functions: make, make_any"]),
        ("{path}:number", ["a value of type int, not a function"]),
    ],
)
def test_names_that_lead_nowhere(path: Path, name: str, words: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        load_factory(name.format(path=path, folder=path.parent))
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("function", "sizes", "words"),
    [
        ("make", {"layer": 3}, ["no size 'layer'", "did you mean 'layers'"]),
        ("make", {"zzz": 3}, ["its sizes: layers"]),
        ("make_module", {}, ["a value of type Module", "(module, inputs)"]),
        ("make_module", {"zzz": 3}, ["its sizes: none"]),
        ("make_nothing", {}, ["an empty dict as inputs"]),
        ("make_none", {}, ["gave None"]),
        ("make_other", {}, ["a value of type int as its module"]),
        ("make_any", {"width": 5}, ["input 'x' is a value of type int, not a tensor"]),
        ("fail", {}, ["failed: MemoryError"]),
        ("explain", {}, ["failed: ValueError: hidden must divide"]),
    ],
)
def test_what_factories_must_not_do(
    path: Path, function: str, sizes: dict[str, int], words: list[str]
) -> None:
    with pytest.raises(InputError) as refusal:
        load_factory(f"{path}:{function}")(batch=4, **sizes)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_the_batch_is_asked_for(path: Path) -> None:
    with pytest.raises(InputError, match="batch"):
        load_factory(f"{path}:make")()


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("from no_such_package.parts import Model\n")
    with pytest.raises(InputError, match=r"install it: pip install no_such_package$"):
        load_factory(f"{tmp_path / 'model.py'}:make")


def test_a_function_must_take_the_batch(path: Path) -> None:
    with pytest.raises(InputError, match="takes nothing; its first parameter must be the batch"):
        load_factory(f"{path}:make_of_nothing")(4)
