"""Words of shell scripts: quotes, variables, substitutions, and blanks between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from astrarium.configs.shell.nodes import PartKind, Statement, Word, WordPart
from astrarium.errors import InputError

LARGEST_SCRIPT: Final = 1_000_000  # letters
DEEPEST: Final = 60  # blocks and substitutions inside of each other
_OPERATORS: Final = re.compile(
    r";;&|;;|;&|&&|\|\||\|&|<<<|<<-|<<|>>|&>>|&>|>&|<&|<>|>\||[;&|()<>\n]"
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
# A mark of `expansion`, in a text that the script puts together, is a letter to the grammar.
_PLAIN: Final = re.compile("(?:[^\\s;&|()<>\"'`$\\\\\0]|\0[^\0]*\0)+")
# What templates leave to the user: <path to vocabulary>. bash would take it for redirections.
PLACEHOLDER: Final = re.compile(r"<[A-Za-z][\w ,./'():-]*[\w)]>")
_IN_QUOTES: Final = re.compile('(?:[^"\\\\$`\0]|\0[^\0]*\0)+')
_IN_TEXTS: Final = re.compile("(?:[^\\\\$`\0]|\0[^\0]*\0)+")
_ESCAPED_IN_QUOTES: Final = '"\\$`\n'
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class WordParser:
    """Cuts a text into words; what commands are is the business of `syntax`."""

    def __init__(self, text: str, where: str, line: int = 1) -> None:
        if len(text) > LARGEST_SCRIPT:
            raise InputError(
                f"{where}: {len(text):,} letters; at most {LARGEST_SCRIPT:,} are read as a script"
            )
        self.text = text.replace("\r\n", "\n")
        self.where, self.line, self.at, self.depth = where, line, 0, 0
        self._announced: list[tuple[str, bool, bool, list[WordPart]]] = []  # texts of <<

    def fail(self, what: str, line: int | None = None) -> InputError:
        return InputError(f"{self.where}:{line or self.line}: {what}")

    def _shown_here(self) -> str:
        return self.text[self.at : self.at + 20].split("\n")[0]

    # Blanks, operators, keywords

    def _blanks(self) -> None:
        """Go past blanks, comments and continued lines."""
        text = self.text
        while self.at < len(text):
            letter = text[self.at]
            if letter in " \t\r\f\v":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif letter == "#" and (self.at == 0 or text[self.at - 1] in " \t\r\n;&|()"):
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def _operator(self) -> str:
        """The operator here, which is not taken yet; "" if there is none."""
        found = _OPERATORS.match(self.text, self.at)
        return found[0] if found else ""

    def _take(self, operator: str) -> None:
        self.at += len(operator)
        if operator == "\n":
            self.line += 1
            self._read_announced()

    def _newlines(self) -> None:
        """Go past blanks and ends of lines."""
        self._blanks()
        while self._operator() == "\n":
            self._take("\n")
            self._blanks()

    def _keyword(self) -> str:
        """The plain word that begins here; "" if it is quoted or goes on."""
        found = _PLAIN.match(self.text, self.at)
        if found is None or self.text[found.end() : found.end() + 1] in ('"', "'", "$", "`", "\\"):
            return ""
        return found[0]

    def _expect(self, keyword: str, line: int, what: str) -> None:
        self._newlines()
        if self._keyword() != keyword:
            raise self.fail(f"this {what} has no {keyword}", line)
        self.at += len(keyword)

    def script(self) -> tuple[Statement, ...]:
        """All statements; of a parser of statements."""
        raise NotImplementedError

    def _list(self, ends: tuple[str, ...]) -> tuple[Statement, ...]:
        """Statements up to one of the keywords; of a parser of statements."""
        raise NotImplementedError

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fail(f"nested deeper than {DEEPEST} levels")

    def _placeholder(self) -> re.Match[str] | None:
        return PLACEHOLDER.match(self.text, self.at)

    def _read_announced(self) -> None:
        while self._announced:
            end, strips, is_literal, into = self._announced.pop(0)
            lines = []
            first = self.line
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                line = line.lstrip("\t") if strips else line
                self.at, self.line = min(stop + 1, len(self.text)), self.line + 1
                if line == end:
                    break
                lines.append(line)
            body = "".join(f"{line}\n" for line in lines)
            if is_literal:
                into.append(WordPart(PartKind.TEXT, body, True))
            else:
                into += type(self)(body, self.where, first).quoted_text()

    def quoted_text(self) -> Word:
        """The whole text as if it stood in double quotes."""
        return tuple(self._double_quoted(""))

    def _word(self) -> Word:
        parts: list[WordPart] = []
        begin = self.at
        while self.at < len(self.text):
            more = self._plain_part(parts) or self._special_part(parts)
            if more is None:
                break
            parts += more
        if self.at == begin:
            raise self.fail(f"a word is missing before '{self._shown_here()}'")
        return tuple(parts)

    def _plain_part(self, parts: Sequence[WordPart]) -> list[WordPart] | None:
        """Unquoted text, or a line that goes on."""
        found = _PLAIN.match(self.text, self.at)
        if found:
            self.at = found.end()
            return [WordPart(PartKind.TEXT, found[0])]
        if not self.text.startswith("\\\n", self.at):
            return None
        self.at, self.line = self.at + 2, self.line + 1
        if not parts:
            self._blanks()
        return [WordPart(PartKind.TEXT, "")]

    def _special_part(self, parts: Sequence[WordPart]) -> list[WordPart] | None:
        """Quotes, what $ begins, and what only looks like an operator; None: the word ends."""
        text, letter = self.text, self.text[self.at]
        if letter == "\\":
            self.at += 2
            return [WordPart(PartKind.TEXT, text[self.at - 1 : self.at], True)]
        if letter == "'":
            return [WordPart(PartKind.TEXT, self._single_quoted(), True)]
        if letter == '"':
            self.at += 1
            return self._double_quoted('"')
        if letter in "$`":
            return [self._dollar(quoted=False)]
        if placeholder := self._placeholder():
            self.at = placeholder.end()
            return [WordPart(PartKind.TEXT, f"\0{placeholder[0]}\0", True)]
        if letter in "<>" and text[self.at + 1 : self.at + 2] == "(":
            self.at += 1
            return [self._substitution(quoted=True)]
        if letter == "(" and parts and parts[-1].text[-1:] in ("@", "?", "+", "*", "!"):
            begin, self.at = self.at, self._bracket(self.at, "(", ")")  # such as +([0-9])
            return [WordPart(PartKind.TEXT, text[begin : self.at])]
        return None

    def _single_quoted(self) -> str:
        begin, line = self.at + 1, self.line
        end = self.text.find("'", begin)
        if end < 0:
            raise self.fail("this ' is never closed", line)
        self.at = end + 1
        self.line += self.text.count("\n", begin, end)
        return self.text[begin:end]

    def _double_quoted(self, end: str) -> list[WordPart]:
        """The parts up to the quote, or up to the end of the text."""
        line = self.line
        parts = [WordPart(PartKind.TEXT, "", True)]
        ordinary = _IN_QUOTES if end else _IN_TEXTS
        while self.at < len(self.text):
            found = ordinary.match(self.text, self.at)
            if found:
                self.line += found[0].count("\n")
                self.at = found.end()
                parts.append(WordPart(PartKind.TEXT, found[0], True))
                continue
            letter = self.text[self.at]
            if letter == end:
                self.at += 1
                return parts
            if letter in "$`":
                parts.append(self._dollar(quoted=True))
                continue
            following = self.text[self.at + 1 : self.at + 2]
            escaped = following and following in _ESCAPED_IN_QUOTES
            shown = "" if following == "\n" else following
            parts.append(WordPart(PartKind.TEXT, shown if escaped else "\\" + following, True))
            self.line += following == "\n"
            self.at += 2
        if end:
            raise self.fail(f"this {end} is never closed", line)
        return parts

    def _dollar(self, *, quoted: bool) -> WordPart:
        """A part of a word that begins with $ or `."""
        text, begin = self.text, self.at
        if text[begin] == "`":
            return self._backquoted(quoted=quoted)
        if text.startswith("$((", begin) and (end := self._arithmetic_end(begin + 1)):
            return self._until(end, PartKind.ARITHMETIC, text[begin + 3 : end - 2], quoted)
        if text.startswith("$(", begin):
            self.at += 1
            return self._substitution(quoted=quoted)
        if text.startswith("${", begin):
            end = self._bracket(begin + 1, "{", "}")
            return self._until(end, PartKind.VARIABLE, text[begin + 2 : end - 1], quoted)
        if text.startswith("$'", begin) and not quoted:
            self.at += 1
            return self._escaped_quotes()
        if text.startswith('$"', begin) and not quoted:
            return self._until(begin + 1, PartKind.TEXT, "", quoted)
        name = _NAME.match(text, begin + 1)
        if name is None:
            return self._until(begin + 1, PartKind.TEXT, "$", True)
        return self._until(name.end(), PartKind.VARIABLE, name[0], quoted)

    def _escaped_quotes(self) -> WordPart:
        found = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if found is None:
            raise self.fail("this $' is never closed")
        inner = re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[0]), found[1])
        return self._until(found.end(), PartKind.TEXT, inner, True)

    def _substitution(self, *, quoted: bool) -> WordPart:
        """`(commands)` behind $, < or >."""
        line, begin = self.line, self.at + 1
        self.at += 1
        self._deeper()
        body = self._list(())
        self.depth -= 1
        self._newlines()
        if self._operator() != ")":
            raise self.fail("this $( is never closed", line)
        self._take(")")
        return WordPart(PartKind.COMMAND, self.text[begin : self.at - 1], quoted, body)

    def _backquoted(self, *, quoted: bool) -> WordPart:
        found = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self.text, self.at)
        if found is None:
            raise self.fail("this ` is never closed")
        inner = re.sub(r"\\([`$\\])", r"\1", found[1])
        parser = type(self)(inner, self.where, self.line)
        parser.depth = self.depth
        parser._deeper()
        body = parser.script()
        part = self._until(found.end(), PartKind.COMMAND, inner, quoted)
        return WordPart(part.kind, part.text, quoted, body)

    def _until(self, end: int, kind: PartKind, text: str, quoted: bool) -> WordPart:
        self.line += self.text.count("\n", self.at, end)
        self.at = end
        return WordPart(kind, text, quoted)

    def _arithmetic(self, begin: int) -> str:
        end = self._arithmetic_end(begin)
        if end is None:
            raise self.fail("this (( is never closed")
        text = self.text[begin + 2 : end - 2]
        self._until(end, PartKind.ARITHMETIC, text, False)
        return text

    def _arithmetic_end(self, begin: int) -> int | None:
        """The end of the (( at `begin`; None if other brackets close it."""
        end = self._bracket(begin, "(", ")")
        inner = self._bracket(begin + 1, "(", ")")
        return end if inner == end - 1 else None

    def _bracket(self, begin: int, opening: str, closing: str) -> int:
        """Behind the mate of the bracket at `begin`; those in quotes do not count."""
        depth, at, text = 0, begin, self.text
        interesting = re.compile(rf"[\\\"'{re.escape(opening + closing)}]|\0[^\0]*\0")
        in_quotes = False
        while found := interesting.search(text, at):
            letter, at = found[0], found.end()
            if letter == "\\":
                at += 1
            elif letter == '"':
                in_quotes = not in_quotes
            elif letter == "'" and not in_quotes:
                end = text.find("'", at)
                at = end + 1 if end >= 0 else at
            elif letter in opening + closing:
                depth += 1 if letter == opening else -1
                if depth == 0:
                    return at
        raise self.fail(f"this {'$' * (opening == '{')}{opening} is never closed")
