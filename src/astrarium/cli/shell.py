"""Shared by all commands: flags from the table, errors as one message and an exit code.

click hands every text on as it was typed; the readers of the table make values of them, which gives
one kind of message for a flag and for a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from astrarium.api.flags import Flag, flags, read
from astrarium.cli import INTERRUPTED
from astrarium.errors import AstrariumError

ARGUMENTS = "astrarium.arguments"  # where the context keeps the command line as typed
SETTINGS = {"help_option_names": ["-h", "--help"]}


class ShellCommand(click.Command):
    """A command whose errors for the user become a message on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except AstrariumError as error:
            print(f"Error: {error}", file=sys.stderr)
            raise click.exceptions.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


class CommandGroup(click.Group):
    """Commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            alike = get_close_matches(args[0], self.list_commands(ctx))
            hint = f" Did you mean {', '.join(map(repr, alike))}?" if alike else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None


class Commands(CommandGroup):
    """A group whose commands are modules of a package, each loaded when it is asked for."""

    def __init__(self, package: str, modules: Mapping[str, str], **settings: Any) -> None:  # noqa: ANN401
        super().__init__(**settings)
        self._package, self._modules = package, modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in self._modules:
            return None
        module = import_module(f"{self._package}.{self._modules[name]}")
        command: click.Command = getattr(module, name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta.setdefault(ARGUMENTS, tuple(args))
        return super().parse_args(ctx, args)


def command(
    *tables: str, group: click.Group | None = None
) -> Callable[[Callable[..., None]], ShellCommand]:
    """Make a command of a function that takes the context and the values of these flags."""
    table = flags(*tables)

    def made(function: Callable[..., None]) -> ShellCommand:
        def callback(**given: Any) -> None:  # noqa: ANN401
            function(click.get_current_context(), **read(table, given))

        done = ShellCommand(
            function.__name__,
            callback=callback,
            params=[_parameter(name, one) for name, one in table.items()],
            help=function.__doc__,
            context_settings=SETTINGS,
        )
        if group is not None:
            group.add_command(done)
        return done

    return made


class _AsTyped(click.types.UnprocessedParamType):
    """A value as it was typed; the message on a missing one says what it is."""

    def get_missing_message(
        self,
        param: click.Parameter,
        ctx: click.Context | None = None,
    ) -> str:
        return getattr(param, "help", None) or ""


def _parameter(name: str, flag: Flag) -> click.Parameter:
    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem[str]]:
        if flag.complete is None and not flag.words:
            return [CompletionItem(typed, type="file")]
        return [CompletionItem(value) for value in flag.completed(typed)]

    common: dict[str, Any] = {
        "help": flag.help,
        "required": flag.required,
        "metavar": flag.takes,
        "type": _AsTyped(),
        "shell_complete": complete,
    }
    if flag.is_argument:
        shown = flag.takes if flag.required else f"[{flag.takes}]"
        nargs = -1 if flag.several else 1
        return click.Argument([name], nargs=nargs, **{**common, "metavar": shown})
    spellings = flag.spellings or ("--" + name.replace("_", "-"),)
    if flag.is_switch:
        # A default is worth saying where there is a way to say no.
        default = {"default": flag.default, "show_default": "/" in spellings[0]}
        return click.Option([*spellings, name], is_flag=True, help=flag.help, **default)
    if flag.default is not None:
        common |= {"default": flag.default, "show_default": True}
    return click.Option([*spellings, name], multiple=flag.several, **common)


def typed(ctx: click.Context) -> frozenset[str]:
    """The flags that were typed, and not left at their defaults."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return frozenset(name for name, one in sources.items() if one and one.name == "COMMANDLINE")
