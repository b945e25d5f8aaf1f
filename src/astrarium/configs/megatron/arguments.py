"""Arguments of Megatron-LM, cut into options and values the way its parser does it.

Which options there are and what follows each of them is `strategy/data/megatron_options.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from astrarium.configs.imported import AsIf, Fate, Unknown, answer_for, variables_of
from astrarium.configs.shell.expansion import alternatives, shown, unset_in
from astrarium.configs.values import table
from astrarium.errors import did_you_mean, in_shell
from astrarium.strategy.options import Option, Takes, Treatment, megatron_version, options_by_flag
from astrarium.value import Value

_PLACES: Final = ("deepspeed_config", "tokenizer_model")  # files, which need not be found
_NEGATIVE: Final = re.compile(r"-\d|-\.\d")


# Options of older versions and of forks, whose meaning is known: each has its `dest`, the value it
# has `alone` if none follows, and what the version described calls it (`now`); or it is `neutral`.
# `as_if` is what is given, assumed, and why.
_OLDER: Final[Mapping[str, Mapping[str, Any]]] = table("forks")["options"]


def is_of_fork(flag: str) -> bool:
    """Whether an option is one of Megatron-DeepSpeed or of older versions."""
    return flag in _OLDER


class Given(Value, frozen=True):
    option: Option
    flag: str
    values: tuple[str, ...]
    stated: str | None = None  # the setting itself, where it does not come from a command line

    @property
    def setting(self) -> str:
        """The value as Megatron's namespace would print it."""
        takes = self.option.takes
        if self.stated is not None:
            return self.stated
        if takes is Takes.SWITCH:
            return str(self.flag == self.option.flags[0])
        if takes.is_flag:
            return str(takes is Takes.ON)
        return ", ".join(self.values)

    @property
    def written(self) -> str:
        return shown(" ".join((self.flag, *self.values)))


MOST_HINTS: Final = 20  # for options that nobody knows


@dataclass(slots=True)
class Arguments:
    """Options by their name in Megatron's namespace; of one given twice, the last counts."""

    given: dict[str, Given] = field(default_factory=dict)
    older: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)  # of these
    unknown: list[Unknown] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    neutral: list[str] = field(default_factory=list)
    as_if: list[AsIf] = field(default_factory=list)
    open_words: list[str] = field(default_factory=list)  # what a condition adds or leaves out

    def settings(self) -> dict[str, str]:
        return {**self.older, **{dest: one.setting for dest, one in self.given.items()}}

    def unset(self) -> tuple[list[str], list[str]]:
        """The variables that are never set though an option that decides something needs them."""
        decisive = [one for one in self.given.values() if _decides(one.option)]
        needed = [(one.flag, name) for one in decisive for name in unset_in(" ".join(one.values))]
        needed += [
            (dest, name)
            for dest, value in self.older.items()
            if dest not in _PLACES
            for name in unset_in(value)
        ]
        known = options_by_flag()
        for word in self.open_words:
            flags = [flag for flag in alternatives(word) if flag in known and _decides(known[flag])]
            needed += [(flag, name) for flag in flags[:1] for name in unset_in(word)[:1]]
        questions = dict.fromkeys(_question(flag, name) for flag, name in needed)
        return list(questions), variables_of(name for _, name in needed)


def _decides(option: Option) -> bool:
    return option.treatment is not Treatment.NEUTRAL


def _question(flag: str, name: str) -> str:
    """The question about a variable, or about a condition that decides."""
    variable, _, why = name.partition(", by ")
    if why:
        return f"{flag} depends on {why}; say what holds with {answer_for(variable)}"
    if variable.isdigit():
        return f"{flag} needs ${variable}, an argument of the script; give it behind the script"
    if variable.startswith("$"):
        return f"{flag} needs what {variable} prints; give the variable it goes to" + in_shell(
            " with --set"
        )
    return f"{flag} needs ${variable}, which is never set; add {answer_for(variable)}"


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Options of a command line, with what Megatron's parser would complain about."""
    out = Arguments()
    known = options_by_flag()
    at = 0
    while at < len(words):
        word = words[at]
        flag, equals, joined = word.partition("=")
        if not _is_flag(word):
            _positional(out, word)
            at += 1
            continue
        following = _values(words, at + 1)
        option = known.get(flag)
        if option is None:
            _unknown(out, flag, [joined] if equals else following)
            # Of an option that nobody knows, all that follows is taken for its values.
            at += 1 + (0 if equals else len(following))
            continue
        taken = [joined] if equals else following[: _most(option)]
        _keep(out, Given(option, flag, tuple(taken)))
        at += 1 + (0 if equals else len(taken))
    return out


def _is_flag(word: str) -> bool:
    return word.startswith("--") or word == "-h"


def _values(words: Sequence[str], begin: int) -> list[str]:
    """The words up to the next option; a negative number is none."""
    out = []
    for at in range(begin, len(words)):
        word = words[at]
        if word.startswith("-") and len(word) > 1 and not _NEGATIVE.match(word):
            break
        out.append(word)
    return out


def _most(option: Option) -> int | None:
    if option.takes.is_flag:
        return 0
    if option.many is None:
        return 1
    return option.many if isinstance(option.many, int) else None


def _positional(out: Arguments, word: str) -> None:
    names = unset_in(word)
    if alternatives(word):
        out.open_words.append(word)
    elif names:
        what = f"${names[0]} is never set in the script; nothing is taken for it"
        out.notes += [what] if what not in out.notes else []
    elif word.strip():
        out.complaints.append(f"unrecognized arguments: {word}")


def _unknown(out: Arguments, flag: str, values: Sequence[str]) -> None:
    older = _OLDER.get(flag, {})
    if older.get("neutral"):
        out.neutral.append(flag)
        return
    hint = f"; it is {older['now']} now" if "now" in older else ""
    if older:
        alone = older.get("alone")
        out.flags[older["dest"]] = flag
        out.older[older["dest"]] = alone if alone is not None else " ".join(values[:1])
        if "as_if" in older:
            given, assumed, why = older["as_if"]
            out.as_if.append(AsIf(flag, given, assumed, why))
    else:
        if any(one.option == flag for one in out.unknown):
            return
        if len(out.unknown) < MOST_HINTS:  # each compares with 800 names
            hint = did_you_mean(flag, options_by_flag())
    says = f"not an option of Megatron-LM {megatron_version()}{hint}"
    out.unknown.append(Unknown(flag, says, Fate.FORKED))


def _keep(out: Arguments, given: Given) -> None:
    before = out.given.get(given.option.dest)
    if before is not None and before.values != given.values:
        out.notes.append(f"{given.flag} is given twice; the last, {given.written}, counts")
    out.given[given.option.dest] = given
    complaint = _complaint(given)
    if complaint:
        out.complaints.append(f"argument {given.flag}: {complaint}")


def _complaint(given: Given) -> str:
    """The complaint of argparse, without values of unset variables."""
    option, values = given.option, given.values
    if option.takes.is_flag:
        return "" if not values else f"ignored explicit argument '{values[0]}'"
    if isinstance(option.many, int) and len(values) != option.many:
        return f"expected {option.many} arguments"
    if not values and option.many != "*":
        return "expected one argument" if option.many is None else "expected at least one argument"
    for value in (value for value in values if not unset_in(value)):
        kind = {Takes.INT: int, Takes.FLOAT: float}.get(option.takes)
        try:
            converted: object = value if kind is None else kind(value)
        except ValueError:
            return f"invalid {option.takes} value: '{value}'"
        known = [str(choice) for choice in option.choices]
        if known and str(converted) not in known:
            hint = did_you_mean(value, known)
            return f"invalid choice: '{value}' (choose from {', '.join(known)}){hint}"
    return ""
