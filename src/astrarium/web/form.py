"""The form of the page: what its fields are called, and in which words messages speak to its user.

`data/form.json` has the words; the table of flags says what a flag takes. `tools/page_types.py`
writes all of it into the sources of the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import field

from astrarium.api.flags import PLAN_FLAGS
from astrarium.errors import Words
from astrarium.value import Value


class FormField(Value, frozen=True):
    """A field of the form; `says` are what its choices are called."""

    label: str
    hint: str = ""
    placeholder: str = ""
    says: dict[str, str] = field(default_factory=dict)


class Form(Value, frozen=True):
    """Groups of fields in the order of the page, and names of inputs in other parts of it."""

    groups: dict[str, dict[str, FormField]]  # the page has places of its own for the first two
    elsewhere: dict[str, str]


FORM: Final = msgspec.json.decode(
    (Path(__file__).parent / "data" / "form.json").read_bytes(), type=Form
)
_FIELDS: Final = {name: field for group in FORM.groups.values() for name, field in group.items()}


def _name(flag: str) -> str:
    elsewhere = FORM.elsewhere.get(flag, flag.replace("_", " "))
    return (_FIELDS[flag].label if flag in _FIELDS else elsewhere).partition(",")[0]


def _value(flag: str, value: str) -> str:
    """A choice as the form calls it; of other values only the place is named."""
    choice = _FIELDS[flag].says.get(value) if flag in _FIELDS else None
    return f"“{_name(flag)}: {choice}”" if choice else f"“{_name(flag)}”"


WORDS: Final = Words(lambda flag: f"“{_name(flag)}”", _value, has_shell=False)


def described() -> list[dict[str, Any]]:
    """The form as the page reads it."""
    return [
        {"title": title, "fields": [_described(*one) for one in group.items()]}
        for title, group in FORM.groups.items()
    ]


def _described(name: str, field: FormField) -> dict[str, Any]:
    flag = PLAN_FLAGS[name]
    choices = {**({} if name == "runtime" else {word: word for word in flag.words}), **field.says}
    found = {
        "name": name,
        "label": field.label,
        "hint": field.hint,
        "placeholder": field.placeholder,
        "lines": flag.several,
        # A choice is always made; what else is left empty has no default to be shown.
        "choices": list(map(list, choices.items())) if _is_choice(name) else [],
        "default": "" if flag.default is None or name == "runtime" else str(flag.default),
    }
    return {key: value for key, value in found.items() if value}


def _is_choice(name: str) -> bool:
    return name == "runtime" or (bool(PLAN_FLAGS[name].words) and name != "region")
