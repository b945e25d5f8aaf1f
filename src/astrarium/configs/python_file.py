"""Python files, read without running them: configurations of torchtitan 0.3, constants.

Only literal values count; what is computed is left out.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.optimizers import optimizer_called
from astrarium.configs.accelerate import (
    OPEN_MICRO_BATCH,
    read_accelerate,
    read_adapters,
    settings_of,
)
from astrarium.configs.imported import Imported, NotTrainingError, OpenQuestionError, name_that_file
from astrarium.configs.neighbours import beside, text_of
from astrarium.configs.settings import Described
from astrarium.configs.shell.launch import STARTERS, Launch, flags_of

_SECTIONS: Final = ("training", "parallelism", "compile")
_LARGEST: Final = 1_000_000  # letters
# What 0.3 calls otherwise, or has elsewhere, than the files of 0.2.
_CHECKPOINTING: Final = {"FullAC": "full", "SelectiveAC": "selective", "None": "none"}
_ONLY_LATER: Final = (
    *("disable_cuda_graphs", "enable_sequence_parallel"),
    "enable_async_tensor_parallel",  # of the section compile now
)
# What makes the optimizer of a program: torch.optim.SGD(, torchao.optim.AdamW8bit(.
_OPTIMIZER: Final = re.compile(r"\btorch(?:ao)?\.optim\.(\w+)\(")
# From the first letter of a word: a search from each of its letters takes seconds for a long one.
_SCRIPT: Final = re.compile(r"(?<![\w./-])[\w./-]+\.sh")
OWN: Final = "# Written by Astrarium"


def read_python(text: str, source: str, function: str = "") -> Imported:
    """A function that returns torchtitan's Trainer.Config."""
    from astrarium.configs.torchtitan_file import SHARDED_COPIES, read_torchtitan

    tree = _parsed(text, source)
    call = next(_configs(tree, function), None)
    model = _model(tree)
    if call is None or model is None:
        raise NotTrainingError(
            f"{source}: a Python program; only functions that return torchtitan's Trainer.Config"
            " with model_registry(...) are read. Name the script that starts it"
        )
    given = {word.arg: word.value for word in call.keywords if word.arg}
    content: dict[str, dict[str, Any]] = {"model": model}
    for section in _SECTIONS:
        node = given.get(section)
        if isinstance(node, ast.Call):
            content[section] = dict(_literals(node))
    content |= _float8(tree, model)
    parallelism = content.setdefault("parallelism", {})
    later = {
        key: table.pop(key) for table in content.values() for key in _ONLY_LATER if key in table
    }
    if later.get("enable_async_tensor_parallel"):
        parallelism["enable_async_tensor_parallel"] = True
    if parallelism.get("expert_parallel_degree", 1) > 1:
        parallelism.setdefault("expert_tensor_parallel_degree", 1)
    mode = _name(given.get("activation_checkpoint"))
    kept = {"mode": _CHECKPOINTING.get(mode, "selective"), "selective_ac_option": "op"}
    content["activation_checkpoint"] = kept
    read = read_torchtitan(content, source)
    changed = {} if later.get("enable_sequence_parallel", True) else {"sequence_parallel": False}
    read.described.strategy |= changed
    inner = read.strategy_of
    return replace(
        read,
        program="torchtitan 0.3.0",
        strategy_of=lambda layers, gpus=None: {**inner(layers, gpus), **changed},
        conflicts=tuple(text for text in read.conflicts if text != SHARDED_COPIES),
    )


def _parsed(text: str, source: str) -> ast.Module:
    if len(text) > _LARGEST:
        raise NotTrainingError(f"{source}: {len(text):,} letters of Python are not read")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotTrainingError(f"{source}: is no Python that can be read") from None


def _configs(tree: ast.Module, function: str) -> Iterator[ast.Call]:
    """Calls that functions return and that make a Trainer.Config, the named function first."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda one: one.name != function):
        for inner in ast.walk(node):
            value = inner.value if isinstance(inner, ast.Return) else None
            if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Trainer.Config"):
                yield value


def _model(tree: ast.Module) -> dict[str, Any] | None:
    """The name and flavor: `model_registry("8B")` of `torchtitan.models.llama3`."""
    family = next(
        (
            (node.module or "").rpartition(".")[2]
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            and any(name.name == "model_registry" for name in node.names)
        ),
        None,
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node) == "model_registry" and node.args:
            flavor = node.args[0]
            if isinstance(flavor, ast.Constant) and family:
                return {"name": family, "flavor": str(flavor.value)}
    return None


def _float8(tree: ast.Module, model: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections that state torchao's float8 in files of torchtitan 0.2."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node) == "Float8LinearConverter":
            float8 = {"recipe_name": "rowwise", **dict(_literals(node))}
            float8.pop("model_compile_enabled", None)
            converters = ["quantize.linear.float8"]
            return {
                "model": {**model, "converters": converters},
                "quantize": {"linear": {"float8": float8}},
            }
    return {}


def _name(node: ast.expr | None) -> str:
    """The class or function of a call: FullAC of FullAC.Config()."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).removesuffix(".Config").rpartition(".")[2]
    return "None" if node is None or isinstance(node, ast.Constant) else ast.unparse(node)


def _literals(call: ast.Call) -> Iterator[tuple[str, Any]]:
    for word in call.keywords:
        try:
            value = ast.literal_eval(word.value)
        except (ValueError, SyntaxError):
            value = _unpacked(word.value) or None
        if word.arg and value is not None:
            yield word.arg, value


def _unpacked(node: ast.expr) -> list[list[str]] | None:
    """A list of lists of layers, some of them as *layers(first, last)."""
    rows = node.elts if isinstance(node, ast.List) else []
    lists = [row.elts for row in rows if isinstance(row, ast.List)]
    try:
        named = [[name for item in items for name in _layers(item)] for items in lists]
    except (TypeError, ValueError, SyntaxError):  # some other expression
        return None
    return named if len(named) == len(rows) else None


def _layers(item: ast.expr) -> list[str]:
    if isinstance(item, ast.Starred) and isinstance(item.value, ast.Call):
        first, last = (ast.literal_eval(argument) for argument in item.value.args)
        return [f"layers.{number}" for number in range(first, min(last, first + 10_000))]
    return [str(ast.literal_eval(item))]


def constants_of(text: str, source: str) -> dict[str, Any]:
    """NAME = value at the top of a program."""
    out = {}
    for node in _parsed(text, source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                out[node.targets[0].id] = ast.literal_eval(node.value)
            except (ValueError, SyntaxError):
                continue
    return out


def read_torchtitan_launch(launch: Launch, source: str) -> Imported:
    """A script that starts torchtitan with a file or a module beside it."""
    from astrarium.configs.detect import read_config

    flags = flags_of(launch.arguments)
    name = flags.get("job.config_file") or flags.get("module", "").replace(".", "/") + ".py"
    path = beside(launch.folder, name)
    if path is None:
        raise OpenQuestionError(
            f"{source}: torchtitan's settings are in {name}, which is not beside it;"
            f" {name_that_file()}"
        )
    if path.suffix == ".py":
        text = text_of(path)
        read: Imported | None = read_python(text, str(path), flags.get("config", ""))
    else:
        read = read_config(str(path))
    if read is None:
        raise OpenQuestionError(f"{source}: {path} is no file of torchtitan; name that file")
    return _with_launch(read, launch, source)


def read_own(launch: Launch, source: str) -> Imported:
    """A script with settings of DeepSpeed or accelerate; ours also has constants and a model."""
    read = _with_launch(_settings(launch, source), launch, source)
    program = beside(launch.folder, launch.program)
    text = text_of(program) if program else ""
    config = beside(launch.folder, "config.json")
    if not text.startswith(OWN):
        return read
    stated = constants_of(text, str(program))
    described = read.described
    described.seq_length = stated.get("SEQ_LENGTH")
    described.iterations = stated.get("STEPS")
    described.model = str(config) if config else None
    _read_training(described, text, launch.folder)
    strategy = {"micro_batch": stated.get("MICRO_BATCH", 1)}
    if stated.get("RECOMPUTE"):  # otherwise the settings say it
        strategy["recompute"] = "full"
    described.strategy |= strategy
    gpus = described.gpus
    if described.global_batch is None and gpus:
        replicas = gpus // max(stated.get("SPLIT", 1), 1)
        described.global_batch = (
            strategy["micro_batch"] * stated.get("MICRO_BATCHES", 1) * max(replicas, 1)
        )
    inner = read.strategy_of
    return replace(
        read,
        strategy_of=lambda layers, gpus=None: {**inner(layers, gpus), **strategy},
        notes=tuple(one for one in read.notes if not one.endswith(OPEN_MICRO_BATCH)),
    )


def _settings(launch: Launch, source: str) -> Imported:
    """The settings of a program: in the file that its launcher names, exported, or beside it."""
    from astrarium.configs.detect import read_config

    flags = flags_of(launch.launcher)
    exported = settings_of(launch.environment)
    if exported and "config_file" not in flags:
        return read_accelerate(exported, source)
    name = flags.get("config_file", "ds_config.json")
    file = beside(launch.folder, name)
    read = read_config(str(file)) if file else None
    if read is None:
        raise OpenQuestionError(f"{source}: {name} is not beside it; {name_that_file()}")
    return read


def _read_training(described: Described, text: str, folder: Path | None) -> None:
    """The optimizer that a program of ours makes, and the adapters that PEFT reads beside it."""
    made = _OPTIMIZER.search(text)
    described.optimizer = (made and optimizer_called(made[1])) or described.optimizer
    read_adapters(described, folder if "get_peft_model" in text else None, text)


def _with_launch(read: Imported, launch: Launch, source: str) -> Imported:
    described = read.described
    described.gpus = described.gpus or launch.gpus
    described.gpus_per_node = launch.gpus_per_node
    described.open_gpus = launch.open_gpus
    return replace(read, source=source, notes=(*launch.notes, *read.notes))


def started_by(content: Mapping[str, Any], path: Path) -> Path | str | None:
    """The script that a file of SkyPilot or Kubernetes starts: beside it, or as a text."""
    if not ("run" in content and "resources" in content) and "apiVersion" not in content:
        return None
    script = script_named(str(content), path)
    return script or next((text for text in _texts(content) if STARTERS.search(text)), None)


def script_named(text: str, path: Path) -> Path | None:
    """The first shell script that a text names and that lies beside it."""
    names = (name.rpartition("/")[2] for name in _SCRIPT.findall(text))
    found = (beside(path.absolute().parent, name) for name in names)
    return next((one for one in found if one is not None), None)


def _texts(content: object) -> Iterator[str]:
    """Texts, and lists of nothing but words as the command that they make."""
    if isinstance(content, Mapping):
        for inner in content.values():
            yield from _texts(inner)
    elif isinstance(content, list):
        words = [str(one) for one in content if isinstance(one, str | int | float)]
        if words and len(words) == len(content):
            yield words[-1] if " " in words[-1].strip() else shlex.join(words)
        for inner in content:
            yield from _texts(inner)
    elif isinstance(content, str):
        yield content
