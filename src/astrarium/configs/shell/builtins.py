"""Commands of the shell itself, as far as variables depend on them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from astrarium.configs.shell.expansion import marked, shown, unset_in
from astrarium.configs.shell.nodes import Simple
from astrarium.configs.values import table

if TYPE_CHECKING:
    from astrarium.configs.shell.script import _Reader

Follow: TypeAlias = "Callable[[_Reader, list[str], int], bool | None]"
UNSURE: Final[Sequence[str]] = table("programs")["unsure"]
SILENT: Final = (*table("programs")["silent"], *UNSURE)
_MOST_NUMBERS: Final = 10_000


def declare(reader: _Reader, one: Simple) -> bool:
    """`export`, `declare`, `local`, `readonly`, with or without values."""
    variables = reader.variables
    words = variables.words(one.words)
    kinds = "".join(word[1:] for word in words[1:] if word.startswith("-"))
    names = [word.partition("=")[0] for word in words[1:] if not word.startswith("-")]
    names += [assignment.name for assignment in one.assignments]
    if words[0] in ("local", "declare", "typeset") and reader.local and "g" not in kinds:
        for name in names:
            reader.local[-1].setdefault(name, variables.values.get(name))
    if "A" in kinds:
        for name in names:
            if not isinstance(variables.values.get(name), dict):
                variables.values[name] = {}
    for assignment in one.assignments:
        reader.assign(assignment)
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):  # export "A=1", export $PAIR
            variables.set(name, value)
    if words[0] == "export" or "x" in kinds:
        variables.exported |= set(names)
    return True


def _echo(reader: _Reader, words: list[str], _: int) -> bool:
    if reader.printed is not None:
        ends = "" if len(words) > 1 and re.fullmatch(r"-[neE]*n[neE]*", words[1]) else "\n"
        rest = words[2:] if len(words) > 1 and re.fullmatch(r"-[neE]+", words[1]) else words[1:]
        reader.printed.append(" ".join(rest) + ends)
    return True


def _printf(reader: _Reader, words: list[str], _: int) -> bool:
    rest = words[1:]
    name = rest[1] if rest[:1] == ["-v"] and len(rest) > 1 else ""
    rest = rest[2:] if name else rest
    if not rest:
        return True
    form = rest[0].replace("\\n", "\n").replace("\\t", "\t")
    values = iter(rest[1:])
    unknown = [found for found in re.findall(r"%[^%]", form) if found not in ("%s", "%d", "%q")]
    if unknown:
        text = marked(f"$(printf {rest[0]})")
    else:
        text = re.sub(r"%[sdq]", lambda _: next(values, ""), form).replace("%%", "%")
        left = list(values)
        if left and form.count("%") == 1:
            text += "".join(re.sub(r"%[sdq]", lambda _, one=one: one, form) for one in left)  # type: ignore[misc]
    if name:
        reader.variables.set(name, text)
    elif reader.printed is not None:
        reader.printed.append(text)
    return True


def _cd(reader: _Reader, words: list[str], _: int) -> bool:
    variables = reader.variables
    named = [word for word in words[1:] if not word.startswith("-")]
    target = named[0] if named else marked("OLDPWD" if "-" in words else "HOME")
    here = _here(reader)
    variables.values["OLDPWD"] = here
    variables.values["PWD"] = posixpath.normpath(posixpath.join(here, target))
    return True


def _here(reader: _Reader) -> str:
    value = reader.variables.text("PWD")
    if value is not None:
        return value
    return str(reader.folder) if reader.folder else marked("PWD")


def _printing(text_of: Callable[[_Reader, list[str]], str | None]) -> Follow:
    """A command that only prints; None: what it prints is not known."""

    def follow(reader: _Reader, words: list[str], _: int) -> bool:
        if reader.printed is not None:
            options = r"-\D.*|--"  # numbers are none
            text = text_of(reader, [one for one in words[1:] if not re.fullmatch(options, one)])
            what = marked(f"$({shown(' '.join(words))[:40]})")
            reader.printed.append(what if text is None else text)
        return True

    return follow


def _path_part(reader: _Reader, named: list[str], cut: Callable[[str], str]) -> str | None:
    if not named or unset_in(" ".join(named)):
        return None
    suffix = named[1] if len(named) > 1 and cut is posixpath.basename else ""
    return cut(named[0].rstrip("/") or "/").removesuffix(suffix) or "."


def _absolute(reader: _Reader, named: list[str]) -> str:
    return posixpath.normpath(posixpath.join(_here(reader), *named[:1]))


def _cat(reader: _Reader, files: list[str]) -> str | None:
    texts = [reader.script.files.get(name) for name in files] if files else [reader.input]
    known = [text for text in texts if text is not None]
    return "".join(known) if len(known) == len(texts) else None


def _sequence(_: _Reader, words: list[str]) -> str | None:
    if not words or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        return None
    first = int(words[0]) if len(words) > 1 else 1
    step = int(words[1]) if len(words) > 2 else 1
    numbers = range(first, int(words[-1]) + (1 if step > 0 else -1), step or 1)
    return "\n".join(map(str, numbers[:_MOST_NUMBERS]))


def _source(reader: _Reader, words: list[str], line: int) -> bool | None:
    name = words[1] if len(words) > 1 else ""
    path = reader.beside(name)
    if path is not None:
        return reader.source(path, words[2:])
    if not re.search(r"activate|conda|bashrc|profile|/etc/", name):
        reader.misses_files = True
    reader.note(line, f"{shown(name)} is not beside the script; what it sets is not known")
    return True


def _unset(reader: _Reader, words: list[str], _: int) -> bool:
    for name in words[1:]:
        reader.variables.values.pop(name, None)
    return True


def _eval(reader: _Reader, words: list[str], line: int) -> bool | None:
    return reader.run(reader.parsed(" ".join(words[1:]), line))


def _exec(reader: _Reader, words: list[str], line: int) -> bool | None:
    """The command takes the place of the shell."""
    if len(words) > 1:
        reader.call(words[1:], line)
        reader.flow = "exit"
    return True


def _set(reader: _Reader, words: list[str], _: int) -> bool:
    if "--" in words:
        reader.variables.positional = words[words.index("--") + 1 :]
    elif len(words) > 1 and words[1][:1] not in "-+":
        reader.variables.positional = words[1:]
    return True


def _shift(reader: _Reader, words: list[str], _: int) -> bool:
    number = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
    has = len(reader.variables.positional)
    if number <= has:
        reader.variables.positional = reader.variables.positional[number:]
    return number <= has


def _leave(flow: str) -> Follow:
    def follow(reader: _Reader, words: list[str], line: int) -> bool:
        reader.flow = flow
        if flow == "exit" and not reader.depends and reader.printed is None:
            reader.script.stopped = reader.script.stopped or f"line {line}"
        return len(words) < 2 or words[1] == "0" or bool(unset_in(words[1]))

    return follow


def _read(reader: _Reader, words: list[str], _: int) -> bool | None:
    """`read NAME`, `read -a ARRAY`, from a text that is known; else it is left open."""
    variables = reader.variables
    names = [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word)]
    whole = "-d" in words
    text = reader.input
    if text is None:
        for name in names:
            variables.set(name, marked(name))
        return None
    if not whole and not text:
        return False
    line = text if whole else text.partition("\n")[0]
    reader.input = "" if whole else text.partition("\n")[2]
    separator = variables.text("IFS")
    if any(re.fullmatch(r"-\w*a", word) for word in words):
        parts = line.split(separator) if separator and separator.strip() else line.split()
        variables.set(names[0] if names else "REPLY", parts)
        return True
    parts = line.split(separator if separator and separator.strip() else None, len(names) - 1)
    for number, name in enumerate(names or ["REPLY"]):
        value = parts[number] if number < len(parts) else ""
        variables.set(name, line.rstrip("\n") if whole else value.strip())
    return True


def _mapfile(reader: _Reader, words: list[str], _: int) -> bool:
    names = [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word)]
    name = names[-1] if names else "MAPFILE"
    text = reader.input
    reader.variables.set(name, [marked(name)] if text is None else text.splitlines())
    return True


def _let(reader: _Reader, words: list[str], _: int) -> bool | None:
    value = "0"
    for word in words[1:]:
        value = reader.variables.arithmetic(word)
    return None if unset_in(value) else value != "0"


def _test(reader: _Reader, words: list[str], _: int) -> bool | None:
    rest = words[1:-1] if words[0] == "[" and words[-1] == "]" else words[1:]
    return reader.conditions.of_texts(rest)


def _getopts(reader: _Reader, words: list[str], _: int) -> bool | None:
    """Options of one letter, as the script was given them."""
    variables = reader.variables
    at = int(variables.text("OPTIND") or 1)
    letters, name = words[1] if len(words) > 1 else "", words[2] if len(words) > 2 else "opt"
    word = variables.positional[at - 1] if at <= len(variables.positional) else ""
    if not re.fullmatch(r"-[A-Za-z0-9].*", word):
        return False
    letter, joined = word[1], word[2:]
    takes = f"{letter}:" in letters
    variables.set(name, letter if letter in letters else "?")
    if takes:
        following = variables.positional[at : at + 1]
        variables.set("OPTARG", joined or (following[0] if following else ""))
    variables.set("OPTIND", str(at + 1 + (takes and not joined)))
    return True


BUILTINS: Final[Mapping[str, Follow]] = {
    "echo": _echo,
    "printf": _printf,
    "cat": _printing(_cat),
    "cd": _cd,
    "pwd": _printing(lambda reader, _: _here(reader)),
    "dirname": _printing(partial(_path_part, cut=posixpath.dirname)),
    "basename": _printing(partial(_path_part, cut=posixpath.basename)),
    "realpath": _printing(_absolute),
    "readlink": _printing(_absolute),
    "source": _source,
    ".": _source,
    "unset": _unset,
    "eval": _eval,
    "exec": _exec,
    "set": _set,
    "shift": _shift,
    "exit": _leave("exit"),
    "return": _leave("return"),
    "break": _leave("break"),
    "continue": _leave("continue"),
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "seq": _printing(_sequence),
    "let": _let,
    "test": _test,
    "[": _test,
    "getopts": _getopts,
    "true": lambda *_: True,
    ":": lambda *_: True,
}
