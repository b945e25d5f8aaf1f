"""The loop of every driver, and what stands in for a GPU and its kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

PLAIN = (type(None), bool, int, float, str)


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answers requests until there are none; what is raised or exited with is a refusal."""
    channel = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    for line in sys.stdin:
        channel.write(json.dumps(_reply(answer, json.loads(line))) + "\n")
        channel.flush()
    os._exit(0)  # threads of libraries have nothing left to do


def _reply(answer: Callable[[dict[str, Any]], Any], request: dict[str, Any]) -> dict[str, Any]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            return {"result": plain(answer(request))}
    except SystemExit as stop:
        return {"error": f"exit {stop.code}: {printed.getvalue().strip()}"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}" if str(error) else _line_of(error)}


def _line_of(error: Exception) -> str:
    """The line that raised an error without a message."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {last.line}"


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON lacks becomes text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if type(value) in PLAIN else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(one) for one in value]
    return str(value)


def without_kernels(*others: str) -> ModuleType:
    """torch as parsers need it: nothing is compiled, and kernels in Triton can be defined.

    `others` are modules of torch that take seconds to import and that no parser calls.
    """
    import torch
    import torch.utils._triton

    def as_it_is(function: Any = None, **_: Any) -> Any:
        return function if function else as_it_is

    torch.utils._triton.has_triton_package()  # asked once: the truth, before the stand-in comes
    torch.compile = as_it_is
    for name in ("triton", "triton.language", *others):
        stand_in = MagicMock(name=name)
        stand_in.__version__ = "3.9.0"
        sys.modules[name] = stand_in
    return torch
