"""Words of a shell script: quotes, comments, line continuations, and where variables stand in them.

Only the grammar is here; what variables hold is the business of `expansion`, what commands do that
of `script`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from astrarium.errors import InputError
from astrarium.value import Value

_OPERATORS: Final = (";;", "&&", "||", "<<<", "<<", ">>", "&>", ">&", "<&")
_OPERATOR_LETTERS: Final = ";&|()<>"
_NAME: Final = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_HEREDOC: Final = re.compile(r"<<-?[ \t]*(['\"\\]?)(\w+)\1")
_ESCAPED_IN_QUOTES: Final = '"\\$`\n'


class PartKind(StrEnum):
    """What a part of a word is."""

    TEXT = "text"
    VARIABLE = "variable"  # what stands between ${ and }, or behind $
    ARITHMETIC = "arithmetic"  # what stands between $(( and ))
    COMMAND = "command"  # what another program would print


class WordPart(Value, frozen=True):
    kind: PartKind
    text: str
    quoted: bool = False


@dataclass(slots=True)
class Token:
    """A word, or an operator (then `operator` names it; a line's end is a newline)."""

    line: int
    parts: list[WordPart] = field(default_factory=list)
    operator: str = ""
    joined: bool = False  # no blank before it

    @property
    def plain(self) -> str:
        """The word, if it is nothing but unquoted text; else ""."""
        if (
            len(self.parts) == 1
            and self.parts[0].kind is PartKind.TEXT
            and not self.parts[0].quoted
        ):
            return self.parts[0].text
        return ""


class Lexer:
    """Cuts a text into tokens."""

    def __init__(self, text: str, where: str, line: int = 1) -> None:
        self.text = text.replace("\r\n", "\n")
        self.where, self.line, self.at = where, line, 0
        self._ends: list[str] = []  # of heredocs whose text begins on the next line

    def fail(self, what: str, line: int) -> InputError:
        return InputError(f"{self.where}:{line}: {what}")

    def tokens(self) -> Iterator[Token]:
        blank = True
        while self.at < len(self.text):
            letter = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at, self.line, blank = self.at + 2, self.line + 1, True
            elif letter == "\n":
                yield Token(self.line, operator="\n")
                self._end_line()
                blank = True
            elif letter.isspace():
                self.at, blank = self.at + 1, True
            elif letter == "#" and blank:
                self.at = self._find("\n")
            elif letter in _OPERATOR_LETTERS:
                yield self._operator(joined=not blank)
                blank = True
            else:
                token = self._word()
                # The number of a stream that is redirected is no word.
                redirected = self.text[self.at : self.at + 1] in ("<", ">") and token.plain
                if not (redirected and token.plain.isdigit()):
                    yield token
                blank = False

    def _find(self, mark: str) -> int:
        found = self.text.find(mark, self.at)
        return len(self.text) if found < 0 else found

    def _end_line(self) -> None:
        """Go to the next line, past texts that were announced by <<."""
        self.at, self.line = self.at + 1, self.line + 1
        while self._ends:
            end = self._find("\n")
            if self.at >= len(self.text):
                break
            line = self.text[self.at : end]
            if line.strip() == self._ends[0]:
                self._ends.pop(0)
            self.at, self.line = end + 1, self.line + 1

    def _operator(self, *, joined: bool) -> Token:
        heredoc = _HEREDOC.match(self.text, self.at)
        if heredoc and not self.text.startswith("<<<", self.at):
            self._ends.append(heredoc[2])
            self.at = heredoc.end()
            return Token(self.line, operator="<<")
        found = next((o for o in _OPERATORS if self.text.startswith(o, self.at)), "")
        found = found or self.text[self.at]
        self.at += len(found)
        return Token(self.line, operator=found, joined=joined)

    def _word(self) -> Token:
        token = Token(self.line)
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter.isspace() or letter in _OPERATOR_LETTERS:
                break
            if self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif letter == "\\":
                token.parts.append(
                    WordPart(PartKind.TEXT, self.text[self.at + 1 : self.at + 2], True)
                )
                self.at += 2
            elif letter == "'":
                token.parts.append(WordPart(PartKind.TEXT, self._single_quoted(), True))
            elif letter == '"':
                token.parts += self._double_quoted()
            elif letter in "$`":
                token.parts.append(self._dollar(quoted=False))
            else:
                self._add_letter(token, letter)
        return token

    def _add_letter(self, token: Token, letter: str) -> None:
        last = token.parts[-1] if token.parts else None
        if last is not None and last.kind is PartKind.TEXT and not last.quoted:
            token.parts[-1] = WordPart(PartKind.TEXT, last.text + letter)
        else:
            token.parts.append(WordPart(PartKind.TEXT, letter))
        self.at += 1

    def _single_quoted(self) -> str:
        begin, line = self.at + 1, self.line
        end = self.text.find("'", begin)
        if end < 0:
            raise self.fail("this ' is never closed", line)
        self.at = end + 1
        self.line += self.text.count("\n", begin, end)
        return self.text[begin:end]

    def _double_quoted(self) -> list[WordPart]:
        line, text = self.line, ""
        parts = [WordPart(PartKind.TEXT, "", True)]
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return [*parts, WordPart(PartKind.TEXT, text, True)]
            if letter in "$`":
                parts += [WordPart(PartKind.TEXT, text, True), self._dollar(quoted=True)]
                text = ""
                continue
            following = self.text[self.at + 1 : self.at + 2]
            if letter == "\\" and following and following in _ESCAPED_IN_QUOTES:
                text += "" if following == "\n" else following
                self.line += following == "\n"
                self.at += 2
                continue
            text += letter
            self.line += letter == "\n"
            self.at += 1
        raise self.fail('this " is never closed', line)

    def _dollar(self, *, quoted: bool) -> WordPart:
        """What begins with $ or `."""
        text, begin = self.text, self.at
        if text[begin] == "`":
            end = text.find("`", begin + 1)
            if end < 0:
                raise self.fail("this ` is never closed", self.line)
            return self._until(end + 1, PartKind.COMMAND, text[begin + 1 : end], quoted)
        if text.startswith("$((", begin):
            end = self._closing(begin + 1, "(", ")")
            return self._until(end, PartKind.ARITHMETIC, text[begin + 3 : end - 2], quoted)
        if text.startswith("$(", begin):
            end = self._closing(begin + 1, "(", ")")
            return self._until(end, PartKind.COMMAND, text[begin + 2 : end - 1], quoted)
        if text.startswith("${", begin):
            end = self._closing(begin + 1, "{", "}")
            return self._until(end, PartKind.VARIABLE, text[begin + 2 : end - 1], quoted)
        name = _NAME.match(text, begin + 1)
        if name is None:
            return self._until(begin + 1, PartKind.TEXT, "$", quoted)
        return self._until(name.end(), PartKind.VARIABLE, name[0], quoted)

    def _until(self, end: int, kind: PartKind, text: str, quoted: bool) -> WordPart:
        self.line += self.text.count("\n", self.at, end)
        self.at = end
        return WordPart(kind, text, quoted)

    def _closing(self, begin: int, opening: str, closing: str) -> int:
        """Where the bracket at `begin` ends, its mate included."""
        depth = 0
        for at in range(begin, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                return at + 1
        raise self.fail(f"this ${opening} is never closed", self.line)
