"""The command of a script that trains, its arguments, and on how many GPUs it is started."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from astrarium.configs.shell.expansion import unset_in
from astrarium.configs.shell.script import Command, Script, read_script
from astrarium.configs.shell.syntax import Lexer
from astrarium.errors import InputError
from astrarium.strategy.options import Treatment, options_by_flag
from astrarium.value import Value

_SHELLS: Final = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
_LAUNCHERS: Final = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "srun",
    "mpirun",
    "mpiexec",
    "deepspeed",
    "launch",  # of accelerate
)
_SCRIPT: Final = re.compile(r"[\w./-]+\.sh")
_SBATCH: Final = re.compile(r"^#SBATCH\s+(.+)$", re.MULTILINE)
# What launchers call processes on a node, nodes, and processes in all.
_PER_NODE: Final = (
    "nproc_per_node",
    "ntasks_per_node",
    "gpus_per_node",
    "num_gpus",
    "npernode",
)
_NODES: Final = ("nnodes", "nodes", "num_nodes", "num_machines", "N")
_HOSTS: Final = ("hostfile", "H")  # files that list nodes
_IN_ALL: Final = ("ntasks", "num_processes", "np", "n")
_VARIABLES: Final = (
    ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS", "N_GPUS", "SLURM_GPUS_PER_NODE"),
    ("NNODES", "NUM_NODES", "NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
)


class Launch(Value, frozen=True):
    """Arguments of the program, processes in all if stated, the environment, and notes."""

    arguments: tuple[str, ...]
    gpus: int | None
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    is_script: bool = True


def read_launch(text: str, where: str) -> Launch:
    """The training command of a script; or options alone, as one would paste them."""
    header = _slurm(text)
    script = read_script(text, where, _slurm_variables(header))
    commands = [_unwrapped(command, where) for command in script.commands]
    ranked = sorted(commands, key=lambda command: -_options_in(command.words))
    notes = list(script.notes)
    if not ranked or not _options_in(ranked[0].words):
        arguments = _loose_options(script)
        if not arguments:
            raise InputError(
                f"{where}: no command here has an option of Megatron-LM; {_way_out(commands)}"
            )
        notes.append(f"{where}: no command starts a training; its variables hold the options")
        return Launch(arguments, _gpus_of((), header, script), _environment(script), tuple(notes))
    chosen = ranked[0]
    notes += _left_out(ranked, where)
    launcher, arguments = _parted(chosen.words)
    gpus = _gpus_of(launcher, header, script)
    return Launch(arguments, gpus, _environment(script), tuple(notes))


def _way_out(commands: Sequence[Command]) -> str:
    """What to name instead of a script that trains nothing itself."""
    started = [word for one in commands for word in one.words if _SCRIPT.fullmatch(word)]
    if started:
        return f"it starts {started[0]}, so name that file"
    return (
        "expected a launch script such as one with `torchrun ... pretrain_gpt.py --num-layers ...`"
    )


def _left_out(ranked: Sequence[Command], where: str) -> list[str]:
    """Other commands that look as if they belonged to the training."""
    chosen = ranked[0]
    others = [c for c in ranked[1:] if _options_in(c.words) and c.words != chosen.words]
    notes = []
    for other in others:
        if other.words[0].startswith("--"):
            what = f"'{other.words[0]}' begins a command of its own: a comment or a missing \\ ends"
            notes.append(f"{where}:{other.line}: {what} the one above, so it is left out")
        else:
            notes.append(
                f"{where}:{other.line}: another command with options of Megatron-LM; the one of"
                f" line {chosen.line} is read"
            )
    return notes


def _environment(script: Script) -> dict[str, str]:
    values = {**script.variables.values, **script.environment}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _unwrapped(command: Command, where: str) -> Command:
    """The command inside of `bash -c "..."`, with what stands before it."""
    for number, (first, second) in enumerate(pairwise(command.words)):
        if first in _SHELLS and re.fullmatch(r"-\w*c", second):
            inner = " ".join(command.words[number + 2 : number + 3])
            tokens = Lexer(inner, where, command.line).tokens()
            words = [
                "".join(part.text for part in token.parts) for token in tokens if not token.operator
            ]
            return Command((*command.words[:number], *words), command.line)
    return command


def _options_in(words: Sequence[str]) -> int:
    """How many of the words are options that decide something."""
    known = options_by_flag()
    found = (known.get(word.partition("=")[0]) for word in words)
    return sum(o is not None and o.treatment is not Treatment.NEUTRAL for o in found)


def _parted(words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """The launcher's words, and the arguments of the program."""
    for number, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return words[:number], tuple(words[number + 1 :])
    known = options_by_flag()
    first = next(i for i, word in enumerate(words) if word.partition("=")[0] in known)
    return words[:first], tuple(words[first:])


def _loose_options(script: Script) -> tuple[str, ...]:
    """Options that variables hold, where no command uses them."""
    out: list[str] = []
    for value in script.variables.values.values():
        words = value.split() if isinstance(value, str) else value
        if words and words[0].startswith("--") and _options_in(words):
            out += words
    return tuple(out)


def _slurm(text: str) -> dict[str, str]:
    """Options of #SBATCH lines, by name without dashes."""
    words = " ".join(_SBATCH.findall(text)).split()
    return _flags(words)


def _slurm_variables(header: Mapping[str, str]) -> dict[str, str]:
    nodes, tasks = header.get("nodes") or header.get("N"), header.get("ntasks_per_node")
    gpus = _of_gres(header)
    out = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS_PER_NODE": tasks}
    out |= {"SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus}
    if nodes and tasks and nodes.isdigit() and tasks.isdigit():
        out["SLURM_NTASKS"] = out["SLURM_NPROCS"] = str(int(nodes) * int(tasks))
    return {name: value for name, value in out.items() if value}


def _of_gres(flags: Mapping[str, str]) -> str | None:
    """GPUs of a node, from --gpus-per-node=h100:8 or --gres=gpu:8."""
    stated = flags.get("gpus_per_node") or flags.get("gres", "")
    number = re.search(r"(\d+)(?:\(.*)?$", stated)
    return number[1] if number else None


def _flags(words: Sequence[str]) -> dict[str, str]:
    """`--name=value`, `--name value`, `-n value`; names with _ in place of -."""
    out: dict[str, str] = {}
    for number, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            following = words[number + 1] if number + 1 < len(words) else ""
            value = "" if following.startswith("-") else following
        out[name.replace("-", "_")] = value
    return out


def _gpus_of(launcher: Sequence[str], header: Mapping[str, str], script: Script) -> int | None:
    """Processes in all: as the nearest launcher says, else the job, else usual variables."""
    starts = [i for i, word in enumerate(launcher) if word.rpartition("/")[2] in _LAUNCHERS]
    parts = [launcher[i:] for i in reversed(starts)] if starts else [launcher]
    for flags in (*(_flags(part) for part in parts), header):
        per_node, nodes, in_all = (_first(flags, names) for names in (_PER_NODE, _NODES, _IN_ALL))
        if per_node is None:
            per_node = _whole(_of_gres(flags))
        if per_node and _on_one_node(flags):
            nodes = nodes or (None if _names(flags, _NODES) else 1)
            if nodes:
                return per_node * nodes
        if in_all:
            return in_all
        if per_node and nodes:
            return per_node * nodes
    set_to = _environment(script)
    per_node, nodes = (_first(set_to, names) for names in _VARIABLES)
    world = _whole(set_to.get("WORLD_SIZE"))
    return world or (per_node * nodes if per_node and nodes else None)


def _on_one_node(flags: Mapping[str, str]) -> bool:
    """Whether a launcher that is told no number of nodes takes this one alone."""
    of_deepspeed = "num_gpus" in flags and not _names(flags, _HOSTS)
    return "nproc_per_node" in flags or of_deepspeed


def _names(flags: Mapping[str, str], names: Sequence[str]) -> bool:
    return any(name in flags for name in names)


def _first(flags: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((n for name in names if (n := _whole(flags.get(name)))), None)


def _whole(text: str | None) -> int | None:
    """A number of processes; None if something else stands there."""
    if text is None or unset_in(text):
        return None
    last = text.rpartition(":")[2]  # torchrun takes a least and a most number of nodes
    return int(last) if re.fullmatch(r"[1-9]\d{0,8}", last) else None
