"""What a shell script does with its variables, up to the commands it starts.

Assignments, arrays, `if` and `case` with plain tests, functions, the first turn of a `for`, and
`eval` are followed. What depends on the machine (loops with conditions, other programs, files that
are sourced) is left out, with a note. Nothing is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from astrarium.configs.shell.expansion import Variables, unset_in
from astrarium.configs.shell.syntax import Lexer, Token
from astrarium.errors import InputError
from astrarium.value import Value

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")
_SILENT: Final = ("echo", "printf", "set", "cd", "mkdir", "shift", "trap", "ulimit", "module", ":")
_SOURCING: Final = ("source", ".")
_TESTS: Final = ("[", "[[", "test")
_SEPARATORS: Final = ("\n", ";", "&", ";;", "|", "&&", "||", "(", ")")
_REDIRECTIONS: Final = ("<", ">", ">>", "<<<", "&>", ">&", "<&")
_OPENING: Final = ("if", "case", "do")  # of blocks that end in fi, esac, done
_CLOSING: Final = ("fi", "esac", "done")
_DEEPEST: Final = 20
_NUMERIC: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}


class Command(Value, frozen=True):
    """A command with its variables filled in."""

    words: tuple[str, ...]
    line: int


@dataclass(slots=True)
class Script:
    """What a script sets and starts."""

    variables: Variables
    environment: dict[str, str | list[str]] = field(default_factory=dict)  # of single commands
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_script(text: str, where: str, known: Mapping[str, str] | None = None) -> Script:
    """Follow a script; `known` are variables that something else sets."""
    script = Script(Variables(where))
    script.variables.values.update(known or {})
    _Reader(script, where).run(list(Lexer(text, where).tokens()), 0)
    return script


class _Reader:
    def __init__(self, script: Script, where: str) -> None:
        self.script, self.where = script, where
        self.variables = script.variables
        self.functions: dict[str, list[Token]] = {}

    def note(self, line: int, what: str) -> None:
        note = f"{self.where}:{line}: {what}"
        if note not in self.script.notes:
            self.script.notes.append(note)

    def run(self, tokens: Sequence[Token], depth: int) -> None:
        """Follow statements one after another."""
        if depth > _DEEPEST:
            raise InputError(f"{self.where}: nested deeper than {_DEEPEST} levels")
        at = 0
        while at < len(tokens):
            token = tokens[at]
            word = token.plain
            if token.operator or word in ("{", "}", "then", "!", "time"):
                at += 1
            elif word == "if":
                at = self._if(tokens, at, depth)
            elif word == "case":
                at = self._case(tokens, at, depth)
            elif word in ("for", "while", "until"):
                at = self._loop(tokens, at, depth)
            elif self._defines(tokens, at):
                at = self._function(tokens, at)
            else:
                at = self._simple(tokens, at, depth)

    def _if(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        end = _end_of(tokens, at)
        branches = _branches(tokens[at + 1 : end])
        for condition, body in branches:
            met = True if condition is None else self._condition(condition)
            if met is None:
                line = tokens[at].line
                self.note(line, "this condition depends on the machine; taken as not met")
            if met:
                self.run(body, depth + 1)
                break
        return end + 1

    def _case(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        end = _end_of(tokens, at)
        subject = " ".join(self.variables.expand(tokens[at + 1])) if at + 1 < end else ""
        if unset_in(subject):
            name = unset_in(subject)[0]
            self.note(tokens[at].line, f"${name} is never set, so no case is taken")
            return end + 1
        for patterns, body in _cases(tokens[at + 2 : end]):
            texts = [" ".join(self.variables.expand(pattern)) for pattern in patterns]
            if any(fnmatchcase(subject, text) for text in texts):
                self.run(body, depth + 1)
                break
        return end + 1

    def _loop(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        """The first turn of a `for`; other loops are left out."""
        end = _end_of(tokens, at)
        line = tokens[at].line
        begin = next((i for i in range(at, end) if tokens[i].plain == "do"), end)
        head = [t for t in tokens[at + 1 : begin] if not t.operator]
        values = self.variables.words(head[2:]) if tokens[at].plain == "for" else []
        if not values:
            self.note(line, "this loop depends on the machine and is left out")
            return end + 1
        if len(values) > 1:
            self.note(line, f"of this loop the first turn is taken: {head[0].plain}={values[0]}")
        self.variables.set(head[0].plain, values[0])
        self.run(tokens[begin + 1 : end], depth + 1)
        return end + 1

    def _defines(self, tokens: Sequence[Token], at: int) -> bool:
        if tokens[at].plain == "function":
            return True
        following = [t.operator for t in tokens[at + 1 : at + 3]]
        named = bool(tokens[at].plain) and not _ASSIGNED.match(tokens[at].plain)  # not A=()
        return named and following == ["(", ")"] and tokens[at + 1].joined

    def _function(self, tokens: Sequence[Token], at: int) -> int:
        name = tokens[at + (tokens[at].plain == "function")].plain if at + 1 < len(tokens) else ""
        begin = next((i for i in range(at, len(tokens)) if tokens[i].plain == "{"), len(tokens))
        depth, end = 0, begin
        for end in range(begin, len(tokens)):
            depth += (tokens[end].plain == "{") - (tokens[end].plain == "}")
            if depth == 0:
                break
        self.functions[name] = list(tokens[begin + 1 : end])
        return end + 1

    def _simple(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        """Assignments and one command."""
        line, before = tokens[at].line, dict(self.variables.values)
        words: list[Token] = []
        while at < len(tokens) and tokens[at].operator not in _SEPARATORS:
            token = tokens[at]
            if token.operator in _REDIRECTIONS:
                at += 2
                continue
            if token.operator:
                at += 1
                continue
            assigned = _ASSIGNED.match(token.parts[0].text) if token.parts else None
            leads = not words or words[0].plain in _DECLARING
            if assigned and leads and not token.parts[0].quoted:
                at = self._assign(tokens, at, assigned)
                continue
            words.append(token)
            at += 1
        met = True if not words else self._with(before, words, line, depth)
        return self._after(tokens, at, met)

    def _with(
        self, before: dict[str, str | list[str]], words: Sequence[Token], line: int, depth: int
    ) -> bool | None:
        """A command behind assignments, which are made for it alone."""
        values = self.variables.values
        changed = {name: value for name, value in values.items() if before.get(name) != value}
        if changed and words[0].plain not in _DECLARING:
            self.script.environment |= changed
            self.variables.values = before
        return self._command(words, line, depth)

    def _after(self, tokens: Sequence[Token], at: int, met: bool | None) -> int:
        """Skip what && or || behind a test forbids; what is unknown counts as not met."""
        operator = tokens[at].operator if at < len(tokens) else ""
        if operator not in ("&&", "||") or (met is True and operator == "&&"):
            return at
        if operator == "||" and met is False:
            return at
        at += 1
        while at < len(tokens) and tokens[at].operator not in ("\n", ";", "&&", "||"):
            at += 1
        return at

    def _assign(self, tokens: Sequence[Token], at: int, assigned: re.Match[str]) -> int:
        token, name, append = tokens[at], assigned[1], bool(assigned[2])
        rest = token.parts[0].text[assigned.end() :]
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        opens = following is not None and following.operator == "(" and following.joined
        if opens and not rest and len(token.parts) == 1:
            return self._assign_array(tokens, at, name, append=append)
        first = type(token.parts[0])(token.parts[0].kind, rest, token.parts[0].quoted)
        value = self.variables.joined([first, *token.parts[1:]])
        self.variables.set(name, value, append=append)
        return at + 1

    def _assign_array(self, tokens: Sequence[Token], at: int, name: str, *, append: bool) -> int:
        end = next((i for i in range(at + 2, len(tokens)) if tokens[i].operator == ")"), None)
        if end is None:
            raise InputError(f"{self.where}:{tokens[at].line}: the array {name} is never closed")
        elements = self.variables.words([t for t in tokens[at + 2 : end] if not t.operator])
        if append and name not in self.variables.values:
            append = False
        if append and isinstance(self.variables.values[name], str):
            self.variables.values[name] = [str(self.variables.text(name))]
        self.variables.set(name, elements, append=append)
        return end + 1

    def _command(self, tokens: Sequence[Token], line: int, depth: int) -> bool | None:
        """Follow a command; whether it succeeds, which is taken for granted unless it is a test."""
        head = tokens[0].plain
        if head in _TESTS:
            return self._test(tokens)
        words = self.variables.words(tokens)
        if not words or head in _DECLARING or head in _SILENT:
            return True
        if head in _SOURCING:
            self.note(line, f"{' '.join(words[1:2])} is not read; what it sets is not known")
        elif head == "unset":
            for name in words[1:]:
                self.variables.values.pop(name, None)
        elif head == "eval":
            inner = Lexer(" ".join(words[1:]), self.where, line)
            self.run(list(inner.tokens()), depth + 1)
        elif head in self.functions:
            self.run(self.functions[head], depth + 1)
        else:
            self.script.commands.append(Command(tuple(words), line))
        return True

    def _condition(self, tokens: Sequence[Token]) -> bool | None:
        """Whether the condition of an `if` holds; None where the machine decides."""
        words = [t for t in tokens if not t.operator]
        joins = {t.operator for t in tokens if t.operator in ("&&", "||", "|")}
        if not words or joins or words[0].plain not in (*_TESTS, "!"):
            return None
        if words[0].plain == "!":
            inner = self._test(words[1:])
            return None if inner is None else not inner
        return self._test(words)

    def _test(self, tokens: Sequence[Token]) -> bool | None:
        words = [" ".join(self.variables.expand(token)) for token in tokens[1:]]
        words = words[:-1] if words and words[-1] in ("]", "]]") else words
        if words[:1] == ["!"]:
            inner = _verdict(words[1:])
            return None if inner is None else not inner
        return _verdict(words)


def _verdict(words: Sequence[str]) -> bool | None:
    """A test of texts or numbers; None for files and variables that are not known."""
    match words:
        case [text]:
            return None if unset_in(text) else bool(text)
        case ["-z" | "-n" as sign, text]:
            empty = not text or bool(unset_in(text))  # what nothing sets is empty
            return empty if sign == "-z" else not empty
        case [left, "=" | "==" | "!=" as sign, right]:
            if unset_in(left + right):
                return None
            return fnmatchcase(left, right) == (sign != "!=")
        case [left, sign, right] if sign in _NUMERIC:
            if not all(re.fullmatch(r"-?\d{1,18}", side) for side in (left, right)):
                return None
            return _NUMERIC[sign](int(left), int(right))
    return None


def _end_of(tokens: Sequence[Token], begin: int) -> int:
    """Where the block that begins here ends: its fi, esac or done."""
    depth = 0
    for at in range(begin, len(tokens)):
        word = tokens[at].plain
        depth += word in _OPENING
        depth -= word in _CLOSING
        if depth == 0 and word in _CLOSING:
            return at
    return len(tokens)


def _branches(
    tokens: Sequence[Token],
) -> list[tuple[Sequence[Token] | None, Sequence[Token]]]:
    """Conditions and bodies of an `if`; the condition of `else` is None."""
    out: list[tuple[Sequence[Token] | None, Sequence[Token]]] = []
    depth, begin, then = 0, 0, -1
    condition: Sequence[Token] | None = ()
    for at, token in enumerate(tokens):
        word = token.plain
        depth += word in _OPENING
        depth -= word in _CLOSING
        if depth:
            continue
        if word == "then" and then < 0:
            condition, then = tokens[begin:at], at
        elif word in ("elif", "else"):
            out.append((condition, tokens[then + 1 : at]))
            begin, then = at + 1, at if word == "else" else -1
            condition = None
    return [*out, (condition, tokens[then + 1 :])]


def _cases(tokens: Sequence[Token]) -> list[tuple[list[Token], list[Token]]]:
    """Patterns and bodies of a `case`."""
    out: list[tuple[list[Token], list[Token]]] = []
    depth, in_body = 0, False
    patterns: list[Token] = []
    body: list[Token] = []
    for token in tokens:
        if not in_body:
            if token.operator == ")":
                in_body = True
            elif not token.operator and token.plain != "in":
                patterns.append(token)
            continue
        depth += token.plain in _OPENING
        depth -= token.plain in _CLOSING
        if token.operator == ";;" and depth == 0:
            out.append((patterns, body))
            patterns, body, in_body = [], [], False
        else:
            body.append(token)
    return [*out, (patterns, body)] if patterns else out
