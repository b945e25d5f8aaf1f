"""The project as a whole: what ships, what the commands do, what must not be in a file."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import astrarium

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

UPSTREAM = "tools/install_upstream.py"
FRONT = "tools/check_front.py"
PACKAGES = ("pyproject.toml", "constraints.txt", "tests/upstream/packages.toml")
MAKE_READS = ("Makefile", *PACKAGES, UPSTREAM)
PLAN = "astrarium plan llama-2-70b --gpus h100:64 --seq-length 4096 --global-batch 1024 --tokens 2T"
CORE_MODULES = ("errors", "units", "documents")


def text_files() -> Iterator[Path]:
    """Yield the files of the project; what make clean removes is not of it."""
    made = {".git", ".venv", "__pycache__", "build", "dist", "node_modules"}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in made and not f.endswith("_cache"))
        folders[:] = [f for f in folders if f != ".hypothesis"]
        yield from (Path(folder, name) for name in sorted(names) if name not in made)


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    shipped = {Path(file.path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    present = {path for path in text_files() if path.is_relative_to(ROOT / "src")}
    assert ROOT / "src/astrarium/__init__.py" in present
    assert present - shipped == set()


def test_the_page_is_in_the_wheel_and_its_tools_in_no_package(tmp_path: Path) -> None:
    """Users need no Node: what was built for them is shipped, and nothing that builds it."""
    names: dict[str, list[str]] = {}
    for builder in (WheelBuilder(str(ROOT)), SdistBuilder(str(ROOT))):
        (path,) = builder.build(directory=str(tmp_path), versions=["standard"])
        if path.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                names["wheel"] = wheel.namelist()
        else:
            with tarfile.open(path) as archive:
                names["sdist"] = archive.getnames()
    folder = ROOT / "src/astrarium/web/static"
    page = {f"astrarium/web/static/{p.relative_to(folder).as_posix()}" for p in folder.rglob("*.*")}
    assert "astrarium/web/static/index.html" in page
    assert page <= set(names["wheel"])
    assert [name for name in names["wheel"] if not name.startswith("astrarium")] == []
    assert any(name.endswith("web/package.json") for name in names["sdist"])
    for name in names["wheel"] + names["sdist"]:
        assert "node_modules" not in name.split("/")
        assert ".venv" not in name.split("/")


def test_the_version_has_one_source() -> None:
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert WheelBuilder(str(ROOT)).metadata.version == astrarium.__version__


def make(folder: Path, *arguments: str) -> str:
    """Return what make prints, also when make itself runs these tests."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    process = subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout


def test_the_makefile_has_the_commands() -> None:
    commands = re.findall(r"^make (\w+) +\S", make(ROOT, "help"), flags=re.MULTILINE)
    assert commands == [
        "help",
        "plan",
        "serve",
        "check",
        "test",
        "lint",
        "front",
        "web",
        "bench",
        "accuracy",
        "fits",
        "lock",
        "audit",
        "clean",
    ]
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert phony is not None
    assert phony[1].split() == commands


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("plan", ["-m venv", "pip install --quiet --editable .", PLAN]),
        ("serve", ["-m venv", "[web]", "astrarium serve"]),
        ("test", ["pip install --quiet torch", "[dev]", "ruff check", "mypy", UPSTREAM, "pytest"]),
        ("test", ["[dev]", FRONT, "tools/install_browser.py chromium", "pytest"]),
        ("front", ["-m venv", FRONT]),
        ("web", ["-m venv", f"{FRONT} --write"]),
        ("bench", ["pip install --quiet --editable .", "benchmarks/search.py"]),
        ("accuracy", ["pip install --quiet --editable .", "benchmarks/accuracy.py"]),
        ("fits", ["[dev]", "benchmarks/fit_choice.py"]),
        ("lock", ["[dev]", "--upgrade", "pip freeze"]),
        ("audit", ["[dev]", "cyclonedx-py environment", "pip-audit --strict --no-deps"]),
    ],
)
def test_commands_set_everything_up(tmp_path: Path, command: str, steps: list[str]) -> None:
    """On a fresh machine each command first makes its environment, in this order."""
    for name in MAKE_READS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    dry_run = make(tmp_path, "--dry-run", command)
    positions = [dry_run.find(step) for step in steps]
    assert -1 not in positions
    assert positions == sorted(positions)


def test_torch_is_pinned_once() -> None:
    """make installs torch on its own first; it must be the one that the extra asks for."""
    pins = re.findall(r"torch==\S+", MAKEFILE)
    assert pins == [
        p for p in PYPROJECT["project"]["optional-dependencies"]["dev"] if p.startswith("torch==")
    ]


def test_ci_runs_the_tests() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make test"


def test_no_file_names_a_place_on_one_machine() -> None:
    place = re.compile(rb"(?<![\w.:/-])/(?:work|root|home|Users)/")
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in text_files()
        for match in place.finditer(path.read_bytes())
    ]
    assert found == []


def test_every_source_file_says_what_it_holds() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    silent = [p for p in sources if not ast.get_docstring(ast.parse(p.read_bytes()))]
    assert sources
    assert silent == []


@pytest.mark.parametrize("module", CORE_MODULES)
def test_the_bottom_layer_starts_fast(module: str) -> None:
    """Parsers and the training stack are imported when they are used, not before."""
    code = f"import sys, astrarium.{module}; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(process.stdout.split())
    assert f"astrarium.{module}" in loaded
    assert loaded.isdisjoint({"yaml", "msgspec", "lark", "rich", "click", "numpy", "torch"})


def sizes_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sizes", ROOT / "tools/sizes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sizes"] = module
    spec.loader.exec_module(module)
    return module


def function(name: str, lines: int) -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        (function("short", 60), 0, "short"),
        (function("long", 61), 1, "long  TOO LONG"),
        ("@cached\n" + function("decorated", 60), 1, "decorated  TOO LONG"),
        ("x = 1\n" * 600, 0, "a.py"),
        ("x = 1\n" * 601, 1, "a.py  TOO LONG"),
    ],
)
def test_sizes_have_a_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, named: str
) -> None:
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    assert sizes_tool().main([str(tmp_path)]) == code
    assert any(line.endswith(named) for line in capsys.readouterr().out.splitlines())


# Names that users meet: each is a thin shell around the class of the same name further down.
SHELLS = {"Plan": "api/plans.py", "Program": "api/plans.py"}


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    source = ROOT / "src/astrarium"
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and SHELLS.get(node.name) != name:
                homes.setdefault(node.name, []).append(name)
    public = {name: found for name, found in homes.items() if not name.startswith("_")}
    assert {name: found for name, found in public.items() if len(found) > 1} == {}


# Words with one meaning in the glossary of docs/architecture.md, and what says another thing.
AGAINST_THE_GLOSSARY = {
    r"(?:mesh|parallel(?:ism)?|tp|pp|dp|cp) dimensions?|dimensions? of parallelism": "axis",
    r"(?:tensor|expert|data|pipeline|context) parallelism (?:size|level)": "degree",
    r"virtual pipeline chunks?|model chunks?": "chunk",
    r"hyper-?parameters? of (?:the |a )?strategy": "options",
    r"GPU (?:kind|model)s?|kinds? of GPUs?": "GPU type",
    r"training framework": "runtime",
}
# A block is an entry of a model; the GPUs of a stage are a crew.
BLOCKS_OF_GPUS = r"blocks? (?:of (?:tp|GPUs|ranks)|straddles?|on two pools)"
# Names say what they hold; these say only that there is something.
VAGUE = {"further", "beyond", "unlike", "told", "sieve", "polish", "whatever", "misc", "utils"}


def named_things(tree: ast.AST) -> Iterator[str]:
    """Functions, classes, fields of classes, parameters and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def test_names_are_not_vague() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    named = {name for path in sources for name in named_things(ast.parse(path.read_bytes()))}
    vague = {name for name in named if words_of(name) & VAGUE}
    modules = {path.stem for path in sources if words_of(path.stem) & (VAGUE | {"words"})}
    assert vague == set()
    assert modules - {"words"} == set()  # of tables in validate, of shells in configs


def test_words_of_the_glossary_have_one_meaning() -> None:
    """Docstrings, comments and messages say axis, degree and chunk as the glossary does."""
    found = [
        f"{path.relative_to(ROOT)}: '{match[0]}', where the glossary says {instead}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for pattern, instead in AGAINST_THE_GLOSSARY.items()
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert found == []


def test_blocks_are_of_models_and_crews_of_stages() -> None:
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    assert [p for p in texts if re.search(BLOCKS_OF_GPUS, p.read_text(encoding="utf-8"))] == []


def protected_modules() -> set[str]:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    return {name for one in contracts for name in one.get("protected_modules", ())}


def test_a_package_names_its_surface() -> None:
    """What a contract leaves open to others is named in the `__init__` of its package."""
    protected = protected_modules()
    packages = {name.rpartition(".")[0] for name in protected if name[-1] != "*"}
    silent = []
    for package in sorted(name for name in packages if name.count(".") > 1):
        folder = ROOT / "src" / package.replace(".", "/")
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        for path in sorted(folder.glob("*.py")):
            is_open = path.stem != "__init__" and f"{package}.{path.stem}" not in protected
            if is_open and not re.search(rf"\b{path.stem}\b", text):
                silent.append(f"{package}.{path.stem}")
    assert silent == []


def test_slow_files_exist() -> None:
    names = (ROOT / "tests/slow_files.txt").read_text(encoding="utf-8").split()
    assert names
    assert [name for name in names if not (ROOT / name).is_file()] == []
