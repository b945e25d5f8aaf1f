"""Reads every launch file of a folder and says what became of it.

    python benchmarks/launch_files.py FOLDER [--oracle] [--gpu TYPE] [--json FILE] [--list]

A file is *read* if `astrarium explain FILE --gpus TYPE` has all it needs; *counted* if the number
of GPUs has to be given beside it, because the machine decides it; *named* if the model has to be,
because files of that program never name it. Else it *asks* a question, is
*not modelled* (refused by name: BERT, adapters), is *no training* (a conversion, a test, a part of
a configuration), or is *refused* as no file of this kind. Families are the folders of FOLDER, and
the share is that of read and counted files among all that are trainings which are modelled.
`--oracle` runs shell scripts in a sandbox (`tools/shell_oracle.py`) and compares what bash passes
to programs with what was read.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter, defaultdict
from math import lcm
from pathlib import Path
from typing import Any, Final, NamedTuple

from astrarium.api.asked import AskedValues
from astrarium.api.review import reviewed
from astrarium.configs.detect import read_config
from astrarium.configs.imported import (
    Imported,
    NotModelledError,
    NotTrainingError,
    OpenQuestionError,
)
from astrarium.errors import AstrariumError
from astrarium.model.workload import Precision

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

SHELL: Final = (".sh", ".slurm", ".sbatch")
SECONDS: Final = 20
# For files of programs whose model and data are in the user's code.
WITHOUT_MODEL: Final = ("DeepSpeed", "accelerate")
MODEL, SEQ_LENGTH = "llama-3-8b", 4096
OUTCOMES: Final = (
    "read",
    "counted",
    "named",
    "asks",
    "not modelled",
    "no training",
    "refused",
    "fails",
)


REFUSALS: Final = (
    (OpenQuestionError, "asks"),
    (NotModelledError, "not modelled"),
    (NotTrainingError, "no training"),
)


class Outcome(NamedTuple):
    """What became of a file."""

    path: str
    family: str
    is_script: bool
    what: str
    says: str
    facts: dict[str, Any]


def asked(gpus: str, model: str | None = None, batch: int | None = None) -> AskedValues:
    return AskedValues(
        model=model,
        gpus=gpus,
        cluster=None,
        seq_length=SEQ_LENGTH if model else None,
        global_batch=batch,
        precision=Precision.BF16,
        profile=None,
        given=frozenset({"gpus"}),
    )


def facts_of(read: Imported) -> dict[str, Any]:
    """What a file states, as far as it was understood."""
    described = read.described
    strategy = described.strategy
    stated = {name: strategy.get(name) for name in ("tp", "pp", "cp", "ep", "zero_stage")}
    shape = described.shape
    sizes = {"layers": shape.layers, "hidden": shape.hidden} if shape else {}
    whole = {
        "program": read.title,
        "gpus": described.gpus,
        "model": described.model,
        **sizes,
        **stated,
        "micro_batch": strategy.get("micro_batch"),
        "global_batch": described.global_batch,
        "seq_length": described.seq_length,
    }
    return {key: value for key, value in whole.items() if value is not None}


def outcome(path: Path, root: Path, gpu: str) -> Outcome:
    relative = path.relative_to(root)
    family, is_script = relative.parts[0], path.suffix in SHELL

    def made(what: str, says: str, facts: dict[str, Any] | None = None) -> Outcome:
        return Outcome(
            str(relative), family, is_script, what, says.replace(str(root), ""), facts or {}
        )

    signal.alarm(SECONDS)
    try:
        return made(*_read(path, gpu))
    except TimeoutError:
        return made("fails", f"takes more than {SECONDS} seconds")
    except AstrariumError as error:
        named = next((what for kind, what in REFUSALS if isinstance(error, kind)), "refused")
        asks = named == "refused" and ("add --" in str(error) or "--set" in str(error))
        return made("asks" if asks else named, str(error))
    except Exception as error:  # a traceback is what is looked for
        return made("fails", f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)


def _read(path: Path, gpu: str) -> tuple[str, str, dict[str, Any]]:
    read = read_config(str(path), "the arguments")
    if read is None:
        return "refused", "not recognised", {}
    strategy = read.described.strategy
    if read.title in WITHOUT_MODEL:
        return _named(read, gpu)
    if read.described.gpus is not None:
        try:
            case = reviewed(asked(gpu), read)
            return "read", "; ".join(case.conflicts), facts_of(read)
        except OpenQuestionError:
            if not read.described.gpus_is_default:
                raise
    tp, pp, cp, ep = (strategy.get(name) or 1 for name in ("tp", "pp", "cp", "ep"))
    case = reviewed(asked(f"{gpu}:{max(pp * lcm(tp * cp, ep), 8)}"), read)
    return "counted", "; ".join(case.conflicts), facts_of(read)


def _named(read: Imported, gpu: str) -> tuple[str, str, dict[str, Any]]:
    """A file that never states the model: what it takes once that is named."""
    gpus = gpu if read.described.gpus else f"{gpu}:8"
    batch = None if read.batch(8) else 1024
    case = reviewed(asked(gpus, MODEL, batch), read)
    return "named", "; ".join(case.conflicts), facts_of(read)


def agreement(path: Path) -> str:
    """Whether bash passes what was read: "agrees", "differs", or "" if bash starts no program."""
    import shell_oracle

    from astrarium.configs.shell.launch import slurm_variables
    from astrarium.configs.shell.script import read_script

    text = path.read_text(encoding="utf-8", errors="replace")
    known = slurm_variables(text)
    place, commands = shell_oracle.recorded(path, environment=known)
    here, there = str(place.parent), str(path.absolute().parent)
    started = ("python", "python3", "torchrun", "deepspeed", "accelerate")
    real = [
        [word.replace(here, there) for word in words]
        for words in commands
        if words[0] in started and any(word.startswith("--") for word in words)
    ]
    if not real:
        return ""
    try:
        read = [command.words for command in read_script(text, str(path), known).commands]
    except AstrariumError:
        return "refused"
    same = all(any(shell_oracle.agrees(one, words) for one in read) for words in real[:3])
    return "agrees" if same else "differs"


def table(outcomes: list[Outcome]) -> str:
    by_family: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    for one in outcomes:
        by_family[one.family, one.is_script][one.what] += 1
    head = f"{'family':34}{'files':>6}" + "".join(f"{what:>14}" for what in OUTCOMES) + "    share"
    lines = [head]
    totals: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for (family, is_script), counts in sorted(
        by_family.items(), key=lambda one: (not one[0][1], one[0][0])
    ):
        totals[is_script] += counts
        lines.append(_row(f"{family} ({'scripts' if is_script else 'files'})", counts))
    lines += [_row(f"all {'scripts' if kind else 'files'}", totals[kind]) for kind in (True, False)]
    return "\n".join([*lines, _row("all", totals[True] + totals[False])])


def _row(name: str, counts: Counter[str]) -> str:
    done = counts["read"] + counts["counted"] + counts["named"]
    trainings = done + counts["asks"] + counts["refused"] + counts["fails"]
    share = f"{done / trainings:8.0%}" if trainings else "       -"
    numbers = "".join(f"{counts[what]:14}" for what in OUTCOMES)
    return f"{name:34}{sum(counts.values()):6}{numbers} {share}"


def _late(*_: object) -> None:
    raise TimeoutError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h100", help="the type of the GPUs that are asked about")
    parser.add_argument("--oracle", action="store_true", help="compare with what bash passes")
    parser.add_argument("--json", type=Path, help="write all outcomes here")
    parser.add_argument("--list", action="store_true", help="print the outcome of every file")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _late)
    paths = sorted(path for path in given.folder.rglob("*") if path.is_file())
    outcomes = [outcome(path, given.folder, given.gpu) for path in paths]
    print(table(outcomes))
    if given.list:
        for one in outcomes:
            print(f"{one.what}: {one.path}: {one.says}")
    if given.oracle:
        found = Counter(agreement(path) for path in paths if path.suffix in SHELL)
        print(f"bash starts a program in {sum(found.values()) - found['']} scripts: {dict(found)}")
    if given.json:
        given.json.write_text(
            json.dumps([one._asdict() for one in outcomes], indent=1), encoding="utf-8"
        )
    return int(any(one.what == "fails" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
