"""Recognises the program of a configuration by its content, not by the name of the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from astrarium.configs.neighbours import alone
from astrarium.configs.values import is_overrides, table
from astrarium.documents.parsing import Format, format_of, has_known_suffix, parse_text, read_text
from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.configs.imported import Imported
    from astrarium.configs.values import Answers

# Blanks, but no ends of lines: they would be looked through from each line of many empty ones.
_SECTION: Final = re.compile(r"^[^\S\n]*\[{1,2}[\w.\"'-]+\]{1,2}[^\S\n]*(#.*)?$", re.MULTILINE)
_ASSIGNMENT: Final = re.compile(
    r"^[^\S\n]*[\w.\"'-]+(?:[^\S\n]+=\s|[^\S\n]*=[^\S\n]*[\[\"'\d{tf])", re.MULTILINE
)
_FLAG: Final = re.compile(r"(?:^|[\s\"'(=])--[a-z][a-z0-9]+(?:[-_][a-z0-9]+)*", re.MULTILINE)
_KEY: Final = re.compile(r"^[^\S\n]*(?:- )?[\w.\"'-]+[^\S\n]*:(?:\s|$)", re.MULTILINE)
_ARGUMENTS: Final = re.compile(r"\s*--[A-Za-z]")
_OF_STRATEGY: Final = ("plans", "strategy", "tp", "pp", "dp", "micro_batch", "groups")

_PYTHON: Final = re.compile(r"^(?:import \w+$|from [\w.]+ import |def \w+\()", re.MULTILINE)
_REPLACED: Final = re.compile(r'"\s*:\s*"?([A-Z][A-Z0-9_]{3,})\b')
SHELL: Final = "shell"
# What the name of a file promises where its content could be either.
_SCRIPTS: Final = (".sh", ".bash", ".slurm", ".sbatch")
_TABLES: Final = (".yaml", ".yml", ".toml")

Reader: TypeAlias = "Callable[[Mapping[str, Any], str], Imported]"


def read_config(
    reference: str, flag: str = "--strategy", answers: Answers | None = None
) -> Imported | None:
    """The configuration of another program; None if this is a strategy or a plan of ours."""
    if _ARGUMENTS.match(reference):
        from astrarium.configs.megatron.importing import read_arguments

        return read_arguments(reference, flag, answers)
    if "=" in reference:
        if is_overrides(reference):
            from astrarium.configs.megatron.overrides import read_overrides

            return read_overrides(reference, flag)
        if "," in reference or not os.path.isfile(reference):
            return None
    path = Path(reference)
    if not reference.strip() or not os.path.isfile(path):
        return None
    return _of_file(path, answers)


def read_sent(text: str, name: str, answers: Answers | None = None) -> Imported | None:
    """The configuration that a text holds; the files that it names are not read."""
    with alone():
        if _ARGUMENTS.match(text):
            return read_config(text, name, answers)
        return _of_text(text, Path(name), answers)


def _of_file(path: Path, answers: Answers | None) -> Imported | None:
    return _of_text(read_text(path), path, answers)


def _of_text(text: str, path: Path, answers: Answers | None) -> Imported | None:
    source = str(path)
    promising = (*_SCRIPTS, *_TABLES, ".json")
    is_python = path.suffix not in promising and not text.startswith("#!") and _PYTHON.search(text)
    if path.suffix == ".py" or is_python:
        from astrarium.configs.python_file import read_python, script_named

        script = script_named(text, path)
        return _of_file(script, answers) if script else read_python(text, source)
    if is_overrides(text) and not (_FLAG.search(text) or _SECTION.search(text)):
        from astrarium.configs.megatron.overrides import read_overrides

        return read_overrides(text, source)
    named, looks_shell = path.suffix.lower(), language_of(text) == SHELL
    content: object = None
    if not looks_shell or named in _TABLES:
        try:
            content = _content_of_text(text, path)
        except InputError:
            _refuse_template(text, source)
            if not looks_shell and named not in _SCRIPTS:
                raise
    if isinstance(content, Mapping):
        from astrarium.configs.python_file import started_by

        started = started_by(content, path)
        if isinstance(started, Path):
            return _of_file(started, answers)
        if started is not None:
            from astrarium.configs.megatron.importing import read_launch_script

            return read_launch_script(started, source, answers)
    reader = reader_of(content) if isinstance(content, Mapping) else None
    if reader is not None and isinstance(content, Mapping):
        return reader(content, source)
    if named in _SCRIPTS or (looks_shell and not isinstance(content, Mapping)):
        from astrarium.configs.megatron.importing import read_launch_script

        return read_launch_script(text, source, answers)
    return None


def _refuse_template(text: str, source: str) -> None:
    """Refuse JSON with words that a script replaces by numbers."""
    found = _REPLACED.search(text)
    if found and text.lstrip().startswith("{"):
        from astrarium.configs.imported import NotTrainingError

        raise NotTrainingError(
            f"{source}: a template, in which a script fills in {found[1]}; name that script"
        )


def content_of(path: Path) -> object:
    """The data of a file; where its name promises another language than it has, that counts."""
    return _content_of_text(read_text(path), path)


def _content_of_text(text: str, path: Path) -> object:
    language = language_of(text)
    is_named = has_known_suffix(path) or language == SHELL
    promised = format_of(path) if is_named else Format(language)
    try:
        return parse_text(path, text, promised, repeated_keys=True)
    except InputError:
        if language in (promised, SHELL):
            raise
    return parse_text(path, text, Format(language), repeated_keys=True)


def language_of(text: str) -> str:
    """The language of a text: JSON, TOML, YAML or shell."""
    begin = text.lstrip()[:1]
    if begin == "{":
        return "JSON"
    if text.startswith("#!") or _reads_as_shell(text):
        return SHELL
    if _SECTION.search(text) and _ASSIGNMENT.search(text):
        return "TOML"
    return "YAML" if _KEY.search(text) or not _ASSIGNMENT.search(text) else "TOML"


def _reads_as_shell(text: str) -> bool:
    """Options outside of comments, in a text that is no table of keys."""
    code = re.sub(r"(?m)^\s*#.*$", "", text)
    lines = [line for line in code.splitlines() if line.strip()]
    keys = sum(bool(_KEY.match(line)) for line in lines)
    return bool(_FLAG.search(code)) and keys * 2 < len(lines)


def is_strategy(content: Mapping[str, Any]) -> bool:
    """Whether a document has keys of our own strategies or plans."""
    return any(key in content for key in _OF_STRATEGY)


def _has(content: Mapping[str, Any], condition: str) -> bool:
    """Whether a document has a key, as `families` in `data/names.json` write it."""
    path, _, kind = condition.removeprefix("!").partition(":")
    found: list[Any] = [content]
    for key in path.split("."):
        tables = [one for one in found if isinstance(one, Mapping)]
        found = [
            one[name]
            for one in tables
            for name in (one if key == "*" else [key] if key in one else [])
        ]
    kinds = {"": object, "map": Mapping, "text": str}
    return any(isinstance(one, kinds[kind]) for one in found) != condition.startswith("!")


def reader_of(content: Mapping[str, Any]) -> Reader | None:
    """The reader for a document with these keys; None for strategies, plans and unknown ones."""
    if is_strategy(content):
        return None
    keys = {str(key).replace("-", "_"): value for key, value in content.items()}
    for unread in table("names")["not_read"].values():
        if any(all(_has(keys, one) for one in needed) for needed in unread["marks"]):
            return partial(_refuse_family, unread)
    for name, known in table("names")["families"].items():
        if any(all(_has(keys, one) for one in needed) for needed in known):
            module, _, function = name.rpartition(".")
            reader: Reader = getattr(import_module(f"astrarium.configs.{module}"), function)
            return reader
    from astrarium.configs import torchtitan_file
    from astrarium.configs.megatron import overrides

    tables = [key for key in torchtitan_file.MARKS if isinstance(content.get(key), Mapping)]
    if len(tables) > 1 or "parallelism" in tables:
        return torchtitan_file.read_torchtitan
    return overrides.read_yaml_cfg if _names_megatron(content) else None


def _refuse_family(unread: Mapping[str, str], _: Mapping[str, Any], source: str) -> Imported:
    from astrarium.configs.imported import NotModelledError

    raise NotModelledError(
        f"{source}: {unread['because']}; say what it trains as a strategy: `astrarium predict MODEL"
        f" --runtime {unread['nearest']} --strategy ...`"
    )


def _names_megatron(content: Mapping[str, Any]) -> bool:
    """Whether most keys are settings of Megatron, and some of them say how to split."""
    from astrarium.strategy.options import megatron_options

    known = {option.dest for option in megatron_options()}
    found = [key for key in content if key in known]
    return 2 * len(found) > len(content) and any(str(key).endswith("_size") for key in found)
