"""What bash really passes to programs: runs a script in a sandbox where all programs are recorders.

    python tools/shell_oracle.py SCRIPT [ARGUMENTS ...]

The script is copied with its folder to a temporary place and run there with a PATH of stand-ins:
python, torchrun, srun and the like write down their arguments and do nothing; `srun ... bash -c`
and its kind go on to the inner shell. Home is empty, there is little time and memory, and as root
the script runs as nobody and without a network. Still: this runs the script. `astrarium explain`
never does; this is what its reader is tested against.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

RECORDED: Final = (
    *("python", "python3", "torchrun", "deepspeed", "accelerate", "ray", "llamafactory-cli", "uv"),
    *(
        "nemo",
        "pdsh",
        "ds",
        "ds_ssh",
        "docker",
        "singularity",
        "apptainer",
        "enroot",
        "sbatch",
        "ssh",
    ),
)
# Launchers that start another program on each node; the shell behind them is run.
STARTING: Final = ("srun", "mpirun", "mpiexec", "numactl", "nohup", "timeout", "nsys", "sudo")
SILENT: Final = (
    *("rm", "sleep", "pip", "pip3", "conda", "module", "nvidia-smi", "scontrol", "hostname", "git"),
    *(
        "wget",
        "curl",
        "apt-get",
        "apt",
        "kill",
        "clear",
        "unzip",
        "rsync",
        "df",
        "which",
        "aws",
        "gcloud",
    ),
)
REAL: Final = (
    *("cat", "dirname", "basename", "sed", "awk", "head", "tail", "tr", "cut", "date", "mkdir"),
    *(
        "tee",
        "seq",
        "wc",
        "grep",
        "sort",
        "uniq",
        "realpath",
        "readlink",
        "env",
        "touch",
        "cp",
        "mv",
    ),
    *("expr", "bc", "printf", "bash", "sh", "pwd", "ls", "chmod", "ln", "mktemp", "true", "false"),
)
_RECORDER: Final = """#!/bin/bash
{ printf '%s\\0' "${0##*/}" "$@"; printf '\\1\\0'; } >> "$ORACLE_LOG"
"""
_STARTER: Final = (
    _RECORDER
    + """while [ $# -gt 0 ]; do
  case ${1##*/} in bash|sh|python|python3|torchrun|deepspeed|accelerate|env|*.sh) exec "$@" ;; esac
  shift
done
"""
)
# Folders and files of the author's machine are missing here; a script goes on without them.
_LENIENT: Final = """cd() { builtin cd "$@" 2>/dev/null || PWD=$1; }
pwd() { echo "$PWD"; }
mkdir() { command mkdir "$@" 2>/dev/null || true; }
"""
_SOURCED: Final = re.compile(rb"(?m)^([ \t]*)(source|\.)[ \t]+([^\s;&|]+)([^\n;&|]*)$")
SECONDS: Final = 10
_MEGABYTE: Final = 2**20
_NOBODY: Final = 65534
_LARGEST_FOLDER: Final = 2_000  # files that are copied


def recorded(
    script: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[Path, list[list[str]]]:
    """The commands that a script starts; the path is the one it had in the sandbox."""
    with tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as made:
        place = Path(made)
        place.chmod(0o777)
        folder = place / "scripts"
        _copy(script.absolute().parent, folder, script.name)
        _stand_ins(place / "bin")
        (place / "home").mkdir()
        log = place / "log"
        log.touch()
        (place / "lenient").write_text(_LENIENT, encoding="utf-8")
        for path in (place / "home", log, folder, *folder.rglob("*")):
            path.chmod(0o777)
        variables = {
            "PATH": str(place / "bin"),
            "HOME": str(place / "home"),
            "ORACLE_LOG": str(log),
            "USER": "nobody",
            "BASH_ENV": str(place / "lenient"),
            **(environment or {}),
        }
        _run(folder / script.name, arguments, variables)
        return folder / script.name, _commands(log)


def _copy(source: Path, target: Path, name: str) -> None:
    files = [path for path in source.rglob("*") if path.is_file()][:_LARGEST_FOLDER]
    for path in {*files, source / name}:
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes()
        to.write_bytes(_SOURCED.sub(rb"\1if [ -f \3 ]; then source \3\4; fi", text))


def _stand_ins(folder: Path) -> None:
    folder.mkdir()
    for names, text in ((RECORDED, _RECORDER), (STARTING, _STARTER), (SILENT, "#!/bin/bash\n")):
        for name in names:
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
    for name in REAL:
        real = shutil.which(name)
        if real is not None:
            (folder / name).symlink_to(real)


def _run(script: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 * _MEGABYTE, 16 * _MEGABYTE))
        resource.setrlimit(resource.RLIMIT_AS, (2048 * _MEGABYTE, 2048 * _MEGABYTE))

    is_root = os.geteuid() == 0
    alone = [shutil.which("unshare") or "", "-n"] if is_root and _can_unshare() else []
    bash = shutil.which("bash") or "bash"
    if alone:
        alone += [
            shutil.which("setpriv") or "",
            f"--reuid={_NOBODY}",
            f"--regid={_NOBODY}",
            "--clear-groups",
        ]
    try:
        subprocess.run(
            [*alone, bash, str(script), *arguments],
            cwd=script.parent,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
            preexec_fn=limited,
            user=_NOBODY if is_root and not alone else None,
            group=_NOBODY if is_root and not alone else None,
        )
    except subprocess.TimeoutExpired:
        return


def _can_unshare() -> bool:
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    return (
        subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0
    )


def _commands(log: Path) -> list[list[str]]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [one.split("\0")[:-1] for one in text.split("\1\0") if one]


def agrees(read: Sequence[str], real: Sequence[str]) -> bool:
    """Whether a command that was read ends in what bash passed; marks stand for anything.

    What was read has the launchers around an inner shell before it.
    """
    text = "".join(f"{word}\3" for word in real)
    begins = [
        i for i, word in enumerate(read) if word.rpartition("/")[2] == real[0] or "\0" in word
    ]
    return any(
        re.fullmatch("(?s)" + "".join(_pattern(word) for word in read[i:]), text) for i in begins
    )


def _pattern(word: str) -> str:
    parts = re.split("(\0[^\0]*\0)", word)
    inner = "".join("[^\3]*(?:\3[^\3]*)*?" if p.startswith("\0") else re.escape(p) for p in parts)
    whole = len([p for p in parts if p]) == 1 and word.startswith("\0")
    return f"(?:{inner}\3)?" if whole else f"{inner}\3"


if __name__ == "__main__":
    for words in recorded(Path(sys.argv[1]), sys.argv[2:])[1]:
        print(words)
