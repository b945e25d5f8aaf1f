"""The README of an exported folder: the command, its requirements and the prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from astrarium.export.header import header_lines, one_line
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.export.target import Target
from astrarium.plans.job import Job

_ABOUT = {
    "plan.json": "the plan itself, for `astrarium explain` and `astrarium run`",
    "README.md": "this page",
}


def readme(
    job: Job, target: Target, program: RankProgram, launch: LaunchFiles, names: Sequence[str]
) -> str:
    """Markdown for the folder; `names` are its files."""
    software = program.software if target.label == program.software else target.label
    where = f" {launch.where}" if launch.where else ""
    parts = [
        one_line(f"# {job.model.name} with {program.software}"),
        "\n".join(map(one_line, header_lines(job, software))),
        _section("Start it", f"In this folder{where}:\n\n```\n{launch.command}\n```"),
        _listed("What it needs", program.needs),
        _listed("Set in the environment", _variables(program)),
        _listed("To know", (*launch.notes, *program.notes)),
        _listed("Files", (f"`{name}`{_about(name)}" for name in names)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(name: str) -> str:
    return f": {_ABOUT[name]}" if name in _ABOUT else ""


def _variables(program: RankProgram) -> Iterable[str]:
    for name, meaning in program.variables.items():
        yield f"`{name}`: {meaning}"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _listed(title: str, lines: Iterable[str]) -> str:
    items = "\n".join(f"- {one_line(line)}" for line in lines)
    return _section(title, items) if items else ""
