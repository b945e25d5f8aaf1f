"""What two ways of a script leave different stays open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from astrarium.configs.shell.expansion import Held, Variables, either

_WORDS: Final = re.compile(r"\S+|\s+")


def merged(variables: Variables, one: Mapping[str, Held], why: str) -> dict[str, Held]:
    """Variables after one of two ways; the other one's are those that `variables` holds."""
    other = variables.values
    out: dict[str, Held] = {}
    for name in {**one, **other}:
        first, second = one.get(name), other.get(name)
        if first == second and first is not None:
            out[name] = first
        elif name in variables.given:
            out[name] = variables.given[name]
        elif isinstance(first, list) or isinstance(second, list):
            lists = [held if isinstance(held, list) else [] for held in (first, second)]
            out[name] = _merged_words(lists, f"{name}, by {why}")
        else:
            texts = [held if isinstance(held, str) else "" for held in (first, second)]
            parts = [_WORDS.findall(text) for text in texts]
            out[name] = "".join(_merged_words(parts, f"{name}, by {why}"))
    return out


def _merged_words(lists: Sequence[list[str]], why: str) -> list[str]:
    """What two lists have in common, and a mark for what is between."""
    one, other = lists
    shorter = min(len(one), len(other))
    begin = 0
    while begin < shorter and one[begin] == other[begin]:
        begin += 1
    end = 0
    while end < shorter - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    between = [words[begin : len(words) - end] for words in (one, other)]
    kept = one[len(one) - end :] if end else []
    mark = either(why, *(" ".join(filter(str.strip, words)) for words in between))
    ends = [words for words in between if words]
    before = [" "] if any(words[0].isspace() for words in ends) else []
    after = [" "] if any(words[-1].isspace() for words in ends) else []
    return [*one[:begin], *before, mark, *after, *kept]
