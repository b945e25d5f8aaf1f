"""Variables of a script, and words with their values filled in.

What no line of the script sets is not guessed: it stays in the word as a mark (`unset_in` finds
it), so that whoever needs the value can name the variable, and others need not care. So does what
a condition decides that only the machine knows (`either`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import Final, TypeAlias

from astrarium.configs.shell.arithmetic import UndecidedError, evaluate, number_of
from astrarium.configs.shell.lexer import DEEPEST
from astrarium.configs.shell.nodes import PartKind, Word, WordPart
from astrarium.configs.shell.syntax import Parser
from astrarium.errors import InputError

Held: TypeAlias = "str | list[str] | dict[str, str]"

_MARK: Final = "\0"
_BLANK: Final = "\1"  # in place of a blank inside of a mark
_OR: Final = "\2"  # between the values that a condition decides about
_MARKED: Final = re.compile("\0([^\0]*)\0")
_PARAMETER: Final = re.compile(r"(#|!)?([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
_ALL: Final = ("[@]", "[*]")
_JOINED: Final = re.compile(r"!?(\*|\w+\[\*\])")  # "$*" and "${A[*]}" are one word
_RANGE: Final = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?\}")
_LIST: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
LONGEST_VALUE: Final = 1_000_000
_LONGEST_CUT: Final = 10_000  # letters of a value that is cut or replaced in
_MOST_SHOWN: Final = 60  # letters of a value in a message
_MOST_ITEMS: Final = 10_000
_CUTS: Final = ["##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ",", ":", "@"]
_LARGEST_WHOLE: Final = re.compile(r"\s*(-?)(0[xX][0-9a-fA-F]{1,16}|\d{1,19})\s*")


def unset_in(text: str) -> list[str]:
    """The variables that a value would need, and that nothing sets."""
    return [name.partition(_OR)[0] for name in _MARKED.findall(text)]


def marked(name: str) -> str:
    return f"{_MARK}{name.replace(_MARK, '')}{_MARK}"


def either(name: str, one: str, other: str) -> str:
    """A value that is one of two; `name` says which variable, and what decides."""
    first, second = (shown(text).replace(_OR, " ")[:LONGEST_VALUE] for text in (one, other))
    return f"{_MARK}{name.replace(_MARK, '')}{_OR}{first}{_OR}{second}{_MARK}"


def alternatives(text: str) -> list[str]:
    """The words that conditions decide about, of all marks of a value."""
    found = (name.split(_OR)[1:] for name in _MARKED.findall(text))
    return [word for values in found for value in values for word in value.split()]


def shown(text: str) -> str:
    """A value for a person: unset variables as they were written."""
    return _MARKED.sub(lambda found: _written(found[1]), text)


def _written(name: str) -> str:
    name, *values = name.split(_OR)
    if values:
        one, other = (value.strip()[:_MOST_SHOWN] or "nothing" for value in values)
        return f"<{one} or {other}>"
    return name if name[:1] in "$<" else f"${name}"


class Variables:
    """Variables of a script; `given` fills what is left open, `run` what commands print."""

    def __init__(self, where: str, given: Mapping[str, str] | None = None) -> None:
        self.where, self.given = where, dict(given or {})
        self.values: dict[str, Held] = dict(self.given)
        self.exported: set[str] = set(self.given)
        self.positional: list[str] = []
        self.defaults: set[str] = set()  # variables that nothing sets, so that a default counts
        self.name = where  # $0
        self._depth = 0
        self.run: Callable[[WordPart], str] = unknown_print

    def environment(self) -> dict[str, str]:
        """The environment of a command that is started now."""
        held = ((name, self.values.get(name)) for name in sorted(self.exported))
        return {name: value for name, value in held if isinstance(value, str)}

    def set(self, name: str, value: Held, *, append: bool = False) -> None:
        before = self.values.get(name)
        if append and before is not None:
            if isinstance(before, list):
                value = [*before, *([value] if isinstance(value, str) else value)]
            elif isinstance(value, list):
                value = [str(before), *value]
            elif isinstance(before, str) and isinstance(value, str):
                value = before + value
        if isinstance(value, str) and _MARK in value and name in self.given:
            value = self.given[name]
        size = len(value) if isinstance(value, str) else sum(map(len, value)) + len(value)
        if size > LONGEST_VALUE:
            raise InputError(f"{self.where}: ${name} grows beyond {LONGEST_VALUE:,} letters")
        self.values[name] = value

    def set_element(self, name: str, index: str, value: str) -> None:
        before = self.values.get(name, [])
        if isinstance(before, dict):
            self.values[name] = {**before, index: value}
            return
        elements = [before] if isinstance(before, str) else list(before)
        position = self._whole(index)
        if position is None or not 0 <= position <= _MOST_ITEMS:
            self.values[name] = marked(name)
            return
        elements += [""] * (position + 1 - len(elements))
        elements[position] = value
        self.values[name] = elements

    def text(self, name: str) -> str | None:
        """A scalar, or the first element of an array; None if it is not set."""
        value = self.values.get(name)
        if isinstance(value, dict):
            return value.get("0")
        if isinstance(value, list):
            return value[0] if value else None
        return value

    def words(self, words: Sequence[Word]) -> list[str]:
        """The words of a command, variables split at blanks where they are not quoted."""
        return [text for word in words for one in _braces(word) for text in self.expand(one)]

    def joined(self, parts: Sequence[WordPart]) -> str:
        """The value of an assignment: nothing is split."""
        return "".join(" ".join(self._pieces(part)) for part in parts)

    def expand(self, word: Sequence[WordPart]) -> list[str]:
        words: list[str] = []
        current, begun = "", False
        filled = [part for part in word if part.text or part.kind is not PartKind.TEXT]
        if len(filled) == 1 and filled[0].quoted and not self._pieces(filled[0]):
            return []  # "$@" and "${A[@]}" of nothing are no word
        for part in word:
            pieces = self._pieces(part)
            if part.kind is not PartKind.TEXT and not part.quoted:
                pieces = [word for piece in pieces for word in _split(piece)]
            elif part.quoted:
                begun = begun or part.kind is PartKind.TEXT or bool(pieces)
            for number, piece in enumerate(pieces):
                if number and (begun or current):
                    words.append(current)
                    current, begun = "", part.quoted
                current += piece
                begun = begun or bool(piece)
        return [*words, current] if begun or current else words

    def _pieces(self, part: WordPart) -> list[str]:
        """The text of a part, or the elements of its array."""
        if part.kind is PartKind.TEXT:
            return [part.text]
        if part.kind is PartKind.COMMAND:
            return [self.run(part)]
        if part.kind is PartKind.ARITHMETIC:
            return [self.arithmetic(part.text)]
        pieces = self._parameter(part.text)
        return [" ".join(pieces)] if part.quoted and _JOINED.match(part.text) else pieces

    # ${...}

    def _parameter(self, text: str) -> list[str]:
        found = _PARAMETER.fullmatch(text)
        if found is None:
            return [marked("${" + text + "}")]
        sign, name, index, rest = found[1], found[2], found[3] or "", found[4]
        if text == "#":
            return [str(len(self.positional))]
        if sign == "!":
            return self._indirect(name, index, rest)
        value = self._element(name, index)
        if sign == "#":
            if value is None:
                return ["0"]
            if index in _ALL or name in "@*":
                return [str(len(value))]
            return [marked(name) if _MARK in value[0] else str(len(value[0]))]
        if not rest:
            return [marked(name)] if value is None else value
        return self._changed(name, index, value, rest)

    def _indirect(self, name: str, index: str, rest: str) -> list[str]:
        """`${!NAME}`, and `${!ARRAY[@]}` for its indices."""
        if index in _ALL:
            value = self.values.get(name, [])
            if isinstance(value, dict):
                return list(value)
            return [str(i) for i in range(1 if isinstance(value, str) else len(value))]
        target = self.text(name)
        if target is None or _MARK in target or not re.fullmatch(r"\w+(\[[^\]]*\])?", target):
            return [marked(name)]
        return self._parameter(target + rest)

    def _element(self, name: str, index: str) -> list[str] | None:
        if not name.isidentifier():
            return self._special(name)
        value = self.values.get(name)
        if value is None:
            return [] if index in _ALL else None
        if isinstance(value, dict):
            found = list(value.values()) if index in _ALL else value.get(self._inner(index[1:-1]))
            return [found] if isinstance(found, str) else found
        elements = value if isinstance(value, list) else [value]
        if index in _ALL:
            return elements
        position = self._whole(index[1:-1] or "0")
        if position is None or not -len(elements) <= position < len(elements):
            return None
        return [elements[position]]

    def _special(self, name: str) -> list[str] | None:
        """`$@`, `$1`, `$#`, `$?`."""
        if name.isdigit():
            whole = [self.name, *self.positional]
            return [whole[int(name)]] if int(name) < len(whole) else None
        if name in ("@", "*"):
            return self.positional
        return {"#": [str(len(self.positional))], "?": ["0"]}.get(name)

    def _whole(self, text: str) -> int | None:
        value = self.arithmetic(text)
        return None if _MARK in value else int(value)

    def _changed(self, name: str, index: str, value: list[str] | None, rest: str) -> list[str]:
        """`rest` is what follows the name: a default, a part, a replacement."""
        sign = rest[:2] if rest[0] == ":" and rest[1:2] and rest[1] in "-=+?" else rest[:1]
        empty = not value or (sign.startswith(":") and "".join(value) == "")
        if sign[-1] in "-=+?" and sign != ":":
            return self._with_default(name, value, sign, rest[len(sign) :], empty=empty)
        if value is None:
            return [marked(name)]
        if sign == ":" and (index in _ALL or name in "@*"):
            return self._slice([self.name, *value] if name in "@*" else value, rest[1:])
        if any(_MARK in one or len(one) > _LONGEST_CUT for one in value):
            known = [one for one in value if _MARK not in one]
            return known if known and index in _ALL else [marked(name)]
        return [self._cut(one, rest) for one in value]

    def _with_default(
        self, name: str, value: list[str] | None, sign: str, default: str, *, empty: bool
    ) -> list[str]:
        if sign[-1] == "+":
            return [] if empty else [self._inner(default)]
        if sign[-1] == "?":
            return [marked(name)] if empty else value or []
        if not empty:
            return value or []
        filled = self._inner(default)
        if value is None:
            self.defaults.add(name)
        if sign[-1] == "=":
            self.set(name, filled)
        return [filled]

    def _slice(self, value: list[str], text: str) -> list[str]:
        begin, _, length = text.partition(":")
        first, count = self._whole(begin), self._whole(length) if length else None
        if first is None:
            return [marked("${@:" + text + "}")]
        return value[first : None if count is None else first + count]

    def _cut(self, value: str, rest: str) -> str:
        """A value with a part taken, removed or replaced, or in other letters."""
        sign = next(one for one in (*_CUTS, rest[:1]) if rest.startswith(one))
        argument = rest[len(sign) :]
        if sign in ("^^", "^", ",,", ","):
            change = str.upper if sign[0] == "^" else str.lower
            return change(value) if len(sign) == 2 else change(value[:1]) + value[1:]
        if sign == ":":
            return self._substring(value, argument)
        if sign in ("#", "##", "%", "%%"):
            return _removed(value, sign, self._inner(argument))
        if sign.startswith("/"):
            pattern, _, new = argument.partition("/")
            return _replaced(value, sign, self._inner(pattern), self._inner(new))
        return value if sign == "@" else marked("${..." + rest + "}")

    def _substring(self, value: str, argument: str) -> str:
        begin, _, length = argument.partition(":")
        first, count = self._whole(begin), self._whole(length) if length else len(value)
        if first is None or count is None:
            return marked("${:" + argument + "}")
        first = max(first + len(value), 0) if first < 0 else first
        return value[first : count if count < 0 else first + count]

    def _inner(self, text: str) -> str:
        """A default, which may hold variables and quotes itself."""
        if not re.search(r"[\"'$`\\]", text):
            return text
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(f"{self.where}: defaults nested deeper than {DEEPEST} levels")
        try:
            return self._inner_text(text)
        finally:
            self._depth -= 1

    def _inner_text(self, text: str) -> str:
        if text[:1] == "'" and text[-1:] == "'" and text.count("'") == 2:
            return text[1:-1]
        return self.joined(Parser(re.sub(r'(?<!\\)"', "", text), self.where).quoted_text())

    # $((...))

    def arithmetic(self, text: str) -> str:
        """The value of an expression; a mark where it needs what is not known."""
        filled = (
            self.joined(Parser(text, self.where).quoted_text())
            if re.search(r"[$`]", text)
            else text
        )
        if _MARK in filled:
            return "".join(marked(name) for name in unset_in(filled)[:1])
        try:
            return str(
                evaluate(filled.replace('"', ""), self._number, lambda k, v: self.set(k, str(v)))
            )
        except UndecidedError as error:
            name = str(error)
            known = name.isidentifier() and (name not in self.values)
            return marked(name if known else f"$(({text.strip()}))")

    def _number(self, name: str, depth: int = 0) -> int:
        value = self.text(name)
        if value is None or _MARK in value:
            raise UndecidedError(unset_in(value or "")[0] if value else name)
        found = _LARGEST_WHOLE.fullmatch(value)
        if found:
            return number_of(found[2]) * (-1 if found[1] else 1)
        if value.strip().isidentifier() and depth < 5:
            return self._number(value.strip(), depth + 1)
        if not value.strip():
            return 0
        raise UndecidedError(f"{name} is {value[:_MOST_SHOWN]}")


def unknown_print(part: WordPart) -> str:
    """The mark of what a command prints, where that is not known."""
    return marked(f"$({part.text.strip()[:40]})")


def _removed(value: str, sign: str, pattern: str) -> str:
    """The value without what matches at its beginning (#) or end (%): the least, or the most."""
    lengths = range(len(value) + 1)
    for length in lengths if len(sign) == 1 else reversed(lengths):
        if sign[0] == "#" and fnmatchcase(value[:length], pattern):
            return value[length:]
        if sign[0] == "%" and fnmatchcase(value[len(value) - length :], pattern):
            return value[: len(value) - length]
    return value


def _replaced(value: str, sign: str, pattern: str, new: str) -> str:
    if not pattern:
        return value
    expression = translate(pattern).removesuffix("\\Z").removesuffix("\\z")
    expression = {"/#": "^" + expression, "/%": expression + "$"}.get(sign, expression)
    return re.sub(expression, lambda _: new, value, count=0 if sign == "//" else 1)


def _braces(word: Word) -> list[Word]:
    """`{1..8}` and `{a,b}` as the words they stand for."""
    for number, part in enumerate(word):
        if part.kind is not PartKind.TEXT or part.quoted or "{" not in part.text:
            continue
        found = _RANGE.search(part.text) or _LIST.search(part.text)
        if found is None:
            continue
        items = found[1].split(",") if "," in found[0] else _counted(found)
        before, after = part.text[: found.start()], part.text[found.end() :]
        out: list[Word] = []
        for item in items:
            text = WordPart(PartKind.TEXT, f"{before}{item}{after}")
            out += _braces((*word[:number], text, *word[number + 1 :]))
            if len(out) > _MOST_ITEMS:
                raise InputError(
                    f"{part.text[:40]} stands for more than {_MOST_ITEMS:,} words; write fewer"
                )
        return out
    return [word]


def _counted(found: re.Match[str]) -> list[str]:
    first, last = int(found[1][:18]), int(found[2][:18])
    step = abs(int((found[3] or "1")[:18])) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(numbers) > _MOST_ITEMS:
        raise InputError(f"{found[0]} stands for more than {_MOST_ITEMS:,} words; write fewer")
    return list(map(str, numbers))


def split_words(text: str) -> list[str]:
    """Words as blanks part them; marks are kept whole."""
    return [word for word in _split(text) if word]


def _split(text: str) -> list[str]:
    """Cut at blanks, but not inside a mark; blanks at either end separate words."""
    if _MARK not in text:
        words = text.split()
    else:
        masked = _MARKED.sub(lambda found: re.sub(r"\s", _BLANK, found[0]), text)
        words = [word.replace(_BLANK, " ") for word in masked.split()]
    before = [""] if text[:1].isspace() else []
    after = [""] if text[-1:].isspace() and words else []
    return [*before, *words, *after]


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
    """The common words of two lists, and a mark for those in between."""
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
