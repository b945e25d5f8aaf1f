"""Full disks, two runs at a time, signals, and inputs made to hurt."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from astrarium.calibrate.measure.cases import TIMES
from astrarium.calibrate.measure.journal import Journal, read_journal
from astrarium.catalog import price_files
from astrarium.cli.app import app
from astrarium.cluster import load_cluster, parse_gpus
from astrarium.cluster.types import MOST_POOLS
from astrarium.documents import parsing
from astrarium.errors import InputError
from astrarium.sweep.folder import SweepFolder
from astrarium.sweep.scenarios import read_sweep

COMMAND = (sys.executable, "-m", "astrarium")
PLAN = ("plan", "gpt2-small", "--gpus", "a100:2", "--global-batch", "16", "--seq-length", "1024")
SWEEP = """
model: gpt2-small
gpus: [a100:1, a100:2]
global_batch: [16, 32, 48, 64]
seq_length: 1024
top: 1
"""


def small_files() -> None:
    """Writing more than 4 KiB to a file fails from now on, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("out", ["new", "kept"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, out: str) -> None:
    kept = tmp_path / "kept/plan.json"
    kept.parent.mkdir()
    kept.write_text("{}", encoding="utf-8")
    process = subprocess.run(
        [*COMMAND, *PLAN, "--out", tmp_path / out],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert "cannot write" in process.stderr
    assert visible(tmp_path) == ["plan.json"]
    assert kept.read_text(encoding="utf-8") == "{}"


def test_an_export_to_a_full_disk_leaves_no_part_of_it(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [*PLAN, "--out", str(tmp_path)]).exit_code == 0
    target = tmp_path / "run"
    process = subprocess.run(
        [*COMMAND, "export", tmp_path, "--to", "megatron", "--out", target],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "cannot write" in process.stderr
    assert visible(tmp_path) == ["plan.json"]


def test_a_journal_on_a_full_disk_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    program = f"""
from astrarium.calibrate.measure.journal import SCHEMA, TIMES, Journal
from pathlib import Path
with Journal(Path({str(path)!r}), {{"schema": SCHEMA, "device": {{"name": "x"}}}}) as journal:
    for index in range(200):
        journal.row({{"operator": "gemm", "m": index}}, {{name: 1.0 for name in TIMES}})
"""
    process = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "File too large" in process.stderr
    kept = read_journal(path).rows
    assert len(kept) > 20
    with Journal(path, read_journal(path).header) as journal:  # and goes on from there
        journal.row({"operator": "gemm", "m": 999}, dict.fromkeys(TIMES, 1.0))
    assert len(read_journal(path).rows) == len(kept) + 1


def test_a_sweep_on_a_full_disk_writes_no_part_of_a_file(tmp_path: Path) -> None:
    file, rows = tmp_path / "sweep.yaml", tmp_path / "rows"
    file.write_text(SWEEP.replace(", 32, 48, 64", ""), encoding="utf-8")
    command = [*COMMAND, "sweep", "run", str(file), "--out", str(rows), "--workers", "1"]
    process = subprocess.run(
        command, preexec_fn=small_files, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert "cannot write" in process.stderr
    assert visible(rows) == []
    assert subprocess.run(command, check=False).returncode == 0  # once there is room
    assert SweepFolder(rows).finished() == {one.key for one in read_sweep(file)}


def test_a_home_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.touch()  # a file: whoever writes below it fails, root too
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP.replace(", 32, 48, 64", ""), encoding="utf-8")
    for words in (
        [*PLAN, "--out", "plan"],
        ["export", "plan", "--to", "megatron", "--out", "run"],
        ["sweep", "run", "sweep.yaml", "--out", "rows", "--workers", "1"],
        ["calibrate", "--device", "cpu", "--quick", "--sections", "stream", "--seconds", "3"],
    ):
        process = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    assert Path("run/launch.sh").is_file()
    assert Path("profile.parquet").is_file()


def test_two_sweeps_into_one_folder_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP.replace(", 32, 48, 64", ""), encoding="utf-8")
    command = [*COMMAND, "sweep", "run", str(file), "--out", str(tmp_path / "rows")]
    with ThreadPoolExecutor(2) as both:
        ended = list(both.map(lambda _: subprocess.run(command, check=False).returncode, range(2)))
    assert ended == [0, 0]
    asked = {one.key for one in read_sweep(file)}
    assert SweepFolder(tmp_path / "rows").finished() == asked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_told_to_end_keeps_what_it_has(tmp_path: Path, number: int) -> None:
    file, rows = tmp_path / "sweep.yaml", tmp_path / "rows"
    file.write_text(SWEEP.replace("[16, 32, 48, 64]", str(list(range(16, 400)))), encoding="utf-8")
    process = subprocess.Popen(
        [*COMMAND, "sweep", "run", file, "--out", rows],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not visible(tmp_path / "rows") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (130, 143, -number)
    assert "Traceback" not in said
    assert all(name.startswith("part-") for name in visible(rows))
    assert SweepFolder(rows).finished()


def test_lists_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [{"gpu": "h100", "nodes": 1, "name": f"p{i}"} for i in range(MOST_POOLS + 1)]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"pools": pools}), encoding="utf-8")
    with pytest.raises(InputError, match=f"pools: expected list of length <= {MOST_POOLS}"):
        load_cluster(path)
    with pytest.raises(InputError, match=f"at most {MOST_POOLS} make a cluster"):
        parse_gpus([("h100", 8)] * (MOST_POOLS + 1))
    monkeypatch.setattr(parsing, "MOST_ROWS", 2)
    prices = tmp_path / "prices.csv"
    prices.write_text("gpu,usd_per_gpu_hour\nh100,2\nh100,3\n", encoding="utf-8")
    with pytest.raises(InputError, match="more than 2 rows; keep the rows that count"):
        price_files.read_price_file(prices)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "huge.json", "--gpus", "h100:8", "--global-batch", "8"),
        ("plan", "gpt2-small", "--cluster", "huge.yaml", "--global-batch", "8"),
        ("plan", "gpt2-small", "--gpus", "h100:8", "--global-batch", "8", "--prices", "huge.csv"),
        (
            "plan",
            "gpt2-small",
            "--gpus",
            "h100:8",
            "--global-batch",
            "8",
            "--profile",
            "huge.parquet",
        ),
        ("validate", "huge.csv"),
        ("explain", "huge.sh"),
        ("explain", "huge.json"),
        ("calibrate", "--from-journal", "huge.jsonl"),
        ("sweep", "run", "huge.yaml", "--out", "rows"),
        ("run", "huge.json"),
    ],
)
def test_ten_gigabytes_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (name,) = (word for word in words if word.startswith("huge"))
    with open(name, "wb") as file:
        file.truncate(10**10)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"{name}: larger than the limit of" in result.stderr


def test_the_smaller_limit_is_for_documents(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_bytes(b"x" * (parsing.LARGEST_FILE_BYTES + 1))
    assert parsing.read_text(path, parsing.LARGEST_TABLE_BYTES)
    with pytest.raises(InputError, match="larger than the limit of 10 MB"):
        parsing.read_text(path)
