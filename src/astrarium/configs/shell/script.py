"""Follows a shell script on its variables, up to the commands it starts.

Nothing is ever executed: the statements are followed as bash would, on variables alone. Where a
condition depends on the machine (a file, what another program prints), both ways are followed, and
what they leave different stays open (`expansion.either`). Files that the script sources or starts
are followed if they lie beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final

from astrarium.configs.neighbours import beside, folder_of, text_of
from astrarium.configs.shell import builtins, nodes
from astrarium.configs.shell.conditions import Conditions
from astrarium.configs.shell.expansion import (
    Held,
    Variables,
    marked,
    merged,
    shown,
    unknown_print,
    unset_in,
)
from astrarium.configs.shell.lexer import PLACEHOLDER
from astrarium.configs.shell.nodes import Simple, Statement, WordPart, plain
from astrarium.configs.shell.syntax import DECLARING, Parser, parse
from astrarium.errors import InputError
from astrarium.value import Value

MOST_STEPS: Final = 50_000  # commands that are followed, loops and functions included
MOST_TURNS: Final = 1_000  # of a loop
_DEEPEST: Final = 30  # functions, files and blocks inside of each other
_SCRIPTS: Final = (".sh", ".slurm", ".sbatch")
_WITH_TEXT: Final = re.compile(r"-\w*c")
_SHELLS: Final = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
# What a machine or a job sets; what it is, and whether it is set, cannot be known.
_OF_MACHINES: Final = re.compile(
    r"(SLURM|PBS|LSB|OMPI|PMI|NCCL|CUDA|HF|WANDB|AWS|AZ|K8S|KUBERNETES)_\w*|HOME|USER|HOSTNAME|PWD"
    r"|OLDPWD|PATH|LD_LIBRARY_PATH|PYTHONPATH|TMPDIR|RANDOM|SECONDS|RANK|LOCAL_RANK|NODE_RANK"
    r"|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|[$!?-]|\$.*"
)


class _EnoughError(Exception):
    """A script goes on for too long."""


class Command(Value, frozen=True):
    """A command with its variables filled in, and what decides whether it is started at all."""

    words: tuple[str, ...]
    line: int
    depends: str = ""
    begin: int = 0  # where the command itself begins, behind launchers of an inner shell
    environment: Mapping[str, str] = {}  # what is exported to it


@dataclass(slots=True)
class Script:
    """Variables and commands of a script; `files` are those it writes, by its own names."""

    variables: Variables
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, str | None] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)  # unset variables that conditions depend on
    stopped: str = ""  # why it ends before its last line


def read_script(
    text: str,
    where: str,
    known: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    *,
    past_failures: bool = False,
) -> Script:
    """Follow a script; `past_failures` goes on where it would stop for want of arguments."""
    script = Script(Variables(where, given))
    script.variables.values = {**(known or {}), **script.variables.values}
    script.variables.positional = list(arguments)
    text = text.replace("\0", "")  # as bash, which uses it for nothing either
    _Reader(script, where, past_failures=past_failures).whole(parse(text, where), text)
    return script


class _Reader:
    """Follows statements; `flow` is what ends a list early: break, continue, return, exit."""

    def __init__(self, script: Script, where: str, *, past_failures: bool) -> None:
        self.script, self.where, self.past_failures = script, where, past_failures
        self.folder = folder_of(where)
        self.sources = [where]
        self.functions: dict[str, Statement] = {}
        self._parsed: dict[tuple[str, int], tuple[Statement, ...]] = {}
        self.prefix: tuple[str, ...] = ()  # launchers around `bash -c`
        self.depends = ""
        self.printed: list[str] | None = None  # what commands print, where somebody reads it
        self.input: str | None = None
        self.flow = ""
        self.steps = self.depth = 0
        self.misses_files = False  # a file that it sources is not there
        self.local: list[dict[str, Held | None]] = []
        self.said = ""
        self.conditions = Conditions(self)
        self.variables = script.variables
        self.variables.run = self._substituted

    def whole(self, body: Sequence[Statement], text: str) -> None:
        found = PLACEHOLDER.search(re.sub(r"(?m)(^|\s)#.*$", "", text))
        if found:
            self.note(0, f"{found[0]} is a place to fill in, at which bash itself would stop")
        try:
            self.run(body)
        except _EnoughError:
            self.note(0, f"only its first {MOST_STEPS:,} commands are followed")
        except RecursionError:
            raise InputError(f"{self.where}: nested too deep to be followed") from None

    def note(self, line: int, what: str) -> None:
        place = f"{self.sources[-1]}:{line}" if line else self.sources[-1]
        note = f"{place}: {what}"
        if note not in self.script.notes and len(self.script.notes) < MOST_TURNS:
            self.script.notes.append(note)

    def unknown_in(self, text: str) -> list[str]:
        """Unknown facts that a condition needs; variables that nothing sets are empty."""
        return [
            name
            for name in unset_in(text)
            if self.misses_files or _OF_MACHINES.fullmatch(name) or name in self.variables.values
        ]

    # Statements

    def run(self, body: Sequence[Statement]) -> bool | None:
        """Follow statements; whether the last one succeeds, None if that is not known."""
        met: bool | None = True
        self.variables.values["BASH_SOURCE"] = list(reversed(self.sources))
        self.depth += 1
        if self.depth > _DEEPEST:
            raise InputError(f"{self.where}: nested deeper than {_DEEPEST} levels")
        for statement in body:
            met = self.follow(statement)
            if self.flow:
                break
        self.depth -= 1
        return met

    def follow(self, statement: Statement) -> bool | None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise _EnoughError
        followed: Callable[[Statement], bool | None] = getattr(
            self, f"_follow_{type(statement).__name__.lower()}"
        )
        return followed(statement)

    def _follow_test(self, one: nodes.Test) -> bool | None:
        return self.conditions.of_words(one.words)

    def _follow_arithmetic(self, one: nodes.Arithmetic) -> bool | None:
        value = self.variables.arithmetic(one.text)
        return None if unset_in(value) else value != "0"

    def _follow_pipeline(self, one: nodes.Pipeline) -> bool | None:
        met: bool | None = True
        if len(one.commands) > 1:
            printed, before = self.printed, self.input
            with self._own_variables():
                for number, command in enumerate(one.commands):
                    is_last = number == len(one.commands) - 1
                    self.printed = printed if is_last else []
                    met = self.follow(command)
                    self.input = None if is_last else "".join(self.printed or [])
            self.printed, self.input = printed, before
            self.flow = ""
            self.variables.values["PIPESTATUS"] = ["0"] * len(one.commands)  # as $? is 0
        else:
            met = self.follow(one.commands[0])
        return met if not one.negated or met is None else not met

    def _follow_andor(self, one: nodes.AndOr) -> bool | None:
        met: bool | None = True
        for operator, part in one.parts:
            if operator == "&&" and met is False:
                continue
            if operator == "||" and met is True:
                continue
            follow = partial(self.follow, part)
            if operator and met is None:
                self._both(follow, _nothing, one.line)
            else:
                met = self._unless_failing(follow, _nothing, one.line)
            if self.flow:
                return met
        return met

    def _follow_if(self, one: nodes.If, begin: int = 0) -> bool | None:
        if begin == len(one.branches):
            return self.run(one.otherwise)
        condition, body = one.branches[begin]
        met = self.run(condition)
        if self.flow:
            return met
        if met is None:
            self._both(lambda: self.run(body), lambda: self._follow_if(one, begin + 1), one.line)
            return None
        if not met:
            return self._follow_if(one, begin + 1)
        return self._unless_failing(
            lambda: self.run(body), lambda: self._follow_if(one, begin + 1), one.line
        )

    def _unless_failing(
        self, one: Callable[[], bool | None], other: Callable[[], bool | None], line: int
    ) -> bool | None:
        """The first way; the other one if it stops the script, and stops are to be passed."""
        values = dict(self.variables.values) if self.past_failures else {}
        met = one()
        if not self.past_failures or self.flow != "exit" or met:
            return met
        self.variables.values, self.flow, self.script.stopped = values, "", ""
        self.note(line, "the script stops here unless it is given more; read as if it went on")
        return other()

    def _follow_casestatement(self, one: nodes.CaseStatement) -> bool | None:
        subject = self.variables.joined(one.subject)
        if self.unknown_in(subject):
            self.said = shown(subject)
            bodies = [body for _, body in one.branches]
            self._any(bodies, one.line)
            return None
        subject = self.conditions.known(subject)
        for patterns, body in one.branches:
            texts = [self.variables.joined(pattern) for pattern in patterns]
            if any(fnmatchcase(subject, text) for text in texts):
                return self._unless_failing(partial(self.run, body), _nothing, one.line)
        return True

    def _any(self, bodies: Sequence[Sequence[Statement]], line: int) -> None:
        """Follow each of some bodies, or none."""
        if bodies:
            self._both(lambda: self.run(bodies[0]), lambda: self._any(bodies[1:], line), line)

    def _follow_function(self, one: nodes.Function) -> bool:
        self.functions[one.name] = one.body
        return True

    def _follow_groupstatement(self, one: nodes.GroupStatement) -> bool | None:
        with self._redirected(one.redirections):
            if not one.own:
                return self.run(one.body)
            with self._own_variables():
                met = self.run(one.body)
            self.flow = ""
            return met

    def _follow_for(self, one: nodes.For) -> bool | None:
        if one.count is not None:
            first, condition, step = one.count
            self.variables.arithmetic(first)
            check = nodes.Arithmetic(one.line, condition or "1")
            return self._turns(lambda: self._follow_arithmetic(check), one, step)
        words = one.words
        values = self.variables.positional if words is None else self.variables.words(words)
        if len(values) > MOST_TURNS:
            self.note(one.line, f"of this loop the first {MOST_TURNS:,} turns are followed")
        for value in values[:MOST_TURNS]:
            self.variables.set(one.name, value)
            self.run(one.body)
            if self._leaves():
                break
        return True

    def _leaves(self) -> bool:
        """Whether a loop ends now; break and continue are its own."""
        ends = self.flow in ("break", "return", "exit")
        self.flow = "" if self.flow in ("break", "continue") else self.flow
        return ends

    def _follow_while(self, one: nodes.While) -> bool | None:
        def goes_on() -> bool | None:
            met = self.run(one.condition)
            return None if met is None else met != one.until

        return self._turns(goes_on, one, "")

    def _turns(
        self, goes_on: Callable[[], bool | None], one: nodes.While | nodes.For, step: str
    ) -> bool:
        for _ in range(MOST_TURNS):
            met = goes_on()
            if met is None:
                self._both(lambda: self.run(one.body), lambda: None, one.line)
                self._leaves()
                return True
            if not met:
                return True
            self.run(one.body)
            if self._leaves():
                return True
            if step:
                self.variables.arithmetic(step)
        self.note(one.line, f"of this loop the first {MOST_TURNS:,} turns are followed")
        return True

    # Two ways

    def _both(self, one: Callable[[], object], other: Callable[[], object], line: int) -> None:
        """Follow both ways of a condition that is not known; what they leave different is open."""
        why = f"line {line} ({self.said})" if self.said else f"line {line}"
        before, depends = dict(self.variables.values), self.depends
        place = list(self.variables.positional)
        self.depends = depends or why
        one()
        first, flow = self.variables.values, self.flow
        self.variables.values, self.flow = before, ""
        self.variables.positional = place
        other()
        self.depends = depends
        if flow in ("exit", "return", "break", "continue") and not self.flow:
            return  # the first way leaves; the second goes on
        if self.flow and not flow:
            self.variables.values, self.flow = first, ""
            return
        self.variables.values = merged(self.variables, first, why)

    # Commands

    def _follow_simple(self, one: Simple) -> bool | None:
        if len(one.words) == 0:
            for assignment in one.assignments:
                self.assign(assignment)
            with self._redirected(one.redirections):
                return True
        head = plain(one.words[0])
        if head in DECLARING:
            return builtins.declare(self, one)
        before = {one.name: self.variables.values.get(one.name) for one in one.assignments}
        exported = set(self.variables.exported)
        if one.assignments:
            words = self.variables.words(one.words)
            for assignment in one.assignments:
                self.assign(assignment)
            names = {assignment.name for assignment in one.assignments}
            self.variables.exported |= names
        with self._redirected(one.redirections):
            if not one.assignments:
                words = self.variables.words(one.words)
            met = self.call(words, one.line)
        if one.assignments:
            self._restore(before)
            self.variables.exported = exported
        return met

    def _restore(self, before: Mapping[str, Held | None]) -> None:
        for name, value in before.items():
            if value is None:
                self.variables.values.pop(name, None)
            else:
                self.variables.values[name] = value

    def assign(self, one: nodes.Assignment) -> None:
        variables = self.variables
        if one.elements is not None:
            if isinstance(variables.values.get(one.name), dict) or _is_keyed(one.elements):
                variables.values[one.name] = _keyed(variables, one)
                return
            elements = variables.words(one.elements)
            variables.set(one.name, elements, append=one.append)
        elif one.index is not None:
            index = variables.joined(Parser(one.index, self.where).quoted_text())
            variables.set_element(one.name, index, variables.joined(one.value))
        else:
            variables.set(one.name, variables.joined(one.value), append=one.append)

    def call(self, words: list[str], line: int) -> bool | None:
        """Follow a command by its words; whether it succeeds, None if that is not known."""
        if not words:
            return True
        head = words[0]
        if head in self.functions:
            return self._call_function(words)
        builtin = builtins.BUILTINS.get(head)
        if builtin is not None:
            return builtin(self, words, line)
        if head in builtins.SILENT:
            return None if head in builtins.UNSURE else True
        inner = self._inner_shell(words)
        if inner is not None:
            return inner(line)
        if self.printed is not None:
            self.printed.append(marked(f"$({shown(' '.join(words))[:40]})"))
        self.record(words, line)
        return True if self._is_program(words) else None

    def _is_program(self, words: Sequence[str]) -> bool:
        """Whether a command is long enough to be what the script is for: it is taken to succeed."""
        return any(word.endswith((".py", ".sh")) or word.startswith("--") for word in words)

    def record(self, words: Sequence[str], line: int) -> None:
        if len(self.script.commands) < MOST_TURNS:
            words = (*self.prefix, *words)
            environment = self.variables.environment()
            command = Command(words, line, self.depends, len(self.prefix), environment)
            self.script.commands.append(command)

    def _call_function(self, words: list[str]) -> bool | None:
        variables = self.variables
        before, variables.positional = variables.positional, words[1:]
        self.local.append({})
        met = self.follow(self.functions[words[0]])
        self._restore(self.local.pop())
        variables.positional = before
        self.flow = "" if self.flow == "return" else self.flow
        return met

    def _inner_shell(self, words: list[str]) -> Callable[[int], bool | None] | None:
        """`bash -c "text"`, `bash file`, `./file`: another shell, with what is exported alone."""
        at = next((i for i, word in enumerate(words) if word in _SHELLS), None)
        if at is not None:
            rest = words[at + 1 :]
            while rest and rest[0].startswith("-") and not _WITH_TEXT.fullmatch(rest[0]):
                rest = rest[1:]
            if rest and _WITH_TEXT.fullmatch(rest[0]):
                text = rest[1] if len(rest) > 1 else ""
                return partial(self._other_shell, text, rest[3:], words[:at])
            if not rest and self.input:
                return partial(self._other_shell, self.input, [], words[:at])
            file, arguments, prefix = (rest or [""])[0], rest[1:], words[:at]
        elif words[0] == "sbatch" and self.input:
            return partial(self._other_shell, self.input, [], words)
        else:
            begin = words[0] == "sbatch"
            at = next((i for i, w in enumerate(words[begin:], begin) if w.endswith(_SCRIPTS)), 0)
            at = at if begin else 0
            file, arguments, prefix = words[at], words[at + 1 :], words[:at]
            if not file.endswith(_SCRIPTS):
                return None
        path = self.beside(file)
        return None if path is None else partial(self._other_file, path, arguments, prefix)

    def _other_file(
        self, path: Path, arguments: list[str], prefix: list[str], line: int
    ) -> bool | None:
        name = self.variables.name
        self.variables.name = str(path)
        self.sources.append(str(path))
        met = self._other_shell(text_of(path), arguments, prefix, line)
        self.sources.pop()
        self.variables.name = name
        return met

    def _other_shell(
        self, text: str, arguments: list[str], prefix: list[str], line: int
    ) -> bool | None:
        body = self.parsed(text, line if text.count("\n") == 0 else 1)
        with self._own_variables():
            variables = self.variables
            variables.values = {
                name: held
                for name, held in variables.values.items()
                if name in variables.exported or _OF_MACHINES.fullmatch(name)
            }
            before, variables.positional = variables.positional, arguments
            outer, self.prefix = self.prefix, (*self.prefix, *prefix)
            met = self.run(body)
            self.prefix, variables.positional = outer, before
        self.flow = ""
        return met

    def source(self, path: Path, arguments: list[str]) -> bool | None:
        """Follow a file in this very shell."""
        before = self.variables.positional
        self.variables.positional = arguments or before
        self.sources.append(str(path))
        met = self.run(self.parsed(text_of(path)))
        self.sources.pop()
        self.variables.positional = before
        self.flow = "" if self.flow == "return" else self.flow
        return met

    def parsed(self, text: str, line: int = 1) -> tuple[Statement, ...]:
        """The statements of a text; loops come back to the same one."""
        key = (text, line)
        if key not in self._parsed:
            self._parsed[key] = parse(text, self.sources[-1], line)
        return self._parsed[key]

    def beside(self, name: str) -> Path | None:
        return beside(self.folder, name)

    # What commands print and write

    def _substituted(self, part: WordPart) -> str:
        """The output of commands in $(...); a mark where that is not known."""
        printed, flow = self.printed, self.flow
        self.printed = []
        commands = len(self.script.commands)
        with self._own_variables():
            self.run(part.body)
        text = "".join(self.printed).rstrip("\n")
        del self.script.commands[commands:]
        self.printed, self.flow = printed, flow
        return unknown_print(part) if unset_in(text) else text

    @contextmanager
    def _own_variables(self) -> Iterator[None]:
        """Changes stay inside, as in a process of its own."""
        values, exported = dict(self.variables.values), set(self.variables.exported)
        positional = list(self.variables.positional)
        yield
        self.variables.values, self.variables.exported = values, exported
        self.variables.positional = positional

    @contextmanager
    def _redirected(self, redirections: Sequence[nodes.Redirection]) -> Iterator[None]:
        """Input comes from a text; output goes into a file of the script's."""
        printed, before = self.printed, self.input
        into: tuple[str, bool] | None = None
        for one in redirections:
            if one.operator == ">&" or one.operator == "<&":
                continue
            text = self.variables.joined(one.target)
            if one.is_text:
                self.input = text + ("\n" if one.operator == "<<<" else "")
            elif one.operator == "<":
                self.input = self.script.files.get(text)
            elif text != "/dev/null":
                into, self.printed = (text, one.operator.endswith(">>")), []
        yield
        if into is not None:
            text = "".join(self.printed or [])
            name, appends = into
            before_text = (self.script.files.get(name) or "") if appends else ""
            if len(self.script.files) < MOST_TURNS and text:
                self.script.files[name] = before_text + text
        self.printed, self.input = printed, before


def _nothing() -> bool:
    return True


def _is_keyed(elements: Sequence[Sequence[WordPart]]) -> bool:
    return bool(elements) and all(
        word[0].text.startswith("[") and not word[0].quoted for word in elements
    )


def _keyed(variables: Variables, one: nodes.Assignment) -> dict[str, str]:
    """`([key]=value ...)`."""
    before = variables.values.get(one.name)
    out = dict(before) if one.append and isinstance(before, dict) else {}
    for word in one.elements or ():
        key, _, value = variables.joined(word).partition("]=")
        out[key.removeprefix("[")] = value
    return out
