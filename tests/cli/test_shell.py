"""The shell around the commands: version, help, start-up, pipes, interrupts, completion."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from click.testing import Result

import astrarium
from astrarium.api import completion
from astrarium.cli import output

Run = Callable[..., Result]


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as users do."""
    return subprocess.run(
        [sys.executable, "-m", "astrarium", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"astrarium {astrarium.__version__}\n"


def test_help_lists_the_commands(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("plan", "predict", "fit", "explain", "catalog"):
        assert f"\n  {command} " in result.stdout
    assert run("plan", "-h").exit_code == 0


NEVER_LOADED = {"pydantic", "yaml", "lark", "torch", "importlib.metadata"}
UNUSED = {"numpy.ma", "scipy", "astrarium.spmd"}  # what a plan does not ask for
LIST_MODULES = """
import sys
from astrarium.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ("--help", {"numpy", "rich", "msgspec"}),
        ("catalog gpus --json", {"numpy"}),
        ("catalog gpus h100", {"numpy"}),
        ("plan llama-2-7b --gpus h100:8 --global-batch 64", UNUSED),
        ("plan llama-2-7b --gpus h100:8,a100:8 --global-batch 64", UNUSED),
    ],
)
def test_start_up_loads_only_what_it_needs(arguments: str, absent: set[str]) -> None:
    command = [sys.executable, "-c", LIST_MODULES, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) & (NEVER_LOADED | absent) == set()


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m astrarium catalog models | head -n 2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("plan llama-2-7b --gpus h100:8 --global-batch 64", 0),
        ("catalog models --json", 0),
        ("fit llama-2-70b --gpus t4:1 --global-batch 64", 1),  # which does not fit
    ],
)
def test_a_closed_pipe_keeps_the_meaning_of_the_exit_code(arguments: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "astrarium", *arguments.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_disk_is_reported() -> None:
    command = f"{sys.executable} -m astrarium catalog gpus --json > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot write to standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_m_and_exit_codes() -> None:
    assert process("--version").stdout == f"astrarium {astrarium.__version__}\n"
    done = process("catalog", "gpus", "h1000")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: unknown GPU type 'h1000'")


def test_an_interrupt_is_clean(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "progress", interrupted)
    flags = ("--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64")
    result = run("plan", "llama-2-7b", *flags)
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("working"):
        pass
    assert capsys.readouterr() == ("", "")


def test_progress_appears_late_and_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(output, "PROGRESS_EVERY_SECONDS", 0.05)
    with output.progress("working hard"):
        time.sleep(0.5)
    assert re.search(r"working hard, \d+ s", stream.getvalue())
    stream.truncate(0)
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", 60)
    with output.progress("quick"):
        pass
    assert "quick" not in stream.getvalue()


def test_json_has_no_numbers_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        output.to_json({"mfu": float("nan")})


def test_characters_a_terminal_lacks_are_replaced() -> None:
    done = process("catalog", "gpus", "h100", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "H100-SXM5-80GB" in done.stdout


def test_names_complete() -> None:
    assert "llama-2-70B" in completion.complete_model("llama-2")
    assert completion.complete_gpus("h100:8,a10") == [
        f"h100:8,{name}:" for name in completion.complete_gpu("a10")
    ]
    assert "a100" in completion.complete_gpu("a10")
    assert completion.complete_gpus("h100:6") == []
    assert "P5.48xlarge" in completion.complete_instance("P5.")
    assert completion.one_of("exact", "up-to")("u") == ["up-to"]


def test_the_shell_asks_for_completions() -> None:
    done = process(
        _ASTRARIUM_COMPLETE="bash_complete",
        COMP_WORDS="astrarium plan llama-2-7b --gpus h20",
        COMP_CWORD="4",
    )
    assert "h200:" in done.stdout


def test_every_command_has_json(run: Run) -> None:
    for command in (
        ["plan"],
        ["predict"],
        ["fit"],
        ["explain"],
        *(["catalog", what] for what in ("gpus", "models", "prices", "instances")),
    ):
        assert "--json" in run(*command, "--help").stdout


def test_other_exceptions_are_bugs_and_keep_their_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(output, "progress", broken)
    flags = ("--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64")
    with pytest.raises(RuntimeError, match="a bug"):
        run("plan", "llama-2-7b", *flags)


def test_a_command_says_what_it_takes(run: Run) -> None:
    lines = [line.strip() for line in run("predict", "--help").stdout.splitlines()]
    assert lines[0] == "Usage: astrarium predict [OPTIONS] [MODEL]"
    assert "--strategy FILE|k=v,...         Strategy file, plan.json, pairs such as" in lines
    assert "torchtitan or accelerate file.  [required]" in lines
    assert "--numerics strict|reduced       Gradients and moments of Adam: 32 bits" in lines
    assert any(line.startswith("[MODEL]  Catalog name") for line in lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    done = process(_ASTRARIUM_COMPLETE=f"{shell}_source")
    assert done.returncode == 0, done.stderr
    assert f"_ASTRARIUM_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plan llama-2-7b --precision fp", ["plain,fp16", "plain,fp8", "plain,fp4"]),
        ("plan llama-2-7b --cluster clu", ["file,clu"]),
        ("cat", ["plain,catalog"]),
    ],
)
def test_words_files_and_commands_complete(words: str, expected: list[str]) -> None:
    done = process(
        _ASTRARIUM_COMPLETE="bash_complete",
        COMP_WORDS=f"astrarium {words}",
        COMP_CWORD=str(len(words.split())),
    )
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize(
    ("command", "offers"), [("plan", True), ("predict", False), ("fit", False)]
)
def test_only_plan_offers_all_side_by_side(run: Run, command: str, offers: bool) -> None:
    said = " ".join(run(command, "--help").stdout.split())
    assert ("or all side by side" in said) is offers
    assert ("full|lora|qlora|dora|all" in said) is offers or "WHAT" in said


def test_only_software_that_has_plans_is_completed() -> None:
    assert completion.complete_planned_runtime("nano") == []
    assert completion.complete_planned_runtime("al") == ["all"]
    assert completion.complete_runtime("nano") == ["nanotron"]
