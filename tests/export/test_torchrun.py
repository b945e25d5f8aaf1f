"""launch.sh, run for every node by a shell, with a torchrun that only records its arguments."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import (
    CASES,
    GOLDEN,
    LAUNCHERS,
    PROGRAM,
    Bench,
    check_ranks,
    golden,
    job,
    launch_of,
    written,
)

from astrarium.catalog import gpus
from astrarium.export.launchers.shared import LONGEST_NAME, family
from astrarium.export.program import Data, RankProgram
from astrarium.plans.document import load_document
from astrarium.plans.job import job_of


@pytest.mark.parametrize("target", LAUNCHERS)
def test_files_are_as_they_should_be(target: str) -> None:
    made = golden(target)
    kept = {
        path.relative_to(GOLDEN).as_posix(): path.read_text(encoding="utf-8")
        for path in (GOLDEN / target).rglob("*")
        if path.is_file()
    }
    assert made == kept, "run `python tests/launched.py` if the change is meant"


@pytest.mark.parametrize("target", LAUNCHERS)
def test_the_readme_has_the_command_and_what_to_set(target: str, tmp_path: Path) -> None:
    one = job("mixed")
    folder = written(target, one, tmp_path / "out")
    text = (folder / "README.md").read_text(encoding="utf-8")
    launch = launch_of(target, one)
    assert f"```\n{launch.command}\n```" in text
    assert all(note in text for note in launch.notes)
    assert "TRAINER_PATH" in launch.command or "TRAINER_PATH is `/opt/trainer` in" in text
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {*launch.files, *PROGRAM.files, "plan.json", "README.md"}
    assert all(f"`{name}`" in text for name in names)
    for name, script in launch.files.items():
        assert "Predicted: 2.00 s an iteration (1.80 s to 2.40 s)" in script, name
    assert job_of(load_document(folder)).strategy == one.strategy


@pytest.mark.parametrize("case", [case for case in CASES if case != "one-node"])
def test_ranks_lie_on_the_pools_of_their_stages(case: str, tmp_path: Path) -> None:
    bench, one = Bench(tmp_path), job(case)
    for name, text in launch_of("torchrun", one).files.items():
        (tmp_path / name).write_text(text)
    for node in range(one.num_nodes):
        numbers = {"NODE_RANK": str(node), "MASTER_ADDR": "first", "TRAINER_PATH": "/opt/trainer"}
        bench.run("bash", "launch.sh", cwd=tmp_path, **numbers)
    check_ranks(one, bench.starts(), "first")


def test_one_node_needs_no_numbers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "launch.sh").write_text(launch_of("torchrun", job("one-node")).files["launch.sh"])
    bench.run("bash", "launch.sh", "--more", cwd=tmp_path, TRAINER_PATH="/t", DATA_PATH="/my data")
    (start,) = bench.starts()
    assert start.options == {"nnodes": "1", "nproc-per-node": "8", "standalone": ""}
    assert start.words == ["/t/train.py", *PROGRAM.arguments, "--data", "/my data", "--more"]


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR", "TRAINER_PATH"])
def test_what_is_not_set_is_asked_for(missing: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "launch.sh").write_text(launch_of("torchrun", job("alike")).files["launch.sh"])
    values = {"NODE_RANK": "0", "MASTER_ADDR": "first", "TRAINER_PATH": "/opt/trainer"}
    del values[missing]
    with pytest.raises(AssertionError, match=f"{missing}: set it to"):
        bench.run("bash", "launch.sh", cwd=tmp_path, **values)
    assert not bench.log.exists()


words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)


@given(st.lists(words, max_size=5), st.lists(words, max_size=3))
def test_words_reach_the_program_as_they_are(arguments: list[str], generated: list[str]) -> None:
    program = RankProgram("T", "train.py", tuple(arguments), Data(tuple(generated)))
    text = launch_of("torchrun", job("one-node"), program).files["launch.sh"]
    shown = text.replace("exec torchrun", "printf '%s\\0'").replace('cd "$(dirname', 'true "$(echo')
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[4:-1] == [*arguments, *generated]


def test_names_are_labels_of_dns() -> None:
    names = [family(gpu.name) for gpu in gpus()]
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) for name in names)
    room = 63 - len("-1-0-9999-abcde") - LONGEST_NAME  # two blocks of a type, a job, a pod
    assert max(map(len, names)) < room
