"""The pages are true: examples run, links lead somewhere, references are complete."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import msgspec
import pytest
from doc_examples import ROOT, blocks, commands, pages, run_page, steady

from astrarium.catalog import gpus, model_names
from astrarium.catalog.profiles import ProfileSource
from astrarium.cli.app import app
from astrarium.cost.efficiency import operator_model
from astrarium.cost.step import SECONDS_CAUSES
from astrarium.plans import document
from astrarium.report.plan.fit import FitDocument
from astrarium.search.outcome import Rejection
from astrarium.strategy.columns import Degrees
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.options import implied_fields, megatron_options
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import COLUMNS, megatron_rules

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in pages()}
COMMANDS = PAGES["docs/commands.md"]
REFRESH = "run `python tests/doc_examples.py` if the new output is meant"
TYPE_WORDS = {int: "number", float: "number", bool: "true/false", str: "text"}

each_page = pytest.mark.parametrize("page", PAGES)


@pytest.mark.usefixtures("warm")
@each_page
def test_examples_come_out_as_shown(page: str) -> None:
    for block, real in run_page(PAGES[page]):
        assert steady(block.body) == steady(real), REFRESH


def test_examples_cannot_be_empty() -> None:
    """A wrong output, or none, is noticed; what changes from run to run is not compared."""
    page = "```pycon\n>>> 1 + 1\n3\n```\n\n```console\n$ astrarium --version\n```\n"
    given = [block.body for block in blocks(page)]
    real = [text for _, text in run_page(page)]
    assert [a == b for a, b in zip(given, real, strict=True)] == [False, False]
    assert real[0] == ">>> 1 + 1\n2\n"
    one, other = "9 strategies considered in 31.5 ms, 7 of", "9 strategies considered in 1 s, 8 of"
    assert steady(one) == steady(other)
    assert steady(one) != steady(other.replace("9", "8"))


@each_page
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        other = (ROOT / page).parent / path if path else ROOT / page
        assert other.exists(), target
        if anchor:
            assert anchor in set(anchors(other.read_text(encoding="utf-8"))), target


def anchors(text: str) -> Iterator[str]:
    """Yield the names of headings as Markdown readers make them."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", outside, flags=re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@each_page
def test_pages_name_files_that_exist(page: str) -> None:
    roots = (ROOT, ROOT / "src/astrarium")
    prose = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|json|yaml|lark))`", prose):
        if name.split("/")[0] in ("DIR", "acme"):
            continue
        assert any((root / name).exists() for root in roots), name


def every_command(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands under a group by their full name."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


CLI = dict(every_command(app))


def section(heading: str) -> str:
    """The text under a heading of the command reference, up to the next of its level."""
    level = heading.split(" ")[0]
    match = re.search(
        rf"^{re.escape(heading)}$(.*?)(?=^#{{2,{len(level)}}} |\Z)", COMMANDS, re.M | re.S
    )
    assert match is not None, heading
    return match[1]


@pytest.mark.parametrize("name", CLI)
def test_the_reference_has_every_command_and_option(name: str) -> None:
    text = section(f"### {name}" if " " in name else f"## {name}")
    missing = [
        spelling
        for parameter in CLI[name].params
        for spelling in (
            [o for o in parameter.opts if o.startswith("--")] or [parameter.name.upper()]
        )
        if spelling != "--help" and not re.search(rf"`{re.escape(spelling)}[` ]", text)
    ]
    assert missing == []
    assert any(command[: len(name.split())] == name.split() for command in commands(COMMANDS))


@pytest.mark.parametrize("name", [name for name in CLI if " " not in name])
def test_the_reference_has_no_option_too_many(name: str) -> None:
    rows = re.findall(r"^\| `(--[\w-]+)", section(f"## {name}"), flags=re.MULTILINE)
    known = {option for parameter in CLI[name].params for option in parameter.opts}
    assert set(rows) <= known


def test_the_table_of_fields_is_that_of_the_code() -> None:
    table = [
        tuple(cell.strip() for cell in row.strip("|").split(" |"))
        for row in re.findall(r"^\| `.*$", section("### Fields"), flags=re.MULTILINE)
    ]
    assert table == [
        (
            f"`{name}`",
            TYPE_WORDS[info.type],
            info.meaning,
            ", ".join(f"`{choice}`" for choice in info.choices if choice),
        )
        for name, info in COLUMNS.items()
    ]


@pytest.mark.parametrize(
    "part",
    [
        document.PlanDocument,
        document.WorkloadPart,
        document.ClusterPart,
        document.PoolPart,
        document.Link,
        document.SearchPart,
        document.Ramp,
        document.Evaluation,
        document.Plan,
        document.Strategy,
        document.Recompute,
        document.Run,
        document.Stage,
        document.StageMemory,
        document.ParetoPart,
        document.ComparePart,
        document.SensitivityPart,
    ],
)
def test_the_plan_document_is_described(part: type[msgspec.Struct]) -> None:
    text = section("## Plan document")
    parts = re.findall(r"^schema, .*$", text, flags=re.MULTILINE)
    rows = re.findall(r"^\| .*$", text, flags=re.MULTILINE)
    described = set(re.findall(r"\w+", " ".join([*parts, *re.findall(r"`\w+`", " ".join(rows))])))
    assert set(part.__struct_encode_fields__) <= described


def test_the_causes_are_described() -> None:
    text = section("## Plan document")
    described = set(re.findall(r"`(\w+)`", text))
    assert set(SECONDS_CAUSES) | {cause.value for cause in Rejection} <= described
    fit = set(re.findall(r"`(\w+)`", section("## fit")))
    assert {field.name for field in fields(FitDocument)} <= fit


def test_the_layers_are_those_of_the_contract() -> None:
    text = PAGES["docs/architecture.md"]
    drawn = next(block.body for block in blocks(text) if block.body.startswith("cli "))
    named = {word for line in drawn.splitlines() for word in line[:27].split()[:3]}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = " ".join(contracts["importlinter"]["contracts"][0]["layers"])
    for layer in re.findall(r"(?<![(\w])\w+(?![\w)])", layers):
        assert layer in named
    for absent in re.findall(r"\((\w+)\)", layers):
        if absent != "__main__":
            assert f"`{absent}`" in text or f"`{absent}/`" in text


@pytest.mark.parametrize("axis", ["tp", "pp", "dp", "cp", "ep", "etp"])
def test_an_axis_is_known_everywhere(axis: str) -> None:
    """What docs/extending.md lists for a search axis."""
    assert axis in {field.name for field in fields(Strategy)}
    assert axis in {field.name for field in fields(Degrees)}
    assert axis in COLUMNS
    given = {axis: 2} if axis != "dp" else {}
    read = strategy_from_dict(given, where="test", gpus=2, global_batch=2, layers=2)
    assert getattr(read, axis) == 2
    assert any(axis in rule.names for rule in megatron_rules())
    assert axis in {option.field for option in megatron_options()} | set(implied_fields())
    tables = (ROOT / "src/astrarium/report/plan/text.py").read_text(encoding="utf-8")
    assert f"strategy.{axis}" in tables


def test_the_benchmark_table_has_every_case() -> None:
    spec = importlib.util.spec_from_file_location("search_benchmark", ROOT / "benchmarks/search.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    rows = [row.lower() for row in PAGES["docs/performance.md"].splitlines()]
    for model, types, *_ in (*benchmark.CASES, benchmark.BRUTE_FORCE):
        assert any(row.startswith(f"| {model}, {types}") for row in rows), (model, types)


def test_the_page_of_what_is_covered_counts_what_is_there() -> None:
    text = PAGES["docs/coverage.md"]
    for number, what in ((len(gpus()), "GPU types"), (len(model_names()), "models")):
        assert f"{number} {what}" in text
    assert f"{len(megatron_rules())} validity rules" in text
    assert f"{len(megatron_options())} options" in text
    sources = [operator_model(gpu).source for gpu in gpus()]
    measured, tables = sources.count(ProfileSource.MEASURED), sources.count(ProfileSource.TABLES)
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    flat = " ".join(text.split())
    assert f"measured on {words[measured]} GPU type" in flat
    assert f"published tables for {words[tables]}" in flat


def test_the_readme_shows_the_make_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = re.findall(r"^make (\w+)", PAGES["README.md"], flags=re.MULTILINE)
    assert shown == ["plan", "test"]
    assert all(f"\n{name}:" in makefile for name in shown)
    planned = next(iter(commands(PAGES["README.md"])))
    assert f"astrarium {' '.join(planned)}" in makefile


def test_the_readme_names_six_files_to_read() -> None:
    listed = re.findall(r"^\d\. \[`([^`]+)`\]\(([^)]+)\)", PAGES["README.md"], flags=re.MULTILINE)
    assert len(listed) == 6
    assert all((ROOT / target).is_file() and target.endswith(name) for name, target in listed)


def test_the_changelog_starts_with_this_version() -> None:
    import astrarium

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)", text, flags=re.MULTILINE)
    assert first is not None
    assert first[1] == astrarium.__version__


def test_pages_are_found_from_the_index() -> None:
    index = PAGES["docs/index.md"]
    for path in sorted((ROOT / "docs").glob("*.md")):
        assert path.name == "index.md" or f"]({path.name})" in index
    assert Path("docs/index.md").as_posix() in PAGES["README.md"]
