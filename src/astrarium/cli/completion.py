"""Completion of commands, flags and names by the shell of the user."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

NAME, VARIABLE = "astrarium", "_ASTRARIUM_COMPLETE"
# Where a shell finds the script, and the line of its own file that makes it look there.
PLACES = {
    "bash": (
        ".bash_completions/astrarium.sh",
        ".bashrc",
        "source ~/.bash_completions/astrarium.sh",
    ),
    "zsh": (".zfunc/_astrarium", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/astrarium.fish", "", ""),
}


def _shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in PLACES:
        raise click.ClickException(
            f"completion is for {', '.join(PLACES)}; SHELL is '{shell}', so set it to one of them"
        )
    return shell


def script(command: click.Command) -> str:
    """What the shell of the user has to execute."""
    completion = get_completion_class(_shell())
    assert completion is not None
    return completion(command, {}, NAME, VARIABLE).source()


def install(command: click.Command) -> str:
    """Write the script where the shell finds it; returns what is to be said of it."""
    shell = _shell()
    place, settings, line = PLACES[shell]
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(command) + "\n")
    if settings:
        file = Path.home() / settings
        before = file.read_text() if file.is_file() else ""
        if line not in before:
            file.write_text(f"{before.rstrip()}\n{line}\n".lstrip())
    return f"{shell} completion installed in {path}; it takes effect in new terminals"
