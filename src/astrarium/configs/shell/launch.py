"""The training command of a script, its arguments and the number of its GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from astrarium.configs.accelerate import settings_of
from astrarium.configs.imported import (
    NotModelledError,
    NotTrainingError,
    OpenQuestionError,
    answer_for,
    name_that_file,
    variables_of,
)
from astrarium.configs.neighbours import beside, folder_of, text_of
from astrarium.configs.shell.expansion import alternatives, shown, split_words, unset_in
from astrarium.configs.shell.script import Command, Script, read_script
from astrarium.configs.values import Answers, table
from astrarium.errors import in_shell
from astrarium.strategy.options import Treatment, options_by_flag
from astrarium.value import Value

_TABLE: Final = table("programs")
_LAUNCHERS: Final[Sequence[str]] = _TABLE["launchers"]
_STARTING: Final = (*_LAUNCHERS, "accelerate.commands.launch", "deepspeed.launcher.runner")
_SBATCH: Final = re.compile(r"^#SBATCH\s+([^#\n]+)", re.MULTILINE)
# Commands that train, with the defaults of what they leave out.
TRAINERS: Final[Mapping[str, Mapping[str, str]]] = _TABLE["trainers"]
SETTINGS_OF_TRL: Final[Mapping[str, Mapping[str, str]]] = _TABLE["settings_of_trl"]
_NAMED_COMMANDS: Final = (
    *(*TRAINERS, *_TABLE["torchtune"]),
    *(*_TABLE["not_modelled"], *_TABLE["not_read"]),
)
_COMMANDS: Final = {name for name in _NAMED_COMMANDS if " " in name}
_SAY_IT: Final = "say what it trains as a strategy: `astrarium predict MODEL --strategy tp=8,...`"
# What launchers call processes on a node, nodes, and processes in all.
_PER_NODE, _NODES, _IN_ALL = _TABLE["per_node"], _TABLE["nodes"], _TABLE["in_all"]
_TASKS: Final = "ntasks_per_node"
_HOSTS: Final = ("hostfile", "H")  # files that list nodes
_VARIABLES: Final[Sequence[Sequence[str]]] = _TABLE["variables"]
# What starts trainings, or other scripts that may; and programs of Python by name.
STARTERS: Final = re.compile(
    r"\b(torchrun|torch\.distributed|srun|sbatch|mpirun|mpiexec|deepspeed|accelerate)\b"
)
_PYTHON: Final = re.compile(r"([\w*-]+\.py)\b")
_AIMS: Final = re.compile(r"(?:^|[/_-])(dpo|ppo|kto|orpo|grpo|rlhf|reward)(?=[/_.-]|$)")
_NAMED: Final = 6  # parts of a path that say what a script is for
_ENOUGH: Final = 3  # options of Megatron by which a program that nobody knows is taken for it


class Launch(Value, frozen=True):
    """A program and its arguments, processes in all if stated, the environment, and notes."""

    arguments: tuple[str, ...] = ()
    gpus: int | None = None
    environment: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    is_script: bool = True
    program: str = ""
    launcher: tuple[str, ...] = ()
    kind: str = "megatron"
    files: Mapping[str, str | None] = {}
    folder: Path | None = None
    open_gpus: str = ""  # the variable that the number of GPUs depends on
    is_default: bool = False  # the number holds unless that variable is set
    gpus_per_node: int | None = None


def read_launch(text: str, where: str, answers: Answers | None = None) -> Launch:
    """The training command of a script; or options alone, as one would paste them."""
    answers = answers or Answers()
    header = _slurm(text)
    known = slurm_variables(text)
    script = read_script(text, where, known, answers.arguments, answers.variables)
    if not _trainings(script) and script.stopped:
        script = read_script(
            text, where, known, answers.arguments, answers.variables, past_failures=True
        )
    trainings = _trainings(script)
    if trainings and trainings[0][1] == "own" and not _has_settings(trainings[0][0], where):
        trainings = []
    notes = list(script.notes)
    if not trainings:
        return _without_command(script, where, header, text)
    chosen, kind = trainings[0]
    notes += _left_out([one for one, _ in trainings], script.commands, where)
    launcher, program, arguments = _parted(chosen.words)
    _refuse(program, arguments, where)
    _refuse_aim(f"{where}/{program}", where)
    passed = [name for word in arguments for name in unset_in(word)]
    if kind == "megatron" and passed and not _options_in(arguments):
        raise NotTrainingError(
            f"{where}: all options of {program} come from ${passed[0]}, which the script sets that"
            " starts this one; name that script"
        )
    environment = _environment(script, chosen)
    gpus, why = _gpus_of(launcher, header, environment)
    if gpus is None:
        gpus = _by_hosts(flags_of(launcher), where)
    notes += [f"{where}: {why}"] if gpus and why else []
    return Launch(
        arguments,
        gpus,
        environment,
        tuple(notes),
        program=program,
        launcher=tuple(launcher),
        kind=kind,
        files=script.files,
        folder=folder_of(where),
        open_gpus=_of_nodes(script) if gpus else why,
        is_default=bool(gpus and _of_nodes(script)),
        gpus_per_node=_node_size(launcher, header, environment, gpus),
    )


def _of_nodes(script: Script) -> str:
    """The variable of the machine that the number of nodes or GPUs has a default for, if any."""
    return next((name for name in _TABLE["by_machines"] if name in script.variables.defaults), "")


def _has_settings(command: Command, where: str) -> bool:
    """Whether the settings of a program without options are exported, or lie beside the script."""
    if settings_of(command.environment):
        return True
    named = flags_of(command.words).get("config_file", "")
    return any(beside(folder_of(where), name) for name in (named, "ds_config.json"))


def _without_command(script: Script, where: str, header: Mapping[str, str], text: str) -> Launch:
    """Options that variables hold; else what the script does instead."""
    for refuse in (_refuse_training, _refuse_other):
        for command in script.commands:
            _, program, arguments = _parted(command.words)
            for word in (program, *arguments[:1]):
                refuse(word, arguments, where)
    _name_file(script, where)
    arguments = _loose_options(script)
    _refuse("", arguments, where)
    gpus, _ = _gpus_of((), header, _environment(script))
    given = {word.partition("=")[0] for word in arguments}
    # Without either, it is the model of a training that another script starts.
    is_whole = bool(gpus or "--tensor-model-parallel-size" in given) and "--num-layers" in given
    if arguments and (any(map(alternatives, arguments)) or not is_whole):
        raise NotTrainingError(
            f"{where}: no command starts a training; it holds options for another script; name the"
            " script that starts the training"
        )
    if arguments and not script.commands:
        note = f"{where}: no command starts a training; its variables hold the options"
        return Launch(arguments, gpus, _environment(script), (*script.notes, note))
    _refuse_text(text, where)
    _ask(script, where)
    unknown = [program for program in map(_unknown_program, script.commands) if program]
    if unknown:
        raise NotModelledError(
            f"{where}: starts {unknown[0]}; the model and options of that program are not known;"
            f" {_SAY_IT}"
        )
    started = list(dict.fromkeys(shown(one.words[0]) for one in script.commands if one.words))
    what = f"it starts {', '.join(started)[:80]}" if started else "it starts nothing"
    raise NotTrainingError(
        f"{where}: no training is started here: {what}; expected a launch script such as one with"
        " `torchrun ... pretrain_gpt.py --num-layers ...`"
    )


def _name_file(script: Script, where: str) -> None:
    """Refuse `llamafactory-cli train FILE` and its kin: all that decides is in the file."""
    for command in script.commands:
        words = [shown(word) for word in command.words]
        for word, following in zip(words, words[2:], strict=False):
            is_known = word.rpartition("/")[2] in _TABLE["with_file"]
            if is_known and following.endswith((".yaml", ".yml", ".json")):
                raise NotTrainingError(
                    f"{where}: {following} has the settings of this training; explain that file:"
                    f" `astrarium explain {following}`"
                )


def _refuse_text(text: str, where: str) -> None:
    """Refuse a script whose whole text names no training, whatever its arguments are."""
    bare = "\n".join(line.partition("# ")[0] for line in text.splitlines())
    if not STARTERS.search(bare) and not re.search(r"python\S* .*(train|tune|sft)\w*\.py", bare):
        raise NotTrainingError(f"{where}: no training is started here: it names no program for it")
    names = _PYTHON.findall(bare)
    refused = (*_TABLE["not_modelled"], *_TABLE["no_training"])
    if names and all(any(fnmatchcase(name, one) for one in refused) for name in names):
        for name in names:
            _refuse(name, (), where)


def _ask(script: Script, where: str) -> None:
    """Ask for what keeps a script from starting anything that is known."""
    nested = [word for one in script.commands for word in one.words if word.endswith(".sh")]
    for name in nested:
        _refuse(name, (), where)
    if nested:
        raise OpenQuestionError(
            f"{where}: it starts {shown(nested[0])}, which is not beside it; {name_that_file()}"
        )
    open_words = [" ".join(one.words) for one in script.commands if len(one.words) < _ENOUGH]
    names = [name for words in open_words for name in unset_in(words)]
    if not script.commands:
        names += script.assumed
    names = [name.partition(", by ")[0] for name in names]
    if names:
        way = (
            "give the script's arguments behind its name"
            if names[0].isdigit()
            else f"add {answer_for(names[0])}"
        )
        says = f"{where}: the program that it starts depends on ${names[0]}; {way}"
        raise OpenQuestionError(says, variables=variables_of(names[:1]))
    if script.stopped:
        raise OpenQuestionError(
            f"{where}: the script stops at {script.stopped} as it is started here; give the"
            " arguments that it wants behind its name"
            + in_shell(", and --set NAME=VALUE for variables")
        )


def _unknown_program(command: Command) -> str:
    """A Python program that a command starts on GPUs, as far as one can tell."""
    launcher, program, _ = _parted(command.words)
    is_started = any(word.rpartition("/")[2] in _LAUNCHERS for word in launcher)
    name = shown(program).rpartition("/")[2]
    is_started = is_started or bool(re.search(r"train|tune|sft", name))
    return name if is_started and name.endswith(".py") else ""


def _refuse(program: str, arguments: Sequence[str], where: str) -> None:
    """Refuse a program by name, if it is known and is no training that is modelled."""
    _refuse_training(program, arguments, where)
    _refuse_other(program, arguments, where)


def _refuse_training(program: str, arguments: Sequence[str], where: str) -> None:
    name, why = _by_name(program, "not_read")
    if why:
        raise NotModelledError(f"{where}: starts {name}: {why}; {_SAY_IT}")
    name, what = _by_name(program, "not_modelled")
    if what:
        raise NotModelledError(
            f"{where}: starts {name}, which trains {what}; that is not modelled, only"
            " decoders of text are; `astrarium synthesize` plans any torch module"
        )
    option, what = _by_flag(arguments, "not_modelled_options")
    if what:
        raise NotModelledError(
            f"{where}: {option} says that it trains {what}; that is not modelled"
        )


def _refuse_other(program: str, arguments: Sequence[str], where: str) -> None:
    option, what = _by_flag(arguments, "no_training_options")
    if what:
        raise NotTrainingError(f"{where}: {option} says that it is {what}, and no training")
    name, what = _by_name(program, "no_training")
    if what:
        raise NotTrainingError(f"{where}: starts {name}, which is {what} and no training")


def _by_name(program: str, kind: str) -> tuple[str, str]:
    """The name of a program, and what a table says of it; "" if nothing."""
    name = program.rpartition("/")[2]
    found = (what for pattern, what in _TABLE[kind].items() if fnmatchcase(name, pattern))
    return name, next(found, "") if name else ""


def _by_flag(arguments: Sequence[str], kind: str) -> tuple[str, str]:
    given = {word.partition("=")[0] for word in arguments}
    return next(((one, what) for one, what in _TABLE[kind].items() if one in given), ("", ""))


def _refuse_aim(names: str, where: str) -> None:
    """Refuse trainings for something else than the next token, which folders and programs name."""
    found = _AIMS.search("/".join(names.lower().split("/")[-_NAMED:]))
    if found:
        raise NotModelledError(
            f"{where}: trains by {found[1]}, as its name says, which is not modelled: it holds"
            " other models beside the one that it trains"
        )


def kind_of(command: Command) -> str:
    """The reader of a command's training; "" if none is known."""
    launcher, program, arguments = _parted(command.words)
    name = program.rpartition("/")[2]
    refused = (*_TABLE["not_modelled"], *_TABLE["no_training"], *_TABLE["not_read"])
    flags = {word.partition("=")[0] for word in arguments}
    has_file = "accelerate" in launcher and "--config_file" in launcher
    is_started = any(word.rpartition("/")[2] in _LAUNCHERS for word in launcher)
    # Trainers of Hugging Face are called finetune.py, too, as Megatron's is.
    names_model = "--model_name_or_path" in flags and "--num-layers" not in flags
    kinds = {
        "bridge": name in _TABLE["bridge"],
        "torchtune": name in _TABLE["torchtune"],
        "megatron": name in _TABLE["megatron"] and not names_model,
        "": any(fnmatchcase(name, pattern) for pattern in refused),
        "huggingface": (name in TRAINERS and bool(flags) and arguments[0].startswith("-"))
        or "--model_name_or_path" in flags
        or "--config_name" in flags,
        "megatron ": _options_in(arguments) >= _ENOUGH and (name or "--num-layers" in flags),
        "torchtitan": name == "torchtitan.train",
        "own": name.endswith(".py") and (has_file or (is_started and not flags)),
    }
    return next((kind.strip() for kind, holds in kinds.items() if holds), "")


def _trainings(script: Script) -> list[tuple[Command, str]]:
    """Commands that train, those with most options first, and what they train with."""
    # What begins with an option is the rest of a command above, unless there is nothing else.
    begun = [one for one in script.commands if not one.words[one.begin].startswith("-")]
    alone = [] if any(one.begin for one in script.commands) else script.commands
    found = [(command, kind) for command in begun or alone if (kind := kind_of(command))]
    whole = [one for one in found if not one[0].depends] or found
    return sorted(whole, key=lambda one: (one[1] == "own", -_options_in(one[0].words)))


def _left_out(trainings: Sequence[Command], commands: Sequence[Command], where: str) -> list[str]:
    """Other commands that look as if they belonged to the training."""
    chosen, notes = trainings[0], []
    others = [one for one in trainings[1:] if one.words != chosen.words]
    if others:
        lines = ", ".join(dict.fromkeys(str(one.line) for one in others[:5]))
        notes.append(
            f"{where}: {len(others)} more commands train (line {lines}); the one of line"
            f" {chosen.line} is read"
        )
    if chosen.depends:
        notes.append(f"{where}: whether this command is started depends on {chosen.depends}")
    for other in commands:
        first = other.words[other.begin]
        if first.startswith("--") and _options_in(other.words) and other != chosen:
            what = f"'{first}' begins a command of its own: a comment or a missing \\ ends"
            notes.append(f"{where}:{other.line}: {what} the one above, so it is left out")
    return notes


def _environment(script: Script, command: Command | None = None) -> dict[str, str]:
    """Variables of a script, and what is exported to one of its commands."""
    values = {**script.variables.values, **(command.environment if command else {})}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _options_in(words: Sequence[str]) -> int:
    """The number of words that are options with an effect."""
    known = options_by_flag()
    found = (known.get(word.partition("=")[0]) for word in words)
    return sum(o is not None and o.treatment is not Treatment.NEUTRAL for o in found)


def _parted(words: Sequence[str]) -> tuple[Sequence[str], str, tuple[str, ...]]:
    """The launcher's words, the program, and its arguments."""
    for number, word in enumerate(words):
        is_module = number and words[number - 1] in ("-m", "--module") and word not in _STARTING
        if (word.endswith(".py") or is_module) and not word.startswith("-"):
            return words[:number], word, tuple(words[number + 1 :])
        command = " ".join(words[number : number + 2])
        if command in _COMMANDS:
            return words[:number], command, tuple(words[number + 2 :])
    known = options_by_flag()
    first = next((i for i, word in enumerate(words) if word.partition("=")[0] in known), None)
    if first is None:
        return words, "", ()
    return words[:first], "", tuple(words[first:])


def _loose_options(script: Script) -> tuple[str, ...]:
    """Options that variables hold, where no command uses them."""
    out: list[str] = []
    for value in script.variables.values.values():
        words = split_words(value) if isinstance(value, str) else list(value)
        if words and words[0].startswith("--") and _options_in(words):
            out += words
    return tuple(out)


def _slurm(text: str) -> dict[str, str]:
    """Options of #SBATCH lines, by name without dashes."""
    words = " ".join(_SBATCH.findall(text)).split()
    return flags_of(words)


def slurm_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets, as far as the #SBATCH lines of a script tell."""
    header = _slurm(text)
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


def flags_of(words: Sequence[str]) -> dict[str, str]:
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


def _gpus_of(
    launcher: Sequence[str], header: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[int | None, str]:
    """Processes in all by the nearest launcher, job or usual variable, and their source."""
    starts = [i for i, word in enumerate(launcher) if word.rpartition("/")[2] in _LAUNCHERS]
    parts = [launcher[i:] for i in reversed(starts)] if starts else [launcher]
    open_on = ""
    gpus_of_node = 1
    for flags in (*(flags_of(part) for part in parts), header):
        gpus_of_node = max(gpus_of_node, _whole(_of_gres(flags)) or 1)
    for part, flags in (*((part, flags_of(part)) for part in parts), ((), header)):
        per_node, nodes, in_all = (_first(flags, names) for names in (_PER_NODE, _NODES, _IN_ALL))
        open_on = open_on or _open_variable(flags)
        if per_node is None or (flags is header and "nproc_per_node" not in flags):
            per_node = _whole(_of_gres(flags)) or per_node
        if per_node is None and "nproc_per_node" not in flags and _is_torchrun(part):
            per_node = 1  # the default of torchrun
            nodes = nodes or (None if _names(flags, _NODES) else 1)
        if per_node and _on_one_node(flags):
            nodes = nodes or (None if _names(flags, _NODES) else 1)
            if nodes:
                return per_node * nodes, ""
        if in_all and not (flags is header and gpus_of_node > 1):
            return in_all, ""
        if per_node and nodes:
            return per_node * nodes, ""
    return _by_variables(launcher, environment, open_on)


def _node_size(
    launcher: Sequence[str],
    header: Mapping[str, str],
    environment: Mapping[str, str],
    gpus: int | None,
) -> int | None:
    """GPUs of a node; None if that is not said, or if not all nodes can be of that size."""
    flags = flags_of(launcher)
    of_gpus = [name for name in _PER_NODE if name != _TASKS]
    tasks = _first({**header, **flags}, [_TASKS])
    stated = (
        _whole(_of_gres(header))
        or _whole(_of_gres(flags))
        or _first(flags, of_gpus)
        or _first(environment, _VARIABLES[0])
        or (tasks if tasks != 1 else None)  # one task may start all processes of its node
    )
    return stated if gpus and stated and gpus % stated == 0 else None


def _by_variables(
    launcher: Sequence[str], set_to: Mapping[str, str], open_on: str
) -> tuple[int | None, str]:
    per_node, nodes = (_first(set_to, names) for names in _VARIABLES)
    world = _whole(set_to.get("WORLD_SIZE"))
    count = world or (per_node * nodes if per_node and nodes else None)
    if count is None and per_node and not _names(set_to, _VARIABLES[1]) and not open_on:
        count = per_node
    if count:
        named = [name for group in _VARIABLES for name in group if name in set_to]
        names = "$WORLD_SIZE" if world else " and ".join(f"${name}" for name in named[:2])
        return count, f"no launcher states the number of GPUs; {count}, as {names} says"
    if not open_on and not any(word.rpartition("/")[2] in _LAUNCHERS for word in launcher):
        return (1, "no launcher: one process") if _is_python(launcher) else (None, "")
    return None, open_on


def _by_hosts(flags: Mapping[str, str], where: str) -> int | None:
    """The slots of a file of hosts that lies beside the script."""
    path = beside(folder_of(where), flags.get("hostfile", ""))
    slots = re.findall(r"(?m)^\s*[^#\s].*?\bslots=(\d{1,4})\b", text_of(path)) if path else []
    return sum(map(int, slots)) or None


def _is_python(launcher: Sequence[str]) -> bool:
    return any(re.fullmatch(r"python[\d.]*", word.rpartition("/")[2]) for word in launcher)


def _open_variable(flags: Mapping[str, str]) -> str:
    """The variable that a number of processes or nodes needs, and that nothing sets."""
    for name in (*_PER_NODE, *_NODES, *_IN_ALL):
        found = unset_in(flags.get(name, ""))
        if found:
            return found[0]
    return ""


def _is_torchrun(part: Sequence[str]) -> bool:
    name = part[0].rpartition("/")[2] if part else ""
    return name in ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def _on_one_node(flags: Mapping[str, str]) -> bool:
    """Whether a launcher without a number of nodes uses this one alone."""
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
