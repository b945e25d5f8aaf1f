"""What libraries print goes nowhere, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import scipy.optimize
from spmd.test_ratios import lines_of
from spmd_search import transformer

from astrarium.spmd.solve import solve, without_library_output
from astrarium.spmd.solve.quiet import STDOUT
from astrarium.spmd.synthesis.ratios import best_parts


def test_output_of_libraries_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(STDOUT, b"before\n")
    with without_library_output():
        os.write(STDOUT, b"noise\n")
    os.write(STDOUT, b"after\n")
    assert capfd.readouterr().out == "before\nafter\n"


def test_errors_leave_the_output_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), without_library_output():
        raise ValueError("x")
    os.write(STDOUT, b"after\n")
    assert capfd.readouterr().out == "after\n"


def test_what_c_holds_back_is_dropped_and_what_came_before_is_not() -> None:
    """C keeps output to a pipe in a buffer until the end of the process."""
    script = (
        "import ctypes; from astrarium.spmd.solve import without_library_output;"
        "c = ctypes.CDLL(None); c.printf(b'before\\n')\n"
        "with without_library_output(): c.printf(b'noise\\n')\n"
        "c.printf(b'after\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env=environment, timeout=60
    )
    assert done.stdout == b"before\nafter\n"


def noisy(solver: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def solved(*arguments: Any, **options: Any) -> Any:
        os.write(STDOUT, b"noise\n")
        calls.append(solver.__name__)
        return solver(*arguments, **options)

    return solved


@pytest.mark.parametrize("name", ["milp", "linprog"])
def test_no_solver_is_heard(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(scipy.optimize, name, noisy(getattr(scipy.optimize, name), calls))
    best_parts(lines_of([8], [1, 1], [(0, 1.0, 0.0, [1.0, 2.0])]))
    problem = transformer(2)
    fastest = solve(problem)
    solve(replace(problem, room=(0.85 * fastest.bytes[0],)))
    assert set(calls) == {name}
    assert capfd.readouterr().out == ""
