"""What all commands share: values as typed, errors as one message and an exit code.

Flags are read as text and parsed by the package itself, which gives one kind of message for a
flag and for a file, and knows units. typer would run each through pydantic, whose import alone
takes a tenth of a second; `_AsTyped` stands in for that step.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from astrarium.errors import AstrariumError

ARGUMENTS = "astrarium.arguments"  # where the context keeps the command line as typed


class _AsTyped:
    """Hands a parameter's text on; has the interface of typer's converters."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401
        return () if value is None and (param.multiple or param.nargs == -1) else value


_AS_TYPED = _AsTyped()


def _as_typed(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        parameter._runtime_param = _AS_TYPED
    return parameters


class ShellCommand(TyperCommand):
    """A command whose errors for the user become a message on stderr and an exit code."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        return _as_typed(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except AstrariumError as error:
            print(f"Error: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


class CommandGroup(TyperGroup):
    """A group of commands; remembers the command line for messages that repeat it."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        return _as_typed(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        ctx.meta.setdefault(ARGUMENTS, tuple(args))
        return super().parse_args(ctx, args)


def typed(ctx: typer.Context) -> frozenset[str]:
    """The flags that were typed, and not left at their defaults."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return frozenset(name for name, one in sources.items() if one and one.name == "COMMANDLINE")
