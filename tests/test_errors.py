"""Errors: exit codes and hints."""

from __future__ import annotations

import pytest

from astrarium.errors import AstrariumError, InputError, NoFeasiblePlanError, did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h10", " (did you mean 'H100'?)"),
        ("H1OO", ""),
        ("A-100", " (did you mean 'A100'?)"),
        ("llama", ""),
        ("", ""),
    ],
)
def test_hints(name: str, hint: str) -> None:
    assert did_you_mean(name, ["H100", "A100", "L40S"]) == hint


def test_exit_codes() -> None:
    assert InputError("x").exit_code == 2
    assert NoFeasiblePlanError("x").exit_code == 1
    assert issubclass(InputError, AstrariumError)
    assert issubclass(InputError, ValueError)


def test_beginnings_come_before_likeness() -> None:
    known = ["LaMDA-137B", "Llama-7B", "Llama-13B", "Llama-33B", "Llama-65B"]
    assert did_you_mean("llama", known) == " (did you mean 'Llama-7B', 'Llama-13B' or 'Llama-33B'?)"
    assert did_you_mean("llama-6", known) == " (did you mean 'Llama-65B'?)"
