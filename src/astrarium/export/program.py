"""What a node runs, and how it is started: the two halves of an exported folder.

Training software gives a `Program`. A launcher turns one into a `Launch`: files that start it on
every node, and the command that the user types.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from astrarium.value import Value

Files = Mapping[str, str]  # name, relative to the folder -> text


class Data(Value, frozen=True):
    """Arguments that say what is read in training.

    `generated` needs no files. `own` replaces it if the environment variable `variable` is set;
    its words are those of a shell and may refer to other variables. `otherwise` says what is read
    without it.
    """

    generated: tuple[str, ...] = ()
    variable: str = ""
    own: tuple[str, ...] = ()
    otherwise: str = "Generated data"


class RankProgram(Value, frozen=True):
    """What every process runs.

    `script` is what follows `torchrun ...`, as words of a shell: `"$MEGATRON_PATH"/pretrain_gpt.py`
    or `-m torchtitan.train`. `arguments` are plain words. `variables` must be set by the user; each
    has a description. `checkpoints` are words of a shell that keep checkpoints and go on from the
    last one, for plans whose nodes may be taken away. Scripts hand what they are given themselves
    on, behind all arguments.
    """

    software: str  # with its version: "Megatron-LM 0.19.2"
    script: str
    arguments: tuple[str, ...] = ()
    data: Data = field(default_factory=Data)
    checkpoints: tuple[str, ...] = ()
    files: Files = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # what must be installed or at hand, in words
    notes: tuple[str, ...] = ()  # what else the user should know, a sentence each

    @property
    def all_arguments(self) -> tuple[str, ...]:
        """The arguments with generated data."""
        return (*self.arguments, *self.data.generated)


class LaunchFiles(Value, frozen=True):
    """Files that start a program, and the command to type in their folder."""

    files: Files
    command: str
    where: str = ""  # on which machine it is typed, in words: "on every node"
    notes: tuple[str, ...] = ()
