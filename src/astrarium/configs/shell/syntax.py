"""The grammar of shell scripts: from a text to statements, words and their parts.

A parser by recursive descent, as bash has it: keywords count only where a command begins, quotes
nest inside of `$(...)`, texts of `<<EOF` begin on the next line. What variables hold is the
business of `expansion`, what commands do that of `script`.
"""

from __future__ import annotations

import re
from typing import Final

from astrarium.configs.shell import nodes
from astrarium.configs.shell.lexer import WordParser
from astrarium.configs.shell.nodes import PartKind, Simple, Statement, Word, WordPart, plain

_REDIRECTIONS: Final = ("<", ">", ">>", "<<<", "&>", "&>>", ">&", "<&", "<>", ">|")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.:-]*")
_BRACKETS: Final = re.compile(r"[ \t]*\([ \t]*\)")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")
_DELIMITER: Final = re.compile(r"[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([^\s;&|()<>'\"]+))")
# Letters that end words, replaced for a regular expression and put back afterwards.
_AS_TEXT: Final = {ord(letter): 0xE000 + i for i, letter in enumerate("()|<>;&")}
_FROM_TEXT: Final = {0xE000 + i: letter for i, letter in enumerate("()|<>;&")}
DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")
_ENDS: Final = ("then", "else", "elif", "fi", "do", "done", "esac", "}")


def parse(text: str, where: str, line: int = 1) -> tuple[Statement, ...]:
    return Parser(text, where, line).script()


class Parser(WordParser):
    """Cuts a text into statements."""

    def script(self) -> tuple[Statement, ...]:
        body = self._list(())
        if self.at < len(self.text):
            raise self.fail(f"'{self._shown_here()}' has no beginning")
        return body

    def _list(self, ends: tuple[str, ...]) -> tuple[Statement, ...]:
        """Statements up to one of the keywords, a bracket, or the end."""
        out: list[Statement] = []
        while True:
            self._newlines()
            operator = self._operator()
            if self.at >= len(self.text) or operator in (")", ";;", ";&", ";;&"):
                return tuple(out)
            word = self._keyword()
            if word in ends:
                return tuple(out)
            if word in _ENDS:
                raise self.fail(f"'{word}' has no beginning")
            if operator in (";", "&", "|", "&&", "||") or operator == "<(":
                raise self.fail(f"nothing stands before '{operator}'")
            out.append(self._and_or())
            self._blanks()
            if self._operator() in (";", "&"):
                self._take(self._operator())

    def _and_or(self) -> Statement:
        line = self.line
        parts = [("", self._pipeline())]
        self._blanks()
        while (operator := self._operator()) in ("&&", "||"):
            self._take(operator)
            self._newlines()
            parts.append((operator, self._pipeline()))
            self._blanks()
        return parts[0][1] if len(parts) == 1 else nodes.AndOr(line, tuple(parts))

    def _pipeline(self) -> Statement:
        line, negated = self.line, False
        while self._keyword() in ("!", "time"):
            negated ^= self._keyword() == "!"
            self.at += len(self._keyword())
            self._blanks()
        commands = [self._command()]
        self._blanks()
        while (operator := self._operator()) in ("|", "|&"):
            self._take(operator)
            self._newlines()
            commands.append(self._command())
            self._blanks()
        one = len(commands) == 1 and not negated
        return commands[0] if one else nodes.Pipeline(line, tuple(commands), negated)

    def _command(self) -> Statement:
        self._deeper()
        try:
            return self._compound() or self._simple()
        finally:
            self.depth -= 1

    def _compound(self) -> Statement | None:
        line, word = self.line, self._keyword()
        if self.text.startswith("((", self.at):
            text = self._arithmetic(self.at)
            return nodes.Arithmetic(line, text)
        if self._operator() == "(":
            self._take("(")
            body = self._list(())
            self._close(line)
            return self._redirected(nodes.GroupStatement(line, body, own=True))
        readers = {
            "if": self._if,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "[[": self._test,
            "{": self._braces,
            "function": self._function,
        }
        if word in readers:
            return self._redirected(readers[word](line))
        found = _BRACKETS.match(self.text, self.at + len(word))
        if found and _FUNCTION.fullmatch(word):
            self.at = found.end()
            return self._function_body(line, word)
        return None

    def _close(self, line: int) -> None:
        self._newlines()
        if self._operator() != ")":
            raise self.fail("the ( of this line has no )", line)
        self._take(")")

    def _redirected(self, statement: Statement) -> Statement:
        """Redirections behind a block; what a block is given to read belongs to its commands."""
        found = []
        while (one := self._redirection()) is not None:
            found.append(one)
        if not found:
            return statement
        if isinstance(statement, nodes.GroupStatement):
            return nodes.GroupStatement(statement.line, statement.body, statement.own, tuple(found))
        return nodes.GroupStatement(statement.line, (statement,), False, tuple(found))

    def _braces(self, line: int) -> Statement:
        self.at += 1
        body = self._list(("}",))
        self._expect("}", line, "{")
        return nodes.GroupStatement(line, body, own=False)

    def _if(self, line: int) -> Statement:
        branches: list[tuple[tuple[Statement, ...], tuple[Statement, ...]]] = []
        otherwise: tuple[Statement, ...] = ()
        word = "if"
        while word in ("if", "elif"):
            self.at += len(word)
            condition = self._list(("then",))
            self._expect("then", line, "if")
            branches.append((condition, self._list(("elif", "else", "fi"))))
            word = self._keyword()
        if word == "else":
            self.at += 4
            otherwise = self._list(("fi",))
        self._expect("fi", line, "if")
        return nodes.If(line, tuple(branches), otherwise)

    def _for(self, line: int) -> Statement:
        self.at += len(self._keyword())
        self._blanks()
        if self.text.startswith("((", self.at):
            parts = [part.strip() for part in self._arithmetic(self.at).split(";")]
            if len(parts) != 3:
                raise self.fail("for ((...)) has three parts with ; between them", line)
            body = self._body(line)
            return nodes.For(line, "", None, body, (parts[0], parts[1], parts[2]))
        name = self._keyword()
        if not _IDENTIFIER.fullmatch(name):
            raise self.fail("for needs the name of a variable", line)
        self.at += len(name)
        self._newlines()
        words: tuple[Word, ...] | None = None
        if self._keyword() == "in":
            self.at += 2
            words = self._words()
        return nodes.For(line, name, words, self._body(line))

    def _body(self, line: int) -> tuple[Statement, ...]:
        self._blanks()
        if self._operator() == ";":
            self._take(";")
        self._expect("do", line, "loop")
        body = self._list(("done",))
        self._expect("done", line, "loop")
        return body

    def _while(self, line: int) -> Statement:
        until = self._keyword() == "until"
        self.at += 5
        condition = self._list(("do",))
        return nodes.While(line, condition, self._body(line), until)

    def _case(self, line: int) -> Statement:
        self.at += 4
        self._blanks()
        subject = self._word()
        self._expect("in", line, "case")
        branches = []
        self._newlines()
        while self._keyword() != "esac":
            patterns = self._patterns(line)
            body = self._list(("esac",))
            branches.append((patterns, body))
            self._newlines()
            if self._operator() in (";;", ";&", ";;&"):
                self._take(self._operator())
                self._newlines()
            elif self._keyword() != "esac":
                raise self.fail("this case has no esac", line)
        self.at += 4
        return nodes.CaseStatement(line, subject, tuple(branches))

    def _patterns(self, line: int) -> tuple[Word, ...]:
        if self._operator() == "(":
            self._take("(")
        out = []
        while True:
            self._blanks()
            out.append(self._word())
            self._blanks()
            operator = self._operator()
            if operator not in ("|", ")"):
                raise self.fail("a pattern of this case has no )", line)
            self._take(operator)
            if operator == ")":
                return tuple(out)

    def _test(self, line: int) -> Statement:
        self.at += 2
        out: list[Word] = []
        while True:
            self._newlines()
            if self.at >= len(self.text):
                raise self.fail("this [[ has no ]]", line)
            if self._keyword() == "]]":
                self.at += 2
                return nodes.Test(line, tuple(out))
            before = plain(out[-1]) if out else ""
            operator = self._operator()
            if before == "=~":
                out.append(self._pattern_word())
            elif operator:
                self._take(operator)
                out.append((WordPart(PartKind.TEXT, operator),))
            else:
                out.append(self._word())

    def _pattern_word(self) -> Word:
        """A regular expression: brackets and bars belong to it."""
        begin = self.at
        while self.at < len(self.text) and not self.text[self.at].isspace():
            self.at += 1
        inner = Parser(self.text[begin : self.at].translate(_AS_TEXT), self.where, self.line)
        return tuple(
            WordPart(part.kind, part.text.translate(_FROM_TEXT), part.quoted, part.body)
            for part in inner._word()
        )

    def _function(self, line: int) -> Statement:
        self.at += len("function")
        self._blanks()
        name = self._keyword()
        self.at += len(name)
        brackets = _BRACKETS.match(self.text, self.at)
        self.at = brackets.end() if brackets else self.at
        return self._function_body(line, name)

    def _function_body(self, line: int, name: str) -> Statement:
        self._newlines()
        body = self._command()
        if isinstance(body, Simple):
            raise self.fail(f"the function {name} has no body", line)
        return nodes.Function(line, name, body)

    def _simple(self) -> Statement:
        line = self.line
        assignments: list[nodes.Assignment] = []
        words: list[Word] = []
        redirections: list[nodes.Redirection] = []
        while True:
            self._blanks()
            redirected = self._redirection()
            if redirected is not None:
                redirections.append(redirected)
                continue
            if self.at >= len(self.text) or (self._operator() and not self._placeholder()):
                break
            assigned = None
            if not words or plain(words[0]) in DECLARING:
                assigned = self._assignment()
            if assigned is None:
                words.append(self._word())
            else:
                assignments.append(assigned)
        if not (assignments or words or redirections):
            raise self.fail(f"a command is missing before '{self._shown_here()}'")
        return Simple(line, tuple(assignments), tuple(words), tuple(redirections))

    def _assignment(self) -> nodes.Assignment | None:
        found = _ASSIGNED.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        name, index, append = found[1], found[2], bool(found[3])
        if self._operator() == "(":
            self._take("(")
            elements = self._elements(name)
            return nodes.Assignment(name, index, append, (), elements)
        following = self.text[self.at : self.at + 1]
        ends = not following or following.isspace() or following in ";&|)"
        return nodes.Assignment(name, index, append, () if ends else self._word())

    def _elements(self, name: str) -> tuple[Word, ...]:
        line = self.line
        out: list[Word] = []
        while True:
            self._newlines()
            if self._operator() == ")":
                self._take(")")
                return tuple(out)
            if self.at >= len(self.text) or (self._operator() and not self._placeholder()):
                raise self.fail(f"the array {name} is never closed", line)
            out.append(self._word())

    def _words(self) -> tuple[Word, ...]:
        out: list[Word] = []
        while True:
            self._blanks()
            if self.at >= len(self.text) or self._operator():
                return tuple(out)
            out.append(self._word())

    def _redirection(self) -> nodes.Redirection | None:
        self._blanks()
        number = re.compile(r"\d+(?=[<>])|\{\w+\}(?=[<>])").match(self.text, self.at)
        begin, self.at = self.at, number.end() if number else self.at
        operator = self._operator()
        is_process = operator in ("<", ">") and self.text[self.at + 1 : self.at + 2] == "("
        if self._placeholder() or is_process:
            self.at = begin
            return None
        if operator in ("<<", "<<-"):
            return self._announce(operator)
        if operator not in _REDIRECTIONS:
            self.at = begin
            return None
        self._take(operator)
        self._blanks()
        if self.at >= len(self.text) or self._operator() in ("\n", ";", "&", "|", ")"):
            raise self.fail(f"nothing stands behind '{operator}'")
        return nodes.Redirection(operator, self._word(), is_text=operator == "<<<")

    # Texts of <<EOF

    def _announce(self, operator: str) -> nodes.Redirection:
        self._take(operator)
        found = _DELIMITER.match(self.text, self.at)
        if found is None:
            raise self.fail("<< needs the word that ends the text")
        end = found[1] or found[2] or found[3]
        is_literal = bool(found[1] or found[2]) or "\\" in found[0]
        self.at = found.end()
        into: list[WordPart] = []
        self._announced.append((end, operator == "<<-", is_literal, into))
        return nodes.Redirection(operator, into, is_text=True)
