"""Arguments of Megatron-LM, cut into options and values the way its parser does it.

Which options there are and what follows each of them is `strategy/data/megatron_options.json`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from astrarium.configs.imported import NOT_AN_OPTION, Unknown
from astrarium.configs.shell.expansion import shown, unset_in
from astrarium.errors import did_you_mean
from astrarium.strategy.options import (
    Option,
    Takes,
    Treatment,
    megatron_version,
    options_by_flag,
)
from astrarium.value import Value

_NEGATIVE: Final = re.compile(r"-\d|-\.\d")
# Options of older versions and of forks, whose meaning is known: dest, value if none follows, and
# what the version described calls it.
_OLDER: Final = {
    "--activations-checkpoint-method": (
        "activations_checkpoint_method",
        None,
        "--recompute-granularity full --recompute-method",
    ),
    "--activations-checkpoint-num-layers": (
        "activations_checkpoint_num_layers",
        None,
        "--recompute-num-layers",
    ),
    "--use-custom-fsdp": ("use_custom_fsdp", "True", "--use-megatron-fsdp"),
    "--fp8-hybrid": ("fp8", "hybrid", "--fp8-format hybrid"),
    "--fp8-e4m3": ("fp8", "e4m3", "--fp8-format e4m3"),
    "--deepspeed": ("deepspeed", "True", ""),
    "--zero-stage": ("zero_stage", None, ""),
}


class Given(Value, frozen=True):
    """An option as it was given."""

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


@dataclass(slots=True)
class Arguments:
    """Options by their name in Megatron's namespace; of one given twice, the last counts."""

    given: dict[str, Given] = field(default_factory=dict)
    older: dict[str, str] = field(default_factory=dict)
    unknown: list[Unknown] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def settings(self) -> dict[str, str]:
        return {**self.older, **{dest: one.setting for dest, one in self.given.items()}}

    def unset(self) -> list[str]:
        """Variables that are never set, though an option that decides something needs them."""
        return [
            f"{one.flag} needs ${name}, which is never set; give it a value in the script"
            for one in self.given.values()
            if one.option.treatment is not Treatment.NEUTRAL
            for name in unset_in(" ".join(one.values))
        ]


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Options of a command line, with what Megatron's parser would complain about."""
    out = Arguments()
    known = options_by_flag()
    at = 0
    while at < len(words):
        word = words[at]
        flag, equals, joined = word.partition("=")
        following = _values(words, at + 1)
        if not _is_flag(word):
            _positional(out, word)
            at += 1
            continue
        option = known.get(flag)
        if option is None:
            _unknown(out, flag, [joined] if equals else following)
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
    for word in words[begin:]:
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
    if names:
        what = f"${names[0]} is never set in the script; nothing is taken for it"
    else:
        what = f"'{shown(word)}' belongs to no option"
    if what not in out.notes:
        out.notes.append(what)


def _unknown(out: Arguments, flag: str, values: Sequence[str]) -> None:
    version = megatron_version()
    older = _OLDER.get(flag)
    if older is not None:
        dest, alone, now = older
        out.older[dest] = alone if alone is not None else " ".join(values[:1])
        hint = f"; it is {now} now" if now else ""
        out.unknown.append(Unknown(flag, f"{NOT_AN_OPTION} Megatron-LM {version}{hint}"))
        return
    hint = did_you_mean(flag, options_by_flag())
    out.unknown.append(Unknown(flag, f"{NOT_AN_OPTION} Megatron-LM {version}{hint}"))


def _keep(out: Arguments, given: Given) -> None:
    before = out.given.get(given.option.dest)
    if before is not None and before.values != given.values:
        out.notes.append(f"{given.flag} is given twice; the last, {given.written}, counts")
    out.given[given.option.dest] = given
    complaint = _complaint(given)
    if complaint:
        out.complaints.append(f"argument {given.flag}: {complaint}")


def _complaint(given: Given) -> str:
    """What argparse would say; what it cannot know of unset variables is left aside."""
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
